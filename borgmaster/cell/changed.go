package cell

import "maps"

// Changed is what the last Apply may have changed of what is shown of a cell: all
// that did change is there, in the order in which it changed. It is good until the
// next Apply, and must not be changed.
type Changed struct {
	// A job is there when a task of it is, and an alloc set when an alloc is.
	Jobs      []ChangedJob
	Machines  []*Machine
	AllocSets []*AllocSet
	Allocs    []*Alloc
}

// ChangedJob is a job with the indices of the tasks that may have changed, some
// perhaps more than once.
type ChangedJob struct {
	Job   *Job
	Tasks []uint32
}

// Changed reads only.
func (c *Cell) Changed() *Changed { return &c.records.changed }

// note takes down a record that changes, by what it is shown with. It is called for
// every change, while that is at hand, so that who asks need not go over all records.
func (all *Changed) note(r record) {
	switch o := r.(type) {
	case *Task:
		all.task(o.job, o.index)
	case *Copy:
		// The last copy of a task is shown with it.
		if o.row() != nil {
			all.task(o.job, o.index)
		} else {
			all.job(o.job)
		}
	case *Job:
		all.job(o)
	case *Spec:
		all.job(o.job)
	case *Update:
		all.job(o.job)
	case *seat:
		all.task(o.job, o.index)
	case *cron:
		all.job(o.job)
	case *Machine:
		if first(&o.mark) {
			all.Machines = append(all.Machines, o)
		}
	case *AllocSet:
		all.set(o)
	case *Alloc:
		if first(&o.mark) {
			all.Allocs = append(all.Allocs, o)
		}
		all.set(o.set)
	}
}

// first tells whether it was not listed yet.
func first(m *mark) bool {
	was := m.changed
	m.changed = true
	return !was
}

func (all *Changed) job(j *Job) *ChangedJob {
	if first(&j.mark) {
		j.changedAt = int32(len(all.Jobs))
		all.Jobs = append(all.Jobs, ChangedJob{Job: j})
	}
	return &all.Jobs[j.changedAt]
}

func (all *Changed) task(j *Job, index uint32) {
	in := all.job(j)
	// A task and its copy change together.
	if n := len(in.Tasks); n == 0 || in.Tasks[n-1] != index {
		in.Tasks = append(in.Tasks, index)
	}
}

func (all *Changed) set(s *AllocSet) {
	if first(&s.mark) {
		all.AllocSets = append(all.AllocSets, s)
	}
}

// mostChangedKept is how long a list of what changed may be that is used again.
const mostChangedKept = 16_384

// forget begins the lists anew.
func (all *Changed) forget() {
	for _, j := range all.Jobs {
		j.Job.changed = false
	}
	for _, m := range all.Machines {
		m.changed = false
	}
	for _, s := range all.AllocSets {
		s.changed = false
	}
	for _, a := range all.Allocs {
		a.changed = false
	}
	all.Jobs, all.Machines = again(all.Jobs), again(all.Machines)
	all.AllocSets, all.Allocs = again(all.AllocSets), again(all.Allocs)
}

// again is the room of a list, if it is not too much to keep.
func again[T any](list []T) []T {
	if cap(list) > mostChangedKept {
		return nil
	}
	clear(list)
	return list[:0]
}

// Gone: it is no longer in the cell.
func (j *Job) Gone() bool { return j.gone }

// Job whose row it is.
func (t *Task) Job() *Job { return t.job }

// Gone: a resize cut it off, or its job is gone.
func (t *Task) Gone() bool {
	return t.job.gone || int(t.index) >= len(t.job.rows) || t.job.rows[t.index] != t
}

// Gone: it is no longer in the cell.
func (m *Machine) Gone() bool { return m.gone }

// Gone: it is no longer in the cell.
func (s *AllocSet) Gone() bool { return s.gone }

// PresentSpec is the spec of which the job is now.
func (j *Job) PresentSpec() *Spec { return j.latest() }

// SelectorLabels are what a selector sees of a machine: its attributes and labels.
func (m *Machine) SelectorLabels() map[string]string {
	all := maps.Clone(m.attributes)
	if all == nil {
		return m.labels
	}
	maps.Copy(all, m.labels)
	return all
}
