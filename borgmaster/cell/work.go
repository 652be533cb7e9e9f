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
// alloc that the op makes, changes or ends, or on whose behalf it looks at a machine, one for
// each volume and copy in quarantine that is kept for these, one
// for each job or alloc set whose charge it recomputes, and ReadWork. A unit takes a replica one or
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
		n += max(c.sizeOf(o.ResizeJob), atMost(o.ResizeJob.GetTasks(), maxTasksPerJob)) + c.keptOf(keyIn(o.ResizeJob))
	case *borgpb.Op_KillJob:
		n += c.workOfEnd(o.KillJob)
	case *borgpb.Op_ControlUpdate:
		n += c.sizeOf(o.ControlUpdate) + c.keptOf(keyIn(o.ControlUpdate))
	case *borgpb.Op_FireCron:
		n += c.workOfRun(o.FireCron)
	case *borgpb.Op_SubmitAllocSet:
		n += c.workOfSet(o.SubmitAllocSet, o.SubmitAllocSet.GetSpec())
	case *borgpb.Op_UpdateAllocSet:
		n += c.workOfSet(o.UpdateAllocSet, o.UpdateAllocSet.GetSpec())
	case *borgpb.Op_ResizeAllocSet:
		n += max(c.sizeOf(o.ResizeAllocSet), atMost(o.ResizeAllocSet.GetAllocs(), maxAllocsPerSet)) + c.keptOf(keyIn(o.ResizeAllocSet))
	case *borgpb.Op_KillAllocSet:
		n += c.sizeOf(o.KillAllocSet) + c.keptOf(keyIn(o.KillAllocSet))
	case *borgpb.Op_SetLabels:
		if o.SetLabels.GetUser() != "" {
			n += c.sizeOf(o.SetLabels)
		}
	case *borgpb.Op_SetQuotaPolicy:
		// It computes the charge of each job, alloc set and volume. The bound lets a large cell do
		// it, too.
		if enforce := o.SetQuotaPolicy.Enforce; enforce != nil && *enforce != c.quotas.policy.enforce {
			n += min(c.jobs.len()+len(c.setList)+c.volumes.list.len(), maxTasksPerJob)
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
	return max(c.sizeOf(key), tasks) + c.keptOf(keyIn(key))
}

// workOfRun is that of a run of a cron job, and of those that it may end.
func (c *Cell) workOfRun(o *borgpb.FireCron) int {
	_, n := sizeOfJob(o.GetSpec())
	if j := c.Job(keyIn(o)); j != nil && j.cron != nil {
		n += c.keptOf(j.runKey(o))
		for _, run := range c.liveRuns(j) {
			n += len(run.rows) + c.keptOf(run.key)
		}
	}
	return n
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
	return max(c.sizeOf(key), allocs) + c.keptOf(keyIn(key)) + len(c.jobRefs.inSet[keyIn(key)])
}

func keyIn(o named) JobKey { return JobKey{o.GetUser(), o.GetName()} }

// sizeOf counts the tasks of a job, or the allocs of a set and what runs in them. Of a name that
// is used again it is the size of what is forgotten then.
func (c *Cell) sizeOf(key named) (n int) {
	if j := c.Job(keyIn(key)); j != nil {
		n = len(j.rows)
	}
	if s := c.sets[keyIn(key)]; s != nil {
		n += len(s.allocs)
		for _, a := range s.allocs {
			n += len(a.copies)
		}
	}
	return n
}

// keptOf counts what is kept for a job or alloc set beside its tasks and allocs: its volumes, also
// those that earlier ones of its name have left, and its copies in quarantine. What changes or ends
// it looks at each of them.
func (c *Cell) keptOf(key JobKey) int {
	n := c.volumes.of[key]
	if j := c.Job(key); j != nil {
		n += len(c.quarantinedOf(j.uid, 0, 1<<32-1))
	}
	return n
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
