package cell

import (
	"borg/mutant"
	"borg/proto/borgpb"
)

// formatReservations is the format from which on copies can have reservations
// that are not their limits.
const formatReservations = 3

// byView is an amount as production counts it and as all others do (paper
// §5.5): others count what everybody reserves; production counts the limits of
// production, so that it never relies on what others do not use at the moment,
// and of all else, which can be made to give way, what it reserves.
type byView struct{ prod, others Resources }

// inBoth is an amount that is the same in both views.
func inBoth(r *Resources) byView { return byView{*r, *r} }

func (a byView) of(prod bool) Resources {
	if prod {
		return a.prod
	}
	return a.others
}

func (a byView) add(b byView) byView { return byView{a.prod.Add(b.prod), a.others.Add(b.others)} }
func (a byView) sub(b byView) byView { return byView{a.prod.Sub(b.prod), a.others.Sub(b.others)} }
func (a byView) min(b byView) byView { return byView{a.prod.Min(b.prod), a.others.Min(b.others)} }
func (a byView) equal(b byView) bool { return a.prod.Equal(b.prod) && a.others.Equal(b.others) }

// reservation is the elected master's estimate of what a copy will use. Of all
// but CPU and memory a copy reserves its limit.
type reservation struct {
	cpuMilli, memBytes int64
	// setNs is the cell time from which another elected master resumes the decay.
	setNs int64
}

// of is what a copy of that limit reserves: of all but CPU and memory its limit, and
// without an estimate all of it.
func (r *reservation) of(limit *Resources) Resources {
	res := *limit
	if r != nil {
		res.CPUMilli, res.MemBytes = r.cpuMilli, r.memBytes
	}
	return res
}

// held is what a copy counts for where it is.
func (p *Copy) held() byView {
	h := inBoth(p.res)
	if p.estimate != nil {
		h.others = p.estimate.of(p.res)
		if !isProd(p.priority) || mutant.Planted(mutant.ProdOnReclaimed) {
			h.prod = h.others
		}
	}
	return h
}

// Held is what the copy counts for in the view of production or of others.
func (p *Copy) Held(prod bool) Resources { h := p.held(); return h.of(prod) }

// Reservation is the estimate of what a copy will use, and the cell time at which
// it was set; ok is false as long as that is its limit.
func (p *Copy) Reservation() (res Resources, setNs int64, ok bool) {
	if p.estimate == nil {
		return *p.res, 0, false
	}
	return p.held().others, p.estimate.setNs, true
}

// Limits is the sum of the limits of what holds the machine's own room: copies that are in
// no alloc, allocs and volumes.
func (m *Machine) Limits() Resources {
	sum := sumLimits(m.copies, nil)
	for _, a := range m.allocs {
		sum = sum.Add(*a.res())
	}
	for _, v := range m.volumes {
		sum = sum.Add(*v.res())
	}
	return sum
}

// limits is the sum of the limits of what holds the alloc's room.
func (a *Alloc) limits() Resources { return sumLimits(a.copies, a) }

func sumLimits(copies []*Copy, in *Alloc) (sum Resources) {
	for _, p := range copies {
		if p.alloc == in {
			sum = sum.Add(*p.res)
		}
	}
	return sum
}

// reserve takes in what an elected master estimates for copies on a machine.
// What does not apply (any more) is passed over: the next estimate is never far.
func (c *Cell) reserve(m *Machine, rs []*borgpb.TaskReservation) {
	changed := false
	for _, r := range rs {
		uid, ok := parseUID(r.JobUid)
		if !ok || m == nil || r.CpuMilli < 0 || r.CpuMilli > maxCPUMilli || r.MemBytes < 0 || r.MemBytes > maxMemBytes {
			continue
		}
		p := m.find(CopyID{uid, r.Index, r.Attempt})
		// Who waits for victims has used nothing; who stops keeps what he had, so
		// that claims on his room stay what they are.
		if p == nil || !p.state.current() || p.spec == nil || p.Waits() || p.Fixed() {
			continue
		}
		next := reservation{r.CpuMilli, r.MemBytes, c.clock.cellNs}
		if p.estimate != nil && *p.estimate == next {
			continue
		}
		room := p.room()
		room.taken = room.taken.sub(p.held())
		p.estimate = &next
		room.taken = room.taken.add(p.held())
		c.dirtyCopy(p)
		changed = true
	}
	if changed {
		c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_RESERVE))
	}
}
