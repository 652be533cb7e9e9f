package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// FormatAllocIndex is the format in which tasks began to run in the allocs of their index.
const FormatAllocIndex = 10

// AllocByIndex tells that each task runs in the alloc of its index, of the set that
// AllocSet names.
func (j *Job) AllocByIndex() bool { return j.latest().Proto.AllocByIndex }

// AllocByIndex tells that the copy has its alloc because of its index.
func (p *Copy) AllocByIndex() bool { return p.spec != nil && p.spec.Proto.AllocByIndex }

// checkAllocIndex wants a set where the allocs are to be taken by index.
func checkAllocIndex(s *borgpb.JobSpec) *borgpb.Refusal {
	if s.AllocByIndex && s.AllocSet == "" {
		return invalid("spec.alloc_by_index", "it says in which alloc each task runs; name the alloc_set, or leave it out")
	}
	return nil
}

// takes tells whether a task with the spec may run in an alloc; nil: on a machine.
func (s *Spec) takes(index uint32, a *Alloc) bool {
	if s.Proto.AllocSet == "" || a == nil {
		return s.Proto.AllocSet == "" && a == nil
	}
	return a.set.key == s.allocSet && s.keeps(index, a)
}

// keeps tells whether a copy that is in an alloc of the set may stay there: by index it
// never has a neighbour's, however much room there is, as the tasks of one index
// belong together (paper §2.4).
func (s *Spec) keeps(index uint32, a *Alloc) bool {
	return !s.Proto.AllocByIndex || a != nil && a.index == index
}

// AllocWords says in which alloc a task has to run by its index, and what keeps it from
// there, room apart.
func (c *Cell) AllocWords(j *Job, index uint32) string {
	key, _ := j.AllocSet()
	s := c.sets[key]
	switch {
	case s == nil:
		return fmt.Sprintf("there is no alloc set %s", key)
	case s.deathSeq != 0:
		return fmt.Sprintf("alloc set %s is dead", key)
	case index >= s.NumAllocs():
		return fmt.Sprintf("alloc set %s has %d allocs; there is no alloc %d for task %d", key, s.NumAllocs(), index, index)
	}
	a := s.allocs[index]
	if a.machine == nil {
		return fmt.Sprintf("its alloc %s waits for a machine", a.Name())
	}
	return fmt.Sprintf("its alloc %s is on %s", a.Name(), a.machine.name)
}

// checkAllocIndex holds where a current copy is against its spec.
func (c *Cell) checkAllocIndex(p *Copy) error {
	if p.spec == nil || !p.spec.Proto.AllocByIndex {
		return nil
	}
	if c.format < FormatAllocIndex {
		return fmt.Errorf("copy %v has its alloc by index in format %d", p.ID(), c.format)
	}
	if !p.spec.keeps(p.index, p.alloc) {
		return fmt.Errorf("copy %v is not in alloc %d of %v", p.ID(), p.index, p.spec.allocSet)
	}
	return nil
}
