package cell

import (
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// dueOf is the cell time at which the time changes something of an update, if nothing
// else does before; maxTimeNs: never. It follows from what is written down.
func (c *Cell) dueOf(u *Update) int64 {
	due := int64(maxTimeNs)
	if u == nil {
		return due
	}
	if !u.Rolling() {
		if u.closeNs != 0 {
			due = u.closeNs
		}
		return due
	}
	if w, ok := u.firstWatched(); ok {
		due = min(due, w.sinceNs+u.policy.watchNs)
	}
	switch {
	case u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED:
	case u.state == borgpb.UpdateState_UPDATE_STATE_CANARY:
		if end := u.canaryEndNs(); end != 0 && u.askedNs != u.canaryNs {
			due = min(due, end)
		}
	case c.asksGate(u):
		// Its end fails nothing, an answer from then does: time has to come that far.
		if end := c.gateEndNs(u); end > c.clock.cellNs {
			due = min(due, end)
		}
	case u.policy.deadlineNs > 0 && !c.lapsed(u) && !mutant.Planted(mutant.ProgressNotAsked):
		due = min(due, u.progressNs+u.policy.deadlineNs)
	}
	return due
}

// setDue has the update of a job looked at in time. Of a job only the entry of the heap
// counts that its updateDueNs names; whether something is really due is seen then, so an
// entry may be too early, never too late.
func (c *Cell) setDue(j *Job) {
	if j.update == nil || j.gone {
		return
	}
	at := c.dueOf(j.update)
	if at < maxTimeNs && (j.updateDueNs == 0 || at < j.updateDueNs) {
		j.updateDueNs = at
		c.updateDues.add(at, j.uid, c.dueCounts)
	}
}

// dueCounts reports whether an entry of updateDues still counts.
func (c *Cell) dueCounts(d due[UID]) bool {
	j := c.jobsByUID[d.of]
	return j != nil && j.updateDueNs == d.ns
}

// DueInNs is how long after the last entry the time alone may change something: an update
// is watched or has a deadline, a drain waits for one, a taint is forgiven for a while, a
// quarantine ends, a port may be granted again, an alloc is yet to change, a saver is to be started or given up, a
// volume is no longer kept, jobs are yet to be ended because others have ended. Zero: nothing waits for the time.
func (c *Cell) DueInNs() int64 {
	due := min(c.updateDues.nextNs(), c.volumes.dues.nextNs())
	if c.drains > 0 {
		due = min(due, c.drainDueNs)
	}
	if c.format >= formatTaints {
		due = min(due, c.leaveDueNs)
	}
	if c.format >= formatHeldPorts {
		due = min(due, c.heldPortsDueNs)
	}
	if len(c.quarantined) > 0 {
		due = min(due, c.quarantineDueNs)
	}
	for _, s := range c.setsBehind {
		due = min(due, s.againNs)
	}
	if len(c.savers) > 0 {
		due = min(due, c.saveDueNs)
	}
	if len(c.endings.queue) > 0 {
		due = min(due, c.endings.queue[0].readyNs)
	}
	if due == maxTimeNs {
		return 0
	}
	return max(due-c.clock.cellNs, 1)
}

// updatesOn follows what time alone brings about in updates.
func (c *Cell) updatesOn() {
	if c.restored.held {
		return
	}
	for c.updateDues.isDue(c.clock.cellNs) {
		for _, j := range c.takeDue() {
			c.updateOn(j)
			c.setDue(j)
		}
	}
}

// takeDue takes out of the heap whose updates are to be looked at next, in the order of
// their jobs. What the heap holds must not decide: it may be too early in one copy of the
// cell, and is exact in one that was just read.
func (c *Cell) takeDue() (jobs []*Job) {
	for c.updateDues.isDue(c.clock.cellNs) {
		next := c.updateDues.take()
		if !c.dueCounts(next) {
			continue
		}
		j := c.jobsByUID[next.of]
		j.updateDueNs = 0
		if c.dueOf(j.update) > c.clock.cellNs {
			c.setDue(j)
			continue
		}
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b *Job) int { return a.uid.Compare(b.uid) })
	return jobs
}

// updateOn does what is due of one update.
func (c *Cell) updateOn(j *Job) {
	u, now := j.update, c.clock.cellNs
	if !u.Rolling() {
		if u.closeNs != 0 && u.closeNs <= now {
			c.closeUpdate(j, "closed: it can be rolled back no more")
		}
		return
	}
	for {
		w, ok := u.firstWatched()
		if !ok || w.sinceNs+u.policy.watchNs > now {
			break
		}
		u.watched = u.watched[1:]
		c.ask(j.rows[w.index])
	}
	switch {
	case u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED:
	case u.state == borgpb.UpdateState_UPDATE_STATE_CANARY:
		if end := u.canaryEndNs(); end == 0 || end > now || u.askedNs == u.canaryNs {
			return
		}
		u.askedNs = u.canaryNs
		for _, i := range u.chosen {
			if t := j.canary(i); t != nil {
				c.ask(t)
			}
		}
		c.review(j)
	case c.asksGate(u):
	case u.policy.deadlineNs > 0 && !c.lapsed(u) && u.progressNs+u.policy.deadlineNs <= now:
		c.failUpdate(j, "no task was dealt with for "+spanWords(u.policy.deadlineNs))
		c.review(j)
	}
}

// promote lets all tasks take the new spec. What waits asks for something else from
// now on, so it is a change of the job.
func (c *Cell) promote(j *Job, words string) {
	u := j.update
	u.promoted, u.chosen, u.state, u.canaryNs, u.cursor = true, nil, borgpb.UpdateState_UPDATE_STATE_ROLLING, 0, 0
	u.progressNs = c.clock.cellNs
	j.version++
	c.dirty(u)
	c.dirty(j)
	c.tellUpdate(u, words)
	c.review(j)
}
