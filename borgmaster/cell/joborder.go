package cell

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"sort"
)

// maxRun is how many jobs lie side by side in a jobOrder: what one more job moves, at
// most.
const maxRun = 512

// jobOrder is jobs in the order of their keys. It is cut into runs, so that a job that
// comes or goes does not move all those behind it: in a cell of many jobs that would
// cost more than all else that a submit does.
type jobOrder struct {
	// None is empty, none is longer than maxRun, each ends before the next one begins.
	runs  []jobRun
	count int
}

// jobRun is jobs side by side, with the heads of their keys: most comparisons need no
// more, while a key itself is far away in memory from the next one.
type jobRun struct {
	heads []keyHead
	jobs  []*Job
}

// keyHead is the first bytes of a key, which compare as the key does: its user, a zero,
// its name.
type keyHead [2]uint64

func headOf(key JobKey) (h keyHead) {
	var b [16]byte
	if n := copy(b[:], key.User); n < len(b) {
		copy(b[n+1:], key.Name)
	}
	return keyHead{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// compare tells whether the job at a place comes before a key, is it, or comes after it.
func (r *jobRun) compare(at int, head keyHead, key JobKey) int {
	switch h := &r.heads[at]; {
	case h[0] != head[0]:
		return cmp.Compare(h[0], head[0])
	case h[1] != head[1]:
		return cmp.Compare(h[1], head[1])
	}
	return compareJob(r.jobs[at], key)
}

func runOf(jobs []*Job) jobRun {
	r := jobRun{heads: make([]keyHead, len(jobs)), jobs: slices.Clone(jobs)}
	for i, j := range jobs {
		r.heads[i] = headOf(j.key)
	}
	return r
}

// orderJobs puts jobs, which may come in any order, into theirs.
func orderJobs(jobs iter.Seq[*Job]) (o jobOrder) {
	sorted := slices.SortedFunc(jobs, func(a, b *Job) int { return a.key.Compare(b.key) })
	o.count = len(sorted)
	// Room for some more in each.
	for run := range slices.Chunk(sorted, maxRun/2) {
		o.runs = append(o.runs, runOf(run))
	}
	return o
}

// find tells where a key is, or would be put: in which run, and where in it. Behind all
// jobs that is the end of the last run.
func (o *jobOrder) find(key JobKey) (run, at int, found bool) {
	head := headOf(key)
	run = sort.Search(len(o.runs), func(i int) bool {
		r := &o.runs[i]
		return r.compare(len(r.jobs)-1, head, key) >= 0
	})
	if run == len(o.runs) {
		if run == 0 {
			return 0, 0, false
		}
		return run - 1, len(o.runs[run-1].jobs), false
	}
	at, found = sort.Find(len(o.runs[run].jobs), func(i int) int { return -o.runs[run].compare(i, head, key) })
	return run, at, found
}

// add puts in a job whose key is not there.
func (o *jobOrder) add(j *Job) {
	o.count++
	if len(o.runs) == 0 {
		o.runs = []jobRun{runOf([]*Job{j})}
		return
	}
	run, at, _ := o.find(j.key)
	if whole := &o.runs[run]; len(whole.jobs) == maxRun {
		half := runOf(whole.jobs[maxRun/2:])
		clear(whole.jobs[maxRun/2:])
		whole.heads, whole.jobs = whole.heads[:maxRun/2], whole.jobs[:maxRun/2]
		o.runs = slices.Insert(o.runs, run+1, half)
		if at > maxRun/2 {
			run, at = run+1, at-maxRun/2
		}
	}
	r := &o.runs[run]
	r.heads, r.jobs = slices.Insert(r.heads, at, headOf(j.key)), slices.Insert(r.jobs, at, j)
}

// remove takes out the job of a key, if it is there.
func (o *jobOrder) remove(key JobKey) {
	run, at, found := o.find(key)
	if !found {
		return
	}
	o.count--
	r := &o.runs[run]
	if r.heads, r.jobs = slices.Delete(r.heads, at, at+1), slices.Delete(r.jobs, at, at+1); len(r.jobs) == 0 {
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
			for _, j := range o.runs[i].jobs[skip:] {
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
	for _, r := range o.runs {
		if len(r.jobs) == 0 || len(r.jobs) > maxRun || len(r.heads) != len(r.jobs) {
			return false
		}
		for i, j := range r.jobs {
			if r.heads[i] != headOf(j.key) {
				return false
			}
		}
		n += len(r.jobs)
	}
	return n == o.count
}
