package cell

import (
	"fmt"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// A copy that stops holds its resources until it is gone, perhaps for a day. Meanwhile the
// charge of its task covers it, with three exceptions: the task is dead or gone, or has a later
// copy, or the copy has lost its alloc and all specs of its job are for an alloc set. Then the
// copy is charged apart, a stop charge. Without stop charges a user who submits and kills in
// turns could hold many times the quota. What the cell stops of its own accord (moves, drains,
// taints, preemption by another user) is not charged.
//
// New work may use the quota of as much that stops: L + max(S, N) is within the quota, where
// L is what stays, S what stops and N what is new. So a job can be killed and submitted
// again at once, and a user holds at most twice the quota at any time.

// stopUse is what one user is charged for copies that stop.
type stopUse struct {
	copies int64
	charge charge
	// The same of copies that will be charged when their tasks, which wait, have the next copy.
	coveredCopies int64
	covered       charge
}

// stopCharging tells how a copy is charged while it stops.
type stopCharging uint8

const (
	notStopCharged stopCharging = iota
	// Its task waits, whose charge covers it until there is another copy.
	stopCovered
	// Apart from its task.
	stopCharged
)

// stopCharging returns how a copy is to be charged.
func (p *Copy) stopCharging() stopCharging {
	if p.state != attemptStopping {
		return notStopCharged
	}
	t := p.row()
	if t == nil || t.state == stateDead {
		return stopCharged
	}
	if p.stop == nil || !p.stop.atWill() {
		return notStopCharged
	}
	if p.attempt == t.attempt && (p.alloc != nil || !p.job.onlyInAllocs()) {
		return stopCovered
	}
	return stopCharged
}

// atWill reports whether the user of a copy can have it stop at will: the cell alone gives
// the other causes.
func (s *stopping) atWill() bool {
	switch s.cause {
	case borgpb.StopCause_STOP_CAUSE_PREEMPTION:
		return s.own
	case borgpb.StopCause_STOP_CAUSE_UNSPECIFIED, borgpb.StopCause_STOP_CAUSE_DRAIN, borgpb.StopCause_STOP_CAUSE_DUPLICATE,
		borgpb.StopCause_STOP_CAUSE_OVERCOMMIT, borgpb.StopCause_STOP_CAUSE_TAINT, borgpb.StopCause_STOP_CAUSE_MOVE:
		return false
	}
	return true
}

// onlyInAllocs reports whether all specs of a job are for an alloc set, so that its tasks are
// charged nothing.
func (j *Job) onlyInAllocs() bool {
	return !slices.ContainsFunc(j.specs, func(s *Spec) bool { return s.Proto.AllocSet == "" })
}

// reviewStopsOfJob is called after each change of the specs of a job.
func (c *Cell) reviewStopsOfJob(j *Job) {
	if j.stopping == 0 {
		return
	}
	for _, t := range j.rows {
		c.reviewStopCharges(t)
	}
}

// preemptedByOwn marks a copy that stops to make room for work of its own user.
func (c *Cell) preemptedByOwn(p *Copy) {
	p.stop.own = true
	c.dirtyCopy(p)
	c.reviewStopCharge(p)
}

// reviewStopCharge is called after each change of what stopCharging depends on.
func (c *Cell) reviewStopCharge(p *Copy) { c.setStopCharge(p, p.stopCharging()) }

// setStopCharge begins or ends to charge a copy that stops.
func (c *Cell) setStopCharge(p *Copy, now stopCharging) {
	was := p.stopCharged
	if now == was {
		return
	}
	user := p.job.key.User
	u := c.stopUse[user]
	if u == nil {
		u = new(stopUse)
		if c.stopUse == nil {
			c.stopUse = make(map[string]*stopUse)
		}
		c.stopUse[user] = u
	}
	one := p.stopCharge()
	p.stopCharged = now
	switch was {
	case stopCovered:
		u.coveredCopies--
		u.covered = u.covered.minus(one)
	case stopCharged:
		u.copies--
		c.stopCopies--
		u.charge = u.charge.minus(one)
		c.chargeUser(user, one, nil)
	}
	switch now {
	case stopCovered:
		u.coveredCopies++
		u.covered = u.covered.plus(one)
	case stopCharged:
		u.copies++
		c.stopCopies++
		u.charge = u.charge.plus(one)
		c.chargeUser(user, nil, one)
	default:
		if !slices.Contains(c.now.eased, user) {
			c.now.eased = append(c.now.eased, user)
		}
	}
	if u.copies+u.coveredCopies == 0 {
		delete(c.stopUse, user)
	}
}

// stopCharge returns the charge of a copy that stops: that of its task.
func (p *Copy) stopCharge() charge { return p.chargeKept() }

// reviewStopCharges is reviewStopCharge for the past copies of a task.
func (c *Cell) reviewStopCharges(t *Task) {
	for p := t.past; p != nil; p = p.next {
		c.reviewStopCharge(p)
	}
}

// deriveStopCharges computes all stop charges. It must run before countUse: while
// quotas.used is nil chargeUser does nothing, so that nothing is charged twice.
func (c *Cell) deriveStopCharges() {
	c.stopUse, c.stopCopies = nil, 0
	for _, m := range c.machineList {
		for _, p := range m.copies {
			p.stopCharged = notStopCharged
			c.reviewStopCharge(p)
		}
	}
}

// stopUseOf returns what a user is charged for copies that stop.
func (c *Cell) stopUseOf(user string) (u stopUse) {
	if of := c.stopUse[user]; of != nil {
		u = *of
	}
	return u
}

// describeStopping is ": " and up to three jobs of a user whose tasks stop, with the longest
// time that a task may take; empty if it finds none. It looks at the user's first thousand jobs
// only, and not at copies whose job is forgotten or lost their row.
func (c *Cell) describeStopping(user string) string {
	const shown, looked = 3, 1000
	var words []string
	n := 0
	for j := range c.JobsAfter(JobKey{User: user}) {
		if n++; j.key.User != user || n > looked || len(words) == shown {
			break
		}
		if j.stopping > 0 {
			words = append(words, j.stoppingWords())
		}
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ", ")
}

// stoppingWords names a job, how many of its copies stop, and the longest time that one of them
// may take, which is left out if the first tasks do not tell.
func (j *Job) stoppingWords() string {
	const looked = 10_000
	longest, seen := int64(0), uint32(0)
	for _, t := range j.rows[:min(len(j.rows), looked)] {
		for p := t.past; p != nil; p = p.next {
			if p.state == attemptStopping && p.stop != nil {
				longest = max(longest, p.stop.noticeNs+p.stop.graceNs)
				seen++
			}
		}
		if seen == j.stopping {
			return fmt.Sprintf("%s (%d tasks, each at most %s after it was told to stop)", j.key, j.stopping, spanWords(longest))
		}
	}
	return fmt.Sprintf("%s (%d tasks)", j.key, j.stopping)
}

// checkStops refuses an update of a user whose tasks that stop hold more than the quota, or
// than what runs if that is more: each further update could add as much again. The same
// holds of their number, at any priority.
func (c *Cell) checkStops(key JobKey, wants charge) *borgpb.Refusal {
	stopping := c.stopUseOf(key.User)
	if most := c.StateBudget(key.User, measureTasks); stopping.copies > most && !c.askedByAdmin() {
		return limit("", "%d tasks of user %s still stop, more than the %d that the user may hold%s. Try again when they have ended; borgcfg tasks --attempts shows them",
			stopping.copies, key.User, most, c.describeStopping(key.User))
	}
	for i := range wants {
		if w := &wants[i]; c.stopsExceed(key.User, w) {
			return refuse(borgpb.RefusalKind_REFUSAL_KIND_QUOTA, key.String(), "",
				"tasks of user %s that stop still hold %s of %s, more than the quota for %s and than what runs%s. Try again when they have ended; borgcfg tasks --attempts shows them",
				key.User, w.text(stopping.charge.of(w)), w.what(), BandName(w.band), c.describeStopping(key.User))
		}
	}
	return nil
}

// stopsExceed reports whether the copies of a user that stop hold more of something than the
// quota, and than what runs.
func (c *Cell) stopsExceed(user string, of *item) bool {
	if c.quotas.used == nil {
		return false
	}
	return c.stopUseOf(user).charge.of(of).compare(c.mostStops(user, of)) > 0
}

// PreemptsOwn reports whether work of a user may take the place of the user's own work of a
// band now: not while copies of it that stop hold as much as the quota, or as what runs if
// that is more. Each such preemption could add as much again.
func (c *Cell) PreemptsOwn(user string, band borgpb.Band) bool {
	u := c.stopUse[user]
	if u == nil {
		return true
	}
	if u.copies+u.coveredCopies >= c.StateBudget(user, measureTasks) {
		return false
	}
	stops := u.charge.plus(u.covered)
	for i := range stops {
		if w := &stops[i]; w.band == band && c.quotas.used != nil && w.n.compare(c.mostStops(user, w)) >= 0 {
			return false
		}
	}
	return true
}

// checkStopCharges compares the stop charges with those computed from the copies.
func (c *Cell) checkStopCharges() error {
	want, copies := make(map[string]*stopUse), int64(0)
	for _, m := range c.machineList {
		for _, p := range m.copies {
			now := p.stopCharging()
			if p.stopCharged != now {
				return fmt.Errorf("copy %v (%d) needs a stop charge: %d, kept as %d", p.ID(), p.state, now, p.stopCharged)
			}
			if now == notStopCharged {
				continue
			}
			u := want[p.job.key.User]
			if u == nil {
				u = new(stopUse)
				want[p.job.key.User] = u
			}
			if now == stopCharged {
				u.copies++
				copies++
				u.charge = u.charge.plus(p.stopCharge())
			} else {
				u.coveredCopies++
				u.covered = u.covered.plus(p.stopCharge())
			}
		}
	}
	if len(want) != len(c.stopUse) || copies != c.stopCopies {
		return fmt.Errorf("%d copies of %d users stop, kept as %d of %d", copies, len(want), c.stopCopies, len(c.stopUse))
	}
	for user, n := range want {
		u := c.stopUseOf(user)
		if u.copies != n.copies || u.coveredCopies != n.coveredCopies || !slices.Equal(u.charge, n.charge) || !slices.Equal(u.covered, n.covered) {
			return fmt.Errorf("copies of %s that stop are charged %+v, kept as %+v", user, *n, u)
		}
	}
	return nil
}
