package scheduler

import "borg/borgmaster/cell"

// column numbers the values of an attribute of which some job limits its tasks per
// value: the inner loop compares numbers.
type column struct {
	key   string
	names domainNames
	// of are the numbers by slot; zero: the machine does not have the attribute,
	// and counts by itself.
	of []int32
}

// column returns that of an attribute, and makes it when it is new. It lasts until
// the slots are numbered anew.
func (g *grid) column(key string) *column {
	if !g.attributes[key] {
		return g.noColumn
	}
	c := g.columns[key]
	if c == nil {
		c = &column{key: key, of: make([]int32, len(g.sites.walk))}
		for _, t := range g.sites.walk {
			c.locate(t)
		}
		g.columns[key] = c
	}
	return c
}

// locate takes over what a machine has of the attribute, and tells whether that is
// another value than before.
func (c *column) locate(t *site) bool {
	old := c.of[t.slot]
	c.of[t.slot] = c.names.enter(t.machine, c.key)
	c.names.leave(old)
	return c.of[t.slot] != old
}

// attributeCounts are tasks of one job by the values of one attribute.
type attributeCounts struct {
	column *column
	// By number; of zero it is counted and never read.
	n []int32
}

// limitedBy has the counts of the attributes of columns too, nothing counted yet.
func (n *counts) limitedBy(columns []*column) {
	all := n.attributes[:cap(n.attributes)]
	for len(all) < len(columns) {
		all = append(all, attributeCounts{})
	}
	for k, c := range columns {
		a := &all[k]
		a.column = c
		if len(a.n) <= len(c.names.sizes) {
			a.n = make([]int32, len(c.names.sizes)+1)
		}
	}
	n.attributes = all[:len(columns)]
}

// limits are those of the job or alloc set of a line.
func (l *line) limits() *cell.Limits {
	if l.set != nil {
		return l.set.Limits()
	}
	return l.job.Limits()
}

// columnsOf are the columns of the attributes that a line's spec limits, in its
// order; nil nearly always.
func (s *Scheduler) columnsOf(l *line) (columns []*column) {
	for _, key := range l.limits().Keys {
		if key != "" {
			columns = append(columns, s.grid.column(key))
		}
	}
	return columns
}

// domainAt is the number of a slot's failure domain of a kind; zero: it shares
// none, or it is that of the machine alone.
func (f *search) domainAt(i int32, kind cell.DomainKind) int32 {
	switch {
	case kind == cell.DomainRack:
		return f.s.grid.domains[i].rack
	case kind == cell.DomainPower:
		return f.s.grid.domains[i].power
	case kind < cell.DomainAttribute:
		return 0
	}
	if k := int(kind - cell.DomainAttribute); k < len(f.neighbours.attributes) {
		return f.neighbours.attributes[k].column.of[i]
	}
	return 0
}

// together tells whether two slots share a failure domain of a kind.
func (f *search) together(i, o int32, kind cell.DomainKind) bool {
	d := f.domainAt(i, kind)
	return i == o || d != 0 && d == f.domainAt(o, kind)
}

// inAttribute is inDomain for an attribute.
func (f *search) inAttribute(i int32, kind cell.DomainKind) int64 {
	k := int(kind - cell.DomainAttribute)
	if k >= len(f.neighbours.attributes) {
		return 0
	}
	a := &f.neighbours.attributes[k]
	if d := a.column.of[i]; d != 0 {
		return int64(a.n[d])
	}
	return f.neighbours.on(i)
}
