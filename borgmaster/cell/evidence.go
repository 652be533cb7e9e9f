package cell

import (
	"borg/proto/borgpb"
)

// Silence is no health. Where a task has to run well for some time, the clock alone
// proves nothing: its machine may have gone silent in the first moment. A window ends
// with evidence, which is a report that answers a poll sent at or after the end and says
// that the process that ran all the time still runs and is well. The link shards send
// one such report for each window that has ended, and none otherwise: a cell without
// windows logs nothing for this.

// wellNs is the cell time as of which the copy was last known to be well, as a canary.
func (p *Copy) wellNs() int64 {
	if p == nil || p.few == nil {
		return 0
	}
	return p.few.wellNs
}

// awaitedNs returns the end of the copy's window if it has passed without evidence, and
// zero otherwise.
func (c *Cell) awaitedNs(p *Copy) int64 {
	if p.state != attemptRunning {
		return 0
	}
	u := p.job.update
	if !u.Rolling() || p.version != u.toVersion {
		return 0
	}
	end := int64(0)
	if since := p.upNs(); since != 0 {
		end = since + u.policy.watchNs
	} else if t := p.row(); t != nil && t.flags&taskCanary != 0 {
		end = u.canaryEndNs()
	}
	if end > c.clock.cellNs || p.wellNs() >= end {
		return 0
	}
	return end
}

// Attests reports whether a report that answers a poll sent at a cell time is the
// evidence that the cell waits for.
func (c *Cell) Attests(p *Copy, r *borgpb.TaskReport, asOfNs int64) bool {
	if attemptState(r.State) != attemptRunning || r.Unwell || r.Restarts != p.restarts || r.Pid != p.pid {
		return false
	}
	end := c.awaitedNs(p)
	return end != 0 && asOfNs >= end
}

// ask has the machine of a task polled soon: its window is over, and word of it is awaited.
func (c *Cell) ask(t *Task) {
	if t.cur != nil {
		// The link shard compares an idle machine again.
		t.cur.machine.changes++
		c.asked = append(c.asked, t.cur.machine.name)
	}
}

// Asked names the machines to poll soon since the last Apply, as word of a task there is
// awaited. It is good until the next Apply, and must not be changed.
func (c *Cell) Asked() []string { return c.asked }

// heardWell takes evidence of a copy.
func (c *Cell) heardWell(p *Copy, asOfNs int64) {
	t := p.row()
	if p.upNs() != 0 {
		c.clearUpdating(t)
	} else {
		p.rare().wellNs = min(asOfNs, c.clock.cellNs)
		c.dirty(t)
	}
	c.review(p.job)
}

// awaitReturned watches a task that the update disturbed and that came back with its
// machine: the machine was heard, the task was not.
func (c *Cell) awaitReturned(t *Task) {
	u := t.job.update
	if t.flags&taskUpdating == 0 || t.cur.state != attemptRunning {
		return
	}
	if !u.Rolling() || t.cur.version != u.toVersion {
		c.seenUp(t)
		return
	}
	since := max(c.clock.cellNs, 1)
	t.cur.rare().upNs = since
	u.watched = append(u.watched, watched{t.index, since})
	c.dirty(t)
	c.review(t.job)
}

// canaryEndNs is the cell time at which the window of the canaries ends; zero: they are
// not healthy together, or somebody has to promote them.
func (u *Update) canaryEndNs() int64 {
	if u.state != borgpb.UpdateState_UPDATE_STATE_CANARY || u.canaryNs == 0 || u.policy.canaryWatchNs == 0 {
		return 0
	}
	return u.canaryNs + u.policy.canaryWatchNs
}

// promoteIfWell promotes an update whose canaries were all heard to be well after their
// window, and reports whether it did.
func (c *Cell) promoteIfWell(j *Job) bool {
	u := j.update
	end := u.canaryEndNs()
	if end == 0 || end > c.clock.cellNs {
		return false
	}
	if u.liveCanaries() == 0 {
		// Nothing was shown; somebody has to decide.
		u.canaryNs = 0
		c.dirty(u)
		return false
	}
	for _, i := range u.chosen {
		t := j.canary(i)
		if t == nil || t.cur == nil || t.cur.version != u.toVersion {
			continue
		}
		if t.cur.wellNs() < end {
			return false
		}
	}
	c.promote(j, "promoted by itself: its canaries were healthy for "+spanWords(u.policy.canaryWatchNs))
	return true
}
