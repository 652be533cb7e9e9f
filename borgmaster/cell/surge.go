package cell

import (
	"cmp"
	"fmt"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatSurges is the format in which updates began to have extra tasks, to spread over
// failure domains, and to ask a gate.
const FormatSurges = 8

// pace is what format 8 added to an update; zero in one that began before.
type pace struct {
	// Of the order SPREAD: the attribute whose values are the domains.
	spreadBy string
	// How many extra tasks it may have.
	surge uint32
	gate  gate

	// How many it has: the rows from the size of its job on. Zero once it has ended, but
	// for those of one that was given up, which stand in for who is down.
	// Invariant: while it rolls, each of them counts as down until it runs, and again when
	// it does not, so that the batch may be larger by as many as there are.
	extra uint32
}

func newPace(p *borgpb.UpdatePolicy) pace {
	n := pace{surge: p.GetSurge(), gate: newGate(p.GetGate())}
	if p.GetOrder() == borgpb.UpdateOrder_UPDATE_ORDER_SPREAD {
		n.spreadBy = cmp.Or(p.SpreadBy, "rack")
	}
	return n
}

// checkPace range-checks what format 8 added to update policies.
func checkPace(s *borgpb.JobSpec) *borgpb.Refusal {
	const field = "spec.update."
	p := s.Update
	if r := checkGate(p.GetGate()); r != nil {
		return r
	}
	switch {
	case len(p.GetSpreadBy()) > maxLabelKeyBytes:
		return invalid(field+"spread_by", "longer than %d bytes", maxLabelKeyBytes)
	case p.GetSpreadBy() != "" && p.Order != borgpb.UpdateOrder_UPDATE_ORDER_SPREAD:
		return invalid(field+"spread_by", "it is for the order spread alone; want that too, or leave it out")
	case p.GetSurge() == 0:
		return nil
	case s.Kind != borgpb.JobKind_JOB_KIND_SERVICE:
		return invalid(field+"surge", "only a service has extra tasks: one more of any other would do work of its own")
	case p.Surge > maxTasksPerJob || s.Tasks+p.Surge > maxTasksPerJob:
		return invalid(field+"surge", "%d tasks and %d more are over %d", s.Tasks, p.Surge, maxTasksPerJob)
	case s.Gang, s.AllocSet != "", s.MaxRunning > 0, s.OnLost == borgpb.OnLost_ON_LOST_DEAD:
		return invalid(field+"surge", "a gang, a job in an alloc set, with max_running, or whose lost tasks stay dead has no extra tasks; leave out one or the other")
	}
	return nil
}

// Size is the number of tasks that the job is to have: those that it has, without the
// extra ones of an update.
func (j *Job) Size() uint32 {
	if j.update == nil {
		return uint32(len(j.rows))
	}
	return uint32(len(j.rows)) - j.update.extra
}

// surging is how many extra tasks the job may have at the moment, whether it has them
// or not.
func (j *Job) surging() uint32 { return j.update.Surge() }

// charges is the number of tasks that a job is charged for as long as none is dead. An
// update has its extra tasks from its beginning, so that nothing the cell does by
// itself raises a charge.
func (j *Job) charges() uint32 { return j.Size() + j.surging() }

// Extra is how many extra tasks the update has: those with the highest indices.
func (u *Update) Extra() uint32 {
	if u == nil {
		return 0
	}
	return u.extra
}

// Surge is how many extra tasks the update may have: those that it has once it was given
// up.
func (u *Update) Surge() uint32 {
	if !u.Rolling() {
		return u.Extra()
	}
	return u.surge
}

// isExtra tells whether the update has that index for itself.
func (u *Update) isExtra(index uint32) bool { return u.Extra() > 0 && index >= u.job.Size() }

// surgeBack is how many extra tasks a rollback may have: as many as the update that it
// undoes, but none if its user has no quota for them any more. Then it goes without,
// for a way back must not be refused for want of more than is there.
func (c *Cell) surgeBack(j *Job, tasks uint32) uint32 {
	n := j.update.surge
	if n > 0 && c.quotas.used != nil && c.checkCharge(j.key, j.charged, j.chargeWith(j.specs, tasks+n)) != nil {
		return 0
	}
	return n
}

// room is how many tasks may be down for the update at once, extra ones that do not
// run among them.
func (u *Update) room() uint32 {
	if u.canarying() || u.surge == 0 {
		// There are no extra tasks for canaries, so one has to go down.
		return max(u.batchSize, 1)
	}
	if mutant.Planted(mutant.SurgeNotAwaited) {
		return u.batchSize + u.extra + u.extrasDown()
	}
	return u.batchSize + u.extra
}

// addExtra gives an update its extra tasks, when it is about to take one down. What
// the limits of the cell do not let it have, it does without.
func (c *Cell) addExtra(u *Update) {
	j := u.job
	if u.extra > 0 || u.surge == 0 || u.canarying() {
		return
	}
	size := j.Size()
	n := min(u.surge, size, maxTasksPerJob-size, uint32(max(maxLiveTasks-c.counts.liveTasks(), 0)))
	if n == 0 {
		return
	}
	u.extra = n
	c.grow(j, size+n)
	for _, t := range j.rows[size:] {
		t.flags |= taskUpdating
	}
	u.down += n
	j.changedWallNs = c.clock.wallNs
	c.dirty(j)
	c.dirty(u)
	c.touch(j, edgeUpdate)
	c.tellExtra(j, fmt.Sprintf("%d extra tasks of update %v, which end with it", n, u.uid))
}

// endExtra ends the extra tasks of an update.
func (c *Cell) endExtra(j *Job) {
	u := j.update
	if u.Extra() == 0 {
		return
	}
	for ; u.extra > 0; u.extra-- {
		c.cutLast(j, borgpb.StopCause_STOP_CAUSE_UPDATE, "an extra task of update "+u.uid.String()+", which needs it no more")
	}
	c.extraChanged(j, "without extra tasks")
}

// extraChanged notes that the job has fewer extra tasks.
func (c *Cell) extraChanged(j *Job, words string) {
	j.changedWallNs = c.clock.wallNs
	c.dirty(j)
	c.dirty(j.update)
	c.recharge(j)
	c.touch(j, edgeUpdate)
	c.tellExtra(j, words)
}

func (c *Cell) tellExtra(j *Job, words string) {
	e := jobEvent(j, borgpb.EventKind_EVENT_KIND_RESIZE, j.settled, j.settled)
	e.Reason = fmt.Sprintf("%d tasks: %s", len(j.rows), words)
	c.emit(e)
}

// extraDown notes that an extra task does not run any more: it makes up for nobody.
func (c *Cell) extraDown(p *Copy) {
	u, t := p.job.update, p.row()
	if !u.Rolling() || t == nil || !u.isExtra(t.index) || t.flags&taskUpdating != 0 {
		return
	}
	t.flags |= taskUpdating
	u.down++
	c.dirty(t)
	c.review(p.job)
}

// extrasDown counts the extra tasks that do not run.
func (u *Update) extrasDown() (n uint32) {
	for _, t := range u.job.rows[u.job.Size():] {
		if t.flags&taskUpdating != 0 {
			n++
		}
	}
	return n
}

// pace writes what format 8 added to an update.
func (e *encoder) pace(p *pace) {
	if *p == (pace{}) {
		return
	}
	e.byte(tagPace)
	e.str(p.spreadBy)
	e.uint(uint64(p.surge))
	e.uint(uint64(p.extra))
	e.gate(&p.gate)
}

func (l *loader) pace(d *decoder, u *Update) error {
	if l.c.format < FormatSurges || !d.tagged(tagPace) {
		return nil
	}
	u.pace = pace{spreadBy: d.str(), surge: d.uint32(), extra: d.uint32(), gate: d.gate()}
	if u.pace == (pace{}) || u.extra > u.surge || !u.gate.ok() {
		return errOdd
	}
	return nil
}

// loadExtra derives what is not written down of extra tasks that were never placed.
func (u *Update) loadExtra() error {
	if u == nil || u.extra == 0 {
		return nil
	}
	if int(u.extra) >= len(u.job.rows) {
		return fmt.Errorf("update %v has %d extra tasks of %d", u.uid, u.extra, len(u.job.rows))
	}
	if !u.Rolling() {
		return nil
	}
	for _, t := range u.job.rows[u.job.Size():] {
		if t.attempt == 0 && t.state == statePending {
			t.flags |= taskUpdating
		}
	}
	return nil
}

// checkPace checks what format 8 added to updates.
func (c *Cell) checkPace(u *Update) error {
	if c.format < FormatSurges && u.pace != (pace{}) {
		return fmt.Errorf("it is of a later format: %+v", u.pace)
	}
	if u.extra > 0 && (!u.Rolling() && !c.standsIn(u.state) || u.canarying()) || u.extra > u.surge || int(u.extra) > len(u.job.rows) {
		return fmt.Errorf("it is %s and has %d extra tasks of %d", u.stateWords(), u.extra, u.surge)
	}
	for _, t := range u.job.rows[u.job.Size():] {
		if u.Rolling() && t.flags&taskUpdating == 0 && !t.runs() {
			return fmt.Errorf("its extra task %d is taken for one that runs", t.index)
		}
	}
	if u.extra > 0 && !u.Rolling() && !c.restored.held {
		if j := u.job; !j.rows[len(j.rows)-1].runs() || j.started > j.Size() {
			return fmt.Errorf("%d of %d tasks run, and its last extra one stands in for nobody", j.started, j.Size())
		}
	}
	return u.gate.check(u)
}
