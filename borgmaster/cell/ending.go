package cell

import (
	"encoding/binary"
	"fmt"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// dependents are the jobs that end with a job which has ended: its children, and the jobs that
// start after it and end if it fails. Each of these may have dependents in turn. One entry ends at
// most maxEndedJobs of them, or about maxEndedTasks tasks, before its ops, and as many again with
// its ops. What is left waits here, and later entries end the next portion. So no single op holds
// up the replicas for long.
type dependents struct {
	mark
	// The job that has ended, and the number of its death.
	key JobKey
	seq uint64
	// It failed or was killed, so that jobs which start after it may end too.
	failed bool
	// All its children have been ended; the jobs that start after it are next.
	childrenDone bool
	// The last one that was looked at, of its children or of the jobs that start after it.
	after UID
	// Cell time before which no more of them are ended.
	readyNs int64
	gone    bool
}

// endings are the dependents that are still to be ended.
type endings struct {
	// Ordered by the number of the death.
	queue []*dependents
	// No job or alloc set takes the key meanwhile, because dependents are found by it.
	byKey map[JobKey]*dependents
}

// ended counts the jobs and tasks that end in an entry because another job has ended, with what is
// kept for these.
type ended struct{ jobs, tasks int }

func (n *ended) add(tasks int) { n.jobs, n.tasks = n.jobs+1, n.tasks+tasks }

func (n *ended) full() bool { return n.jobs >= maxEndedJobs || n.tasks >= maxEndedTasks }

// endDependents ends the dependents of a job that has just died; those that are too many for this
// entry wait.
func (c *Cell) endDependents(died *Job) {
	d := &dependents{key: died.key, seq: died.deathSeq, failed: int(died.finished) != len(died.rows)}
	if !c.endSome(d) {
		d.readyNs = min(c.clock.cellNs+endingPauseNs, maxTimeNs)
		c.endings.add(d)
		c.dirty(d)
	}
}

// endSome ends dependents until none is left, or the entry has ended as many as it may, and
// reports whether none is left.
func (c *Cell) endSome(d *dependents) bool {
	for !d.childrenDone {
		child := nextRef(c.jobRefs.children[d.key], d.after)
		switch {
		case child == nil:
			d.childrenDone, d.after = true, UID{}
		case c.now.ended.full():
			return false
		default:
			d.after = child.uid
			c.now.ended.add(len(child.rows) + c.keptOf(child.key))
			c.kill(child, "its parent "+d.key.String()+" ended")
		}
	}
	for d.failed {
		f := nextRef(c.jobRefs.followers[d.key], d.after)
		switch {
		case f == nil:
			return true
		case c.now.ended.full():
			return false
		}
		d.after = f.uid
		if !f.endsAfterFailure() {
			// To look at it counts as to end a task.
			c.now.ended.tasks++
			continue
		}
		c.now.ended.add(len(f.rows) + c.keptOf(f.key))
		c.endAfter(f, d.key.String())
	}
	return true
}

// nextRef returns the first job of a list ordered by uid that comes after a uid; nil if there is
// none.
func nextRef(list []*Job, after UID) *Job {
	at, found := slices.BinarySearchFunc(list, after, compareUID)
	if found {
		at++
	}
	if at == len(list) {
		return nil
	}
	return list[at]
}

// endsAfterFailure reports whether a job ends when one that it starts after fails: its owner says
// so, and nothing of it runs.
func (j *Job) endsAfterFailure() bool {
	return j.latest().Proto.AfterFailure == borgpb.AfterFailure_AFTER_FAILURE_DIE && j.state() == statePending && !mutant.Planted(mutant.LeftWaiting)
}

// endAfter ends a job because one that it starts after has failed.
func (c *Cell) endAfter(j *Job, name string) {
	j.diesAfter = true
	c.endJob(j, borgpb.StopCause_STOP_CAUSE_AFTER_FAILURE, name+", which it starts after, failed for good or was ended (after_failure)")
}

// endOn ends the next portion of the dependents that wait.
func (c *Cell) endOn() {
	q := &c.endings
	for len(q.queue) > 0 && q.queue[0].readyNs <= c.clock.cellNs {
		d := q.queue[0]
		c.dirty(d)
		if !c.endSome(d) {
			d.readyNs = min(c.clock.cellNs+endingPauseNs, maxTimeNs)
			return
		}
		q.queue[0], d.gone = nil, true
		q.queue = q.queue[1:]
		delete(q.byKey, d.key)
	}
}

// Ending reports whether the cell has yet to end jobs because others have ended.
func (c *Cell) Ending() bool { return len(c.endings.queue) > 0 }

// endingOf reports whether the dependents of a job that has ended are still being ended.
func (c *Cell) endingOf(key JobKey) bool { return c.endings.byKey[key] != nil }

func (q *endings) add(d *dependents) {
	if q.byKey == nil {
		q.byKey = make(map[JobKey]*dependents)
	}
	q.queue = append(q.queue, d)
	q.byKey[d.key] = d
}

// workOfEnd is the work of ending a job: its tasks, and its dependents with theirs. If they are
// more than one entry ends it is all that the user has.
func (c *Cell) workOfEnd(key named) int {
	j := c.Job(JobKey{key.GetUser(), key.GetName()})
	if j == nil || j.deathSeq != 0 {
		return 0
	}
	n := len(j.rows) + c.keptOf(j.key)
	seen, next := map[*Job]bool{j: true}, []*Job{j}
	looked := 0
	for len(next) > 0 && n < maxEndedTasks {
		j, next = next[0], next[1:]
		for i, list := range [][]*Job{c.jobRefs.children[j.key], c.jobRefs.followers[j.key]} {
			for _, o := range list {
				if looked++; looked > maxEndedJobs {
					u := c.StateUseOf(key.GetUser())
					return n + int(u[measureTasks]+u[measureObjects]+u[measureVolumes])
				}
				if i == 1 && !o.endsAfterFailure() || seen[o] {
					continue
				}
				seen[o] = true
				next = append(next, o)
				n += 1 + len(o.rows) + c.keptOf(o.key)
			}
		}
	}
	return n
}

// check verifies what the fields promise.
func (q *endings) check() error {
	for i, d := range q.queue {
		if d.gone || q.byKey[d.key] != d || i > 0 && q.queue[i-1].seq >= d.seq {
			return fmt.Errorf("what ends with job %v is out of order", d.key)
		}
	}
	if len(q.queue) != len(q.byKey) {
		return fmt.Errorf("the dependents of %d jobs are to be ended, of which %d are known", len(q.queue), len(q.byKey))
	}
	return nil
}

func (d *dependents) appendKey(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, kindEnding), d.seq)
}

func (d *dependents) exists() bool { return !d.gone }

func (d *dependents) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(d.key.User)
	e.str(d.key.Name)
	e.bool(d.failed)
	e.bool(d.childrenDone)
	e.uid(d.after)
	e.int(d.readyNs)
	return e.b
}

func (l *loader) ending(seq uint64, dec *decoder) error {
	d := &dependents{
		seq: seq, key: JobKey{dec.str(), dec.str()}, failed: dec.bool(), childrenDone: dec.bool(), after: dec.uid(), readyNs: dec.int(),
	}
	if err := dec.done(); err != nil {
		return err
	}
	if checkKey(d.key) != nil || seq > l.c.graveyard.nextSeq || d.readyNs < 0 || d.readyNs > maxTimeNs {
		return errOdd
	}
	l.c.endings.add(d)
	return nil
}
