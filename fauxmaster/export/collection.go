package export

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// collection is a job or an alloc set, as Google's schema has one thing for both.
type collection struct {
	uid      string
	name     string
	user     string
	logical  string
	size     uint32
	priority int32
	// An alloc set; and of a job whether it is a batch job, and whether it waits in the
	// batch queue.
	isSet, batch, queued bool
	// Alloc set, parent and jobs before it, by uid. One that is not there (any more) is
	// not named.
	in     string
	parent string
	after  []string

	maxPerMachine, maxPerRack uint32
	// What an instance asks for.
	need func(index uint32) (cell.Resources, []*borgpb.Constraint)
	// The index of the alloc in which a task is now; -1: it is not known.
	alloc func(index uint32) int32
}

func ofJob(c *cell.Cell, j *cell.Job) collection {
	spec := j.Spec()
	k := named(j.UID().String(), j.Key())
	k.size, k.priority, k.batch, k.queued = j.NumTasks(), j.Priority(), j.Kind() == borgpb.JobKind_JOB_KIND_BATCH, spec.GetBatchQueue()
	k.maxPerMachine, k.maxPerRack = spec.GetMaxPerMachine(), spec.GetMaxPerRack()
	if key, ok := j.AllocSet(); ok {
		if s := c.AllocSet(key); s != nil {
			k.in = s.UID().String()
		}
	}
	uidOf := func(name string) string {
		if key, err := cell.ParseJobKey(name); err == nil && c.Job(key) != nil {
			return c.Job(key).UID().String()
		}
		return ""
	}
	k.parent = uidOf(spec.GetParent())
	for _, name := range spec.GetStartAfter() {
		if uid := uidOf(name); uid != "" {
			k.after = append(k.after, uid)
		}
	}
	k.need = func(index uint32) (cell.Resources, []*borgpb.Constraint) { return asked(j.Need(index)) }
	k.alloc = func(index uint32) int32 {
		if index >= j.NumTasks() {
			return -1
		}
		if p := j.Task(index).Current(); p != nil && p.Alloc() != nil {
			return int32(p.Alloc().Index())
		}
		return -1
	}
	return k
}

func asked(n *cell.Need) (cell.Resources, []*borgpb.Constraint) {
	return n.Resources, n.Task.GetConstraints()
}

func named(uid string, key cell.JobKey) collection {
	return collection{uid: uid, name: key.String(), user: key.User, logical: key.Name, alloc: func(uint32) int32 { return -1 }}
}

func ofSet(s *cell.AllocSet) collection {
	k := named(s.UID().String(), s.Key())
	k.size, k.priority, k.isSet = s.NumAllocs(), s.Priority(), true
	k.maxPerMachine, k.maxPerRack = s.Spec().GetMaxPerMachine(), s.Spec().GetMaxPerRack()
	k.need = func(uint32) (cell.Resources, []*borgpb.Constraint) { return asked(s.Need()) }
	return k
}

// kind is Google's collection_type: 0 job, 1 alloc set.
func (k collection) kind() int32 {
	if k.isSet {
		return 1
	}
	return 0
}

// class is Google's scheduling_class, by what is nearest to it here: 0 what is
// free, 1 batch, 2 services, 3 services of production and above.
func (k collection) class() int32 {
	switch {
	case k.priority <= lastFree:
		return 0
	case k.batch:
		return 1
	case k.priority < firstProduction:
		return 2
	}
	return 3
}

// Bounds of bands (paper §2.5).
const (
	lastFree        = 99
	firstProduction = 120
)

func (e *Events) collection(us int64, kind int32, k collection) error {
	row := CollectionEvent{
		Time: us, Type: kind, CollectionID: e.id("collection", k.uid), SchedulingClass: k.class(), CollectionType: k.kind(), Priority: k.priority,
		User: k.user, CollectionName: k.name, CollectionLogicalName: k.logical, VerticalScaling: verticalScalingOff,
		MaxPerMachine: int32(k.maxPerMachine), MaxPerSwitch: int32(k.maxPerRack),
	}
	if k.in != "" {
		row.AllocCollectionID = e.id("collection", k.in)
	}
	if k.parent != "" {
		row.ParentCollectionID = e.id("collection", k.parent)
	}
	for _, uid := range k.after {
		row.StartAfter = append(row.StartAfter, e.id("collection", uid))
	}
	if k.queued {
		row.Scheduler = schedulerBatch
	}
	e.n["collection_events"]++
	return e.collections.add(row)
}

const (
	verticalScalingOff = 1
	schedulerBatch     = 1
)

// instance writes an event of a task or alloc, and notes whether it has ended by it.
func (e *Events) instance(us int64, kind int32, k collection, index uint32, machine string) error {
	open := e.open[k.uid]
	if open == nil {
		open = make(map[uint32]bool)
		e.open[k.uid] = open
	}
	switch kind {
	case evEvict, evFail, evFinish, evKill, evLost:
		delete(open, index)
	default:
		open[index] = true
	}
	row := InstanceEvent{
		Time: us, Type: kind, CollectionID: e.id("collection", k.uid), SchedulingClass: k.class(), CollectionType: k.kind(), Priority: k.priority,
		InstanceIndex: int32(index), AllocInstanceIndex: -1,
	}
	if machine != "" {
		row.MachineID = e.id("machine", machine)
	}
	resources, constraints := k.need(index)
	row.ResourceRequest = e.share(resources)
	// Google's relations are ours, from 0.
	for _, q := range constraints {
		row.Constraint = append(row.Constraint, Constraint{q.GetKey(), q.GetValue(), int32(q.GetRelation()) - 1})
	}
	if k.in != "" {
		row.AllocCollectionID, row.AllocInstanceIndex = e.id("collection", k.in), k.alloc(index)
	}
	e.n["instance_events"]++
	return e.instances.add(row)
}
