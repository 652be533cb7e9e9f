package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// A straggler is a copy that still runs an old version because its machine was down
// during the update. It gets the new version when the machine returns, and an update does
// not wait for a task that waits for a machine that is down.

// straggles reports whether a copy that comes back with its machine has to make way for
// a start with the version that its job has now. One whose update was given up keeps
// what it has, as the others did; while an update is under way, that deals with it.
func (c *Cell) straggles(p *Copy) bool {
	t, u := p.row(), p.job.update
	if t == nil || p.stop != nil || !c.keepsUp(u) || t.flags&taskSkipped != 0 || p.job.saving != nil {
		return false
	}
	spec := p.job.specOf(t.index)
	if c.sameSpec(p.spec, spec) {
		return false
	}
	from, to := p.spec.Need(t.index), spec.Need(t.index)
	return compare(p.spec, spec, from, to) != changeInPlace || !c.staysPut(p, spec, to)
}

// keepsUp reports whether all tasks of a job are to run what its last update led to.
func (c *Cell) keepsUp(u *Update) bool {
	if u == nil || c.restored.held {
		return false
	}
	return u.state == borgpb.UpdateState_UPDATE_STATE_DONE || u.state == borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK
}

// catchUp gives a copy that came back, and may stay where it is, what its job has become.
func (c *Cell) catchUp(t *Task) {
	u := t.job.update
	if spec := t.job.specOf(t.index); c.keepsUp(u) && t.cur.version != spec.Version && t.flags&taskSkipped == 0 && t.job.saving == nil {
		c.updateInPlace(u, t, spec, spec.Need(t.index))
	}
}

// stragglerWords is why a copy that came back has to stop.
func stragglerWords(p *Copy) string {
	return fmt.Sprintf("it came back with version %d of its job, which is at version %d", p.version, p.job.latest().Version)
}

// outdated reports whether a task of a job without an update under way runs another spec
// than the job has.
func (j *Job) outdated() bool {
	latest := j.latest()
	if j.update.Rolling() || !slices.ContainsFunc(j.specs, func(s *Spec) bool { return s != latest && s.uses > 0 && !s.same(latest) }) {
		return false
	}
	return slices.ContainsFunc(j.rows, func(t *Task) bool { return t.cur != nil && t.cur.spec != latest && !t.cur.spec.same(latest) })
}

// bound is the machine that a task has to run on, whatever becomes of it; nil: it may
// run on any.
func (c *Cell) bound(t *Task) *Machine {
	if m := t.job.Seat(t.index); m != nil {
		return m
	}
	return c.VolumeSiteOf(t.job, nil, t.index).At
}

// strands reports whether a task waits for a machine that is down, and cannot run elsewhere.
func (c *Cell) strands(t *Task) bool {
	if t.state != statePending {
		return false
	}
	m := c.bound(t)
	return m != nil && m.down
}

// freeUpdates has the updates of tasks that wait for a machine that went down go on. Like
// those that were lost before, they start with the new version when it returns.
func (c *Cell) freeUpdates(m *Machine) {
	for _, j := range c.daemons {
		if index, ok := j.daemon.at[m]; ok {
			c.freeUpdate(j.rows[index])
		}
	}
	for _, v := range m.volumes {
		if t := c.task(v.of); t != nil {
			c.freeUpdate(t)
		}
	}
}

func (c *Cell) freeUpdate(t *Task) {
	if !c.strands(t) || t.job.update.isExtra(t.index) {
		return
	}
	c.replaceCanary(t)
	if t.flags&taskUpdating != 0 {
		c.clearUpdating(t)
		c.review(t.job)
	}
}

// canaries are the tasks that try the new version first, until it is promoted.
func (u *Update) canaries() (chosen []uint32) {
	if !u.canarying() {
		return nil
	}
	for _, t := range u.job.rows {
		if t.flags&taskCanary != 0 {
			chosen = append(chosen, t.index)
		}
	}
	return chosen
}

// dropCanary makes a task one that is no canary, if it is one.
func (c *Cell) dropCanary(t *Task) {
	if t.flags&taskCanary == 0 {
		return
	}
	t.flags &^= taskCanary
	u := t.job.update
	u.chosen = slices.DeleteFunc(u.chosen, func(i uint32) bool { return i == t.index })
	c.dirty(t)
}

// replaceCanary has another task try the new version first, in the place of one whose
// machine is down or gone.
func (c *Cell) replaceCanary(t *Task) {
	j := t.job
	u := j.update
	if !u.Rolling() || !u.canarying() || t.flags&taskCanary == 0 {
		return
	}
	c.dropCanary(t)
	c.clearUpdating(t)
	c.dirty(u)
	if c.pickCanaries(j); u.promoted {
		c.promote(j, "promoted by itself: no task is left that could be a canary")
	}
	c.review(j)
}
