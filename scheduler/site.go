package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
)

// site is a machine as the search sees it: the machine of the copy, and what is
// promised there beyond it.
type site struct {
	machine *cell.Machine
	// name is the machine's.
	name string
	// order is the site's place in the shuffled walk: a hash of seed and name.
	order uint64
	// slot is its index in sites.walk and in all arrays of the grid; -1: the
	// machine has left the cell.
	slot int32
	// silent: it does not answer at the moment.
	silent bool
	// unread: it is in Scheduler.unread.
	unread bool
	// promises counts what is promised on it, in its allocs too; when it is
	// zero, promised is empty.
	promises int
	// places are those of its machine that promises take.
	places cell.Places
	// promised is what promises take of the machine's own room, devices too, all
	// ports of the machine that they were given, and the victims that they name.
	// InDomain is scratch of the check.
	promised cell.Overlay
	// promisedProdCPU is production's part of it, in thousandths of a core.
	promisedProdCPU int64
}

// overlay returns what the cell's check should add, nil when nothing is
// promised.
func (s *site) overlay() *cell.Overlay {
	if s.promises == 0 {
		return nil
	}
	return &s.promised
}

// sites are the machines of the cell in one shuffled order, the same for every
// scheduler with this seed, however the machines came into the cell.
type sites struct {
	seed   uint64
	walk   []*site
	byName map[string]*site
	// byMachine is byName by what a look into memory less is needed for.
	byMachine map[*cell.Machine]*site
}

func newSites(c *cell.Cell, seed uint64) *sites {
	n := c.NumMachines()
	s := &sites{seed: seed, byName: make(map[string]*site, n), byMachine: make(map[*cell.Machine]*site, n)}
	for m := range c.Machines() {
		s.walk = append(s.walk, s.enter(m))
	}
	slices.SortFunc(s.walk, compareSites)
	s.number()
	return s
}

func compareSites(a, b *site) int {
	return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.name, b.name))
}

func (s *sites) enter(m *cell.Machine) *site {
	t := &site{machine: m, name: m.Name(), order: mix(s.seed ^ hashString(m.Name()))}
	s.byName[m.Name()], s.byMachine[m] = t, t
	return t
}

func (s *sites) number() {
	for i, t := range s.walk {
		t.slot = int32(i)
	}
}

// update brings the machine of that name up to the copy, and returns its site;
// nil when there is no such machine (any more). moved tells that slots have
// changed.
func (s *sites) update(c *cell.Cell, name string) (t *site, moved bool) {
	m, t := c.Machine(name), s.byName[name]
	switch {
	case m == nil && t == nil:
		return nil, false
	case m == nil:
		s.walk = slices.Delete(s.walk, int(t.slot), int(t.slot)+1)
		delete(s.byName, name)
		delete(s.byMachine, t.machine)
		s.number()
		t.slot = -1
		return nil, true
	case t == nil:
		t = s.enter(m)
		at, _ := slices.BinarySearchFunc(s.walk, t, compareSites)
		s.walk = slices.Insert(s.walk, at, t)
		s.number()
		return t, true
	}
	// The same, or another machine of the same name.
	delete(s.byMachine, t.machine)
	t.machine, s.byMachine[m] = m, t
	return t, false
}
