package cell

import (
	"bytes"
	"fmt"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatUpdates is the format in which updates began to watch what they do, to try
// canaries, to be told how to go on, and to be undone until they are closed.
const FormatUpdates = 7

// rollout is what format 7 added to an update; zero in one that began before.
type rollout struct {
	policy rollPolicy
	// Version of the spec that a rollback leads back to, which is kept for it; zero:
	// it is closed. Invariant: below toVersion.
	stable uint64
	// How many tasks there were when that spec was the present one.
	stableTasks uint32
	// It is a rollback itself, and is not undone.
	rollback bool
	// Of one with canaries: all tasks take the new spec.
	promoted bool
	failures uint32
	// Cell time at which a task was last dealt with, or the clock of the progress
	// deadline was otherwise set anew.
	progressNs int64
	// Cell time since which all canaries are healthy together; zero: they are not.
	canaryNs int64
	// Cell time at which it closes; zero: it is under way, or waits for somebody.
	closeNs int64
	// Cell time of the last pulse; zero: none yet.
	pulsedNs int64
}

// rollPolicy is how an update rolls, taken from the spec that it leads to, or for a
// rollback from the update that it undoes.
type rollPolicy struct {
	order   borgpb.UpdateOrder
	watchNs int64
	// Failures at which it fails; zero: it bears any number.
	failsAt       uint32
	deadlineNs    int64
	canaries      uint32
	canaryWatchNs int64
	autoRollback  bool
	closeAfterNs  int64
	pulseNs       int64
	// Neighbours are never down for it at once.
	apart bool
}

func newRollPolicy(p *borgpb.UpdatePolicy) rollPolicy {
	r := rollPolicy{
		order: p.GetOrder(), watchNs: p.GetWatchNs(), deadlineNs: p.GetProgressDeadlineNs(),
		canaries: p.GetCanaries(), canaryWatchNs: p.GetCanaryWatchNs(), autoRollback: p.GetAutoRollback(),
		closeAfterNs: p.GetCloseAfterNs(), pulseNs: p.GetPulseNs(), apart: p.GetNoNeighbours(),
	}
	if p != nil && p.MaxFailed != nil {
		r.failsAt = *p.MaxFailed + 1
	}
	return r
}

// proto shows the policy, with what the update itself keeps of it.
func (u *Update) policyProto() *borgpb.UpdatePolicy {
	r := &u.policy
	p := &borgpb.UpdatePolicy{
		BatchSize: u.batchSize, MaxDisruptions: u.maxDisruptions,
		Order: r.order, WatchNs: r.watchNs, ProgressDeadlineNs: r.deadlineNs, Canaries: r.canaries, CanaryWatchNs: r.canaryWatchNs,
		AutoRollback: r.autoRollback, CloseAfterNs: r.closeAfterNs, PulseNs: r.pulseNs, NoNeighbours: r.apart,
	}
	p.SpreadBy, p.Surge = u.spreadBy, u.surge
	if u.gate.asked {
		p.Gate = u.job.Spec().GetUpdate().GetGate()
	}
	if r.failsAt > 0 {
		p.MaxFailed = new(r.failsAt - 1)
	}
	return p
}

// checkUpdatePolicy range-checks how updates to a spec roll.
func checkUpdatePolicy(s *borgpb.JobSpec) *borgpb.Refusal {
	const field = "spec.update."
	p := s.Update
	for _, t := range []struct {
		name     string
		ns, most int64
	}{
		{"watch_ns", p.GetWatchNs(), maxUpdateWaitNs}, {"progress_deadline_ns", p.GetProgressDeadlineNs(), maxUpdateWaitNs},
		{"canary_watch_ns", p.GetCanaryWatchNs(), maxUpdateWaitNs}, {"pulse_ns", p.GetPulseNs(), maxUpdateWaitNs},
		{"close_after_ns", p.GetCloseAfterNs(), maxUpdateOpenNs},
	} {
		if t.ns < 0 || t.ns > t.most {
			return outOfSpan(field+t.name, t.ns, 0, t.most)
		}
	}
	if r := checkPace(s); r != nil {
		return r
	}
	switch {
	case p.GetBatchSize() > maxTasksPerJob:
		return invalid(field+"batch_size", "%d is over %d", p.GetBatchSize(), maxTasksPerJob)
	case p.GetMaxFailed() > maxFailures:
		return invalid(field+"max_failed", "%d is over %d", p.GetMaxFailed(), maxFailures)
	case p.GetCanaries() > maxTasksPerJob:
		return invalid(field+"canaries", "%d is over %d", p.GetCanaries(), maxTasksPerJob)
	case p.GetCanaries() > 0 && s.Gang:
		return invalid(field+"canaries", "a gang is placed as a whole: it has no canaries")
	case p.GetCanaryWatchNs() > 0 && p.GetCanaries() == 0:
		return invalid(field+"canary_watch_ns", "there are no canaries to watch: want canaries too")
	case p.GetProgressDeadlineNs() > 0 && p.GetProgressDeadlineNs() <= p.GetWatchNs():
		return invalid(field+"progress_deadline_ns", "no task is dealt with before it was watched for watch_ns, %d: want more than that", p.GetWatchNs())
	}
	return nil
}

// checkCanaries wants that what decides about the places of all tasks of a job is the
// same in both specs that they run side by side.
func checkCanaries(old, spec *borgpb.JobSpec) *borgpb.Refusal {
	if spec.Update.GetCanaries() == 0 {
		return nil
	}
	for _, f := range []struct {
		name string
		same bool
	}{
		{"priority", old.Priority == spec.Priority}, {"preempt", old.Preempt == spec.Preempt}, {"alloc_set", old.AllocSet == spec.AllocSet},
		{"alloc_by_index", old.AllocByIndex == spec.AllocByIndex}, {"gang", old.Gang == spec.Gang}, {"scheduler", old.Scheduler == spec.Scheduler},
		{"max_per_machine", old.MaxPerMachine == spec.MaxPerMachine}, {"max_per_rack", old.MaxPerRack == spec.MaxPerRack},
		{"max_per_power", old.MaxPerPower == spec.MaxPerPower}, {"max_per", sameCounts(old.MaxPer, spec.MaxPer)},
	} {
		if !f.same {
			return invalid("spec.update.canaries", "%s changes, which holds for all tasks at once; change it by an update without canaries", f.name)
		}
	}
	return nil
}

func sameCounts(a, b map[string]uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for _, k := range sortedKeys(a) {
		if n, ok := b[k]; !ok || n != a[k] {
			return false
		}
	}
	return true
}

// lastHealthy is the version to which an update that begins now can be undone, and
// the number of tasks of then: the present one, unless the last update did not get
// to its end.
func (j *Job) lastHealthy() (version uint64, tasks uint32) {
	if u := j.update; u != nil && u.state != borgpb.UpdateState_UPDATE_STATE_DONE && !u.rollback && u.stable != 0 {
		return u.stable, u.stableTasks
	}
	return j.latest().Version, j.Size()
}

// Open tells that it can be rolled back.
func (u *Update) Open() bool { return u != nil && u.stable != 0 && !u.rollback }

// canarying tells that only its canaries take the new spec.
func (u *Update) canarying() bool { return u != nil && u.policy.canaries > 0 && !u.promoted }

// specOf is the spec with which a task is placed: the present one, but the last
// healthy one for who is no canary of an update that was not promoted.
func (j *Job) specOf(index uint32) *Spec {
	if s := j.StableSpec(); s != nil && int(index) < len(j.rows) && j.rows[index].flags&taskCanary == 0 && !mutant.Planted(mutant.CanaryForAll) {
		return s
	}
	return j.latest()
}

// StableSpec is the last healthy spec, as long as only canaries take the present one;
// nil: all tasks take that.
func (j *Job) StableSpec() *Spec {
	if !j.update.canarying() {
		return nil
	}
	return j.specAt(j.update.stable)
}

// Mixed tells that tasks of neighbouring indices may ask for different things
// although one spec says the same of them: some are canaries.
func (j *Job) Mixed() bool { return j.update.canarying() }

// at is the index of the task at a place in the order of the update; and the other
// way round.
func (u *Update) at(place uint32) uint32 {
	if u.policy.order == borgpb.UpdateOrder_UPDATE_ORDER_REVERSE {
		return u.job.Size() - 1 - place
	}
	return place
}

// pickCanaries chooses who takes the new spec first: those who run, in the order of
// the update, then those who have run. If there are none, nothing is at risk.
func (c *Cell) pickCanaries(j *Job) {
	u := j.update
	if !u.canarying() {
		return
	}
	for _, want := range []state{stateRunning, statePending} {
		for place := uint32(0); place < j.Size() && len(u.chosen) < int(u.policy.canaries); place++ {
			t := j.rows[u.at(place)]
			if t.state != want || t.attempt == 0 || t.flags&taskCanary != 0 || c.strands(t) {
				continue
			}
			t.flags |= taskCanary
			if want == statePending && t.flags&taskUpdating == 0 {
				t.flags |= taskUpdating
				u.down++
			}
			u.chosen = append(u.chosen, t.index)
			c.dirty(t)
		}
	}
	// As a cell has them that was just read.
	slices.Sort(u.chosen)
	u.promoted = len(u.chosen) == 0
}

// rollCanaries takes an update as far as its canaries, and tells those who wait for
// it when all of them are healthy.
func (c *Cell) rollCanaries(u *Update, spec *Spec, memo *changeMemo) {
	j := u.job
	well := true
	for _, i := range u.chosen {
		t := j.canary(i)
		if t == nil {
			continue
		}
		if t.state == statePending && t.flags&taskUpdating == 0 {
			// It lost its machine before its turn. It starts with the new spec, and is not
			// healthy before that runs.
			t.flags |= taskUpdating
			u.down++
			c.dirty(t)
		}
		if u.behind(t, spec) && c.rollTask(u, t, spec, memo) != rolled {
			well = false
		}
		well = well && t.flags&taskUpdating == 0
	}
	if !well || u.state == borgpb.UpdateState_UPDATE_STATE_CANARY {
		return
	}
	u.state = borgpb.UpdateState_UPDATE_STATE_CANARY
	u.canaryNs = max(c.clock.cellNs, 1)
	c.dirty(u)
	words := "its canaries are healthy; it waits to be promoted"
	if u.policy.canaryWatchNs > 0 {
		words = "its canaries are healthy; it promotes itself when they have been for " + spanWords(u.policy.canaryWatchNs)
	}
	c.tellUpdate(u, words)
}

// canary is the task of that index if it is a canary. A task that one resize removed and
// another added back is none.
func (j *Job) canary(index uint32) *Task {
	if int(index) >= len(j.rows) || j.rows[index].flags&taskCanary == 0 {
		return nil
	}
	return j.rows[index]
}

// liveCanaries counts those that run the new spec.
func (u *Update) liveCanaries() (n int) {
	for _, i := range u.chosen {
		if t := u.job.canary(i); t != nil && t.cur != nil && t.cur.version == u.toVersion || t != nil && t.flags&taskFinished != 0 {
			n++
		}
	}
	return n
}

// seenDown notes that a copy does not run any more: who is watched is watched anew,
// and if it is a canary with the new spec, they are not healthy together any more.
func (c *Cell) seenDown(p *Copy) {
	if p.few != nil {
		p.few.upNs = 0
	}
	c.extraDown(p)
	u := p.job.update
	t := p.row()
	if !u.canarying() || !u.Rolling() || p.version != u.toVersion || t == nil || t.flags&taskCanary == 0 || t.flags&taskUpdating != 0 {
		return
	}
	t.flags |= taskUpdating
	u.down++
	u.canaryNs = 0
	if u.state == borgpb.UpdateState_UPDATE_STATE_CANARY {
		u.state = borgpb.UpdateState_UPDATE_STATE_ROLLING
		u.progressNs = c.clock.cellNs
	}
	c.dirty(t)
	c.dirty(u)
	c.review(p.job)
}

// watched is a task that runs with the new spec since that cell time. It counts as
// long as its copy says the same.
type watched struct {
	index   uint32
	sinceNs int64
}

// watch begins to watch a task that the update disturbed and that runs; done: there
// is no need to.
func (c *Cell) watch(t *Task) (done bool) {
	u := t.job.update
	if !u.Rolling() || u.policy.watchNs == 0 || t.cur.version != u.toVersion {
		return true
	}
	if few := t.cur.rare(); few.upNs == 0 {
		few.upNs = max(c.clock.cellNs, 1)
		u.watched = append(u.watched, watched{t.index, few.upNs})
		c.dirty(t)
		c.review(t.job)
	}
	return false
}

// upNs is the cell time since which an update watches the copy; zero: none does.
func (p *Copy) upNs() int64 {
	if p == nil || p.few == nil {
		return 0
	}
	return p.few.upNs
}

// firstWatched is who has been watched for longest.
func (u *Update) firstWatched() (w watched, ok bool) {
	for len(u.watched) > 0 {
		w = u.watched[0]
		if int(w.index) < len(u.job.rows) {
			if t := u.job.rows[w.index]; t.flags&taskUpdating != 0 && t.cur.upNs() == w.sinceNs {
				return w, true
			}
		}
		u.watched = u.watched[1:]
	}
	return watched{}, false
}

// countFailures notes that processes of a copy have failed while the update dealt
// with its task, or with one of its canaries.
func (c *Cell) countFailures(p *Copy, n uint32) {
	u, t := p.job.update, p.row()
	if c.format < FormatUpdates || !u.Rolling() || u.rollback || t == nil || p.version != u.toVersion ||
		t.flags&taskUpdating == 0 && !(u.canarying() && t.flags&taskCanary != 0) {
		return
	}
	u.failures = min(u.failures+n, maxFailures+1)
	c.dirty(u)
	c.review(p.job)
}

// failed tells why an update has failed; empty: it has not.
func (u *Update) failed() string {
	if u.policy.failsAt == 0 || u.failures < u.policy.failsAt || mutant.Planted(mutant.FailuresNotCounted) {
		return ""
	}
	return fmt.Sprintf("its tasks failed %s, and max_failed is %d", timesWords(int(u.failures)), u.policy.failsAt-1)
}

// failUpdate ends an update that went wrong; if it is to be, it is rolled back.
func (c *Cell) failUpdate(j *Job, why string) {
	u := j.update
	if u.policy.autoRollback && u.Open() {
		spec, tasks, r := c.checkRollback(j)
		if r == nil {
			// The way back has its own.
			c.endExtra(j)
			c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_FAILED, why)
			c.rollBack(j, spec, tasks, why)
			return
		}
		why += "; it could not be rolled back: " + r.Message
	}
	c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_FAILED, why)
	c.letBe(j)
}

// letBe forgets which tasks an update that has ended had disturbed.
func (c *Cell) letBe(j *Job) {
	for _, t := range j.rows {
		if t.flags&taskUpdating != 0 {
			t.flags &^= taskUpdating
			c.unwatch(t)
			c.dirty(t)
		}
	}
	j.update.down = 0
	c.standDown(j)
}

func (c *Cell) unwatch(t *Task) {
	if t.cur.upNs() != 0 {
		t.cur.few.upNs = 0
		c.dirty(t)
	}
}

// checkRollback returns the spec, made anew, to which a job goes back, and with how
// many tasks: as many as before if the update changed that and nobody has since.
func (c *Cell) checkRollback(j *Job) (*Spec, uint32, *borgpb.Refusal) {
	u := j.update
	old := j.specAt(u.stable)
	tasks := j.Size()
	if !stands(j.Kind()) && tasks == j.latest().Proto.Tasks {
		tasks = u.stableTasks
	}
	spec, r := c.readSpec(j.key, old.Bytes)
	if r == nil && !stands(j.Kind()) {
		r = c.checkSize(j, tasks)
	}
	// Its spec is charged for already; tasks that come back are not.
	if r == nil && !stands(j.Kind()) {
		if r = c.checkAfterExtra(j, j.specs, tasks); r == nil {
			r = c.checkChargeOfJob(j.key, j, j.specs, tasks, j.charged, j.chargeWith(j.specs, tasks))
		}
	}
	if r == nil {
		r = c.checkOwned(j.key.User, spec)
	}
	if r == nil {
		// It named all of this when it was the present one.
		r = c.checkLinks(spec.Proto, spec.Proto)
	}
	return spec, tasks, r
}

// rollBack begins an update to the last healthy spec: in one step, without canaries,
// under the limits of the update that it undoes. Tasks that have that spec already
// are not touched.
func (c *Cell) rollBack(j *Job, spec *Spec, tasks uint32, why string) {
	u := j.update
	next := Update{batchSize: u.batchSize, maxDisruptions: u.maxDisruptions, reason: why, state: borgpb.UpdateState_UPDATE_STATE_ROLLING_BACK}
	next.policy = rollPolicy{order: u.policy.order, watchNs: u.policy.watchNs, deadlineNs: u.policy.deadlineNs, apart: u.policy.apart}
	if mutant.Planted(mutant.RollbackUnbounded) {
		next.batchSize = maxTasksPerJob
	}
	next.rollback = true
	next.pace = pace{spreadBy: u.spreadBy, surge: c.surgeBack(j, tasks)}
	c.beginUpdate(j, spec, next, "it is rolled back")
	if tasks != j.Size() && (c.format < formatSeatsBack || !stands(j.Kind())) {
		c.resize(j, tasks)
	}
	c.rollDown(j.update, spec)
}

// closeUpdate forgets the way back.
func (c *Cell) closeUpdate(j *Job, why string) {
	u := j.update
	if u == nil || u.stable == 0 {
		return
	}
	old := j.specAt(u.stable)
	u.stable, u.stableTasks, u.closeNs = 0, 0, 0
	c.dirty(u)
	if old != nil {
		c.dropUnused(old)
	}
	c.tellUpdate(u, why)
}

func (c *Cell) tellUpdate(u *Update, words string) {
	e := updateEvent(u, borgpb.EventKind_EVENT_KIND_UPDATE_CHANGE)
	e.Reason = words
	c.emit(e)
}

// sameSpec tells that a task has the very spec already, if under another version.
func (c *Cell) sameSpec(a, b *Spec) bool {
	return c.format >= FormatUpdates && bytes.Equal(a.Bytes, b.Bytes)
}

// lapsed tells that a pulse is needed, and that the last one is too long ago.
func (c *Cell) lapsed(u *Update) bool {
	return u.policy.pulseNs > 0 && (u.pulsedNs == 0 || c.clock.cellNs >= u.pulsedNs+u.policy.pulseNs)
}

// besideUpdated tells that a neighbour is down for the update.
func (u *Update) besideUpdated(t *Task) bool {
	down := func(i uint32) bool { return i < u.job.Size() && u.job.rows[i].flags&taskUpdating != 0 }
	return u.policy.apart && (t.index > 0 && down(t.index-1) || down(t.index+1))
}

// sortWatched puts those who are watched in the order in which they will have been
// for long enough.
func (u *Update) sortWatched() {
	slices.SortFunc(u.watched, func(a, b watched) int {
		if a.sinceNs != b.sinceNs {
			if a.sinceNs < b.sinceNs {
				return -1
			}
			return 1
		}
		return int(a.index) - int(b.index)
	})
}
