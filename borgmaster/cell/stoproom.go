package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// When an update or rollback restarts a task, the old copy holds resources until it has stopped,
// and the task is charged as before: both count. An update restarts the next task only while all
// that stops of the user holds at most the quota, or what runs if that is more, and while no
// more copies stop than the budget of tasks allows. Otherwise it waits until copies have ended.
// One copy alone may always stop, so that an update of a job that fills its quota goes on, one
// by one at worst.

// stopsHaveRoom reports whether so many copies with a charge may stop while their tasks go on.
func (c *Cell) stopsHaveRoom(user string, copies int64, more charge) bool {
	return c.stopsAtEdge(user, copies, more) == ""
}

// stopsAtEdge says why copies may not stop now; empty: they may.
func (c *Cell) stopsAtEdge(user string, copies int64, more charge) string {
	u := c.stopUse[user]
	if u == nil {
		return ""
	}
	if most := c.StateBudget(user, measureTasks); u.copies+u.coveredCopies+copies > most {
		return fmt.Sprintf("%d tasks of user %s still stop, and the user may hold %d", u.copies+u.coveredCopies, user, most)
	}
	if c.quotas.used == nil {
		return ""
	}
	for i := range more {
		w := &more[i]
		stops := u.charge.of(w).plus(u.covered.of(w))
		if most := c.mostStops(user, w); !stops.isZero() && stops.plus(w.n).compare(most) > 0 {
			return fmt.Sprintf("tasks of user %s that stop still hold %s of %s, and with %s more it would be over %s, the quota for %s or what runs",
				user, w.text(stops), w.what(), w.text(w.n), w.text(most), BandName(w.band))
		}
	}
	return ""
}

// mostStops is how much of something may be held by what stops of a user: the quota, or what
// runs if that is more.
func (c *Cell) mostStops(user string, of *item) amount {
	most := c.quotas.used[user].of(of).minus(c.stopUseOf(user).charge.of(of))
	if q := c.QuotaOf(user, of.band); q != nil {
		if granted := chargeOf(of.band, &q.limit, 1).of(of); granted.compare(most) > 0 {
			most = granted
		}
	}
	return most
}

// holdForStops reports whether an update has to wait before it ends a copy.
func (c *Cell) holdForStops(p *Copy) bool {
	if c.stopsHaveRoom(p.job.key.User, 1, p.stopCharge()) {
		return false
	}
	c.now.heldForStops = p.job
	return true
}

// stopsEased lets the updates of users whose stop charges became smaller go on, in the order of
// their jobs. Those behind one that still has to wait do so, too.
func (c *Cell) stopsEased() {
	for len(c.now.eased) > 0 {
		user := c.now.eased[0]
		c.now.eased = c.now.eased[1:]
		for _, j := range slices.Clone(c.mayWait[user]) {
			c.now.heldForStops = nil
			c.review(j)
			c.settleTouched()
			if c.now.heldForStops == j {
				break
			}
		}
	}
}

// waitOfUpdate says for which copies that stop an update waits; empty: for none.
func (c *Cell) waitOfUpdate(u *Update) string {
	if u.down >= u.room() || u.canarying() || u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED {
		return ""
	}
	if t := u.firstBehind(); t != nil {
		user := u.job.key.User
		if why := c.stopsAtEdge(user, 1, t.cur.stopCharge()); why != "" {
			return why + c.describeStopping(user)
		}
	}
	return ""
}

// firstBehind returns the first running task that has still to be dealt with; nil: there is none.
func (u *Update) firstBehind() *Task {
	spec := u.job.latest()
	for place := u.cursor; place < u.job.Size(); place++ {
		if t := u.job.rows[u.at(place)]; u.behind(t, spec) {
			return t
		}
	}
	return nil
}

// mayWait reports whether an update may wait for nothing but copies that stop: it is not paused,
// and may end the next task that is behind, or another canary. The end of a copy changes nothing
// for any other update.
func (u *Update) mayWait() bool {
	if !u.Rolling() || u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED {
		return false
	}
	// Extra tasks come with the first task that is ended.
	free := !u.gateShut() && (u.down < u.room() || u.surge > 0 && u.extra == 0)
	mayEnd := func(t *Task) bool { return t != nil && (free || t.flags&taskUpdating != 0) }
	if !u.canarying() {
		return mayEnd(u.firstBehind())
	}
	spec := u.job.latest()
	return slices.ContainsFunc(u.chosen, func(i uint32) bool {
		t := u.job.canary(i)
		return mayEnd(t) && u.behind(t, spec)
	})
}

// noteWait keeps the jobs of each user whose updates may wait for copies that stop, in the order
// of their uids. It is called whenever a job has been settled.
func (c *Cell) noteWait(j *Job) {
	if !j.update.mayWait() {
		removeRef(c.mayWait, j.key.User, j)
		return
	}
	if c.mayWait == nil {
		c.mayWait = make(map[string][]*Job)
	}
	addRef(c.mayWait, j.key.User, j)
}

// checkWaits compares the lists of updates that may wait for copies that stop with the jobs.
func (c *Cell) checkWaits() error {
	n := 0
	for j := range c.jobs.each() {
		if !j.update.mayWait() {
			continue
		}
		n++
		if !slices.Contains(c.mayWait[j.key.User], j) {
			return fmt.Errorf("the update of job %v may wait for copies that stop and is not listed", j.key)
		}
	}
	for _, list := range c.mayWait {
		n -= len(list)
	}
	if n != 0 {
		return fmt.Errorf("%d updates more may wait for copies that stop than are listed", n)
	}
	return nil
}
