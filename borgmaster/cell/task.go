package cell

import (
	"iter"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Task is a row of its job: what is known of one index, whichever copy of it
// runs.
type Task struct {
	mark
	state state
	flags taskFlags
	job   *Job
	index uint32
	// Batch: failures counted against max_failures, over all attempts.
	failures uint32
	// Number of the current attempt, or of the last one; zero: never placed.
	attempt uint64
	// The current copy. Invariant: state == running <=> cur != nil.
	cur *Copy
	// Copies that are no longer current, newest first, linked by next: those
	// that still hold a place, and the last few that ended.
	past          *Copy
	changedWallNs int64
	reason        string
	// What few tasks have; nil: nothing of it.
	few *rareTask
}

// rareTask is what few tasks have, apart from the others so that those stay small.
type rareTask struct {
	// Cell times at which the cell disturbed it of its own accord, as far as the
	// budget of its job asks for them: ascending, at most maxDisruptionsKept.
	disrupted []int64
	// Its crashes on one machine; zero: none are remembered.
	crashed crashRow
	// Delay of its next attempt; zero: there is none.
	retry retryRow
}

// rare makes room for what few tasks have.
func (t *Task) rare() *rareTask {
	if t.few == nil {
		t.few = new(rareTask)
	}
	return t.few
}

// disrupted are the times at which it was disturbed.
func (t *Task) disrupted() []int64 {
	if t.few == nil {
		return nil
	}
	return t.few.disrupted
}

type taskFlags uint8

const (
	// Ended well.
	taskFinished taskFlags = 1 << iota
	// Disturbed by the update that rolls, and not yet seen running since.
	taskUpdating
	// Left alone by the update because of max_disruptions.
	taskSkipped
	// It takes the new spec before others do.
	taskCanary
)

// State of the task.
func (t *Task) State() borgpb.State { return t.state.proto() }

// Attempt is the number of the current attempt, or of the last one.
func (t *Task) Attempt() uint64 { return t.attempt }

// Current is the copy that runs; nil when the task is pending or dead.
func (t *Task) Current() *Copy { return t.cur }

// Failures counted against max_failures.
func (t *Task) Failures() uint32 { return t.failures }

// Finished tells that the task is dead and ended well.
func (t *Task) Finished() bool { return t.flags&taskFinished != 0 }

// Past yields the copies that are no longer current and still known, newest
// first.
func (t *Task) Past() iter.Seq[*Copy] {
	return func(yield func(*Copy) bool) {
		for p := t.past; p != nil; p = p.next {
			if !yield(p) {
				return
			}
		}
	}
}

// ID names the task.
func (t *Task) ID() TaskID { return TaskID{t.job.key, t.index} }

// Reason is why it is in its state.
func (t *Task) Reason() string { return t.reason }

// move takes a task along an edge. What belongs to its copy is done before.
func (c *Cell) move(t *Task, e edge, to state, reason string) {
	from, j := t.state, t.job
	t.state = take(from, e, to)
	t.reason = clip(reason, maxReasonBytes)
	if from != to {
		c.countTasks(j, from, -1)
		c.countTasks(j, to, 1)
		if to == statePending {
			j.waiting.set(t.index)
		} else if from == statePending {
			j.waiting.clear(t.index)
		}
	}
	if j.saving != nil {
		c.lookAtSavers()
	}
	c.reviewStopCharges(t)
	if to == stateDead {
		c.discharge(t)
		t.setRetry(retryRow{})
		if t.flags&taskFinished != 0 {
			j.finished++
		}
		if !mutant.Planted(mutant.RollOutStuck) {
			c.clearUpdating(t)
		}
	}
	if t.attempt != 0 || to != stateDead {
		t.changedWallNs = c.clock.wallNs
	} else {
		// Never placed: the job's own record says all there is to say.
		t.changedWallNs, t.reason = 0, ""
	}
	if t.attempt != 0 || t.recorded() {
		c.dirty(t)
	}
	c.touch(j, e)
}

// place is where a task or alloc goes.
type place struct {
	machine *Machine
	alloc   *Alloc
	ports   []uint16
	devices []DeviceGrant
	victims *victims
	// What victims are told of the choice of them.
	why string
}

// schedule makes a new attempt.
func (c *Cell) schedule(t *Task, at place) {
	j, spec := t.job, t.job.specOf(t.index)
	need := spec.Need(t.index)
	c.stopVictims(at.victims, &taking{t.ID().String, Preemptor{j.key.User, spec.Proto.Priority, spec.Proto.Preempt}, c.waitOf(spec.Proto.PreemptWaitNs, spec.Proto.Priority), at.why})
	for p := t.past; p != nil; p = p.next {
		if p.state == attemptUnreachable && p.stop == nil {
			c.order(p, borgpb.StopCause_STOP_CAUSE_DUPLICATE, "its replacement was placed on "+at.machine.name, graceOf(need))
		}
	}
	t.attempt = max(t.attempt, j.attemptFloor) + 1
	t.flags &^= taskSkipped
	p := &Copy{
		job: j, index: t.index, attempt: t.attempt, priority: spec.Proto.Priority,
		machine: at.machine, alloc: at.alloc, state: attemptAssigned, kind: jobKind(spec.Proto.Kind),
		res: &need.Resources, ports: at.ports,
	}
	if len(at.devices) > 0 {
		p.rare().devices = at.devices
	}
	c.bind(p, spec)
	opened := c.useVolumes(p)
	c.hold(p)
	p.wait = await(p.room(), p.res, at.victims.all())
	if p.alloc == nil {
		c.giveUpYielding(p.machine, p.priority, p.res.DiskBytes+volumeBytes(need.Task.GetVolumes()), opened, t.ID().String)
	}
	t.cur = p
	c.enterDomains(p)
	c.move(t, edgeSchedule, stateRunning, "")
	e := taskEvent(p, borgpb.EventKind_EVENT_KIND_SCHEDULE, statePending, stateRunning)
	if p.alloc != nil {
		e.Alloc = p.alloc.Name()
	}
	c.emit(e)
}

// evict takes a running task off its place along an edge; its copy is told to
// stop and holds the place until it has.
func (c *Cell) evict(t *Task, e edge, to state, cause borgpb.StopCause, reason string, graceNs int64) {
	p := t.cur
	c.retire(t)
	c.setCopyState(p, attemptStopping)
	c.order(p, cause, reason, graceNs)
	if mutant.Planted(mutant.RoomFreedEarly) {
		p.room().sub(p.held())
		p.res, p.estimate = &Resources{}, nil
	}
	c.move(t, e, to, reason)
	ev := taskEvent(p, edgeEvents[e], stateRunning, to)
	ev.Cause, ev.Reason = cause, reason
	c.emit(ev)
}

// retire makes the current copy a past one.
func (c *Cell) retire(t *Task) {
	p := t.cur
	c.leaveDomains(p)
	t.cur = nil
	p.next = t.past
	t.past = p
	c.dirty(t)
	c.dirty(p)
	if p.alloc != nil && p.machine.drain != nil {
		// What holds the alloc there may have gone with it.
		c.drainDueNs = 0
	}
}

// order writes down that a copy must stop. It can never be current again.
func (c *Cell) order(p *Copy, cause borgpb.StopCause, reason string, graceNs int64) {
	p.stop = &stopping{cause: cause, reason: clip(reason, maxReasonBytes), index: c.index, graceNs: graceNs}
	if noticed(cause) {
		p.stop.noticeNs = p.noticeNs()
	}
	c.unbind(p)
	c.reviewStopCharge(p)
	c.dirtyCopy(p)
}

// end records that a past copy is gone and frees its place.
func (c *Cell) end(p *Copy, to attemptState) {
	c.release(p)
	c.setCopyState(p, to)
	c.unbind(p)
	p.endedWallNs = c.clock.wallNs
	c.dirty(p)
	if !p.orphan {
		c.trim(p.job.rows[p.index])
	}
}

// trim forgets ended copies beyond the last few.
func (c *Cell) trim(t *Task) {
	ended := 0
	for at := &t.past; *at != nil; {
		p := *at
		if !p.state.live() {
			if ended++; ended > maxEndedCopiesOfTask {
				*at = p.next
				p.next, p.orphan = nil, true
				c.dirty(p)
				continue
			}
		}
		at = &p.next
	}
}

// bind and unbind tie a copy to the spec that it runs.
func (c *Cell) bind(p *Copy, s *Spec) {
	p.spec, p.version = s, s.Version
	s.uses++
	if p.machine != nil {
		c.want(p)
	}
}

func (c *Cell) unbind(p *Copy) {
	if s := p.spec; s != nil {
		c.unwant(p)
		p.spec = nil
		s.uses--
		c.dropUnused(s)
	}
}

// setCopyState keeps the job's counts of copies by state.
func (c *Cell) setCopyState(p *Copy, to attemptState) {
	j := p.job
	if p.state == attemptRunning {
		j.started--
		if to != attemptRunning && (p.few != nil || j.update.canarying() || j.update.Extra() > 0) {
			c.seenDown(p)
		}
	}
	if p.state == attemptBackoff {
		j.backoff--
	}
	if p.state == attemptStopping && !p.orphan {
		j.stopping--
	}
	was := p.state
	p.state = to
	if was == attemptQuarantined {
		c.unkeep(p)
	}
	if (was == attemptUnreachable || to == attemptUnreachable) && p.machine != nil {
		c.reviewVolumesOf(p)
	}
	if to == attemptRunning {
		j.started++
	}
	if to == attemptBackoff {
		j.backoff++
	}
	if to == attemptStopping && !p.orphan {
		j.stopping++
	}
	c.reviewStopCharge(p)
	if (was == attemptRunning || to == attemptRunning) && j.update.Extra() > 0 && !j.update.Rolling() {
		c.review(j)
	}
}

// dirtyCopy notes a change of a copy: the current one is written with its row.
func (c *Cell) dirtyCopy(p *Copy) {
	if t := p.row(); t != nil && t.cur == p {
		c.dirty(t)
		return
	}
	c.dirty(p)
}

// row is the task whose copy p is; nil for an orphan.
func (p *Copy) row() *Task {
	if p.orphan || int(p.index) >= len(p.job.rows) {
		return nil
	}
	return p.job.rows[p.index]
}

// graceOf is the time between SIGTERM and SIGKILL that a task asks for.
func graceOf(n *Need) int64 {
	if g := n.Task.GraceNs; g != 0 {
		return g
	}
	return defaultGraceNs
}

// grace of a copy that is bound to its spec.
func (p *Copy) grace() int64 { return graceOf(p.spec.Need(p.index)) }

// edgeEvents names the event of each edge.
var edgeEvents = [numEdges]borgpb.EventKind{
	edgeSubmit:   borgpb.EventKind_EVENT_KIND_SUBMIT,
	edgeAccept:   borgpb.EventKind_EVENT_KIND_SUBMIT,
	edgeReject:   borgpb.EventKind_EVENT_KIND_REFUSE,
	edgeSchedule: borgpb.EventKind_EVENT_KIND_SCHEDULE,
	edgeEvict:    borgpb.EventKind_EVENT_KIND_EVICT,
	edgeFail:     borgpb.EventKind_EVENT_KIND_FAIL,
	edgeFinish:   borgpb.EventKind_EVENT_KIND_FINISH,
	edgeKill:     borgpb.EventKind_EVENT_KIND_KILL,
	edgeLost:     borgpb.EventKind_EVENT_KIND_LOST,
	edgeUpdate:   borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING,
}

func taskEvent(p *Copy, kind borgpb.EventKind, from, to state) Event {
	return Event{
		Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, Key: p.job.key, Task: p.index,
		UID: p.job.uid, Attempt: p.attempt, Machine: p.machine.name, From: from.proto(), To: to.proto(),
	}
}
