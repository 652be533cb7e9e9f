package scheduler

import (
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// headroom is an upper bound, for each machine, on what a class can get there: the free
// resources plus those of all tasks that the class may preempt. A class that needs more of
// any resource does not fit on that machine, whichever victims are chosen.
//
// A walk recomputes the row of a machine that has changed or on which something was
// promised (grid.outdated). A promise only takes, so rows do not grow within a pass.
type headroom struct {
	headroomKey
	// Indexed by slot; devices by number of grid.devices, then by slot.
	rows    []row
	devices [][]int64
	// The slots in the order of their CPU and memory.
	cpu, mem *steps
}

// headroomKey identifies a headroom; classes with the same key share it.
type headroomKey struct {
	view view
	// Tasks with a priority below this one give way. Tasks that are stopping always do.
	below int32
}

// maxHeadrooms bounds the headrooms that are kept for one cell. Beyond it all further
// classes of a view share one that is at least as large as theirs.
const maxHeadrooms = 24

// anyPriority is above all priorities.
const anyPriority = 1 << 20

func headroomKeyOf(c *cell.Cell, by *cell.Preemptor) headroomKey {
	return headroomKey{viewOf(by.Priority >= prodPriority), c.TakesBelow(by)}
}

// headroomOf returns the headroom of a class.
func (s *Scheduler) headroomOf(c *cell.Cell, cl *class) *headroom {
	key := headroomKeyOf(c, &cl.by)
	if h := s.grid.headroom(key); h != nil {
		return h
	}
	// All that waits is asked about sooner or later: so every machine is counted once for
	// all of it.
	for _, l := range s.queue.list {
		by := l.preemptor()
		s.grid.addHeadroom(headroomKeyOf(c, &by))
	}
	return s.grid.addHeadroom(key)
}

// headroom returns nil when there is none for the key.
func (g *grid) headroom(key headroomKey) *headroom {
	for _, h := range g.headrooms {
		if h.headroomKey == key {
			return h
		}
	}
	return nil
}

// addHeadroom returns the headroom for a key, or a larger one when there are too many.
func (g *grid) addHeadroom(key headroomKey) *headroom {
	if h := g.headroom(key); h != nil {
		return h
	}
	if len(g.headrooms) >= maxHeadrooms {
		if key.below = anyPriority; key.view == viewOthers {
			key.below = prodPriority
		}
		if h := g.headroom(key); h != nil {
			return h
		}
	}
	n := len(g.sites.walk)
	h := &headroom{headroomKey: key, rows: make([]row, n), cpu: newSteps(n, cpuShift), mem: newSteps(n, memShift)}
	g.headrooms = append(g.headrooms, h)
	g.all(g.outdated)
	return h
}

// recount marks a machine whose possible victims changed.
func (g *grid) recount(i int32) {
	g.evictable[i].known = false
	g.outdated.set(i, true)
}

// refreshHeadroom computes all headrooms of one machine anew.
func (g *grid) refreshHeadroom(i int32) {
	if !g.outdated.has(i) {
		return
	}
	g.outdated.set(i, false)
	t := g.sites.walk[i]
	for _, h := range g.headrooms {
		h.rows[i] = g.exact[i].rows[h.view]
		for d := range g.devices {
			if d == len(h.devices) {
				h.devices = append(h.devices, make([]int64, len(h.rows)))
			}
			h.devices[d][i] = g.deviceFree[h.view][d][i]
		}
	}
	for p := range t.machine.Copies() {
		if p.Alloc() != nil {
			continue
		}
		if priority, ok := yields(t, p); ok {
			limits, reserved := p.Held(true), p.Held(false)
			g.addYield(i, priority, &limits, &reserved)
		}
	}
	for a := range t.machine.Allocs() {
		if priority, ok := allocYields(t, a); ok {
			capacity := a.Capacity()
			g.addYield(i, priority, &capacity, &capacity)
		}
	}
	for _, h := range g.headrooms {
		h.cpu.put(i, h.rows[i].cpuMilli)
		h.mem.put(i, h.rows[i].memBytes)
	}
}

// yields reports whether a class may count on the place of a copy, and the priority that it must
// be above: the copy's own, or stoppingPriority for one that stops, which any class may count on.
func yields(t *site, p *cell.Copy) (priority int32, ok bool) {
	switch {
	case p.Claimed() || p.Waits() || len(t.promised.Victims) > 0 && slices.Contains(t.promised.Victims, p.ID()):
		return 0, false
	case p.Current() || p.Quarantined():
		return p.Priority(), true
	}
	return stoppingPriority, p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING
}

// allocYields is yields for an alloc together with all copies in it.
func allocYields(t *site, a *cell.Alloc) (priority int32, ok bool) {
	if a.Machine() != t.machine || len(a.After()) > 0 || slices.Contains(t.promised.Victims, allocID(a)) {
		return 0, false
	}
	priority = a.Set().Priority()
	for p := range a.Copies() {
		if p.Claimed() || p.Waits() {
			return 0, false
		}
		if p.Current() || p.Quarantined() {
			priority = max(priority, p.Priority())
		}
	}
	return priority, true
}

// addYield adds what somebody of a priority holds on a machine to the headrooms of those to whom
// he gives way.
func (g *grid) addYield(i, priority int32, limits, reserved *cell.Resources) {
	for _, h := range g.headrooms {
		if priority >= h.below && priority != stoppingPriority {
			continue
		}
		res := reserved
		if h.view == viewProd {
			res = limits
		}
		h.rows[i].add(res)
		for _, of := range res.Devices {
			if d := slices.Index(g.devices, of.Name); d >= 0 {
				h.devices[d][i] += of.Milli
			}
		}
	}
}

func (r *row) add(res *cell.Resources) {
	r.cpuMilli += res.CPUMilli
	r.memBytes += res.MemBytes
	r.diskBytes += res.DiskBytes
	r.diskBytesPerS += res.DiskBytesPerS
	r.ports += res.Ports
}

// mayHold is the bound: false is certain.
func (h *headroom) mayHold(c *class, i int32) bool {
	if !c.fitsRow(&h.rows[i]) {
		return false
	}
	for k := range c.devices {
		if d := &c.devices[k]; d.column >= len(h.devices) || h.devices[d.column][i] < d.milli {
			return false
		}
	}
	return true
}

// roomy goes through the slots, from start on, that suit a class and may have as much
// headroom as it needs.
func (g *grid) roomy(h *headroom, c *class, start int32) ring {
	fits := c.static.fits
	return newUnsureRing([4]bitset{fits, g.usable, h.cpu.of(c.cpu, fits), h.mem.of(c.mem, fits)}, g.outdated, start)
}
