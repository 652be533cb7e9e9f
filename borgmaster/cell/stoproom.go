package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// An update or rollback that ends a copy whose task goes on elsewhere adds to what stops, and
// the charge of the task stays. It does so only while all that stops of the user holds at most
// the quota, or what runs if that is more, and while no more copies stop than the budget of
// tasks allows. Otherwise it waits until copies have ended. One copy alone may always stop, so
// that an update of a job that fills its quota goes on, one by one at worst.

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
		for _, j := range slices.Clone(c.rolling[user]) {
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
	spec := u.job.latest()
	for place := u.cursor; place < u.job.Size(); place++ {
		if t := u.job.rows[u.at(place)]; u.behind(t, spec) {
			user := u.job.key.User
			if why := c.stopsAtEdge(user, 1, t.cur.stopCharge()); why != "" {
				return why + c.describeStopping(user)
			}
			return ""
		}
	}
	return ""
}

// noteRolling keeps the jobs of each user whose updates roll, in the order of their uids.
func (c *Cell) noteRolling(j *Job) {
	if !j.update.Rolling() {
		removeRef(c.rolling, j.key.User, j)
		return
	}
	if c.rolling == nil {
		c.rolling = make(map[string][]*Job)
	}
	addRef(c.rolling, j.key.User, j)
}

// checkRolling compares the list of updates that roll with the jobs.
func (c *Cell) checkRolling() error {
	n := 0
	for j := range c.jobs.each() {
		if !j.update.Rolling() {
			continue
		}
		n++
		if !slices.Contains(c.rolling[j.key.User], j) {
			return fmt.Errorf("the update of job %v rolls and is not listed", j.key)
		}
	}
	for _, list := range c.rolling {
		n -= len(list)
	}
	if n != 0 {
		return fmt.Errorf("%d updates more roll than are listed", n)
	}
	return nil
}
