package export

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// collection is a job or an alloc set, as Google's schema has one thing for both.
type collection struct {
	uid      cell.UID
	key      cell.JobKey
	size     uint32
	priority int32
	// job is nil for an alloc set.
	job *cell.Job
	set *cell.AllocSet
	// in is the alloc set that a job runs in; nil: none.
	in     *cell.AllocSet
	queued bool
	// parent and after are jobs; one that is not there (any more) is not named.
	parent *cell.Job
	after  []*cell.Job
}

func ofJob(c *cell.Cell, j *cell.Job) collection {
	k := collection{uid: j.UID(), key: j.Key(), size: j.NumTasks(), priority: j.Priority(), job: j, queued: j.Spec().GetBatchQueue()}
	if key, ok := j.AllocSet(); ok {
		k.in = c.AllocSet(key)
	}
	if parent, err := cell.ParseJobKey(j.Spec().GetParent()); err == nil {
		k.parent = c.Job(parent)
	}
	for _, name := range j.Spec().GetStartAfter() {
		if key, err := cell.ParseJobKey(name); err == nil && c.Job(key) != nil {
			k.after = append(k.after, c.Job(key))
		}
	}
	return k
}

func ofSet(s *cell.AllocSet) collection {
	return collection{uid: s.UID(), key: s.Key(), size: s.NumAllocs(), priority: s.Priority(), set: s}
}

func find(c *cell.Cell, uid cell.UID) (collection, bool) {
	if j := c.JobByUID(uid); j != nil {
		return ofJob(c, j), true
	}
	if s := c.AllocSetByUID(uid); s != nil {
		return ofSet(s), true
	}
	return collection{}, false
}

// kind is Google's collection_type: 0 job, 1 alloc set.
func (k collection) kind() int32 {
	if k.set != nil {
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
	case k.job != nil && k.job.Kind() == borgpb.JobKind_JOB_KIND_BATCH:
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
		Time: us, Type: kind, CollectionID: e.id("collection", k.uid.String()), SchedulingClass: k.class(), CollectionType: k.kind(), Priority: k.priority,
		User: k.key.User, CollectionName: k.key.String(), CollectionLogicalName: k.key.Name, VerticalScaling: verticalScalingOff,
	}
	if k.in != nil {
		row.AllocCollectionID = e.id("collection", k.in.UID().String())
	}
	if k.parent != nil {
		row.ParentCollectionID = e.id("collection", k.parent.UID().String())
	}
	for _, j := range k.after {
		row.StartAfter = append(row.StartAfter, e.id("collection", j.UID().String()))
	}
	if k.job != nil {
		spec := k.job.Spec()
		row.MaxPerMachine, row.MaxPerSwitch = int32(spec.GetMaxPerMachine()), int32(spec.GetMaxPerRack())
		if k.queued {
			row.Scheduler = schedulerBatch
		}
	} else {
		row.MaxPerMachine, row.MaxPerSwitch = int32(k.set.Spec().GetMaxPerMachine()), int32(k.set.Spec().GetMaxPerRack())
	}
	e.n["collection_events"]++
	return e.collections.add(row)
}

const (
	verticalScalingOff = 1
	schedulerBatch     = 1
)

// instance writes an event of a task or alloc, and notes whether it has ended by it.
func (e *Events) instance(c *cell.Cell, us int64, kind int32, k collection, index uint32, machine string) error {
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
		Time: us, Type: kind, CollectionID: e.id("collection", k.uid.String()), SchedulingClass: k.class(), CollectionType: k.kind(), Priority: k.priority,
		InstanceIndex: int32(index), AllocInstanceIndex: -1,
	}
	if machine != "" {
		row.MachineID = e.id("machine", machine)
	}
	need := k.need(index)
	row.ResourceRequest = e.share(need.Resources)
	// Google's relations are ours, from 0.
	for _, q := range need.Task.GetConstraints() {
		row.Constraint = append(row.Constraint, Constraint{q.GetKey(), q.GetValue(), int32(q.GetRelation()) - 1})
	}
	if k.in != nil {
		row.AllocCollectionID = e.id("collection", k.in.UID().String())
		if p := k.current(index); p != nil && p.Alloc() != nil {
			row.AllocInstanceIndex = int32(p.Alloc().Index())
		}
	}
	e.n["instance_events"]++
	return e.instances.add(row)
}

func (k collection) need(index uint32) *cell.Need {
	if k.job != nil {
		return k.job.Need(index)
	}
	return k.set.Need()
}

func (k collection) current(index uint32) *cell.Copy {
	if k.job == nil || index >= k.job.NumTasks() {
		return nil
	}
	return k.job.Task(index).Current()
}
