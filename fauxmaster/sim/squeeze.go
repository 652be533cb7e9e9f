package sim

import (
	"cmp"
	"hash/fnv"
	"slices"

	"borg/borglet"
	"borg/fauxmaster/pretend"
	"borg/proto/borgrpc"
)

// S45: when a machine is short of memory, who is above his limit ends first, and then who
// is not production, of each the lowest priority first, until what the others use and
// reserve fits, and no more. Production within its limit never ends, and nobody while what
// is used fits.

const (
	// For so long at a time tasks use much on some machines, and little on the others.
	surgeNs = 3 * second
	// So much of its limit then, and one of eight more than that.
	surgePermille, excessPermille = 900, 1200
	// Memory of a machine under the aim squeezed.
	squeezedMemBytes = 1 << 30
	// What others on a machine leave free of it, where they leave too little, is less than
	// so much.
	scarceBytes = 8 << 20
)

// surge draws for who surges in this while, from nothing but his name.
func (w *World) surge(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	h.Write(idBytes(w.cfg.Seed))
	h.Write(idBytes(uint64(w.now / surgeNs)))
	return h.Sum32()
}

func idBytes(n uint64) []byte {
	return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), byte(n >> 32), byte(n >> 40), byte(n >> 48), byte(n >> 56)}
}

// memory is that of a machine on which others take memory and give it back, and tasks use
// more now and less then.
func (m *machine) memory() *pretend.Memory {
	if !m.w.swarm.squeeze {
		return nil
	}
	return &pretend.Memory{
		CapacityBytes: m.spec().Capacity.MemBytes,
		FreeBytes: func() int64 {
			if x := m.w.surge(m.name + " free"); x%3 == 0 && !m.w.healed {
				return int64(x>>2) % scarceBytes
			}
			return m.spec().Capacity.MemBytes
		},
		UsesBytes: func(id borglet.ID, d *borgrpc.Desired, ageNs int64) int64 { return m.memUsed(id, d, ageNs) },
		Squeezed:  func(s pretend.Squeeze) { m.w.truth.squeezed(m, s) },
	}
}

// memUsed is what a copy has of memory at the moment.
func (m *machine) memUsed(id borglet.ID, d *borgrpc.Desired, ageNs int64) int64 {
	limit := d.GetSpec().GetResources().GetMemBytes()
	if w := m.w; w.swarm.squeeze && !w.healed && w.surge(m.name)%3 == 0 {
		if w.surge(id.String())%8 == 0 {
			return limit * excessPermille / 1000
		}
		return limit * surgePermille / 1000
	}
	return usage(id, d, ageNs).MemBytesPeak
}

// rank is when a share gives way, against others: whoever has the least goes first.
func rank(s pretend.Share) (above int, priority int32, lessUsed int64) {
	above = 1
	if limit := s.Desired.GetSpec().GetResources().GetMemBytes(); limit > 0 && s.UsedBytes > limit {
		above = 0
	}
	return above, s.Desired.GetPriority(), -s.UsedBytes
}

func givesWayBefore(a, b pretend.Share) int {
	above, priority, used := rank(a)
	otherAbove, otherPriority, otherUsed := rank(b)
	return cmp.Or(cmp.Compare(above, otherAbove), cmp.Compare(priority, otherPriority), cmp.Compare(used, otherUsed))
}

// squeezed judges who was ended on a machine that was short of memory.
func (t *truth) squeezed(m *machine, s pretend.Squeeze) {
	used, held := int64(0), int64(0)
	var ended, may []pretend.Share
	for _, x := range s.Shares {
		ends := slices.Contains(s.Ends, x.ID)
		above, priority, _ := rank(x)
		switch {
		case ends && above == 1 && priority >= prodPriority:
			t.w.fail("S45: copy %s of priority %d is ended on %s for want of memory, and is within its limit", x.ID, priority, m.name)
		case ends:
			ended = append(ended, x)
			t.squeezedOut[x.ID] = true
		default:
			used, held = used+x.UsedBytes, held+max(x.UsedBytes, x.ReservedBytes)
			if above == 0 || priority < prodPriority {
				may = append(may, x)
			}
		}
	}
	t.w.say("machine %s is short of memory, with room for %d of %d bytes: %d of %d copies end, the others use %d and hold %d",
		m.name, s.Was.RoomBytes, s.Was.CapacityBytes, len(s.Ends), len(s.Shares), used, held)
	fits := func(more ...pretend.Share) bool {
		used, held := used, held
		for _, x := range more {
			used, held = used+x.UsedBytes, held+max(x.UsedBytes, x.ReservedBytes)
		}
		return used <= s.Was.RoomBytes && held <= s.Was.CapacityBytes
	}
	if len(may) > 0 && len(ended) > 0 {
		first, last := slices.MinFunc(may, givesWayBefore), slices.MaxFunc(ended, givesWayBefore)
		if givesWayBefore(first, last) < 0 {
			t.w.fail("S45: copy %s of priority %d is ended on %s for want of memory, and %s of priority %d goes on, which gives way before it",
				last.ID, last.Desired.GetPriority(), m.name, first.ID, first.Desired.GetPriority())
		}
	}
	if len(ended) == 0 {
		if len(may) > 0 && used > s.Was.RoomBytes {
			t.w.fail("S45: nobody is ended on %s, where %d bytes are used and there is room for %d", m.name, used, s.Was.RoomBytes)
		}
		return
	}
	t.w.mark("ended for want of memory")
	if len(may) > 0 && !fits() {
		t.w.fail("S45: after those that were ended on %s %d bytes are used and %d held, there is room for %d of %d, and %d others could end", m.name, used, held, s.Was.RoomBytes, s.Was.CapacityBytes, len(may))
	}
	// Whoever was ended last was needed: by what is used, if it was he alone.
	if last := slices.MaxFunc(ended, givesWayBefore); fits(last) || len(ended) == 1 && used+last.UsedBytes <= s.Was.RoomBytes {
		t.w.fail("S45: copy %s is ended on %s for want of memory, and what is used and reserved would fit with it", last.ID, m.name)
	}
}
