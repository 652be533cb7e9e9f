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
	// By slot, and by number of the domain.
	machine, rack, power []int32
	// attributes that the spec limits, in its order.
	attributes []attributeCounts
}

func newCounts(g *grid) *counts {
	return &counts{
		machine: make([]int32, len(g.sites.walk)),
		rack:    make([]int32, len(g.racks.sizes)+1),
		power:   make([]int32, len(g.powers.sizes)+1),
	}
}

// add counts n more, or fewer, in a slot. Domain zero is counted and never
// read.
func (n *counts) add(g *grid, i, more int32) {
	d := g.domains[i]
	n.machine[i] += more
	n.rack[d.rack] += more
	n.power[d.power] += more
	for k := range n.attributes {
		a := &n.attributes[k]
		a.n[a.column.of[i]] += more
	}
}

// tally holds the counts of one small crowd at a time. It is emptied before a
// machine's domains change, and made anew with the grid.
type tally struct {
	*counts
	of *crowd
}

// load returns the counts of a crowd.
func (t *tally) load(g *grid, c *crowd) *counts {
	if c.own != nil {
		return c.own
	}
	if len(c.slots) > len(g.sites.walk)/128+16 {
		c.own = newCounts(g)
		c.own.limitedBy(c.columns)
		for _, i := range c.slots {
			c.own.add(g, i, 1)
		}
		t.unload(g)
		return c.own
	}
	if t.of == c {
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

// unload forgets the crowd that is counted.
func (t *tally) unload(g *grid) {
	if t.of == nil {
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
		if t := s.sites.byName[m.Name()]; t != nil {
			c.slots = append(c.slots, t.slot)
		}
	}
	if l.set != nil {
		for a := range l.set.Allocs() {
			if m := a.Machine(); m != nil && !s.dry {
				add(m)
			} else if p := s.overlay.byID[ID{l.uid, a.Index()}]; p != nil {
				add(p.site.machine)
			}
		}
	} else {
		for i, t := range l.job.Tasks() {
			if p := t.Current(); p != nil && !s.dry {
				add(p.Machine())
			} else if l.promised > 0 {
				if p := s.overlay.byID[ID{l.uid, i}]; p != nil {
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
	case s.tally.of == c:
		s.tally.add(s.grid, i, 1)
	}
}

// disperse forgets the crowd of a line; it is counted anew when asked for.
func (s *Scheduler) disperse(l *line) {
	if l.crowd != nil && s.tally.of == l.crowd {
		s.tally.unload(s.grid)
	}
	l.crowd = nil
}
