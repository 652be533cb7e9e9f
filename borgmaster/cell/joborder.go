package cell

import (
	"iter"
	"slices"
)

// maxRun is how many jobs lie side by side in a jobOrder: what one more job moves, at
// most.
const maxRun = 512

// jobOrder is jobs in the order of their keys. It is cut into runs, so that a job that
// comes or goes does not move all those behind it: in a cell of many jobs that would
// cost more than all else that a submit does.
type jobOrder struct {
	// None is empty, none is longer than maxRun, each ends before the next one begins.
	runs  [][]*Job
	count int
}

// orderJobs puts jobs, which may come in any order, into theirs.
func orderJobs(jobs iter.Seq[*Job]) (o jobOrder) {
	sorted := slices.SortedFunc(jobs, func(a, b *Job) int { return a.key.Compare(b.key) })
	o.count = len(sorted)
	// Room for some more in each.
	for run := range slices.Chunk(sorted, maxRun/2) {
		o.runs = append(o.runs, slices.Clone(run))
	}
	return o
}

// find tells where a key is, or would be put: in which run, and where in it. Behind all
// jobs that is the end of the last run.
func (o *jobOrder) find(key JobKey) (run, at int, found bool) {
	run, _ = slices.BinarySearchFunc(o.runs, key, func(r []*Job, key JobKey) int { return compareJob(r[len(r)-1], key) })
	if run == len(o.runs) {
		if run == 0 {
			return 0, 0, false
		}
		return run - 1, len(o.runs[run-1]), false
	}
	at, found = slices.BinarySearchFunc(o.runs[run], key, compareJob)
	return run, at, found
}

// add puts in a job whose key is not there.
func (o *jobOrder) add(j *Job) {
	o.count++
	if len(o.runs) == 0 {
		o.runs = [][]*Job{{j}}
		return
	}
	run, at, _ := o.find(j.key)
	if whole := o.runs[run]; len(whole) == maxRun {
		half := slices.Clone(whole[maxRun/2:])
		clear(whole[maxRun/2:])
		o.runs[run] = whole[:maxRun/2]
		o.runs = slices.Insert(o.runs, run+1, half)
		if at > maxRun/2 {
			run, at = run+1, at-maxRun/2
		}
	}
	o.runs[run] = slices.Insert(o.runs[run], at, j)
}

// remove takes out the job of a key, if it is there.
func (o *jobOrder) remove(key JobKey) {
	run, at, found := o.find(key)
	if !found {
		return
	}
	o.count--
	if o.runs[run] = slices.Delete(o.runs[run], at, at+1); len(o.runs[run]) == 0 {
		o.runs = slices.Delete(o.runs, run, run+1)
	}
}

func (o *jobOrder) len() int { return o.count }

// all yields all jobs. The order must not be changed meanwhile.
func (o *jobOrder) all() iter.Seq[*Job] { return o.walk(0, 0) }

// from yields the jobs from a key on.
func (o *jobOrder) from(key JobKey) iter.Seq[*Job] {
	run, at, _ := o.find(key)
	return o.walk(run, at)
}

// after yields the jobs behind a key.
func (o *jobOrder) after(key JobKey) iter.Seq[*Job] {
	run, at, found := o.find(key)
	if found {
		at++
	}
	return o.walk(run, at)
}

func (o *jobOrder) walk(run, at int) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		skip := at
		for i := run; i < len(o.runs); i++ {
			for _, j := range o.runs[i][skip:] {
				if !yield(j) {
					return
				}
			}
			skip = 0
		}
	}
}

// wellFormed verifies what the fields promise, but for the order, which Check looks at.
func (o *jobOrder) wellFormed() bool {
	n := 0
	for _, run := range o.runs {
		if len(run) == 0 || len(run) > maxRun {
			return false
		}
		n += len(run)
	}
	return n == o.count
}
