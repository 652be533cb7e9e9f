package cell

import (
	"errors"
	"slices"
)

// A machine that comes raises what a daemon job is charged, and its user is not asked. So a
// task for it needs quota at that moment. Without quota the machine gets no task and is called
// unseated. It gets one when the user has more quota or uses less of it. All tasks of the job
// need the same, so unseated machines get theirs in the order of their names, as far as the
// quota goes.

// setUnseated notes whether a machine waits for a task of a daemon job.
func (c *Cell) setUnseated(j *Job, m *Machine, waits bool) {
	d := j.daemon
	at, known := slices.BinarySearchFunc(d.unseated, m.name, compareMachine)
	if known == waits {
		return
	}
	if waits {
		d.unseated = slices.Insert(d.unseated, at, m)
	} else {
		d.unseated = slices.Delete(d.unseated, at, at+1)
	}
	at, listed := slices.BinarySearchFunc(c.unseated, j.uid, compareUID)
	switch {
	case len(d.unseated) > 0 && !listed:
		c.unseated = slices.Insert(c.unseated, at, j)
	case len(d.unseated) == 0 && listed:
		c.unseated = slices.Delete(c.unseated, at, at+1)
	}
	c.dirty(j)
}

// deriveUnseated finds the machines that wait after a load.
func (c *Cell) deriveUnseated() {
	for _, j := range c.daemons {
		for _, m := range c.machineList {
			if _, seated := j.daemon.at[m]; !seated && j.latest().matches(m) {
				j.daemon.unseated = append(j.daemon.unseated, m)
			}
		}
		if len(j.daemon.unseated) > 0 {
			c.unseated = append(c.unseated, j)
		}
	}
}

// hasQuotaFor reports whether a user may be charged more. What copies that stop are charged
// counts for those that come, as with a job that is submitted.
func (c *Cell) hasQuotaFor(user string, more charge) bool {
	if c.quotas.used == nil {
		return true
	}
	used := c.quotas.used[user].minus(c.stopUseOf(user).charge)
	for i := range more {
		w := &more[i]
		if w.n.isZero() {
			continue
		}
		q := c.QuotaOf(user, w.band)
		if q == nil || c.Expired(q) || used.of(w).plus(w.n).compare(chargeOf(w.band, &q.limit, 1).of(w)) > 0 {
			return false
		}
	}
	return true
}

// mayBeSeated has the daemon jobs of a user that wait for quota looked at when the op is done.
func (c *Cell) mayBeSeated(user string) {
	if len(c.unseated) > 0 && !slices.Contains(c.now.seatable, user) {
		c.now.seatable = append(c.now.seatable, user)
	}
}

// seatUnseated gives machines that wait the tasks for which there is quota now.
func (c *Cell) seatUnseated() {
	users := c.now.seatable
	c.now.seatable = nil
	for _, j := range slices.Clone(c.unseated) {
		if !slices.Contains(users, j.key.User) {
			continue
		}
		for len(j.daemon.unseated) > 0 && c.takeSeat(j, j.daemon.unseated[0]) {
			c.setUnseated(j, j.daemon.unseated[0], false)
		}
	}
}

// checkUnseated verifies the list, and that nobody waits for what there is.
func (c *Cell) checkUnseated(j *Job) error {
	d := j.daemon
	_, listed := slices.BinarySearchFunc(c.unseated, j.uid, compareUID)
	if listed != (len(d.unseated) > 0) || !slices.IsSortedFunc(d.unseated, func(a, b *Machine) int { return compareMachine(a, b.name) }) {
		return errors.New("the machines without a task are listed wrongly")
	}
	full := len(j.rows) >= maxTasksPerJob || c.counts.liveTasks() >= maxLiveTasks
	if listed && !full && c.hasQuotaFor(j.key.User, chargeAny(j.specs, 0, 1)) {
		return errors.New("machines wait for tasks for which there is quota")
	}
	return nil
}
