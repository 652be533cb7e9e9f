package scheduler

import "borg/borgmaster/cell"

// allocHeadroom is headroom for a class that runs in the allocs of a set: by index, what is
// free in an alloc and what the copies in it hold whose place the class may take.
type allocHeadroom struct {
	headroomKey
	rows []row
	// known are the allocs of which rows is up to date.
	known bitset
}

// maxAllocHeadrooms bounds those of one set; they begin anew beyond.
const maxAllocHeadrooms = 16

// headroomOf returns the headroom of a class in the allocs, up to date; nil when every
// alloc is looked at.
func (r *rooms) headroomOf(f *search, c *class) *allocHeadroom {
	if f.s.cfg.NoHeadroom || f.s.dry {
		return nil
	}
	key := headroomKeyOf(f.c, &c.by)
	var h *allocHeadroom
	for _, o := range r.headrooms {
		if o.headroomKey == key {
			h = o
		}
	}
	if h == nil {
		if len(r.headrooms) >= maxAllocHeadrooms {
			r.headrooms = nil
		}
		n := len(r.slots)
		h = &allocHeadroom{headroomKey: key, rows: make([]row, n), known: newBitset(n)}
		r.headrooms = append(r.headrooms, h)
	}
	for i := range h.rows {
		if !h.known.has(int32(i)) {
			h.refresh(r, f.s.grid.sites, int32(i))
		}
	}
	return h
}

// refresh computes the headroom of one alloc anew.
func (h *allocHeadroom) refresh(r *rooms, s *sites, i int32) {
	h.known.set(i, true)
	h.rows[i] = r.free[h.view][i]
	if r.slots[i] < 0 {
		return
	}
	t := s.walk[r.slots[i]]
	for p := range r.set.Alloc(uint32(i)).Copies() {
		if priority, ok := yields(t, p); ok && (priority < h.below || priority == stoppingPriority) {
			res := p.Held(h.view == viewProd)
			h.rows[i].add(&res)
		}
	}
}

// any reports whether an alloc may hold one of a class; index is the only one that may, when
// it is not negative.
func (h *allocHeadroom) any(c *class, index int64) bool {
	if index >= 0 {
		return index < int64(len(h.rows)) && c.fitsRow(&h.rows[index])
	}
	for i := range h.rows {
		if c.fitsRow(&h.rows[i]) {
			return true
		}
	}
	return false
}

// recount notes that others may give way in an alloc than before.
func (r *rooms) recount(i uint32) {
	for _, h := range r.headrooms {
		h.known.set(int32(i), false)
	}
}

// recountIn is recount for an alloc whose set may be unknown; nil: for none.
func (s *Scheduler) recountIn(a *cell.Alloc) {
	if a == nil {
		return
	}
	if r := s.rooms[a.Set()]; r != nil && int(a.Index()) < len(r.slots) {
		r.recount(a.Index())
	}
}

// ruledOutInAllocs is ruledOut for a class that runs in allocs.
func (p *pass) ruledOutInAllocs(w *want) bool {
	key, _ := w.line.job.AllocSet()
	set := p.c.AllocSet(key)
	if set == nil || set.NumAllocs() == 0 {
		return false
	}
	index := int64(-1)
	if w.byIndex {
		index = int64(w.last)
	}
	h := p.s.roomsOf(set).headroomOf(&p.search, w.class)
	if h == nil || h.any(w.class, index) {
		return false
	}
	p.block(w.class)
	return true
}
