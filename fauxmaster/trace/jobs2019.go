package trace

import (
	"slices"

	"borg/proto/borgpb"
)

// userNames are ours for users: a name that can be one stays, of a hash there is
// only a number.
type userNames struct {
	*names
	hashes int
}

func newUserNames() *userNames { return &userNames{names: newNames()} }

func (u *userNames) user(theirs string) string {
	if ours, ok := u.of[theirs]; ok {
		return ours
	}
	ours := theirs
	if label(theirs) != theirs {
		ours = hashedUser(u.hashes)
		u.hashes++
	}
	u.of[theirs] = u.another(ours)
	return u.of[theirs]
}

// jobs2019 makes jobs of collections.
type jobs2019 struct {
	of *Google2019
	// keys are USER and NAME of the first job that a collection becomes; used are the
	// names of each user.
	keys  map[int64][2]string
	used  map[string]*names
	times map[int64]int64
	taken map[int64]bool
}

func newJobs2019(o *Google2019) *jobs2019 {
	return &jobs2019{of: o, keys: make(map[int64][2]string), used: make(map[string]*names), taken: make(map[int64]bool)}
}

// prepare names all that may become a job or an alloc set, as jobs name each other.
func (j *jobs2019) prepare() {
	j.times = j.of.there()
	for _, id := range sortedIDs(j.times) {
		c := j.of.collection(id)
		user := j.of.users.user(c.user)
		if j.used[user] == nil {
			j.used[user] = newNames()
		}
		name := c.logical
		if name == "" || label(name) != name {
			name = j.of.replay.jobName(id)
		}
		j.keys[id] = [2]string{user, j.used[user].another(name)}
	}
	j.of.sets.choose()
}

func (j *jobs2019) key(id int64) (user, name string) { return j.keys[id][0], j.keys[id][1] }

// begin makes a job of ours. A collection becomes several where its tasks came at
// different times or have different priorities.
func (j *jobs2019) begin(first row2011) Job {
	id := first.id.job
	c := j.of.collection(id)
	user, name := j.key(id)
	if j.taken[id] {
		name = j.used[user].another(name)
	} else {
		j.taken[id] = true
		if !c.told {
			j.of.note("jobs of which collection_events says nothing")
		}
		if c.scaled {
			j.of.note("jobs whose requests followed their use (vertical_scaling)")
		}
	}
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Priority: int32(first.t.priority), MaxPerMachine: c.perMachine, MaxPerRack: c.perRack,
		Task: &borgpb.TaskSpec{Args: placeholder, AppClass: borgpb.AppClass_APP_CLASS_BATCH},
	}
	if first.t.class >= 2 {
		spec.Kind, spec.Task.AppClass = borgpb.JobKind_JOB_KIND_SERVICE, borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE
	}
	here, sinceUs := true, int64(0)
	if first.chain != nil && !first.chain.here {
		here, sinceUs = false, first.chain.sinceUs
	}
	if first.t.alloc != 0 {
		if spec.AllocSet = j.of.sets.holds(first.t.alloc, here, sinceUs); spec.AllocSet == "" {
			j.of.note("jobs in an alloc set that is not there: they are on machines")
		}
	}
	spec.BatchQueue = c.batch && spec.Kind == borgpb.JobKind_JOB_KIND_BATCH && (!here || !c.enabled)
	if c.parent != 0 {
		if spec.Parent = j.linked(id, c.parent, here, sinceUs); spec.Parent == "" {
			j.of.note(unlinkedParent)
		}
	}
	for _, after := range c.after {
		switch name := j.linked(id, after, here, sinceUs); {
		case name != "" && len(spec.StartAfter) < maxStartAfter && !slices.Contains(spec.StartAfter, name):
			spec.StartAfter = append(spec.StartAfter, name)
		case name == "" && j.of.ended[after] > 0:
			// It is over, as it should be.
		default:
			j.of.note(unlinkedAfter)
		}
	}
	return Job{User: user, Name: name, Spec: spec}
}

const (
	unlinkedParent = "jobs whose parent is not there: they end by themselves"
	unlinkedAfter  = "jobs that a job waits for and that are not there, or are more than 32: it waits for the others alone"
	maxStartAfter  = 32
)

// linked is the name of another job if it is there when a job comes.
func (j *jobs2019) linked(id, other int64, here bool, sinceUs int64) string {
	began, ok := j.times[other]
	ended := j.of.ended[other]
	switch c := j.of.collections[other]; {
	case !ok, other == id, c == nil, c.isSet, here && began != 0:
		return ""
	case !here && ended > 0 && ended <= sinceUs, !here && began == sinceUs && other > id, !here && began > sinceUs:
		return ""
	}
	user, name := j.key(other)
	return user + "/" + name
}

// link brings the jobs of the moment into an order in which each comes after those
// that it names, and cuts what cannot be: names of jobs that are not there, and
// circles.
func (j *jobs2019) link(c *Cell) {
	at := make(map[string]int, len(c.Jobs))
	for i := range c.Jobs {
		at[c.Jobs[i].User+"/"+c.Jobs[i].Name] = i
	}
	const fresh, open, done = 0, 1, 2
	state, ordered := make([]int8, len(c.Jobs)), make([]Job, 0, len(c.Jobs))
	var visit func(i int)
	// may tells whether a job can be named: it comes before.
	may := func(name string) bool {
		i, ok := at[name]
		if ok && state[i] == fresh {
			visit(i)
		}
		return ok && state[i] == done
	}
	visit = func(i int) {
		state[i] = open
		o := &c.Jobs[i]
		if o.Spec.Parent != "" && !may(o.Spec.Parent) {
			j.of.note(unlinkedParent)
			o.Spec.Parent = ""
		}
		if slices.ContainsFunc(o.Machines, func(m string) bool { return m != "" }) {
			// It runs: what it waited for is over.
			o.Spec.StartAfter, o.Spec.BatchQueue = nil, false
		}
		o.Spec.StartAfter = slices.DeleteFunc(o.Spec.StartAfter, func(name string) bool {
			if may(name) {
				return false
			}
			j.of.note(unlinkedAfter)
			return true
		})
		state[i] = done
		ordered = append(ordered, *o)
	}
	for i := range c.Jobs {
		if state[i] == fresh {
			visit(i)
		}
	}
	c.Jobs = ordered
}
