package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// evictable is what could be taken from the lower bands on a machine: a bound,
// so that most machines need no closer look.
type evictable struct {
	cpuMilli, memBytes, diskBytes int64
	// lowest priority on it; stopping copies count as below all.
	lowest int32
	// known: nothing has changed since it was counted.
	known bool
}

// unit is what gives way as one: a copy, or an alloc with everything in it.
type unit struct {
	id cell.CopyID
	// priority is the highest in it; below all for a copy that is stopping.
	priority int32
	// tasks that are evicted with it.
	tasks int
	// hurts has the job of each of them; only where churn is bounded.
	hurts []cell.UID
	// res is what it holds in the view of who asks, other in the other one.
	res, other cell.Resources
	ports      []uint32
	devices    []cell.DeviceGrant
}

// stoppingPriority is below all: who is stopping already costs nobody anything.
const stoppingPriority = -1

// toll is what a placement costs others; less is better.
type toll struct {
	band  int
	tasks int
	// priority is the highest that is hurt.
	priority int32
	units    int
}

func (t toll) compare(o toll) int {
	return cmp.Or(cmp.Compare(t.band, o.band), cmp.Compare(t.tasks, o.tasks),
		cmp.Compare(t.priority, o.priority), cmp.Compare(t.units, o.units))
}

func tollOf(units []unit) toll {
	t := toll{band: -1, priority: stoppingPriority, units: len(units)}
	for i := range units {
		t.tasks += units[i].tasks
		t.priority = max(t.priority, units[i].priority)
	}
	t.band = bandOf(t.priority)
	return t
}

// bandOf numbers the bands (§2.5) from below; stopping copies are below all.
func bandOf(priority int32) int {
	switch {
	case priority < 0:
		return -1
	case priority < 100:
		return 0
	case priority < prodPriority:
		return 1
	case priority < monitoringPriority:
		return 2
	}
	return 3
}

const monitoringPriority = 360

// maxVictims is how many one assignment may name.
const maxVictims = 256

// maxExact is up to how many units the fewest are found by trying all subsets.
const maxExact = 12

// mayMakeRoom is the bound: false is certain.
func (f *search) mayMakeRoom(w *want, i int32) bool {
	c, g := w.class, f.s.grid
	e := &g.evictable[i]
	if !e.known {
		*e = countEvictable(g.sites.walk[i])
	}
	if g.crowded.has(i) && !f.hasPlace(w, i) {
		return false
	}
	if e.lowest >= c.priority || c.by.Never() && e.lowest != stoppingPriority {
		return false
	}
	if f.neighbours != nil && w.limited && f.full(w, i) {
		return false
	}
	if c.priority >= monitoringPriority {
		// It may take production's place too, which is not counted.
		return true
	}
	q, r := &c.request, &g.exact[i].rows[c.view]
	return q.cpuMilli <= r.cpuMilli+e.cpuMilli && q.memBytes <= r.memBytes+e.memBytes && q.diskBytes <= r.diskBytes+e.diskBytes
}

// countEvictable leaves out whose room is promised already, or who waits for
// others.
func countEvictable(t *site) evictable {
	e := evictable{lowest: 1 << 20, known: true}
	take := func(id cell.CopyID, priority int32, res *cell.Resources) {
		if slices.Contains(t.promised.Victims, id) {
			return
		}
		e.lowest = min(e.lowest, priority)
		if priority < prodPriority {
			e.cpuMilli += res.CPUMilli
			e.memBytes += res.MemBytes
			e.diskBytes += res.DiskBytes
		}
	}
	for p := range t.machine.Copies() {
		if p.Alloc() != nil || p.Claimed() || p.Waits() {
			continue
		}
		priority := p.Priority()
		if !p.Current() && !p.Quarantined() {
			priority = stoppingPriority
		}
		// A bound in both views: a reservation may be above the limit.
		limit, reserved := p.Held(true), p.Held(false)
		limit.CPUMilli, limit.MemBytes = max(limit.CPUMilli, reserved.CPUMilli), max(limit.MemBytes, reserved.MemBytes)
		take(p.ID(), priority, &limit)
	}
	for a := range t.machine.Allocs() {
		if a.Machine() == t.machine && len(a.After()) == 0 {
			res := a.Capacity()
			take(allocID(a), a.Set().Priority(), &res)
		}
	}
	return e
}

// allocID names an alloc as a victim.
func allocID(a *cell.Alloc) cell.CopyID {
	return cell.CopyID{Job: a.Set().UID(), Index: a.Index(), Attempt: a.Attempt()}
}

// giveWay returns who of some units would make room for w, at the least toll
// that was found; nil when all of them are not enough, nobody has to, or it would
// be no better than limit.
func (f *search) giveWay(w *want, at spot, units []unit, limit *toll) []unit {
	need, free := &w.need.Resources, f.free(w, at)
	var devices *cell.DeviceRoom
	if len(need.Devices) > 0 && f.c.NumbersDevices() {
		q := f.devicesAt(at)
		devices = &q
	}
	// Lowest first, and of equals the largest, until it fits.
	slices.SortFunc(units, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.tasks, b.tasks),
			cmp.Compare(b.res.CPUMilli, a.res.CPUMilli), cmp.Compare(b.res.MemBytes, a.res.MemBytes), a.id.Compare(b.id))
	})
	n, room := 0, free
	for !makesRoom(need, room, devices, units[:n]) {
		if n == len(units) {
			return nil
		}
		room = room.Add(units[n].res)
		n++
	}
	if n == 0 {
		return nil
	}
	// All of that band may be needed; nobody of a higher one is, unless some of it
	// are spared.
	for {
		band := bandOf(units[n-1].priority)
		if limit != nil && band > limit.band {
			return nil
		}
		for n < len(units) && bandOf(units[n].priority) == band {
			n++
		}
		var victims []unit
		if n <= maxExact {
			victims = f.fewest(units[:n], need, free, devices, limit)
		} else {
			victims = prune(f.cap(units[:n]), need, free, devices)
		}
		if victims != nil || !f.sparing || n == len(units) {
			return victims
		}
		n++
	}
}

// units lists what may be asked to give way to w on a machine.
func (f *search) units(w *want, t *site) []unit {
	c := w.class
	units := f.unitSpace[:0]
	for p := range t.machine.Copies() {
		if p.Alloc() != nil {
			continue
		}
		if u, ok := f.copyUnit(c, t, p); ok {
			units = append(units, u)
		}
	}
	for a := range t.machine.Allocs() {
		if u, ok := f.allocUnit(c, t, a); ok && !slices.Contains(t.promised.Victims, u.id) {
			units = append(units, u)
		}
	}
	f.unitSpace = units
	return units
}

// unitsIn lists what may be asked to give way to w in an alloc.
func (f *search) unitsIn(w *want, at spot) []unit {
	var units []unit
	for p := range at.alloc.Copies() {
		if u, ok := f.copyUnit(w.class, at.site, p); ok {
			units = append(units, u)
		}
	}
	return units
}

// copyUnit is one copy, if it may be asked: nobody was promised its room, and
// it waits for nobody's itself.
func (f *search) copyUnit(c *class, t *site, p *cell.Copy) (u unit, ok bool) {
	if p.Claimed() || p.Waits() || slices.Contains(t.promised.Victims, p.ID()) {
		return u, false
	}
	u = unit{id: p.ID(), priority: stoppingPriority, res: p.Held(c.view == viewProd), other: p.Held(c.view != viewProd), ports: p.Ports(), devices: p.Devices()}
	if p.Current() || p.Quarantined() {
		u.priority, u.tasks = p.Priority(), 1
		if !f.c.MayTake(&c.by, p.Key().User, p.Priority()) {
			return u, false
		}
		if f.s.cfg.Churn > 0 {
			u.hurts = []cell.UID{p.JobUID()}
		}
		return u, !f.sparing || !f.spares([]unit{u})
	}
	return u, p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING && f.c.MayAwait(p, &c.by)
}

// allocUnit is an alloc with everything in it.
func (f *search) allocUnit(c *class, t *site, a *cell.Alloc) (u unit, ok bool) {
	set := a.Set()
	if a.Machine() != t.machine || len(a.After()) > 0 || !f.c.MayTake(&c.by, set.Key().User, set.Priority()) {
		return u, false
	}
	u = unit{id: allocID(a), priority: set.Priority(), tasks: 1, res: a.Capacity(), other: a.Capacity(), devices: a.Devices()}
	for p := range a.Copies() {
		stays := p.Current() || p.Quarantined()
		if p.Claimed() || p.Waits() || stays && !f.c.MayTake(&c.by, p.Key().User, p.Priority()) {
			return u, false
		}
		if stays {
			u.tasks++
			u.priority = max(u.priority, p.Priority())
			if f.s.cfg.Churn > 0 {
				u.hurts = append(u.hurts, p.JobUID())
			}
		}
	}
	return u, !f.sparing || !f.spares([]unit{u})
}

// fewest returns the set of the least toll below a limit; nil when there is
// none. It tries all sets, but for those that cannot be enough or are too dear
// already.
func (f *search) fewest(units []unit, need *cell.Resources, free cell.Resources, devices *cell.DeviceRoom, limit *toll) []unit {
	// rest[i] is what units[i:] would free.
	var rest [maxExact + 1]cell.Resources
	for i := len(units) - 1; i >= 0; i-- {
		rest[i] = rest[i+1].Add(units[i].res)
	}
	best, least := 0, limit
	var dearer toll
	var try func(i, set int, room cell.Resources, t toll)
	try = func(i, set int, room cell.Resources, t toll) {
		if least != nil && t.compare(*least) >= 0 {
			return
		}
		if need.Fits(room) && (devices == nil || makesRoom(need, room, devices, chosen(units, set))) {
			if !f.sparing || !f.spares(chosen(units, set)) {
				best, dearer = set, t
				least = &dearer
			}
			return
		}
		if i == len(units) || !need.Fits(room.Add(rest[i])) {
			return
		}
		u := &units[i]
		with := toll{tasks: t.tasks + u.tasks, priority: max(t.priority, u.priority), units: t.units + 1}
		with.band = bandOf(with.priority)
		try(i+1, set|1<<i, room.Add(u.res), with)
		try(i+1, set, room, t)
	}
	try(0, 0, free, toll{band: -1, priority: stoppingPriority})
	if best == 0 {
		return nil
	}
	return chosen(units, best)
}

// prune takes everybody and lets go who is not needed, the dearest first.
func prune(units []unit, need *cell.Resources, free cell.Resources, devices *cell.DeviceRoom) []unit {
	room := free
	for i := range units {
		room = room.Add(units[i].res)
	}
	keep := slices.Clone(units)
	// Of one priority the small go first, so that few large ones remain.
	for i := len(keep) - 1; i >= 0; i-- {
		less := room.Sub(keep[i].res)
		if need.Fits(less) && (devices == nil || makesRoom(need, less, devices, slices.Concat(keep[:i], keep[i+1:]))) {
			room = less
			keep = slices.Delete(keep, i, i+1)
		}
	}
	if len(keep) > maxVictims {
		return nil
	}
	return keep
}
