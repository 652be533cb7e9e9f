package cell

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

// A copy that stops holds its room until it is gone, perhaps for a day. Its user is
// charged for it meanwhile, unless its task is charged already: when the task is dead or
// gone, or has a later copy because it was updated or crashed. Otherwise a user who submits,
// kills and submits anew would hold many times what was granted. What the cell stops of its
// own accord (moves, drains, taints, preemption) is not charged.
//
// New work may count on the room of as much that stops: L + max(S, N) is within the
// quota, for L that stays, S that stops and N that is new. So a job can be ended and
// submitted again at once, and a user holds at most twice the quota at any time.

// leavingUse is what copies hold that stop and are charged by themselves.
type leavingUse struct {
	tasks  int64
	charge charge
}

// leaves reports whether a copy is charged by itself because it stops.
func (p *Copy) leaves() bool {
	if p.state != attemptStopping {
		return false
	}
	t := p.row()
	if t == nil || t.state == stateDead {
		return true
	}
	// The charge of a task that waits is that of its last copy.
	return p.attempt != t.attempt && p.stop != nil && ownCause(p.stop.cause)
}

// ownCause reports whether a user can have tasks stop for a cause at will.
func ownCause(cause borgpb.StopCause) bool {
	return cause == borgpb.StopCause_STOP_CAUSE_UPDATE || cause == borgpb.StopCause_STOP_CAUSE_CRASHED
}

// reviewLeaving follows a change of what leaves looks at.
func (c *Cell) reviewLeaving(p *Copy) {
	if now := p.leaves(); now != p.leaving {
		c.countLeaving(p, now)
	}
}

// countLeaving begins or ends to charge a copy that stops.
func (c *Cell) countLeaving(p *Copy, leaving bool) {
	user := p.job.key.User
	u := c.leaving[user]
	if u == nil {
		u = new(leavingUse)
		if c.leaving == nil {
			c.leaving = make(map[string]*leavingUse)
		}
		c.leaving[user] = u
	}
	one := p.chargeLeaving()
	p.leaving = leaving
	if leaving {
		u.tasks++
		u.charge = u.charge.plus(one)
		c.chargeUser(user, nil, one)
	} else {
		u.tasks--
		u.charge = u.charge.minus(one)
		c.chargeUser(user, one, nil)
	}
	if u.tasks == 0 {
		delete(c.leaving, user)
	}
}

// chargeLeaving is what a copy that stops is charged: as much as a task. Savers are unpaid.
func (p *Copy) chargeLeaving() charge {
	if p.job.saving != nil {
		return nil
	}
	return p.chargeKept()
}

// reviewPast is reviewLeaving for all copies of a task that are not current.
func (c *Cell) reviewPast(t *Task) {
	for p := t.past; p != nil; p = p.next {
		c.reviewLeaving(p)
	}
}

// deriveLeaving counts everything. It must run before countUse: while quotas.used is nil
// chargeUser does nothing, so that nothing is charged twice.
func (c *Cell) deriveLeaving() {
	c.leaving = nil
	for _, m := range c.machineList {
		for _, p := range m.copies {
			p.leaving = false
			c.reviewLeaving(p)
		}
	}
}

// leavingOf is what a user is charged for copies that stop.
func (c *Cell) leavingOf(user string) (u leavingUse) {
	if of := c.leaving[user]; of != nil {
		u = *of
	}
	return u
}

// stillStops names jobs of a user whose tasks stop, and how long one of them may take:
// three, of the first thousand.
func (c *Cell) stillStops(user string) string {
	const shown, looked = 3, 1000
	var words []string
	n := 0
	for j := range c.JobsAfter(JobKey{User: user}) {
		if n++; j.key.User != user || n > looked || len(words) == shown {
			break
		}
		if j.stopping == 0 {
			continue
		}
		if p := j.firstStopping(); p != nil {
			words = append(words, fmt.Sprintf("%s (%d tasks, each at most %s after it was told to stop)", j.key, j.stopping, spanText(p.stop.noticeNs+p.stop.graceNs)))
		}
	}
	return strings.Join(words, ", ")
}

func (j *Job) firstStopping() *Copy {
	for _, t := range j.rows {
		for p := t.past; p != nil; p = p.next {
			if p.state == attemptStopping && p.stop != nil {
				return p
			}
		}
	}
	return nil
}

// checkStops refuses an update of a user whose tasks that stop hold more than was granted,
// or than what runs if that is more: each update may have as much again stop. The same
// holds of their number, at any priority.
func (c *Cell) checkStops(key JobKey, wants charge) *borgpb.Refusal {
	leaving := c.leavingOf(key.User)
	if most := c.StateBudget(key.User, measureTasks); leaving.tasks > most && !c.askedByAdmin() {
		return limit("", "%d tasks of user %s still stop, more than the %d that the user may hold: %s. Try again when they have ended; borgcfg tasks --attempts shows them",
			leaving.tasks, key.User, most, c.stillStops(key.User))
	}
	if c.quotas.used == nil {
		return nil
	}
	stops, used := leaving.charge, c.quotas.used[key.User]
	for i := range wants {
		w := &wants[i]
		most := used.of(w).minus(stops.of(w))
		if q := c.QuotaOf(key.User, w.band); q != nil {
			if granted := chargeOf(w.band, &q.limit, 1).of(w); granted.compare(most) > 0 {
				most = granted
			}
		}
		if stops.of(w).compare(most) <= 0 {
			continue
		}
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_QUOTA, key.String(), "",
			"tasks of user %s that stop still hold %s of %s, more than the quota for %s and than what runs: %s. Try again when they have ended; borgcfg tasks --attempts shows them",
			key.User, w.text(stops.of(w)), w.what(), BandName(w.band), c.stillStops(key.User))
	}
	return nil
}

// checkLeaving counts everything anew and compares.
func (c *Cell) checkLeaving() error {
	want := make(map[string]int64)
	sums := make(map[string]charge)
	for _, m := range c.machineList {
		for _, p := range m.copies {
			if p.leaving != p.leaves() {
				return fmt.Errorf("copy %v (%d) leaves: %t, kept as %t", p.ID(), p.state, p.leaves(), p.leaving)
			}
			if p.leaving {
				want[p.job.key.User]++
				sums[p.job.key.User] = sums[p.job.key.User].plus(p.chargeLeaving())
			}
		}
	}
	if len(want) != len(c.leaving) {
		return fmt.Errorf("copies of %d users stop, kept for %d", len(want), len(c.leaving))
	}
	for user, n := range want {
		if u := c.leavingOf(user); u.tasks != n || u.charge.words() != sums[user].words() {
			return fmt.Errorf("%d copies of %s stop and are charged %s, kept as %d and %s", n, user, sums[user].words(), u.tasks, u.charge.words())
		}
	}
	return nil
}

// spanText says a time in hours where it is some, otherwise in whole seconds.
func spanText(ns int64) string {
	const hour = 3600 * second
	if ns >= hour && ns%hour == 0 {
		return fmt.Sprintf("%d h", ns/hour)
	}
	return fmt.Sprintf("%d s", (ns+second-1)/second)
}
