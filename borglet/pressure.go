package borglet

import (
	"cmp"
	"context"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

const (
	// From this priority on work is production: as long as it is within its limit
	// it never gives way to anybody.
	productionPriority = 120
	// Of a machine's memory so much must be left to be had, so that we act before
	// the kernel does, which knows no reservations: a fiftieth, and at most this.
	spareBytes     = 256 << 20
	sparePart      = 50
	squeezedText   = "ended: its machine was out of memory, and it was the first to give way"
	aboveLimitText = "ended: its machine was out of memory, and it used more than its limit"
)

// Squeezed: the machine is short of memory.
type Squeezed struct {
	// What its copies may reserve together, and what they may use together at the
	// moment, which is less when others on the machine have taken it.
	CapacityBytes, RoomBytes int64
	// What each copy that was measured uses.
	UsedBytes map[ID]int64
}

func (Squeezed) event() {}

// share is what a copy has of the machine's memory.
type share struct {
	id       ID
	priority int32
	// limitBytes is zero for a copy without a limit, which is never above it.
	usedBytes, reservedBytes, limitBytes int64
}

// holdsBytes is what it counts for: what it reserves, or uses when that is more.
func (s *share) holdsBytes() int64 { return max(s.usedBytes, s.reservedBytes) }

func (s *share) aboveLimit() bool { return s.limitBytes > 0 && s.usedBytes > s.limitBytes }

// giveWay chooses who ends so that what the others use fits into the room, and what
// they reserve into the capacity (paper §6.2): first who is above his own limit,
// whatever his priority, then who is not production; of each the lowest priority
// first, and of equals who uses most. Nobody ends while what is used fits.
// Production within its limits never ends, so that the rest may not fit after all.
func giveWay(capacityBytes, roomBytes int64, shares []share) (ends []share) {
	used, held := int64(0), int64(0)
	for i := range shares {
		used += shares[i].usedBytes
		held += shares[i].holdsBytes()
	}
	if used <= roomBytes {
		return nil
	}
	spared, lowestFirst := int32(productionPriority), 1
	if mutant.Planted(mutant.SqueezeTakesProduction) {
		spared = math.MaxInt32
	}
	if mutant.Planted(mutant.SqueezeHighestFirst) {
		lowestFirst = -1
	}
	order := slices.DeleteFunc(slices.Clone(shares), func(s share) bool { return !s.aboveLimit() && s.priority >= spared })
	slices.SortFunc(order, func(a, b share) int {
		if a.aboveLimit() != b.aboveLimit() {
			if a.aboveLimit() {
				return -1
			}
			return 1
		}
		return cmp.Or(lowestFirst*cmp.Compare(a.priority, b.priority), cmp.Compare(b.usedBytes, a.usedBytes), compareIDs(a.id, b.id))
	})
	for _, s := range order {
		if used <= roomBytes && (held <= capacityBytes || mutant.Planted(mutant.SqueezeByUseAlone)) {
			break
		}
		used -= s.usedBytes
		held -= s.holdsBytes()
		ends = append(ends, s)
	}
	return ends
}

// squeeze ends who must give way. Who is about to end anyway soon uses nothing.
func (c *Core) squeeze(ev Squeezed) {
	var shares []share
	for _, id := range c.ids {
		t := c.copies[id]
		used, measured := ev.UsedBytes[id]
		if t.phase != running || !measured || t.Stop != nil || t.squeezed != "" {
			continue
		}
		limit := t.Desired.GetSpec().GetResources().GetMemBytes()
		shares = append(shares, share{id: id, priority: t.Desired.GetPriority(), usedBytes: used, limitBytes: limit, reservedBytes: cmp.Or(t.reservedMemBytes, limit)})
	}
	for _, s := range giveWay(ev.CapacityBytes, ev.RoomBytes, shares) {
		t := c.copies[s.id]
		t.squeezed = squeezedText
		if s.aboveLimit() {
			t.squeezed = aboveLimitText
		}
		c.emit(Kill{t.ID, t.Run})
		t.dueNs = c.now.MonoNs + retryNs
	}
}

// killed: a run may have ended by SIGKILL. A shell whose child was killed a moment
// before itself ends with the code that says so.
func killed(exit *borgpb.Exit) bool {
	return exit.GetSignal() == 9 || exit.GetCode() == 128+9 || exit.GetUnknown()
}

// squeezedExit is how the end of a run is told that was made to give way: as one for
// want of memory, unless it had just ended by itself.
func squeezedExit(exit *borgpb.Exit) *borgpb.Exit {
	if !killed(exit) {
		return exit
	}
	exit = proto.CloneOf(exit)
	exit.Oom = true
	return exit
}

// Pressed tells whether a machine of that capacity is short of memory, by what its copies
// use and, where that is known, what the kernel says can be had.
func Pressed(capacityBytes, freeBytes int64, known bool, usedBytes map[ID]int64) (ev Squeezed, is bool) {
	if capacityBytes <= 0 {
		return ev, false
	}
	used := int64(0)
	for _, n := range usedBytes {
		used += n
	}
	ev = Squeezed{CapacityBytes: capacityBytes, RoomBytes: capacityBytes, UsedBytes: usedBytes}
	if known {
		// What others on the machine have taken is not to be had.
		ev.RoomBytes = min(ev.RoomBytes, used+freeBytes-min(spareBytes, capacityBytes/sparePart))
	}
	return ev, used > ev.RoomBytes
}

// pressed is Pressed by what was just measured.
func (a *Agent) pressed(stats map[ID]Stats) (ev Squeezed, is bool) {
	used := make(map[ID]int64, len(stats))
	for id, s := range stats {
		used[id] = s.MemBytes
	}
	free, known := int64(0), false
	if a.cfg.AvailableMemBytes != nil {
		free, known = a.cfg.AvailableMemBytes()
	}
	return Pressed(a.cfg.Spec.GetCapacity().GetMemBytes(), free, known, used)
}

// relieve tells the core when the machine is short of memory.
func (a *Agent) relieve(ctx context.Context, stats map[ID]Stats) {
	ev, is := a.pressed(stats)
	if !is {
		return
	}
	select {
	case a.results <- ev:
	case <-ctx.Done():
	}
}

// AvailableMemBytes is how much memory the kernel says can be had on this machine.
func AvailableMemBytes() (int64, bool) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
