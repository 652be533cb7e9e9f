package scheduler

import (
	"slices"

	"borg/borgmaster/cell"
)

// search looks for places in one pass.
type search struct {
	s *Scheduler
	c *cell.Cell
	// checks counts the places that were looked at; hits and misses are those
	// of the score cache.
	checks       int
	hits, misses int

	// Of the task that is looked for: its neighbours, when they matter, and how
	// many of its job each domain of a kind may hold before spreading has a
	// price.
	neighbours *counts
	fair       [cell.NumDomainKinds]int64
	// The best slot so far and its points, the best of the others, and how many
	// were feasible.
	best, second             int32
	bestPoints, secondPoints int64
	found                    int
	// lookedBefore is checks when the search for this task began; runnerUp is the
	// second best place.
	lookedBefore int
	runnerUp     spot

	// unitSpace is scratch of preemption. Of the last one: how many places were
	// looked at closely, and the best before the best of them.
	unitSpace []unit
	closely   int
	otherwise *site
	dearer    toll
	// sparing: nobody gives way whose job did so often of late. spared: somebody would
	// have.
	sparing, spared bool
	// placement, inDomain and inAlloc are scratch of the cell's own test.
	placement cell.Placement
	inAlloc   cell.Overlay
}

// spot is a place: a site, and an alloc on it when the task runs in one.
type spot struct {
	site  *site
	alloc *cell.Alloc
}

// find returns the best place for index of w, without anybody giving way; ok is
// false when there is none.
func (f *search) find(w *want, index uint32) (best spot, ok bool) {
	if w.seated {
		return f.findSeat(w, index)
	}
	s, cl := f.s, w.class
	if cl.blocked && cl.seen == s.changes.now() {
		return spot{}, false
	}
	cl.finds++
	s.stats.Searches++
	s.classes.attune(w, s.grid, &s.changes)
	f.surround(w)
	start := f.start(w, index)
	f.lookedBefore, f.runnerUp, f.found = f.checks, spot{}, 0
	if w.inSet {
		best, ok = f.findAlloc(w, index, start)
	} else if i := f.findSlot(w, start); i >= 0 {
		best, ok = spot{site: s.sites.walk[i]}, true
		if f.second >= 0 {
			f.runnerUp.site = s.sites.walk[f.second]
		}
	}
	s.stats.Feasible += f.found
	if ok && cl.blocked {
		// Others of the class must look where this one looked.
		cl.blocked = cl.seen >= s.changes.base && !cl.whole
	}
	return best, ok
}

// findSeat is find for a task that may run on one machine only.
func (f *search) findSeat(w *want, index uint32) (at spot, ok bool) {
	f.s.stats.Searches++
	f.neighbours = nil
	if w.limited {
		f.surround(w)
	}
	f.lookedBefore, f.runnerUp, f.found = f.checks, spot{}, 0
	if at, ok = f.seat(w, index); !ok {
		return spot{}, false
	}
	f.s.classes.attune(w, f.s.grid, &f.s.changes)
	f.checks++
	f.prepare(w, index)
	if f.fit(w, at) != cell.FitOK {
		return spot{}, false
	}
	f.found = 1
	f.s.stats.Feasible++
	return at, true
}

// seat is the only machine where a task may run.
func (f *search) seat(w *want, index uint32) (at spot, ok bool) {
	m := w.volumes.At
	if !w.volumes.Bound {
		m = w.line.job.Seat(index)
	}
	if m == nil {
		return spot{}, false
	}
	at.site = f.s.sites.byName[m.Name()]
	return at, at.site != nil && at.site.slot >= 0
}

// preemptSeat is preempt for a task that may run on one machine only.
func (f *search) preemptSeat(w *want, index uint32) (at spot, victims []unit, ok bool) {
	f.otherwise, f.closely = nil, 1
	if at, ok = f.seat(w, index); !ok || f.s.dry || !f.s.grid.usable.has(at.site.slot) || !w.class.static.fits.has(at.site.slot) || !f.mayMakeRoom(w, at.site.slot) {
		return spot{}, nil, false
	}
	victims = f.giveWay(w, at, f.units(w, at.site), nil)
	return at, victims, victims != nil
}

// block notes that nothing of the class has a place, as things are.
func (f *search) block(cl *class) {
	if cl.seated {
		// What found no place has one machine only, and others of the class have others.
		return
	}
	cl.blocked, cl.seen = true, f.s.changes.now()
	f.s.noteOwnHeld(f.c, &cl.by)
	if s := f.s; s.overlay.promises > 0 && !cl.by.Never() {
		s.coveted, s.covetedUpTo = max(s.coveted, cl.priority), s.overlay.made
	}
}

// surround sets up the neighbours of the task that is looked for.
func (f *search) surround(w *want) {
	f.neighbours = nil
	n := w.line.tasks
	if n < 2 && !w.limited {
		return
	}
	g := f.s.grid
	f.neighbours = f.s.tally.load(g, f.s.crowdOf(w.line))
	f.fair = [cell.NumDomainKinds]int64{
		cell.DomainMachine: fairShare(n, int64(len(g.sites.walk))),
		cell.DomainRack:    fairShare(n, int64(g.racks.inUse)),
		cell.DomainPower:   fairShare(n, int64(g.powers.inUse)),
	}
}

// fairShare is how many of n fall to each of some domains, rounded up.
func fairShare(n, domains int64) int64 {
	if domains <= 1 {
		return n
	}
	return (n + domains - 1) / domains
}

// start is where the walk for a task begins, before it is taken modulo the
// places: the same everywhere for the same seed, name of a job, spec version and index. It
// goes by the name, as a uid has the log index in it: a plan would begin elsewhere.
func (f *search) start(w *want, index uint32) uint64 {
	l := w.line
	h := f.s.cfg.Seed
	for _, v := range [...]uint64{hashString(l.key.User), hashString(l.key.Name), l.version, uint64(index)} {
		h = mix(h ^ v)
	}
	return h
}

// first is the slot at which the walk for a task begins. Schedulers that share the
// work begin each in a stripe of its own of the one order of machines, so that
// they rarely choose the same one; the stripes move on as the log grows, so that
// no machine is for one workload alone.
func (f *search) first(start uint64) int32 {
	n := uint64(len(f.s.sites.walk))
	if f.s.cfg.Workload == (Workload{}) {
		return int32(start % n)
	}
	low, width := f.s.cfg.Workload.stripe(n)
	return int32((low + start%width + mix(f.c.Index()>>stripeBits)%n) % n)
}

// stripeBits is after how many entries stripes move, as a power of two.
const stripeBits = 12

// findSlot walks the machines from a start until enough are feasible (relaxed
// randomization, §3.4) and returns the best of them; -1 when there is none. A
// class that found nothing before looks only where something changed.
func (f *search) findSlot(w *want, start uint64) int32 {
	g, c := f.s.grid, w.class
	f.best, f.second, f.found = -1, -1, 0
	n := len(g.sites.walk)
	if n == 0 {
		return -1
	}
	first := f.first(start)
	if f.s.cfg.NoClasses {
		f.walkAll(w, first)
		return f.best
	}
	among := c.static.fits
	if c.candidates != nil {
		among = c.candidates
	} else if c.blocked && !c.whole {
		if changed, ok := f.s.changes.since(c.seen); ok {
			for i := range from(changed, first) {
				if among.has(i) && g.usable.has(i) && f.consider(w, i) {
					break
				}
			}
			return f.best
		}
	}
	f.keepScores(c)
	sets := [4]bitset{among, g.usable, g.cpuSteps[c.view].of(c.cpu, among), g.memSteps[c.view].of(c.mem, among)}
	if parts := partsOf(f.s.cfg.Threads, n); parts > 1 && f.s.cfg.Enough >= n {
		fresh := c.candidates == nil && c.keepCandidates(&f.s.changes)
		if fresh {
			sets[0] = c.candidates
		}
		f.walkShared(w, parts, first, sets)
		if fresh && slices.Equal(c.candidates, c.static.fits) {
			// None was ruled out: one thread would not have made them.
			c.candidates = nil
		}
		return f.best
	}
	r := newRing(sets, first)
	if f.s.cfg.Policy == Hybrid && c.scores == nil && !w.limited {
		f.walk(w, &r)
		return f.best
	}
	for i := r.next(); i >= 0; i = r.next() {
		if f.consider(w, i) {
			break
		}
	}
	return f.best
}

// walk does what consider does, slot by slot until enough are feasible, for the
// most common walks: by the hybrid policy, without cached scores, for a job that
// limits its tasks nowhere. A pass spends most of its time in here, so what is read
// again and again lies in locals, and little is called.
func (f *search) walk(w *want, r *ring) {
	c, g, n, enough := w.class, f.s.grid, f.neighbours, f.s.cfg.Enough
	slots, sizes, mix, of, fair := g.rough, c.shares, g.weights.Mix, &f.s.cfg.Weights, &f.fair
	best, second, found, checks := int32(-1), int32(-1), 0, 0
	var bestPoints, secondPoints int64
	for i := r.next(); i >= 0; i = r.next() {
		checks++
		if g.crowded.has(i) && !f.hasPlace(w, i) {
			continue
		}
		o := &slots[i]
		l := o.levels[c.view]
		const grain = fullPoints / levelUnits
		freeCPU, freeMem := int64(l.cpu)*grain, int64(l.mem)*grain
		var cpu, mem int64
		if int(o.shape) < len(sizes) {
			cpu, mem = int64(sizes[o.shape].cpu), int64(sizes[o.shape].mem)
		} else {
			cpu, mem = g.sharesAt(c, i)
		}
		if (!c.slim || c.cpu != 0 && freeCPU < cpu+2 || c.mem != 0 && freeMem < mem+2) && !c.fits(g, i) {
			c.rule(i, &f.s.changes)
			continue
		}
		points := hybridPoints(freeCPU, freeMem, cpu, mem) - int64(o.price)
		if mix != 0 {
			points += g.mixPoints(c.view, o)
		}
		if len(c.likings) > 0 || len(g.devices) > 0 || c.static.shunned != nil {
			points += g.otherPoints(c, i, freeCPU, freeMem, cpu, mem)
		}
		points = min(max(points, lowestScore), highestScore)
		if n != nil {
			p, d := int64(0), g.domainsAt(i)
			if n.some.has(i) {
				p = of.Machine * max(0, n.on(i)+1-fair[cell.DomainMachine])
			}
			if d.rack != 0 {
				p += of.Rack * max(0, int64(n.rack[d.rack])+1-fair[cell.DomainRack])
			}
			if d.power != 0 {
				p += of.Power * max(0, int64(n.power[d.power])+1-fair[cell.DomainPower])
			}
			if w.batch {
				p >>= batchShift
			}
			points -= p
		}
		switch {
		case best < 0 || points > bestPoints:
			second, secondPoints = best, bestPoints
			best, bestPoints = i, points
		case second < 0 || points > secondPoints:
			second, secondPoints = i, points
		}
		if found++; found >= enough {
			break
		}
	}
	f.checks += checks
	f.found, f.best, f.second, f.bestPoints, f.secondPoints = found, best, second, bestPoints, secondPoints
}

// consider looks at one slot and reports whether enough were feasible.
func (f *search) consider(w *want, i int32) (enough bool) {
	c, g := w.class, f.s.grid
	f.checks++
	if g.crowded.has(i) && !f.hasPlace(w, i) {
		return false
	}
	var points int64
	var sure bool
	if c.scores != nil {
		points, sure = f.cachedPoints(c, i)
	} else {
		points, sure = g.pointsAt(c, i, f.s.cfg.Policy)
	}
	if !sure && !c.fits(g, i) {
		c.rule(i, &f.s.changes)
		return false
	}
	if f.neighbours != nil {
		if w.limited && f.full(w, i) {
			return false
		}
		points += f.spread(w, f.neighbours, i)
	}
	switch {
	case f.best < 0 || points > f.bestPoints:
		f.second, f.secondPoints = f.best, f.bestPoints
		f.best, f.bestPoints = i, points
	case f.second < 0 || points > f.secondPoints:
		f.second, f.secondPoints = i, points
	}
	f.found++
	return f.found >= f.s.cfg.Enough
}

// hasPlace reports whether the machine of a slot has places for one of w and its volumes, beside
// what is promised there.
func (f *search) hasPlace(w *want, i int32) bool {
	t := f.s.grid.sites.walk[i]
	return f.s.dry || f.c.HasPlaces(t.machine, w.line.priority, w.places(), t.places)
}

// full tells whether a failure domain of the slot holds as many of the job as
// the spec allows.
func (f *search) full(w *want, i int32) bool {
	for kind, most := range w.limits.Most {
		if most > 0 && f.inDomain(i, cell.DomainKind(kind)) >= int64(most) {
			return true
		}
	}
	return false
}

// inDomain counts the tasks of the job around a slot, promised ones too. A
// machine that names no rack is a rack of its own.
func (f *search) inDomain(i int32, kind cell.DomainKind) int64 {
	n, d := f.neighbours, f.s.grid.domains[i]
	switch {
	case kind == cell.DomainRack && d.rack != 0:
		return int64(n.rack[d.rack])
	case kind == cell.DomainPower && d.power != 0:
		return int64(n.power[d.power])
	case kind >= cell.DomainAttribute:
		return f.inAttribute(i, kind)
	}
	return n.on(i)
}

// walkAll is the walk without classes: constraints and taints are looked at
// for each task on each machine.
func (f *search) walkAll(w *want, first int32) {
	g := f.s.grid
	for k := range g.sites.walk {
		i := first + int32(k)
		if i >= int32(len(g.sites.walk)) {
			i -= int32(len(g.sites.walk))
		}
		if g.usable.has(i) && g.meets(w.class.static, g.sites.walk[i]) && f.consider(w, i) {
			return
		}
	}
}

// The cell's own test, with what is promised laid over it: for Explain, and for
// what the arrays do not hold.

// prepare sets up the question for index of w.
func (f *search) prepare(w *want, index uint32) {
	f.placement = cell.Placement{Job: w.line.job, Set: w.line.set, Index: index, AnyPorts: true}
}

func (f *search) fit(w *want, at spot) cell.Fit {
	f.placement.Machine, f.placement.Alloc = at.site.machine, at.alloc
	return f.c.Fit(&f.placement, f.overlayAt(w, at))
}

// overlayAt is what is promised at a place, as w's job has to see it; nil when
// that is nothing.
func (f *search) overlayAt(w *want, at spot) *cell.Overlay {
	o := at.site.overlay()
	if at.alloc != nil {
		f.inAlloc = cell.Overlay{Ports: at.site.promised.Ports, Victims: at.site.promised.Victims}
		if r := f.s.overlay.allocs[at.alloc]; r != nil {
			f.inAlloc.Limits, f.inAlloc.Reserved, f.inAlloc.Devices = r.limits, r.reserved, r.devices
		}
		o = &f.inAlloc
	}
	if !w.limited {
		return o
	}
	if o == nil {
		// No promise on this machine; its rack may hold some all the same.
		o = &at.site.promised
	}
	for kind := range o.InDomain {
		o.InDomain[kind] = uint32(f.inDomain(at.site.slot, cell.DomainKind(kind))) - f.placedInDomain(w, at.site.machine, cell.DomainKind(kind))
	}
	return o
}

// placedInDomain counts the tasks that the copy has around a machine.
func (f *search) placedInDomain(w *want, m *cell.Machine, kind cell.DomainKind) uint32 {
	if w.line.set != nil {
		return w.line.set.InDomain(kind, m)
	}
	return w.line.job.InDomain(kind, m)
}

// left is what a place has, and what would be left of it.
func (f *search) left(w *want, at spot) (capacity, left cell.Resources) {
	if at.alloc == nil {
		capacity, left = at.site.machine.Capacity(), at.site.machine.Held(w.prod)
		if at.site.promises > 0 {
			left = left.Add(w.byView(&at.site.promised.Limits, &at.site.promised.Reserved))
		}
	} else {
		capacity, left = at.alloc.Capacity(), at.alloc.Held(w.prod)
		if r := f.s.overlay.allocs[at.alloc]; r != nil {
			left = left.Add(w.byView(&r.limits, &r.reserved))
		}
	}
	return capacity, capacity.Sub(left).Sub(w.need.Resources)
}
