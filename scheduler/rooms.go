package scheduler

import "borg/borgmaster/cell"

// rooms are the allocs of one set as the search sees them, by their index.
type rooms struct {
	set  *cell.AllocSet
	free [numViews][]row
	// slots of the machines that they are on; -1: on none.
	slots []int32
	// headrooms are those that were asked for.
	headrooms []*allocHeadroom
	// names are those that were asked for.
	names []string
	// generation of the grid that the slots are of.
	generation uint64
}

// roomsOf returns the rooms of a set.
func (s *Scheduler) roomsOf(set *cell.AllocSet) *rooms {
	if r := s.rooms[set]; r != nil && r.generation == s.grid.generation {
		return r
	}
	n := set.NumAllocs()
	r := &rooms{set: set, slots: make([]int32, n), names: make([]string, n), generation: s.grid.generation}
	for v := range r.free {
		r.free[v] = make([]row, n)
	}
	for a := range set.Allocs() {
		s.readAlloc(r, a)
	}
	s.rooms[set] = r
	return r
}

// name of an alloc of the set.
func (r *rooms) name(a *cell.Alloc) string {
	i := a.Index()
	if r.names[i] == "" {
		r.names[i] = a.Name()
	}
	return r.names[i]
}

// readAlloc computes anew where an alloc is, and what is free in it.
func (s *Scheduler) readAlloc(r *rooms, a *cell.Alloc) {
	t := s.siteOf(a)
	if t == nil {
		r.slots[a.Index()] = -1
		r.recount(a.Index())
		return
	}
	s.readAllocAt(r, a, t)
}

// readAllocAt is readAlloc for one of which it is known where it is.
func (s *Scheduler) readAllocAt(r *rooms, a *cell.Alloc, t *site) {
	i := a.Index()
	r.slots[i] = t.slot
	r.recount(i)
	capacity, promised := a.Capacity(), s.overlay.allocs[a]
	for v := range numViews {
		free := capacity
		if !s.dry {
			free = free.Sub(a.Held(v == viewProd))
		}
		if promised != nil {
			if view(v) == viewProd {
				free = free.Sub(promised.limits)
			} else {
				free = free.Sub(promised.reserved)
			}
		}
		r.free[v][i] = row{free.CPUMilli, free.MemBytes, free.DiskBytes, free.DiskBytesPerS, free.Ports}
	}
}

// siteOf is where an alloc is; nil: nowhere. One that is only promised a place
// is there for nobody who goes through a log.
func (s *Scheduler) siteOf(a *cell.Alloc) *site {
	if s.dry {
		if p := s.promiseOf(ID{a.Set().UID(), a.Index()}); p != nil {
			return p.site
		}
		return nil
	}
	m := a.Machine()
	if m == nil {
		return nil
	}
	if t := s.sites.byName[m.Name()]; t != nil && t.machine == m {
		return t
	}
	return nil
}

// read brings the arrays up to the copy: a machine and the allocs on it.
func (s *Scheduler) read(t *site) {
	s.grid.read(t)
	if len(s.rooms) == 0 {
		return
	}
	for a := range t.machine.Allocs() {
		if r := s.rooms[a.Set()]; r != nil && r.generation == s.grid.generation {
			s.readAlloc(r, a)
		}
	}
}

// findAlloc looks for room in the allocs of the set in which a job has to run.
func (f *search) findAlloc(w *want, index uint32, start uint64) (best spot, ok bool) {
	key, _ := w.line.job.AllocSet()
	set := f.c.AllocSet(key)
	if set == nil || set.NumAllocs() == 0 {
		return spot{}, false
	}
	if w.byIndex {
		return f.findOwnAlloc(w, set, index)
	}
	r, c := f.s.roomsOf(set), w.class
	f.prepare(w, index)
	free := r.free[c.view]
	n := int(set.NumAllocs())
	c.recruit(n, &f.s.changes)
	most, second := int64(0), int64(0)
	f.found = 0
	walk := pair(c.candidates, c.candidates, int32(start%uint64(n)))
	for i := walk.next(); i >= 0; i = walk.next() {
		slot := r.slots[i]
		f.checks++
		if slot < 0 || !c.fitsRow(&free[i]) {
			c.candidates.set(i, false)
			continue
		}
		a := set.Alloc(uint32(i))
		if !f.suits(w, slot, a) {
			continue
		}
		points := f.allocPoints(w, slot, a, &free[i])
		if f.neighbours != nil {
			points += f.spread(w, f.neighbours, slot)
		}
		switch {
		case !ok || points > most:
			f.runnerUp, second = best, most
			best, most, ok = f.spotIn(slot, a), points, true
		case f.runnerUp.alloc == nil || points > second:
			f.runnerUp, second = f.spotIn(slot, a), points
		}
		if f.found++; f.found >= f.s.cfg.Enough {
			break
		}
	}
	return best, ok
}

// findOwnAlloc is findAlloc for a task that has its alloc by index: there is one place
// that it may have.
func (f *search) findOwnAlloc(w *want, set *cell.AllocSet, index uint32) (at spot, ok bool) {
	f.found = 0
	if index >= set.NumAllocs() {
		return spot{}, false
	}
	r := f.s.roomsOf(set)
	f.prepare(w, index)
	f.checks++
	slot, a := r.slots[index], set.Alloc(index)
	if slot < 0 || !w.class.fitsRow(&r.free[w.class.view][index]) || !f.suits(w, slot, a) {
		return spot{}, false
	}
	f.found = 1
	return f.spotIn(slot, a), true
}

func (f *search) spotIn(slot int32, a *cell.Alloc) spot { return spot{f.s.grid.sites.walk[slot], a} }

// suits tells whether w may be in an alloc in which there is room for the amounts that it
// asks for.
func (f *search) suits(w *want, slot int32, a *cell.Alloc) bool {
	if !f.mayBeAt(w, slot) {
		return false
	}
	return w.class.devices == nil || f.fit(w, f.spotIn(slot, a)) == cell.FitOK
}

// mayBeAt tells whether w may be in an alloc that is on a machine, room apart.
func (f *search) mayBeAt(w *want, slot int32) bool {
	return slot >= 0 && f.s.grid.usable.has(slot) && w.class.static.fits.has(slot) && (!f.s.grid.crowded.has(slot) || f.hasPlace(w, slot)) && !(w.limited && f.full(w, slot))
}

// allocPoints scores room in an alloc, without the spread.
func (f *search) allocPoints(w *want, slot int32, a *cell.Alloc, free *row) int64 {
	points := f.allocFit(w, a, free)
	for k := range w.class.likings {
		if o := &w.class.likings[k]; o.holds.has(slot) {
			points += o.points
		}
	}
	if cell.Shunned(w.tolerations(), f.s.sites.walk[slot].machine) {
		points -= f.s.grid.weights.Soft
	}
	return points
}

// allocFit is the policy's part.
func (f *search) allocFit(w *want, a *cell.Alloc, free *row) int64 {
	whole := a.Capacity()
	left := func(n, of int64) int64 { return fullPoints - fullness(of, n) }
	part := func(n, of int64) int64 { return fullness(of, of-n) }
	return f.s.cfg.Policy.points(
		left(free.cpuMilli, whole.CPUMilli), left(free.memBytes, whole.MemBytes),
		part(w.class.cpu, whole.CPUMilli), part(w.class.mem, whole.MemBytes))
}
