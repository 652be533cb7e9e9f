package cell

import (
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// ReportEffect is what applying a report would do now.
type ReportEffect uint8

const (
	// ReportKnown: the cell knows all of it; applying it changes nothing.
	ReportKnown ReportEffect = iota
	// ReportNews: it says something new.
	ReportNews
	// ReportEnded: it speaks of a copy that has ended as far as the log knows;
	// the borglet may forget it if the report says so too.
	ReportEnded
	// ReportUnknown: the cell has no place and no memory of that copy.
	ReportUnknown
	// ReportStale: its machine is down, or the cell knows of more restarts.
	ReportStale
	// ReportInvalid: it makes no sense.
	ReportInvalid
)

// Effect says what applying a report about a copy on machine m would do. Link
// shards send the news on and keep the rest to themselves.
func (c *Cell) Effect(m *Machine, r *borgpb.TaskReport) ReportEffect {
	e, _ := c.effect(m, r)
	return e
}

func (c *Cell) effect(m *Machine, r *borgpb.TaskReport) (ReportEffect, *Copy) {
	uid, ok := parseUID(r.JobUid)
	state := attemptState(r.State)
	if !ok || !validReport(r) {
		return ReportInvalid, nil
	}
	id := CopyID{uid, r.Index, r.Attempt}
	p := m.find(id)
	switch {
	case p == nil && c.remembers(m, id):
		return ReportEnded, nil
	case p == nil:
		return ReportUnknown, nil
	case m.down:
		return ReportStale, p
	case !state.live():
		return ReportNews, p
	case p.state == attemptStopping || state == attemptStopping || p.state == attemptQuarantined:
		// All that matters of a copy told to stop, or out of service, is its end; one
		// that stops without having been told is heard of again when it has.
		return ReportKnown, p
	case r.Restarts < p.restarts && state != attemptBackoff:
		// Said before what is known. (A start that could not even begin is no
		// restart after all: the count goes back while the borglet waits.)
		return ReportStale, p
	case p.says(r) && p.Addr() == c.HearsAddr(p, r.Addr) && !c.Attests(p, r, r.AsOfNs):
		return ReportKnown, p
	default:
		return ReportNews, p
	}
}

func validReport(r *borgpb.TaskReport) bool {
	switch borgpb.AttemptState(r.State) {
	case borgpb.AttemptState_ATTEMPT_STATE_STARTING, borgpb.AttemptState_ATTEMPT_STATE_RUNNING,
		borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, borgpb.AttemptState_ATTEMPT_STATE_STOPPING,
		borgpb.AttemptState_ATTEMPT_STATE_FINISHED, borgpb.AttemptState_ATTEMPT_STATE_FAILED,
		borgpb.AttemptState_ATTEMPT_STATE_STOPPED, borgpb.AttemptState_ATTEMPT_STATE_LOST:
	default:
		return false
	}
	e := r.Exit
	return validAddr(r.Addr) && validHeldPorts(r.HeldPorts) && validExit(e) && r.AsOfNs >= 0 && r.AsOfNs <= maxTimeNs && r.Pid >= 0 && r.StartedWallNs >= 0 && r.StartedWallNs <= maxTimeNs &&
		e.GetEndedWallNs() >= 0 && e.GetEndedWallNs() <= maxTimeNs
}

// remembers tells whether a copy that has ended on m is still known.
func (c *Cell) remembers(m *Machine, id CopyID) bool {
	j := c.jobsByUID[id.Job]
	if j == nil || int(id.Index) >= len(j.rows) {
		return false
	}
	for p := j.rows[id.Index].past; p != nil; p = p.next {
		if p.attempt == id.Attempt {
			return p.machine.name == m.name
		}
	}
	return false
}

// says tells whether a report of a live copy brings nothing new.
func (p *Copy) says(r *borgpb.TaskReport) bool {
	return p.state == attemptState(r.State) && p.restarts == r.Restarts && p.pid == r.Pid &&
		p.startedWallNs == r.StartedWallNs && p.shimLost == r.ShimLost &&
		p.text == clip(r.Text, maxReportTextBytes) && p.exit.same(exitOf(r.Exit))
}

// reportAll applies what borglets said. Each item is refused on its own.
func (c *Cell) reportAll(o *borgpb.Reports, res *borgpb.Result) {
	total := 0
	for _, mr := range o.Machines {
		total += len(mr.Tasks)
	}
	c.now.events = slices.Grow(c.now.events, total)
	n := 0
	for _, mr := range o.Machines {
		m := c.machines[mr.Machine]
		for _, r := range mr.Tasks {
			if refusal := c.report(m, mr.Machine, r); refusal != nil {
				if res.Items == nil {
					res.Items = newItems(total)
				}
				res.Items[n] = refusal
			}
			n++
		}
		c.reserve(m, mr.Reservations)
		c.setVolumes(m, mr)
	}
}

// report applies one report, or says why not.
func (c *Cell) report(m *Machine, name string, r *borgpb.TaskReport) *borgpb.Refusal {
	if m == nil {
		return notFound(clip(name, 64), "there is no such machine")
	}
	var p *Copy
	var effect ReportEffect
	if refusal := guarded(func() *borgpb.Refusal {
		effect, p = c.effect(m, r)
		return nil
	}); refusal != nil {
		return refusal
	}
	switch effect {
	case ReportNews:
		c.hear(p, r)
		return nil
	case ReportKnown:
		return nil
	case ReportEnded:
		if !attemptState(r.State).live() {
			return nil
		}
		return stale(m.name, "copy %s.%d.%d has ended", clip(r.JobUid, 64), r.Index, r.Attempt)
	case ReportUnknown:
		return stale(m.name, "copy %s.%d.%d holds no place there", clip(r.JobUid, 64), r.Index, r.Attempt)
	case ReportStale:
		if m.down {
			return stale(m.name, "the machine is down")
		}
		return stale(m.name, "copy %s.%d.%d has been started again %d times already", r.JobUid, r.Index, r.Attempt, p.restarts)
	default:
		return about(m.name, invalid("reports", "a report that makes no sense: state %d of copy %s.%d.%d", r.State, clip(r.JobUid, 64), r.Index, r.Attempt))
	}
}

// hear writes down the news of a copy.
func (c *Cell) hear(p *Copy, r *borgpb.TaskReport) {
	was, hadExit := p.state, p.exit
	well := c.Attests(p, r, r.AsOfNs)
	newPid := r.Pid != p.pid
	killed := r.OomKills != 0 && !newPid && killsIn(p.text) != killsIn(r.Text)
	restarted := r.Restarts > p.restarts
	if restarted {
		c.countFailures(p, r.Restarts-p.restarts)
	}
	p.restarts = r.Restarts
	p.startedWallNs, p.shimLost = r.StartedWallNs, r.ShimLost
	if r.Pid != 0 || attemptState(r.State).live() {
		p.pid = r.Pid
	}
	p.text = clip(r.Text, maxReportTextBytes)
	if r.Exit != nil || attemptState(r.State).live() {
		p.exit = exitOf(r.Exit)
	}
	to := attemptState(r.State)
	if !to.live() {
		c.hearEnd(p, to, r.HeldPorts)
		return
	}
	moved := p.Addr() != c.HearsAddr(p, r.Addr)
	p.setAddr(c.HearsAddr(p, r.Addr))
	t := p.row()
	c.setCopyState(p, to)
	if restarted && was == attemptRunning && to == attemptRunning {
		// Its process ended and another runs since: it is watched anew.
		c.seenDown(p)
	}
	c.dirty(t)
	kind := borgpb.EventKind_EVENT_KIND_UNSPECIFIED
	switch {
	case restarted:
		kind = borgpb.EventKind_EVENT_KIND_RESTART
	case to == attemptBackoff && (was == attemptAssigned || was == attemptStarting) && p.exit.same(hadExit) && p.text != "":
		// No process of it has ended: it was not started.
		kind = borgpb.EventKind_EVENT_KIND_NOT_STARTED
	case to == attemptRunning && killed:
		kind = borgpb.EventKind_EVENT_KIND_OOM_KILL
	case to == attemptRunning && (was != attemptRunning || newPid || moved):
		kind = borgpb.EventKind_EVENT_KIND_START
	}
	if kind != borgpb.EventKind_EVENT_KIND_UNSPECIFIED {
		e := taskEvent(p, kind, stateRunning, stateRunning)
		if e.Exit, e.Reason = p.exit, p.text; kind == borgpb.EventKind_EVENT_KIND_NOT_STARTED {
			// The last end is of a process before it.
			e.Exit = nil
		}
		if restarted && p.exit.why() != "" {
			// What it says of itself now is of the process that follows.
			e.Reason = p.exit.why()
		}
		c.emit(e)
	}
	c.seenUp(t)
	if well {
		c.heardWell(p, r.AsOfNs)
	}
	if c.drains > 0 && to != was {
		// Now that one more runs, or one less, the budget may let another go.
		c.review(p.job)
	}
	c.tryElsewhere(p, r.Failures)
}

// hearEnd follows the end of a copy: of one that was told to stop, only its
// place is freed; with a current one its task moves on. With held ports it was not started,
// for others have them.
func (c *Cell) hearEnd(p *Copy, to attemptState, held []*borgpb.HeldPort) {
	if to == attemptLost && len(held) > 0 {
		defer c.leaveOut(p.machine, held)
	}
	if !p.state.current() {
		kept := p.state == attemptQuarantined
		c.end(p, to)
		if to == attemptFailed {
			c.copyCrashed(p)
		}
		e := taskEvent(p, borgpb.EventKind_EVENT_KIND_STOPPED, stateNone, stateNone)
		if e.Exit = p.exit; kept {
			e.Reason = "it ended in quarantine"
		} else {
			e.Cause, e.Reason = p.stop.cause, p.stop.reason
		}
		c.emit(e)
		return
	}
	t := p.row()
	if to == attemptFailed || to == attemptFinished && p.kind != jobKind(borgpb.JobKind_JOB_KIND_BATCH) {
		c.countFailures(p, 1)
	}
	e, next := c.afterEnd(t, to)
	if to == attemptLost && len(held) > 0 {
		// Nothing of it ran that could be lost: it gets another port, or another machine.
		e, next = edgeEvict, statePending
	}
	reason := p.text
	if to == attemptFailed && next == statePending {
		if delay := c.countRetry(t, p); delay != 0 {
			reason = "next attempt " + spanWords(delay) + " after this one"
			if p.text != "" {
				reason = p.text + "; " + reason
			}
		}
	}
	if next == stateDead && e == edgeFinish {
		t.flags |= taskFinished
	}
	c.retire(t)
	c.end(p, to)
	if to == attemptFailed {
		c.copyCrashed(p)
	}
	c.move(t, e, next, reason)
	ev := taskEvent(p, edgeEvents[e], stateRunning, next)
	ev.Reason, ev.Exit = reason, p.exit
	c.emit(ev)
}

// afterEnd decides what becomes of a task whose copy ended by itself. A service
// never ends by itself, so its borglet could not keep it running: it pends. A
// batch task is finished, or has failed once more.
func (c *Cell) afterEnd(t *Task, to attemptState) (edge, state) {
	spec := t.job.latest().Proto
	switch {
	case to == attemptLost && spec.OnLost == borgpb.OnLost_ON_LOST_DEAD:
		return edgeLost, stateDead
	case spec.Kind == borgpb.JobKind_JOB_KIND_SERVICE || spec.Kind == borgpb.JobKind_JOB_KIND_DAEMON:
		return edgeFail, statePending
	case to == attemptFinished && mutant.Planted(mutant.FinishedPends):
		return edgeFinish, statePending
	case to == attemptFinished:
		return edgeFinish, stateDead
	case to == attemptLost:
		return edgeEvict, statePending
	}
	t.failures++
	if t.failures > spec.MaxFailures && t.job.saving == nil {
		return edgeFail, stateDead
	}
	return edgeFail, statePending
}
