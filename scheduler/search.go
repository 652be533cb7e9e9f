package scheduler

import (
	"borg/borgmaster/cell"
)

// search looks for places in one pass.
type search struct {
	s *Scheduler
	c *cell.Cell
	// checks counts the places that were checked.
	checks int
	// crowds holds, by job, where its tasks are: those in the copy and those
	// promised. They are counted once a pass and kept up by it.
	crowds map[cell.UID]*crowd
	// placement and inAlloc are scratch.
	placement cell.Placement
	inAlloc   cell.Overlay
}

// spot is a place: a site, and an alloc on it when the task runs in one.
type spot struct {
	site  *site
	alloc *cell.Alloc
}

// find returns the best place for index of w; ok is false when there is none.
func (f *search) find(w *want, index uint32) (best spot, score Score, ok bool) {
	cl := w.class
	if cl.blocked && cl.seen == f.s.changes.now() {
		return spot{}, Score{}, false
	}
	f.prepare(w, index)
	found := 0
	try := func(at spot) bool {
		if !f.feasible(w, at) {
			return true
		}
		if sc := f.score(w, at); !ok || sc.Total() > score.Total() {
			best, score, ok = at, sc, true
		}
		found++
		return found < f.s.cfg.Enough
	}
	if w.inSet {
		f.walkAllocs(w, try)
	} else {
		f.walkSites(w, index, try)
	}
	if !ok {
		cl.blocked, cl.seen = true, f.s.changes.now()
	} else if cl.blocked {
		// Others of the class must look where this one looked.
		cl.blocked = cl.seen >= f.s.changes.base && !cl.whole
	}
	return best, score, ok
}

// prepare sets up the question for index of w.
func (f *search) prepare(w *want, index uint32) {
	f.placement = cell.Placement{Job: w.line.job, Set: w.line.set, Index: index, AnyPorts: true}
}

// walkSites offers machines from a start that follows from the task until try
// has enough. A class that found nothing before looks only where something
// changed.
func (f *search) walkSites(w *want, index uint32, try func(spot) bool) {
	walk := f.s.sites.walk
	if len(walk) == 0 {
		return
	}
	start := f.start(w, index, len(walk))
	if cl := w.class; cl.blocked && !cl.whole {
		if changed, ok := f.s.changes.since(cl.seen, start); ok {
			for _, t := range changed {
				if !try(spot{site: t}) {
					return
				}
			}
			return
		}
	}
	for i := range walk {
		at := start + i
		if at >= len(walk) {
			at -= len(walk)
		}
		if !try(spot{site: walk[at]}) {
			return
		}
	}
}

// walkAllocs offers the allocs of the set in which the task has to run.
func (f *search) walkAllocs(w *want, try func(spot) bool) {
	if w.set == nil {
		return
	}
	for a := range w.set.Allocs() {
		m := a.Machine()
		if m == nil {
			continue
		}
		t := f.s.sites.byName[m.Name()]
		if t != nil && t.machine == m && !try(spot{site: t, alloc: a}) {
			return
		}
	}
}

// start is where the walk for a task begins: the same on every machine for the
// same seed, job, spec version and index.
func (f *search) start(w *want, index uint32, n int) int {
	h := f.s.cfg.Seed
	for _, v := range [...]uint64{w.line.uid.Epoch, w.line.uid.Index, uint64(w.line.uid.N), w.line.version(), uint64(index)} {
		h = mix(h ^ v)
	}
	return int(h % uint64(n))
}

// feasible asks the cell, with what is promised laid over it.
func (f *search) feasible(w *want, at spot) bool {
	f.checks++
	return f.fit(w, at) == cell.FitOK
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
		f.inAlloc = cell.Overlay{Ports: at.site.promised.Ports}
		if r := f.s.overlay.allocs[at.alloc]; r != nil {
			f.inAlloc.Limits, f.inAlloc.Reserved = r.promised, r.promised
		}
		o = &f.inAlloc
	}
	if !w.limited || o == nil {
		// No promise on this machine; its rack may hold some all the same.
		if !w.limited {
			return o
		}
		o = &at.site.promised
	}
	m, r, p := f.s.overlay.crowds[w.line.uid].around(at.site)
	if at.site.rack == 0 {
		r = m
	}
	if at.site.power == 0 {
		p = m
	}
	o.InDomain[cell.DomainMachine] = uint32(m)
	o.InDomain[cell.DomainRack] = uint32(r)
	o.InDomain[cell.DomainPower] = uint32(p)
	return o
}

// score says how good a feasible place is.
func (f *search) score(w *want, at spot) Score {
	capacity, left := f.left(w, at)
	m, r, p := f.crowd(w).around(at.site)
	sc := Score{
		Fit:    fitPoints(&capacity, &left),
		Spread: spreadPoints(m, r, p, w.batch),
	}
	for _, k := range w.soft {
		if cell.Holds(k, at.site.machine) {
			sc.Soft += softPoints
		}
	}
	return sc
}

// left is what a place has, and what would be left of it.
func (f *search) left(w *want, at spot) (capacity, left cell.Resources) {
	if at.alloc == nil {
		capacity, left = at.site.machine.Capacity(), at.site.machine.Held(w.prod)
		if at.site.promises > 0 {
			left = left.Add(at.site.promised.Limits)
		}
	} else {
		capacity, left = at.alloc.Capacity(), at.alloc.Held(w.prod)
		if r := f.s.overlay.allocs[at.alloc]; r != nil {
			left = left.Add(r.promised)
		}
	}
	return capacity, capacity.Sub(left).Sub(w.need.Resources)
}

// crowd counts where the tasks of w's job are, or will be.
func (f *search) crowd(w *want) *crowd {
	uid := w.line.uid
	if c, ok := f.crowds[uid]; ok {
		return c
	}
	c := newCrowd()
	add := func(m *cell.Machine) {
		if m == nil {
			return
		}
		if t := f.s.sites.byName[m.Name()]; t != nil {
			c.add(t, t.rack, t.power, 1)
		}
	}
	if w.line.set != nil {
		for a := range w.line.set.Allocs() {
			add(a.Machine())
		}
	} else if _, running, _ := w.line.job.Counts(); running > 0 {
		for _, t := range w.line.job.Tasks() {
			if p := t.Current(); p != nil {
				add(p.Machine())
			}
		}
	}
	if promised := f.s.overlay.crowds[uid]; promised != nil {
		c.include(promised)
	}
	f.crowds[uid] = c
	return c
}

// promise keeps a promise in the overlay and in what the pass counts.
func (f *search) promise(w *want, p *promise) {
	f.s.overlay.add(p)
	f.crowd(w).add(p.site, p.rack, p.power, 1)
}

// takeBack undoes a promise of this pass.
func (f *search) takeBack(w *want, p *promise) {
	if f.s.overlay.drop(p) {
		f.crowd(w).add(p.site, p.rack, p.power, -1)
	}
}
