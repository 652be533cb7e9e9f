package journal

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// FactsOfJob is what other tools need to know of a job.
func FactsOfJob(c *cell.Cell, j *cell.Job) *borgpb.ObjectFacts {
	spec := j.Spec()
	f := &borgpb.ObjectFacts{
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
		f.Needs = append(f.Needs, needFacts(first, last, need))
		if last < first {
			break
		}
		first = last + 1
	}
	return f
}

// FactsOfSet is what other tools need to know of an alloc set.
func FactsOfSet(c *cell.Cell, s *cell.AllocSet) *borgpb.ObjectFacts {
	f := &borgpb.ObjectFacts{
		Index: c.Index(), Kind: borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, Name: s.Key().String(), Uid: s.UID().String(), State: s.State(), Size: s.NumAllocs(), Priority: s.Priority(),
		MaxPerMachine: s.Spec().GetMaxPerMachine(), MaxPerRack: s.Spec().GetMaxPerRack(),
	}
	if f.Size > 0 {
		f.Needs = []*borgpb.NeedFacts{needFacts(0, f.Size-1, s.Need())}
	}
	return f
}

// FactsOfMachine is what other tools need to know of a machine.
func FactsOfMachine(c *cell.Cell, m *cell.Machine) *borgpb.ObjectFacts {
	f := &borgpb.ObjectFacts{Index: c.Index(), Kind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, Name: m.Name(), Capacity: amount(m.Capacity()), Down: !m.Up()}
	f.Rack, _ = m.Attribute("rack")
	f.Platform, _ = m.Attribute("platform")
	return f
}

func needFacts(first, last uint32, n *cell.Need) *borgpb.NeedFacts {
	return &borgpb.NeedFacts{First: first, Last: last, Resources: amount(n.Resources), Constraints: n.Task.GetConstraints()}
}

func amount(r cell.Resources) *borgpb.Resources {
	return &borgpb.Resources{CpuMilli: r.CPUMilli, MemBytes: r.MemBytes, DiskBytes: r.DiskBytes}
}

// Objects are things of which facts are wanted.
type Objects struct {
	// Of jobs and alloc sets.
	UIDs     []cell.UID
	Machines []string
}

// Facts are those of objects that the cell still has.
func Facts(c *cell.Cell, o Objects) (all []*borgpb.ObjectFacts) {
	for _, uid := range o.UIDs {
		if j := c.JobByUID(uid); j != nil {
			all = append(all, FactsOfJob(c, j))
		} else if s := c.AllocSetByUID(uid); s != nil {
			all = append(all, FactsOfSet(c, s))
		}
	}
	for _, name := range o.Machines {
		if m := c.Machine(name); m != nil {
			all = append(all, FactsOfMachine(c, m))
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

// Picture is Facts with where the tasks and allocs are.
func Picture(c *cell.Cell, o Objects) []*borgpb.ObjectFacts {
	all := Facts(c, o)
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
