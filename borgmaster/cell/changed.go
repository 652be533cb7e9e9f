package cell

import "maps"

// Changed is what the last Apply may have changed of what is shown of a cell: all
// that did change is there, each once. A job is there when a task of it is.
type Changed struct {
	Jobs      []*Job
	Tasks     []*Task
	Machines  []*Machine
	AllocSets []*AllocSet
	Allocs    []*Alloc
}

// Changed reads only. The order is that in which they changed.
func (c *Cell) Changed() (all Changed) {
	jobs, sets := make(map[*Job]bool), make(map[*AllocSet]bool)
	tasks := make(map[*Task]bool)
	job := func(j *Job) {
		if !jobs[j] {
			jobs[j] = true
			all.Jobs = append(all.Jobs, j)
		}
	}
	task := func(t *Task) {
		if job(t.job); !tasks[t] {
			tasks[t] = true
			all.Tasks = append(all.Tasks, t)
		}
	}
	set := func(s *AllocSet) {
		if !sets[s] {
			sets[s] = true
			all.AllocSets = append(all.AllocSets, s)
		}
	}
	for _, r := range c.records.changed {
		switch o := r.(type) {
		case *Job:
			job(o)
		case *Spec:
			job(o.job)
		case *Update:
			job(o.job)
		case *Task:
			task(o)
		case *Copy:
			if job(o.job); !o.orphan && int(o.index) < len(o.job.rows) {
				// The last copy of a task is shown with it.
				task(o.job.rows[o.index])
			}
		case *Machine:
			all.Machines = append(all.Machines, o)
		case *AllocSet:
			set(o)
		case *Alloc:
			all.Allocs = append(all.Allocs, o)
			set(o.set)
		}
	}
	return all
}

// mostChangedKept is how long a list of what changed may be that is used again.
const mostChangedKept = 16_384

// forgetChanged begins the list anew.
func (c *Cell) forgetChanged() {
	b := &c.records
	for i, r := range b.changed {
		r.marker().changed = false
		b.changed[i] = nil
	}
	if b.changed = b.changed[:0]; cap(b.changed) > mostChangedKept {
		b.changed = nil
	}
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
