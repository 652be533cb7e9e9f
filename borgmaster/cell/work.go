package cell

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"borg/proto/borgpb"
)

// Reading a spec counts as so much work: one for each so many runs of indices, arguments and
// variables that are merged, and for each so many of its elements.
const (
	mergedPerWork   = 50
	elementsPerWork = 4
)

// Work is what it takes to apply an op, beside what its bytes tell: one for each task or
// alloc that the op makes, changes or ends, or on whose behalf it looks at a machine, one
// for each job or alloc set that is charged anew, and ReadWork. A unit takes a replica one or
// two microseconds. The spec is not decoded. A request that was done already is read, and no more.
func (c *Cell) Work(op *borgpb.Op) int {
	if c.requests.byID[op.GetRequestId()] != nil {
		return Elements(op) / elementsPerWork
	}
	n := ReadWork(op)
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		n += c.workOfJob(o.SubmitJob, o.SubmitJob.GetSpec())
	case *borgpb.Op_UpdateJob:
		n += c.workOfJob(o.UpdateJob, o.UpdateJob.GetSpec())
	case *borgpb.Op_ResizeJob:
		n += max(c.rowsOf(o.ResizeJob), atMost(o.ResizeJob.GetTasks(), maxTasksPerJob))
	case *borgpb.Op_KillJob:
		n += c.workOfEnd(o.KillJob)
	case *borgpb.Op_ControlUpdate:
		n += c.rowsOf(o.ControlUpdate)
	case *borgpb.Op_FireCron:
		// It is that of the run.
		_, tasks := sizeOfJob(o.FireCron.GetSpec())
		n += tasks
		if j := c.Job(JobKey{o.FireCron.GetUser(), o.FireCron.GetName()}); j != nil && j.cron != nil {
			// It may end those that run.
			for _, run := range c.liveRuns(j) {
				n += len(run.rows)
			}
		}
	case *borgpb.Op_SubmitAllocSet:
		n += c.workOfSet(o.SubmitAllocSet, o.SubmitAllocSet.GetSpec())
	case *borgpb.Op_UpdateAllocSet:
		n += c.workOfSet(o.UpdateAllocSet, o.UpdateAllocSet.GetSpec())
	case *borgpb.Op_ResizeAllocSet:
		n += max(c.allocsOf(o.ResizeAllocSet), atMost(o.ResizeAllocSet.GetAllocs(), maxAllocsPerSet))
	case *borgpb.Op_KillAllocSet:
		n += c.allocsOf(o.KillAllocSet)
	case *borgpb.Op_SetLabels:
		if o.SetLabels.GetUser() != "" {
			n += max(c.rowsOf(o.SetLabels), c.allocsOf(o.SetLabels))
		}
	case *borgpb.Op_SetQuotaPolicy:
		// All jobs and alloc sets are charged anew. A cell of more must be able to do it too.
		if enforce := o.SetQuotaPolicy.Enforce; enforce != nil && *enforce != c.quotas.policy.enforce {
			n += min(c.jobs.len()+len(c.setList), maxTasksPerJob)
		}
	}
	return n
}

// ReadWork is the part of Work that checking an op takes, be it accepted or not: reading its
// spec, and merging the overrides of a job.
func ReadWork(op *borgpb.Op) int {
	if o, ok := op.GetOp().(*borgpb.Op_FireCron); ok {
		return readWork(o.FireCron.GetSpec())
	}
	switch spec, shape := encodedSpec(op); shape {
	case jobShape:
		return readWork(spec)
	case setShape:
		return setShape.Weigh(spec, maxSpecElements).Elements / elementsPerWork
	}
	return 0
}

func readWork(spec []byte) int {
	s := sizesOf(spec)
	merged := mergeWork(cutsOf(s.overrides), s.env, s.args, s.overrides)
	// More than maxMergeWork is refused unmerged.
	return min(merged, maxMergeWork)/mergedPerWork + jobShape.Weigh(spec, maxSpecElements).Elements/elementsPerWork
}

// workOfJob is the larger of what a job has and gets.
func (c *Cell) workOfJob(key named, spec []byte) int {
	kind, tasks := sizeOfJob(spec)
	switch kind {
	case borgpb.JobKind_JOB_KIND_DAEMON:
		tasks = len(c.machines)
	case borgpb.JobKind_JOB_KIND_CRON:
		// Its runs have them.
		tasks = 0
	}
	return max(c.rowsOf(key), tasks)
}

// sizeOfJob is what kind of job an encoded spec describes, and its number of tasks.
func sizeOfJob(spec []byte) (kind borgpb.JobKind, tasks int) {
	const kindField, tasksField = 1, 2
	everyField(spec, func(field protowire.Number, number uint64, _ []byte) {
		switch field {
		case kindField:
			kind = borgpb.JobKind(int32(number))
		case tasksField:
			tasks = atMost(uint32(number), maxTasksPerJob)
		}
	})
	return kind, tasks
}

func (c *Cell) workOfSet(key named, spec []byte) int {
	const allocsField = 1
	allocs := 0
	everyField(spec, func(field protowire.Number, number uint64, _ []byte) {
		if field == allocsField {
			allocs = atMost(uint32(number), maxAllocsPerSet)
		}
	})
	// Each job that names the set is looked at for its priority.
	return max(c.allocsOf(key), allocs) + len(c.jobRefs.inSet[JobKey{key.GetUser(), key.GetName()}])
}

func (c *Cell) rowsOf(key named) int {
	if j := c.Job(JobKey{key.GetUser(), key.GetName()}); j != nil {
		return len(j.rows)
	}
	return 0
}

// allocsOf counts the allocs of a set and what runs in them.
func (c *Cell) allocsOf(key named) int {
	if s := c.sets[JobKey{key.GetUser(), key.GetName()}]; s != nil {
		n := len(s.allocs)
		for _, a := range s.allocs {
			n += len(a.copies)
		}
		return n
	}
	return 0
}

// atMost: an op of more is refused, and costs nobody more.
func atMost(n uint32, most int) int { return int(min(uint64(n), uint64(most))) }

// mergeSizes are what an encoded job spec has to merge.
type mergeSizes struct {
	env, args int
	overrides []overrideSize
}

type overrideSize struct {
	first, last uint32
	env, args   int
}

// sizesOf reads them without decoding the spec; of what is no spec it tells what there is.
func sizesOf(spec []byte) (s mergeSizes) {
	const task, overrides = 4, 5
	everyField(spec, func(field protowire.Number, _ uint64, value []byte) {
		switch field {
		case task:
			env, args := taskSizes(value)
			s.env, s.args = s.env+env, s.args+args
		case overrides:
			s.overrides = append(s.overrides, sizeOfOverride(value))
		}
	})
	return s
}

func sizeOfOverride(data []byte) (o overrideSize) {
	const first, last, spec = 1, 2, 3
	everyField(data, func(field protowire.Number, number uint64, value []byte) {
		switch field {
		case first:
			o.first = uint32(number)
		case last:
			o.last = uint32(number)
		case spec:
			env, args := taskSizes(value)
			o.env, o.args = o.env+env, o.args+args
		}
	})
	return o
}

func taskSizes(data []byte) (env, args int) {
	const argsField, envField = 2, 3
	everyField(data, func(field protowire.Number, _ uint64, _ []byte) {
		switch field {
		case argsField:
			args++
		case envField:
			env++
		}
	})
	return env, args
}

// cutsOf are the indices at which runs of tasks begin that need the same, ascending.
func cutsOf(overrides []overrideSize) []uint32 {
	cuts := []uint32{0}
	for _, o := range overrides {
		cuts = append(cuts, o.first)
		if o.last < 1<<32-1 {
			cuts = append(cuts, o.last+1)
		}
	}
	slices.Sort(cuts)
	return slices.Compact(cuts)
}

// mergeWork is how many runs, arguments and variables are looked at when the overrides of a
// task with so many variables and arguments are merged.
func mergeWork(cuts []uint32, env, args int, overrides []overrideSize) int {
	work := len(cuts) * (1 + env + args)
	for _, o := range overrides {
		first, _ := slices.BinarySearch(cuts, o.first)
		runs, _ := slices.BinarySearch(cuts[first:], o.last)
		work += (runs + 1) * (16 + env + o.env + o.args)
	}
	return work
}
