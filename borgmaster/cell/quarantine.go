package cell

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatQuarantine is the format in which copies can be taken out of service and kept.
const FormatQuarantine = 8

// quarantine is why and for how long a copy is kept that is not its task's current one
// any more. It runs on where it is, holds what it held as its limit, and is charged to
// its user as one more task. No order tells it to stop until the quarantine is over: by
// an op, with its job, its task or its alloc, with a drain that waits for nobody, or by
// its time.
type quarantine struct {
	user, reason string
	sinceWallNs  int64
	// Cell time at which it ends by itself.
	untilNs int64
	// Between SIGTERM and SIGKILL when it ends: its spec is not kept.
	graceNs int64
	// What it was charged when it began: a copy that ends may leave its alloc first. Derived.
	charged charge
}

// Quarantined tells whether the copy is kept out of service, to be looked at.
func (p *Copy) Quarantined() bool { return p.state == attemptQuarantined }

// Quarantined yields the copies in quarantine, ordered by id.
func (c *Cell) Quarantined() iter.Seq[*Copy] { return slices.Values(c.quarantined) }

func (c *Cell) quarantinedOn(t *Task) string {
	if len(c.quarantined) == 0 {
		return ""
	}
	for p := t.past; p != nil; p = p.next {
		if p.state == attemptQuarantined {
			return p.machine.name
		}
	}
	return ""
}

// quarantinedOf are the copies of a job in quarantine, or of one of its tasks.
func (c *Cell) quarantinedOf(uid UID, first, last uint32) []*Copy {
	from, _ := slices.BinarySearchFunc(c.quarantined, CopyID{uid, first, 0}, compareCopy)
	to, _ := slices.BinarySearchFunc(c.quarantined, CopyID{uid, last, 1<<64 - 1}, compareCopy)
	return c.quarantined[from:to]
}

// checkQuarantineTask decides whether the present copy of a task can be kept out of
// service.
func (c *Cell) checkQuarantineTask(o *borgpb.QuarantineTask) (commit, *borgpb.Refusal) {
	id := TaskID{JobKey{o.User, o.Name}, o.Index}
	j, r := c.checkLive(id.Job, 0)
	if r != nil {
		return nil, r
	}
	t := j.Task(o.Index)
	if t == nil {
		return nil, notFound(id.String(), "the job has %d tasks", len(j.rows))
	}
	p := t.cur
	switch {
	case p == nil:
		return nil, badState(id.String(), "it does not run: it is %v", t.state)
	case o.Attempt != 0 && o.Attempt != t.attempt:
		return nil, stale(id.String(), "attempt %d is meant, and attempt %d is the present one", o.Attempt, t.attempt)
	case j.saving != nil:
		return nil, badState(id.String(), "it saves what an alloc left; look at it where it runs")
	case p.state == attemptAssigned || p.Waits():
		return nil, badState(id.String(), "attempt %d has not started yet: there is nothing to look at", t.attempt)
	case o.ForNs < 0 || o.ForNs > maxQuarantineNs:
		return nil, about(id.String(), outOfSpan("for_ns", o.ForNs, 0, maxQuarantineNs))
	case p.machine.emptied():
		return nil, badState(id.String(), "its machine %s is drained, and nothing is kept there", p.machine.name)
	case len(c.quarantined) >= maxQuarantined:
		return nil, limit("", "%d copies are in quarantine in the cell", len(c.quarantined))
	case c.quarantinedBy[o.User] >= maxQuarantinedOfUser:
		return nil, limit("", "%d copies of user %s are in quarantine; have some released first: borgcfg release", maxQuarantinedOfUser, o.User)
	}
	if n := len(c.quarantinedOf(j.uid, t.index, t.index)); n >= maxQuarantinedOfTask {
		return nil, about(id.String(), limit("", "%d copies of it are in quarantine; have one released first: borgcfg release %s", n, id))
	}
	if r := c.checkCharge(j.key, j.charged, j.charged.plus(p.chargeKept())); r != nil {
		return nil, r
	}
	return func(res *borgpb.Result) {
		c.quarantine(t, o.ForNs)
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// emptied tells whether a machine is drained and budgets hold nothing back.
func (m *Machine) emptied() bool { return m.draining && (m.drain == nil || m.drain.forced) }

// quarantine takes the current copy of a task out of service, and keeps it.
func (c *Cell) quarantine(t *Task, forNs int64) {
	if forNs == 0 {
		forNs = quarantineNs
	}
	p := t.cur
	kept := &quarantine{
		user: c.now.user, reason: clip(c.now.reason, maxReasonBytes), sinceWallNs: c.clock.wallNs,
		untilNs: min(c.clock.cellNs+forNs, maxTimeNs), graceNs: p.grace(),
	}
	if p.estimate != nil {
		// Nobody estimates any longer what it will use.
		room := p.room()
		room.sub(p.held())
		p.estimate = nil
		room.add(p.held())
	}
	c.retire(t)
	c.setCopyState(p, attemptQuarantined)
	p.rare().quarantine = kept
	c.unbind(p)
	c.keep(p)
	words := fmt.Sprintf("attempt %d is in quarantine on %s", p.attempt, p.machine.name)
	c.move(t, edgeEvict, statePending, words)
	e := taskEvent(p, borgpb.EventKind_EVENT_KIND_QUARANTINE, stateRunning, statePending)
	e.Reason = kept.reason
	c.emit(e)
}

// keep counts a copy in whose quarantine begins.
func (c *Cell) keep(p *Copy) {
	if len(c.quarantined) == 0 {
		c.quarantineDueNs = maxTimeNs
	}
	c.quarantined = insertCopy(c.quarantined, p)
	c.quarantineDueNs = min(c.quarantineDueNs, p.few.quarantine.untilNs)
	if c.quarantinedBy == nil {
		c.quarantinedBy = make(map[string]int)
	}
	c.quarantinedBy[p.job.key.User]++
	q := p.few.quarantine
	q.charged = p.chargeKept()
	c.rechargeKept(p.job, nil, q.charged)
}

// unkeep counts out one whose quarantine is over, however it ended.
func (c *Cell) unkeep(p *Copy) {
	c.quarantined = removeCopy(c.quarantined, p)
	c.rechargeKept(p.job, p.few.quarantine.charged, nil)
	p.few.quarantine = nil
	user := p.job.key.User
	if c.quarantinedBy[user]--; c.quarantinedBy[user] == 0 {
		delete(c.quarantinedBy, user)
	}
	if p.machine.drain != nil {
		// A drain may have waited for it.
		c.drainDueNs = 0
	}
	c.dirtyCopy(p)
}

// chargeKept is what a copy in quarantine is charged: as much as a task. In an alloc its
// room was bought with the alloc.
func (p *Copy) chargeKept() charge {
	if p.alloc != nil || p.priority == 0 {
		return nil
	}
	return chargeOf(BandOf(p.priority), p.res, 1)
}

// rechargeKept follows the begin or end of one quarantine of a job. It does not sum up the others:
// a job may have thousands of such copies, and they may end in one entry.
func (c *Cell) rechargeKept(j *Job, was, now charge) {
	j.chargedKept = j.chargedKept.plus(now).minus(was)
	if c.quotas.used == nil || j.gone {
		return
	}
	c.chargeUser(j.key.User, was, now)
	j.charged = j.charged.plus(now).minus(was)
}

// letGo ends a quarantine: the copy is told to stop, and holds its place until it has.
func (c *Cell) letGo(p *Copy, cause borgpb.StopCause, reason string, graceNs int64) {
	grace := p.few.quarantine.graceNs
	if graceNs >= 0 {
		grace = min(grace, graceNs)
	}
	c.setCopyState(p, attemptStopping)
	c.order(p, cause, reason, grace)
	e := taskEvent(p, borgpb.EventKind_EVENT_KIND_RELEASE, stateNone, stateNone)
	e.Cause, e.Reason = cause, reason
	c.emit(e)
}

// letGoTask ends the quarantines of a task that ends, letGoJob those of a job.
func (c *Cell) letGoTask(t *Task, cause borgpb.StopCause, reason string) {
	for _, p := range slices.Clone(c.quarantinedOf(t.job.uid, t.index, t.index)) {
		c.letGo(p, cause, reason, -1)
	}
}

func (c *Cell) letGoJob(j *Job) {
	for _, p := range slices.Clone(c.quarantinedOf(j.uid, 0, 1<<32-1)) {
		c.letGo(p, borgpb.StopCause_STOP_CAUSE_RELEASE, "its job ended", -1)
	}
}

// quarantineOn ends the quarantines whose time is over.
func (c *Cell) quarantineOn() {
	if len(c.quarantined) == 0 || c.clock.cellNs < c.quarantineDueNs {
		return
	}
	c.quarantineDueNs = maxTimeNs
	for _, p := range slices.Clone(c.quarantined) {
		if until := p.few.quarantine.untilNs; until > c.clock.cellNs || mutant.Planted(mutant.QuarantineForEver) {
			c.quarantineDueNs = min(c.quarantineDueNs, until)
		} else {
			c.letGo(p, borgpb.StopCause_STOP_CAUSE_RELEASE, "the time of its quarantine is over", -1)
		}
	}
}

// checkReleaseTask wants copies of a task that are in quarantine.
func (c *Cell) checkReleaseTask(o *borgpb.ReleaseTask) (commit, *borgpb.Refusal) {
	id := TaskID{JobKey{o.User, o.Name}, o.Index}
	if r := checkKey(id.Job); r != nil {
		return nil, r
	}
	j := c.Job(id.Job)
	if j == nil {
		return nil, notFound(id.Job.String(), "there is no such job")
	}
	kept := slices.Clone(c.quarantinedOf(j.uid, o.Index, o.Index))
	if o.Attempt != 0 {
		kept = slices.DeleteFunc(kept, func(p *Copy) bool { return p.attempt != o.Attempt })
	}
	switch {
	case len(kept) == 0 && o.Attempt != 0:
		return nil, badState(id.String(), "its attempt %d is not in quarantine", o.Attempt)
	case len(kept) == 0:
		return nil, badState(id.String(), "no copy of it is in quarantine")
	}
	return func(res *borgpb.Result) {
		for _, p := range kept {
			c.letGo(p, borgpb.StopCause_STOP_CAUSE_RELEASE, c.now.reason, -1)
		}
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// holdKept is for what a copy in quarantine is not taken off its machine.
func (p *Copy) holdKept() *Hold {
	q := p.few.quarantine
	return &Hold{Job: p.job.key, Task: p.TaskID(), UntilNs: q.untilNs,
		Reason: fmt.Sprintf("attempt %d is in quarantine; borgcfg release %s ends that", p.attempt, p.TaskID())}
}

// checkQuarantined checks what is kept of copies in quarantine.
func (c *Cell) checkQuarantined() error {
	n, of := 0, make(map[string]int)
	charged := make(map[*Job]charge)
	for _, m := range c.machineList {
		for _, p := range m.copies {
			has := p.few != nil && p.few.quarantine != nil
			if has != (p.state == attemptQuarantined) {
				return fmt.Errorf("copy %v (%d) has a quarantine of %v", p.ID(), p.state, has)
			}
			if !has {
				continue
			}
			n++
			of[p.job.key.User]++
			charged[p.job] = charged[p.job].plus(p.chargeKept())
			q := p.few.quarantine
			switch {
			case c.format < FormatQuarantine || p.orphan || p.job.deathSeq != 0 || p.stop != nil || p.spec != nil || p.estimate != nil:
				return fmt.Errorf("copy %v should not be in quarantine", p.ID())
			case m.emptied() && c.drainDueNs > c.clock.cellNs:
				return fmt.Errorf("copy %v is in quarantine on %s, which is emptied", p.ID(), m.name)
			case q.untilNs < c.quarantineDueNs || q.untilNs <= c.clock.cellNs:
				return fmt.Errorf("copy %v is in quarantine until %d, it is %d, and it is looked at at %d", p.ID(), q.untilNs, c.clock.cellNs, c.quarantineDueNs)
			}
			if at, ok := slices.BinarySearchFunc(c.quarantined, p.ID(), compareCopy); !ok || c.quarantined[at] != p {
				return fmt.Errorf("copy %v is in quarantine and not listed", p.ID())
			}
		}
	}
	for j := range c.jobs.each() {
		if !slices.Equal(j.chargedKept, charged[j]) {
			return fmt.Errorf("job %v is charged %v for what is in quarantine, and should be %v", j.key, j.chargedKept, charged[j])
		}
	}
	if n != len(c.quarantined) || !maps.Equal(of, c.quarantinedBy) {
		return fmt.Errorf("%d copies are in quarantine, of users %v; %d are listed, of %v", n, of, len(c.quarantined), c.quarantinedBy)
	}
	return nil
}

// quarantine writes why a copy is kept, if it is.
func (e *encoder) quarantine(p *Copy) {
	if p.few == nil || p.few.quarantine == nil {
		return
	}
	q := p.few.quarantine
	e.byte(tagQuarantine)
	e.str(q.user)
	e.str(q.reason)
	e.int(q.sinceWallNs)
	e.int(q.untilNs)
	e.int(q.graceNs)
}

func (l *loader) quarantine(d *decoder, p *Copy) error {
	if l.c.format < FormatQuarantine || !d.tagged(tagQuarantine) {
		return nil
	}
	q := &quarantine{user: d.str(), reason: d.str(), sinceWallNs: d.int(), untilNs: d.int(), graceNs: d.int()}
	if p.state != attemptQuarantined || len(q.reason) > maxReasonBytes || q.untilNs < 0 || q.untilNs > maxTimeNs || q.graceNs < 0 || q.graceNs > maxGraceNs {
		return errOdd
	}
	p.rare().quarantine = q
	return nil
}

// quarantineProto shows it.
func (p *Copy) quarantineProto(c *Cell) *borgpb.Quarantine {
	if p.few == nil || p.few.quarantine == nil {
		return nil
	}
	q := p.few.quarantine
	return &borgpb.Quarantine{Reason: q.reason, User: q.user, SinceWallNs: q.sinceWallNs, LeftNs: max(q.untilNs-c.clock.cellNs, 1)}
}
