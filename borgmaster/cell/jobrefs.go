package cell

import "slices"

// jobRefs indexes live jobs by what their specs refer to. Derived.
type jobRefs struct {
	// Jobs by their parent, ordered by uid.
	children map[JobKey][]*Job
	// Jobs by each job that they start after, ordered by uid.
	followers map[JobKey][]*Job
	// Jobs by the alloc set of any of their specs, ordered by uid.
	inSet map[JobKey][]*Job
	// Jobs by each secret, user and name, that any of their specs names; ordered by uid.
	secrets map[JobKey][]*Job
}

func newJobRefs() jobRefs {
	return jobRefs{
		children: make(map[JobKey][]*Job), followers: make(map[JobKey][]*Job),
		inSet: make(map[JobKey][]*Job), secrets: make(map[JobKey][]*Job),
	}
}

// add indexes the references of a job: its latest spec says which jobs it depends on.
func (r *jobRefs) add(j *Job) {
	s := j.latest().Proto
	if s.Parent != "" {
		addRef(r.children, keyOf(s.Parent), j)
	}
	for _, before := range s.StartAfter {
		addRef(r.followers, keyOf(before), j)
	}
	r.each(j, addRef)
}

// remove undoes add; the job still has the same specs.
func (r *jobRefs) remove(j *Job) {
	s := j.latest().Proto
	if s.Parent != "" {
		removeRef(r.children, keyOf(s.Parent), j)
	}
	for _, before := range s.StartAfter {
		removeRef(r.followers, keyOf(before), j)
	}
	r.each(j, removeRef)
}

// each calls f with the alloc sets and secrets that the specs of a job name, some perhaps more
// than once.
func (r *jobRefs) each(j *Job, f func(by map[JobKey][]*Job, to JobKey, from *Job)) {
	for _, s := range j.specs {
		if s.Proto.AllocSet != "" {
			f(r.inSet, s.allocSet, j)
		}
		for _, name := range s.secrets {
			f(r.secrets, JobKey{j.key.User, name}, j)
		}
	}
}

func keyOf(name string) JobKey {
	k, _ := ParseJobKey(name)
	return k
}

func compareUID(o *Job, u UID) int { return o.uid.Compare(u) }

// addRef adds a job to one of the lists, which are ordered by uid; it may be there already.
func addRef[K comparable](by map[K][]*Job, k K, from *Job) {
	at, found := slices.BinarySearchFunc(by[k], from.uid, compareUID)
	if !found {
		by[k] = slices.Insert(by[k], at, from)
	}
}

// removeRef takes a job from one of the lists; it may not be there.
func removeRef[K comparable](by map[K][]*Job, k K, from *Job) {
	list := by[k]
	at, found := slices.BinarySearchFunc(list, from.uid, compareUID)
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
