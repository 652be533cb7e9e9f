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
}

// needsStopCharge reports whether a copy stops and the charge of its task does not cover it.
func (p *Copy) needsStopCharge() bool {
	if p.state != attemptStopping {
		return false
	}
	t := p.row()
	if t == nil || t.state == stateDead {
		return true
	}
	if p.stop == nil || !p.stop.atWill() {
		return false
	}
	// The charge of a task that waits is that of its last copy.
	return p.attempt != t.attempt || p.alloc == nil && p.job.onlyInAllocs()
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

// reviewStopCharge is called after each change of what needsStopCharge depends on.
func (c *Cell) reviewStopCharge(p *Copy) {
	if now := p.needsStopCharge(); now != p.stopCharged {
		c.setStopCharge(p, now)
	}
}

// setStopCharge begins or ends to charge a copy that stops.
func (c *Cell) setStopCharge(p *Copy, charged bool) {
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
	p.stopCharged = charged
	if charged {
		u.copies++
		u.charge = u.charge.plus(one)
		c.chargeUser(user, nil, one)
	} else {
		u.copies--
		u.charge = u.charge.minus(one)
		c.chargeUser(user, one, nil)
	}
	if u.copies == 0 {
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
	c.stopUse = nil
	for _, m := range c.machineList {
		for _, p := range m.copies {
			p.stopCharged = false
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
	stops := c.stopUseOf(user).charge.of(of)
	most := c.quotas.used[user].of(of).minus(stops)
	if q := c.QuotaOf(user, of.band); q != nil {
		if granted := chargeOf(of.band, &q.limit, 1).of(of); granted.compare(most) > 0 {
			most = granted
		}
	}
	return stops.compare(most) > 0
}

// PreemptsOwn reports whether work of a user may take the place of the user's own work of a
// band now: not while copies of it that stop hold more than the quota, as in checkStops. Each
// such preemption could add as much again.
func (c *Cell) PreemptsOwn(user string, band borgpb.Band) bool {
	u := c.stopUse[user]
	if u == nil {
		return true
	}
	if u.copies > c.StateBudget(user, measureTasks) {
		return false
	}
	for i := range u.charge {
		if w := &u.charge[i]; w.band == band && c.stopsExceed(user, w) {
			return false
		}
	}
	return true
}

// checkStopCharges compares the stop charges with those computed from the copies.
func (c *Cell) checkStopCharges() error {
	want := make(map[string]int64)
	sums := make(map[string]charge)
	for _, m := range c.machineList {
		for _, p := range m.copies {
			if p.stopCharged != p.needsStopCharge() {
				return fmt.Errorf("copy %v (%d) needs a stop charge: %t, kept as %t", p.ID(), p.state, p.needsStopCharge(), p.stopCharged)
			}
			if p.stopCharged {
				want[p.job.key.User]++
				sums[p.job.key.User] = sums[p.job.key.User].plus(p.stopCharge())
			}
		}
	}
	if len(want) != len(c.stopUse) {
		return fmt.Errorf("copies of %d users stop, kept for %d", len(want), len(c.stopUse))
	}
	for user, n := range want {
		if u := c.stopUseOf(user); u.copies != n || u.charge.words() != sums[user].words() {
			return fmt.Errorf("%d copies of %s stop and are charged %s, kept as %d and %s", n, user, sums[user].words(), u.copies, u.charge.words())
		}
	}
	return nil
}
