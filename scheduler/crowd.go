package scheduler

import "borg/borgmaster/cell"

// crowd is where the tasks of one job (or the allocs of one set) are or will
// be: one entry for each, by slot.
type crowd struct {
	slots []int32
	// own is made for crowds so large that counting them again and again would
	// cost more than keeping the counts.
	own *counts
	// layout of the grid that it was counted in.
	layout uint64
	// columns of the attributes that its spec limits.
	columns []*column
}

// counts are tasks of one job by failure domain.
type counts struct {
	// By number of the domain.
	rack, power []int32
	// some are the slots with any: a walk passes by most machines without a look
	// at their counts.
	some bitset
	// machine is by slot; nil: they are counted among those of the crowd, which is
	// small.
	machine []int32
	of      *crowd
	// attributes that the spec limits, in its order.
	attributes []attributeCounts
}

func newCounts(g *grid) *counts {
	return &counts{
		rack:  make([]int32, len(g.racks.sizes)+1),
		power: make([]int32, len(g.powers.sizes)+1),
		some:  newBitset(len(g.sites.walk)),
	}
}

// countsOf counts a crowd by slot too.
func countsOf(g *grid, c *crowd) *counts {
	n := newCounts(g)
	n.machine = make([]int32, len(g.sites.walk))
	n.limitedBy(c.columns)
	for _, i := range c.slots {
		n.add(g, i, 1)
	}
	return n
}

// on counts those in a slot.
func (n *counts) on(i int32) (count int64) {
	switch {
	case !n.some.has(i):
	case n.machine != nil:
		count = int64(n.machine[i])
	default:
		for _, at := range n.of.slots {
			if at == i {
				count++
			}
		}
	}
	return count
}

// add counts one more in a slot, or one fewer; without counts by slot, one fewer
// only while all are taken out. Domain zero is counted and never read.
func (n *counts) add(g *grid, i, more int32) {
	d := g.domains[i]
	if n.machine != nil {
		n.machine[i] += more
		n.some.set(i, n.machine[i] != 0)
	} else {
		n.some.set(i, more > 0)
	}
	n.rack[d.rack] += more
	n.power[d.power] += more
	for k := range n.attributes {
		a := &n.attributes[k]
		a.n[a.column.of[i]] += more
	}
}

// tally holds the counts of one small crowd at a time: its of. It is emptied
// before a machine's domains change, and made anew with the grid.
type tally struct{ *counts }

// load returns the counts of a crowd.
func (t *tally) load(g *grid, c *crowd) *counts {
	if c.own != nil {
		return c.own
	}
	if len(c.slots) > len(g.sites.walk)/128+16 {
		c.own = countsOf(g, c)
		t.unload(g)
		return c.own
	}
	if t.holds(c) {
		return t.counts
	}
	t.unload(g)
	if t.counts == nil || len(t.rack) < len(g.racks.sizes) || len(t.power) < len(g.powers.sizes) {
		t.counts = newCounts(g)
	}
	t.of = c
	t.limitedBy(c.columns)
	for _, i := range c.slots {
		t.add(g, i, 1)
	}
	return t.counts
}

// holds tells whether a crowd is the one that is counted.
func (t *tally) holds(c *crowd) bool { return t.counts != nil && t.of == c }

// unload forgets the crowd that is counted.
func (t *tally) unload(g *grid) {
	if t.counts == nil || t.of == nil {
		return
	}
	for _, i := range t.of.slots {
		t.add(g, i, -1)
	}
	t.of = nil
}

// crowdOf returns the crowd of a line, counted anew when it is not known.
func (s *Scheduler) crowdOf(l *line) *crowd {
	if l.crowd != nil && l.crowd.layout == s.grid.layout {
		return l.crowd
	}
	s.disperse(l)
	c := &crowd{layout: s.grid.layout, columns: s.columnsOf(l)}
	add := func(m *cell.Machine) {
		if t := s.sites.byMachine[m]; t != nil {
			c.slots = append(c.slots, t.slot)
		}
	}
	if l.set != nil {
		for a := range l.set.Allocs() {
			if m := a.Machine(); m != nil && !s.dry {
				add(m)
			} else if p := l.promise(a.Index()); p != nil {
				add(p.site.machine)
			}
		}
	} else {
		for i, t := range l.job.Tasks() {
			if p := t.Current(); p != nil && !s.dry {
				add(p.Machine())
			} else if l.promised > 0 {
				if p := l.promise(i); p != nil {
					add(p.site.machine)
				}
			}
		}
	}
	l.crowd = c
	return c
}

// join counts one more of the line's.
func (s *Scheduler) join(l *line, i int32) {
	c := l.crowd
	if c == nil {
		return
	}
	c.slots = append(c.slots, i)
	switch {
	case c.own != nil:
		c.own.add(s.grid, i, 1)
	case s.tally.holds(c):
		s.tally.add(s.grid, i, 1)
	}
}

// disperse forgets the crowd of a line; it is counted anew when asked for.
func (s *Scheduler) disperse(l *line) {
	if l.crowd != nil && s.tally.holds(l.crowd) {
		s.tally.unload(s.grid)
	}
	l.crowd = nil
}
