package journal

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// maker makes the messages of a block. They are good until it makes others again: a
// busy cell has thousands in a second.
type maker struct {
	entries slab[borgpb.JournalEntry]
	events  slab[borgpb.Event]
	facts   slab[borgpb.ObjectFacts]
	needs   slab[borgpb.NeedFacts]
	amounts slab[borgpb.Resources]
	objects Objects
}

// again takes all back.
func (m *maker) again() {
	m.entries.again()
	m.events.again()
	m.facts.again()
	m.needs.again()
	m.amounts.again()
}

// slab is room for messages of a kind, all of which are taken back at once.
type slab[T any] struct{ room []T }

// maxSlab is how many have room from one block to the next.
const maxSlab = 1024

// next is room for one more, zero.
func (s *slab[T]) next() *T {
	if len(s.room) == cap(s.room) {
		s.room = make([]T, 0, min(max(2*cap(s.room), 16), maxSlab))
	}
	s.room = s.room[:len(s.room)+1]
	return &s.room[len(s.room)-1]
}

func (s *slab[T]) again() {
	clear(s.room)
	s.room = s.room[:0]
}

// ofJob is what other tools need to know of a job.
func (m *maker) ofJob(c *cell.Cell, j *cell.Job) *borgpb.ObjectFacts {
	spec, f := j.Spec(), m.facts.next()
	*f = borgpb.ObjectFacts{
		Index: c.Index(), Kind: borgpb.ObjectKind_OBJECT_KIND_JOB, Name: j.Key().String(), Uid: j.UID().String(), State: j.State(), Size: j.NumTasks(), Priority: j.Priority(),
		JobKind: j.Kind(), Queued: spec.GetBatchQueue(), MaxPerMachine: spec.GetMaxPerMachine(), MaxPerRack: spec.GetMaxPerRack(),
	}
	if key, ok := j.AllocSet(); ok {
		if s := c.AllocSet(key); s != nil {
			f.AllocSetUid = s.UID().String()
		}
	}
	uidOf := func(name string) (string, bool) {
		if name == "" {
			return "", false
		}
		if key, err := cell.ParseJobKey(name); err == nil && c.Job(key) != nil {
			return c.Job(key).UID().String(), true
		}
		return "", false
	}
	f.ParentUid, _ = uidOf(spec.GetParent())
	for _, name := range spec.GetStartAfter() {
		if uid, ok := uidOf(name); ok {
			f.AfterUids = append(f.AfterUids, uid)
		}
	}
	for first := uint32(0); first < f.Size; {
		need := j.Need(first)
		last := min(need.Last, f.Size-1)
		f.Needs = append(f.Needs, m.need(first, last, need))
		if last < first {
			break
		}
		first = last + 1
	}
	return f
}

// ofSet is what other tools need to know of an alloc set.
func (m *maker) ofSet(c *cell.Cell, s *cell.AllocSet) *borgpb.ObjectFacts {
	f := m.facts.next()
	*f = borgpb.ObjectFacts{
		Index: c.Index(), Kind: borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, Name: s.Key().String(), Uid: s.UID().String(), State: s.State(), Size: s.NumAllocs(), Priority: s.Priority(),
		MaxPerMachine: s.Spec().GetMaxPerMachine(), MaxPerRack: s.Spec().GetMaxPerRack(),
	}
	if f.Size > 0 {
		f.Needs = []*borgpb.NeedFacts{m.need(0, f.Size-1, s.Need())}
	}
	return f
}

// ofMachine is what other tools need to know of a machine.
func (m *maker) ofMachine(c *cell.Cell, of *cell.Machine) *borgpb.ObjectFacts {
	f := m.facts.next()
	*f = borgpb.ObjectFacts{Index: c.Index(), Kind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, Name: of.Name(), Capacity: m.amount(of.Capacity()), Down: !of.Up()}
	f.Rack, _ = of.Attribute("rack")
	f.Platform, _ = of.Attribute("platform")
	return f
}

func (m *maker) need(first, last uint32, n *cell.Need) *borgpb.NeedFacts {
	f := m.needs.next()
	f.First, f.Last, f.Resources, f.Constraints = first, last, m.amount(n.Resources), n.Task.GetConstraints()
	return f
}

func (m *maker) amount(r cell.Resources) *borgpb.Resources {
	p := m.amounts.next()
	p.CpuMilli, p.MemBytes, p.DiskBytes = r.CPUMilli, r.MemBytes, r.DiskBytes
	return p
}

// Objects are things of which facts are wanted.
type Objects struct {
	// Of jobs and alloc sets.
	UIDs     []cell.UID
	Machines []string
}

// of are the facts of objects that the cell still has.
func (m *maker) of(c *cell.Cell, o Objects) []*borgpb.ObjectFacts {
	all := make([]*borgpb.ObjectFacts, 0, len(o.UIDs)+len(o.Machines))
	for _, uid := range o.UIDs {
		if j := c.JobByUID(uid); j != nil {
			all = append(all, m.ofJob(c, j))
		} else if s := c.AllocSetByUID(uid); s != nil {
			all = append(all, m.ofSet(c, s))
		}
	}
	for _, name := range o.Machines {
		if of := c.Machine(name); of != nil {
			all = append(all, m.ofMachine(c, of))
		}
	}
	return all
}

// AllObjects are those of a cell that live.
func AllObjects(c *cell.Cell) (o Objects) {
	for s := range c.AllocSets() {
		if s.State() != borgpb.State_STATE_DEAD {
			o.UIDs = append(o.UIDs, s.UID())
		}
	}
	for j := range c.Jobs() {
		if j.State() != borgpb.State_STATE_DEAD {
			o.UIDs = append(o.UIDs, j.UID())
		}
	}
	for m := range c.Machines() {
		o.Machines = append(o.Machines, m.Name())
	}
	return o
}

// picture is of with where the tasks and allocs are.
func (m *maker) picture(c *cell.Cell, o Objects) []*borgpb.ObjectFacts {
	all := m.of(c, o)
	for _, f := range all {
		uid, err := cell.ParseUID(f.Uid)
		if err != nil {
			continue
		}
		if j := c.JobByUID(uid); j != nil {
			for i, t := range j.Tasks() {
				if t.State() == borgpb.State_STATE_DEAD {
					continue
				}
				at := &borgpb.InstanceFacts{Index: i}
				if p := t.Current(); p != nil {
					at.Machine = p.Machine().Name()
				}
				f.Instances = append(f.Instances, at)
			}
		} else if s := c.AllocSetByUID(uid); s != nil {
			for a := range s.Allocs() {
				if a.State() == borgpb.State_STATE_DEAD {
					continue
				}
				at := &borgpb.InstanceFacts{Index: a.Index()}
				if m := a.Machine(); m != nil {
					at.Machine = m.Name()
				}
				f.Instances = append(f.Instances, at)
			}
		}
	}
	return all
}
