package cell

import "slices"

// jobRefs indexes live jobs by the jobs that their specs refer to. Derived.
type jobRefs struct {
	// Jobs by their parent, ordered by uid.
	children map[JobKey][]*Job
	// Jobs by each job that they start after, ordered by uid.
	followers map[JobKey][]*Job
}

// add indexes the references of a job's latest spec.
func (r *jobRefs) add(j *Job) {
	s := j.latest().Proto
	if s.Parent != "" {
		addRef(r.children, s.Parent, j)
	}
	for _, before := range s.StartAfter {
		addRef(r.followers, before, j)
	}
}

// remove undoes add; the job still has the same latest spec.
func (r *jobRefs) remove(j *Job) {
	s := j.latest().Proto
	if s.Parent != "" {
		removeRef(r.children, s.Parent, j)
	}
	for _, before := range s.StartAfter {
		removeRef(r.followers, before, j)
	}
}

func addRef(by map[JobKey][]*Job, to string, from *Job) {
	k, _ := ParseJobKey(to)
	at, found := slices.BinarySearchFunc(by[k], from.uid, func(o *Job, u UID) int { return o.uid.Compare(u) })
	if !found {
		by[k] = slices.Insert(by[k], at, from)
	}
}

func removeRef(by map[JobKey][]*Job, to string, from *Job) {
	k, _ := ParseJobKey(to)
	list := by[k]
	at, found := slices.BinarySearchFunc(list, from.uid, func(o *Job, u UID) int { return o.uid.Compare(u) })
	switch {
	case !found:
	case len(list) == 1:
		delete(by, k)
	case at == 0:
		// The order in which dependents end; nothing moves.
		list[0] = nil
		by[k] = list[1:]
	default:
		by[k] = slices.Delete(list, at, at+1)
	}
}
