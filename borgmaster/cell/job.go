package cell

import (
	"iter"
	"slices"

	"borg/proto/borgpb"
)

// Job is a number of like tasks (paper §2.3). Readers see it through methods;
// only Apply changes it.
type Job struct {
	mark
	// The small fields come first, where the mark leaves room: with one more word a job is
	// of the next larger size that is allocated (TestJobSize).

	// State when it was last settled; derived.
	settled state
	// In the list of jobs to be settled, and the last edge of a task of it.
	touched  bool
	lastEdge edge
	// It was killed, by which alone a daemon or cron job ends; derived.
	ended bool
	// Replaced or expired: no longer in the cell, kept only by orphan copies.
	gone bool

	key         JobKey
	uid         UID
	labels      map[string]string
	annotations map[string]string
	// Before they were changed alone; nil: they were not.
	given *given
	// Spec versions that a task still runs, ascending. Never empty: the last
	// one is the present one.
	specs []*Spec

	// Counts the changes of the spec and of the number of tasks, from 1.
	version uint64
	// rows[i] is task i; len(rows) is the number of tasks.
	rows []*Task
	// Indices of the rows that are pending.
	waiting bitmap
	// Rows by state; derived.
	pending, running, dead, finished uint32
	// Current copies reported RUNNING; those that wait to be started again; other copies
	// STOPPING; derived.
	started, backoff, stopping uint32
	// Rows with a retryRow; derived.
	retrying uint32

	// Highest attempt of any task that a resize cut off: attempts of an index
	// that comes back go on above it, so that no copy is ever named twice.
	attemptFloor uint64

	submittedWallNs int64
	changedWallNs   int64
	reason          string

	// Place in the order of deaths and cell time of it; zero: not dead.
	deathSeq uint64
	deathNs  int64

	// The update that rolls, or the last one; nil: none yet.
	update *Update
	// Cell time before which its update need not be looked at because of the time;
	// zero: no time is set. Derived.
	updateDueNs int64

	// It was let out of the batch queue.
	enabled bool
	// What it starts after failed, and it ended for that; derived, until the op is done.
	diesAfter bool
	// Where it is in Changed, if it is there.
	changedAt int32

	// What its user is charged for it; nil while quotas are not enforced; derived.
	charged charge
	// Of that, or of what that would be, for its copies in quarantine; derived.
	chargedKept charge

	// Current copies by failure domain; nil when no limit per domain is set.
	domains *occupancy

	// Before that cell time no task of it may leave a machine that drains; derived.
	leaveDueNs int64

	// Nil: it is no daemon job, or no cron job. Either lives until it was killed; derived.
	daemon *daemon
	cron   *cron
	// Of a run of a cron job, its slot; zero: it is none.
	slotNs int64
	// What it saves; nil: it was not made by the cell to save anything.
	saving *saving

	// What the fields above point to in a job of one spec and one task, as most are: one
	// object is made, and passed by the garbage collector, sooner than five. Each is used
	// once, for what comes first.
	own struct {
		specs   [1]*Spec
		rows    [1]*Task
		waiting [1]uint64
		task    [1]Task
	}
}

// Key is "<user>/<name>".
func (j *Job) Key() JobKey { return j.key }

// UID tells this job from others of the same key.
func (j *Job) UID() UID { return j.uid }

// SubmittedWallNs is the cell's wall time at which the job was submitted.
func (j *Job) SubmittedWallNs() int64 { return j.submittedWallNs }

// Version counts the changes of the spec and of the number of tasks, from 1.
func (j *Job) Version() uint64 { return j.version }

// Spec is the present spec. It must not be changed.
func (j *Job) Spec() *borgpb.JobSpec { return j.latest().Proto }

// SpecAt returns the spec of that version, nil when no task runs it any more.
func (j *Job) SpecAt(version uint64) *Spec { return j.specAt(version) }

// Labels must not be changed.
func (j *Job) Labels() map[string]string { return j.labels }

// Kind is what the end of a task means.
func (j *Job) Kind() borgpb.JobKind { return j.latest().Proto.Kind }

// Priority is 0 to 450.
func (j *Job) Priority() int32 { return j.latest().Proto.Priority }

// State follows from the tasks: running when any is, else pending when any
// is, else dead.
func (j *Job) State() borgpb.State { return j.state().proto() }

// NumTasks is the number of tasks; indices run from 0.
func (j *Job) NumTasks() uint32 { return uint32(len(j.rows)) }

// Task returns task index; nil when there is none.
func (j *Job) Task(index uint32) *Task {
	if int(index) >= len(j.rows) {
		return nil
	}
	return j.rows[index]
}

// Tasks yields all tasks by index.
func (j *Job) Tasks() iter.Seq2[uint32, *Task] {
	return func(yield func(uint32, *Task) bool) {
		for i, t := range j.rows {
			if !yield(uint32(i), t) {
				return
			}
		}
	}
}

// Counts says how many tasks are in each state.
func (j *Job) Counts() (pending, running, dead uint32) { return j.pending, j.running, j.dead }

// Need is what task index asks for when it is placed now. Tasks with the same
// *Need are alike to a scheduler.
func (j *Job) Need(index uint32) *Need { return j.specOf(index).Need(index) }

// AllocSet is the key of the alloc set in whose allocs the tasks run; ok is
// false when they run on machines.
func (j *Job) AllocSet() (key JobKey, ok bool) {
	s := j.latest()
	return s.allocSet, s.Proto.AllocSet != ""
}

// Limits of the present spec. Must not be changed.
func (j *Job) Limits() *Limits { return j.latest().limits.orNone() }

// InDomain counts the running tasks of the job in m's failure domain of that
// kind. Only kept (otherwise 0) while the spec limits that kind.
func (j *Job) InDomain(kind DomainKind, m *Machine) uint32 {
	return j.domains.in(kind, m)
}

// Update is the update that rolls, or the last one; nil when there was none.
func (j *Job) Update() *Update { return j.update }

func (j *Job) latest() *Spec { return j.specs[len(j.specs)-1] }

func (j *Job) specAt(version uint64) *Spec {
	for _, s := range j.specs {
		if s.Version == version {
			return s
		}
	}
	return nil
}

// state follows from the tasks.
func (j *Job) state() state {
	switch {
	case j.running > 0:
		return stateRunning
	case j.pending > 0:
		return statePending
	case (j.daemon != nil || j.cron != nil) && !j.ended:
		// It waits for machines to match, or for its time.
		return stateRunning
	default:
		return stateDead
	}
}

func (j *Job) count(s state, n int) {
	switch s {
	case statePending:
		j.pending += uint32(n)
	case stateRunning:
		j.running += uint32(n)
	case stateDead:
		j.dead += uint32(n)
	}
}

// roomToRun is how many more tasks max_running lets run.
func (j *Job) roomToRun() uint32 {
	limit := j.latest().Proto.MaxRunning
	switch {
	case limit == 0:
		return j.pending
	case j.running >= limit:
		return 0
	default:
		return limit - j.running
	}
}

// HeldBack says why no task of the job is offered to schedulers now although
// some wait; empty: they are offered.
func (c *Cell) HeldBack(j *Job) string {
	if v := j.saving; v != nil {
		return "saves what alloc " + (TaskID{v.set, v.index}).String() + " left on " + v.machine + "; the cell starts it there"
	}
	if words := c.AfterWords(j); words != "" {
		return words
	}
	if j.pending > 0 && j.roomToRun() == 0 {
		return "as many of its tasks run as max_running allows"
	}
	if j.pending > 0 && c.Queued(j) {
		return "in the batch queue until all of it fits"
	}
	if c.allRetry(j) {
		return "the last attempts of its tasks failed; the next one is in " + c.leftWords(c.RetryNs(j))
	}
	return ""
}

// dropUnused forgets a spec version that nothing runs any more.
func (c *Cell) dropUnused(s *Spec) {
	j := s.job
	if s.uses > 0 || s.gone || s == j.latest() || j.update != nil && s.Version == j.update.stable {
		return
	}
	s.gone = true
	c.countBytesOf(j.key.User, j.deathSeq != 0, -s.bytesOf())
	if j.deathSeq == 0 {
		c.jobRefs.each(j, removeRef)
	}
	j.specs = slices.DeleteFunc(j.specs, func(o *Spec) bool { return o == s })
	if j.deathSeq == 0 {
		c.jobRefs.each(j, addRef)
	}
	c.recharge(j)
	c.dirty(s)
}

// touch puts a job on the list of those to be settled after the op.
func (c *Cell) touch(j *Job, e edge) {
	j.lastEdge = e
	c.review(j)
}

// review is touch for what took no task along an edge.
func (c *Cell) review(j *Job) {
	if !j.touched && !j.gone {
		j.touched = true
		c.now.touched = append(c.now.touched, j)
	}
}

// settleJobs draws the conclusions for each job of which something changed:
// its update goes on, its tasks leave machines that drain, its own state follows
// its tasks', its children end with it. Ending them touches more jobs.
func (c *Cell) settleJobs() {
	for {
		c.settleTouched()
		c.stopsEased()
		if len(c.now.seatable) == 0 {
			return
		}
		c.seatUnseated()
	}
}

func (c *Cell) settleTouched() {
	for i := 0; i < len(c.now.touched); i++ {
		j := c.now.touched[i]
		c.roll(j)
		c.setDue(j)
		c.leave(j)
		c.dieAfter(j)
		j.touched = false
		c.settleJob(j)
		c.noteWait(j)
	}
	c.now.touched = c.now.touched[:0]
}

// settleJob takes the job's own state along the paper's diagram.
func (c *Cell) settleJob(j *Job) {
	from, to := j.settled, j.state()
	if from == to {
		return
	}
	e := edgeEvict
	switch {
	case to == stateRunning:
		e = edgeSchedule
	case to == statePending && (j.lastEdge == edgeFail || j.lastEdge == edgeUpdate):
		e = j.lastEdge
	case to == stateDead && (j.lastEdge == edgeKill || from == statePending):
		// Nothing else ends a job that waits, whatever was touched last: a kill also ends
		// its update, and takes the extra tasks of that away.
		e = edgeKill
	case to == stateDead && int(j.finished) == len(j.rows):
		e = edgeFinish
	case to == stateDead && j.lastEdge == edgeLost:
		e = edgeLost
	case to == stateDead:
		e = edgeFail
	}
	j.settled = take(from, e, to)
	j.changedWallNs = c.clock.wallNs
	c.dirty(j)
	ev := jobEvent(j, edgeEvents[e], from, to)
	ev.Reason = j.reason
	if j.diesAfter {
		ev.Cause = borgpb.StopCause_STOP_CAUSE_AFTER_FAILURE
		j.diesAfter = false
	}
	c.emit(ev)
	if to == stateDead {
		c.die(j)
	}
}

// die follows the death of a job.
func (c *Cell) die(j *Job) {
	c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_REPLACED, "the job ended")
	c.closeUpdate(j, "closed: the job ended")
	c.letGoJob(j)
	c.unstand(j)
	c.freeSeats(j)
	c.saverEnded(j)
	was := j.stateUse()
	c.graveyard.addJob(c, j)
	c.jobRefs.remove(j)
	c.dies(was, j.stateUse(), graveOf(j))
	c.ownerEnds(j.key, j.latest().Proto.Priority)
	c.countDead(j)
	c.endDependents(j)
	c.runEnded(j)
}

// limitDomains counts the current copies by failure domain when the spec
// limits any kind of it.
func (c *Cell) limitDomains(j *Job) {
	j.domains = newOccupancy(j.latest().limits)
	if j.domains == nil {
		return
	}
	for _, t := range j.rows {
		if t.cur != nil {
			c.enterDomains(t.cur)
		}
	}
}

func (c *Cell) enterDomains(p *Copy) { p.job.domains.add(p.machine, 1) }
func (c *Cell) leaveDomains(p *Copy) { p.job.domains.add(p.machine, -1) }
