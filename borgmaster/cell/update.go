package cell

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/weight"
)

// Update is one change of a job's spec on its way through the job's tasks.
type Update struct {
	mark
	job                    *Job
	uid                    UID
	fromVersion, toVersion uint64
	batchSize              uint32
	maxDisruptions         uint32
	state                  borgpb.UpdateState
	reason                 string

	inPlace, restarted, rescheduled, skipped uint32
	startedWallNs, endedWallNs               int64

	rollout
	pace

	// Tasks disturbed and not yet seen running since, or not yet for long enough;
	// derived.
	down uint32
	// Every task before that place in its order has been dealt with; derived.
	cursor uint32
	// Its canaries, ascending, until it is promoted; and who is watched, who has been for longest
	// first. Derived.
	chosen  []uint32
	watched []watched
	// The canaryNs of the window at whose end the canaries' machines were asked; zero:
	// none has ended. Derived.
	askedNs int64
}

// UID of the update.
func (u *Update) UID() UID { return u.uid }

// Rolling tells that it is under way, if only waiting.
func (u *Update) Rolling() bool {
	if u == nil {
		return false
	}
	switch u.state {
	case borgpb.UpdateState_UPDATE_STATE_ROLLING, borgpb.UpdateState_UPDATE_STATE_CANARY,
		borgpb.UpdateState_UPDATE_STATE_PAUSED, borgpb.UpdateState_UPDATE_STATE_ROLLING_BACK:
		return true
	}
	return false
}

// same tells whether nothing is new in a spec.
func (s *Spec) same(was *Spec) bool { return string(s.Bytes) == string(was.Bytes) }

func (c *Cell) checkUpdateJob(o *borgpb.UpdateJob) (commit, *borgpb.Refusal) {
	j, r := c.checkLive(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	if j.saving != nil {
		return nil, badState(j.key.String(), "%s", c.HeldBack(j))
	}
	if r := checkLabels(o.Labels, o.Annotations); r != nil {
		return nil, about(j.key.String(), r)
	}
	spec, r := c.readGivenSpec(j.key, o.Spec)
	if r == nil && spec.Proto.Kind != j.Kind() {
		r = invalid("spec.kind", "the kind of a job cannot change; kill it and submit it anew")
	}
	if r == nil && j.slotNs != 0 && spec.Proto.Parent != j.Spec().Parent {
		r = invalid("spec.parent", "a run of a cron job stays with it")
	}
	if r != nil {
		return nil, about(j.key.String(), r)
	}
	size := spec.Proto.Tasks
	if !stands(j.Kind()) {
		if o.Merge {
			size = MergeTasks(j.Spec().Tasks, j.Size(), size)
		}
		r = c.checkSize(j, size)
	}
	if r == nil {
		r = c.checkOwned(j.key.User, spec)
	}
	if r == nil {
		r = c.checkPowers(spec, j.latest())
	}
	if r == nil {
		r = c.checkLinks(spec.Proto, j.latest().Proto)
	}
	// The same spec again goes on with an update that did not reach all.
	changes := r == nil && (!spec.same(j.latest()) || j.outdated())
	if changes {
		if r = c.checkSpecBounds(j.key.User, spec); r == nil {
			r = c.checkAfterExtra(j, c.specsWith(j, spec), size)
		}
		if r == nil {
			r = c.checkJobQuota(j.key, j, spec, size+spec.Proto.Update.GetSurge())
		}
		if r == nil && j.Kind() != borgpb.JobKind_JOB_KIND_CRON {
			r = c.checkStops(j.key, j.chargeWith(c.specsWith(j, spec), j.charges()))
		}
	} else if r == nil {
		r = c.checkJobQuota(j.key, j, nil, size+j.surging())
	}
	if r == nil {
		healthy, _ := j.lastHealthy()
		r = checkCanaries(j.specAt(healthy).Proto, spec.Proto)
	}
	var gets, said given
	if r == nil {
		gets, said, r = c.merged(borgpb.Labelled_LABELLED_JOB, j.lastGiven(), given{j.labels, j.annotations}, given{o.Labels, o.Annotations}, o.Merge)
	}
	if r == nil {
		next, surge := (*Spec)(nil), j.surging()
		if !spec.same(j.latest()) {
			next, surge = spec, min(spec.Proto.Update.GetSurge(), size)
		}
		texts := weight.Map(gets.labels) + weight.Map(gets.annotations) + said.unless(gets).textBytes()
		r = c.checkJobGrowth(j, next, size+surge, texts)
	}
	if r != nil {
		return nil, about(j.key.String(), r)
	}
	return func(res *borgpb.Result) {
		was := j.stateBytes()
		j.labels, j.annotations = gets.labels, gets.annotations
		c.labelsChanged(j)
		j.keep(said)
		c.countBytesOf(j.key.User, false, j.stateBytes()-was)
		c.dirty(j)
		if changes {
			c.startUpdate(j, spec)
			res.UpdateUid = j.update.uid.String()
		}
		c.touch(j, edgeUpdate)
		if size != j.Size() && !stands(j.Kind()) {
			if res.UpdateUid == "" {
				// The same spec undoes a resize.
				j.version++
			}
			c.resize(j, size)
		}
		if changes {
			c.rollDown(j.update, spec)
		}
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// startUpdate gives a job a new spec, which rolls as the spec itself says.
func (c *Cell) startUpdate(j *Job, spec *Spec) {
	policy := spec.Proto.Update
	next := Update{
		batchSize: max(policy.GetBatchSize(), 1), maxDisruptions: policy.GetMaxDisruptions(),
		state: borgpb.UpdateState_UPDATE_STATE_ROLLING,
	}
	if c.format >= FormatUpdates {
		next.policy = newRollPolicy(policy)
		next.stable, next.stableTasks = j.lastHealthy()
	}
	if c.format >= FormatSurges {
		next.pace = newPace(policy)
		if next.surge > 0 {
			next.batchSize = policy.GetBatchSize()
		}
	}
	c.beginUpdate(j, spec, next, "a newer update took its place")
}

// beginUpdate gives a job a new spec. Pending tasks simply take it when they
// are placed; what runs is rolled over by roll. A newer update replaces an
// older one, but the tasks that are down for that still count as down.
func (c *Cell) beginUpdate(j *Job, spec *Spec, next Update, why string) {
	was := j.latest()
	c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_REPLACED, why)
	if j.update == nil {
		j.update = &Update{}
	}
	j.version++
	u := j.update
	wayBack := j.specAt(u.stable)
	next.mark, next.job, next.uid, next.down = u.mark, j, c.newUID(), u.down
	next.fromVersion, next.toVersion, next.startedWallNs = was.Version, j.version, c.clock.wallNs
	if c.format >= FormatUpdates {
		next.progressNs = c.clock.cellNs
	}
	*u = next
	c.jobRefs.remove(j)
	spec.job, spec.Version = j, j.version
	j.specs = append(j.specs, spec)
	c.countBytesOf(j.key.User, false, spec.bytesOf())
	c.jobRefs.add(j)
	c.dropUnused(was)
	if wayBack != nil && !wayBack.gone {
		c.dropUnused(wayBack)
	}
	c.recharge(j)
	c.limitDomains(j)
	c.reschedule(j, was.Proto.Cron)
	// Before seats change: a seat that goes would look for another canary in the place of its own.
	for _, t := range j.rows {
		if t.flags&(taskSkipped|taskCanary) != 0 {
			t.flags &^= taskSkipped | taskCanary
			c.dirty(t)
		}
		if t.cur.upNs() != 0 {
			// It runs; what it was watched for is past.
			c.clearUpdating(t)
		}
	}
	if j.daemon != nil {
		c.seatJob(j)
	}
	j.leaveDueNs = 0
	c.lookAtSavers()
	c.pickCanaries(j)
	j.changedWallNs = c.clock.wallNs
	c.dirty(j)
	c.dirty(spec)
	c.dirty(u)
	e := updateEvent(u, borgpb.EventKind_EVENT_KIND_UPDATE_START)
	if u.rollback {
		e.Reason = "it takes the update before it back: " + u.reason
	}
	c.emit(e)
	kind := borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING
	if j.settled == statePending {
		kind = borgpb.EventKind_EVENT_KIND_UPDATE_PENDING
	}
	c.emit(jobEvent(j, kind, j.settled, take(j.settled, edgeUpdate, j.settled)))
}

// rollDown deals first with who is down for the update before and runs what that
// brought: he may never come up with it, and until he does the batch has no room.
func (c *Cell) rollDown(u *Update, spec *Spec) {
	if c.format < FormatUpdates || c.restored.held || u.canarying() || u.down == 0 {
		return
	}
	var memo changeMemo
	for _, t := range u.job.rows {
		if t.flags&taskUpdating != 0 && u.behind(t, spec) {
			c.rollTask(u, t, spec, &memo)
		}
	}
}

// endUpdate ends the update that rolls, if any.
func (c *Cell) endUpdate(j *Job, to borgpb.UpdateState, reason string) {
	u := j.update
	if !u.Rolling() || !c.standsIn(to) {
		c.endExtra(j)
	}
	if !u.Rolling() {
		return
	}
	u.state, u.reason, u.endedWallNs, u.canaryNs = to, reason, c.clock.wallNs, 0
	if to == borgpb.UpdateState_UPDATE_STATE_DONE && u.stable != 0 {
		u.closeNs = min(c.clock.cellNs+cmp.Or(u.policy.closeAfterNs, updateOpenNs), maxTimeNs)
	}
	c.noteWait(j)
	if u.surge > 0 {
		c.recharge(j)
	}
	c.dirty(u)
	e := updateEvent(u, borgpb.EventKind_EVENT_KIND_UPDATE_DONE)
	e.Reason = reason
	c.emit(e)
}

// roll takes the update of a job as far as its batch size lets it. It looks
// only at what is, so it may be called whenever something changed.
func (c *Cell) roll(j *Job) {
	u := j.update
	if c.restored.held {
		return
	}
	if !u.Rolling() {
		c.standDown(j)
		return
	}
	if why := u.failed(); why != "" {
		if c.failUpdate(j, why); !u.Rolling() {
			return
		}
	}
	if u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED {
		return
	}
	var memo changeMemo
	if u.canarying() {
		c.rollCanaries(u, j.latest(), &memo)
		if !c.promoteIfWell(j) {
			c.shutGate(u)
			return
		}
	}
	all := c.rollRest(u, j.latest(), &memo)
	c.shutGate(u)
	if all && u.down == u.extrasDown() {
		to, reason := borgpb.UpdateState_UPDATE_STATE_DONE, ""
		if u.rollback {
			to, reason = borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK, u.reason
		}
		c.endUpdate(j, to, reason)
	}
}

// rollRest goes on through the tasks in their order, and tells whether all were dealt
// with.
func (c *Cell) rollRest(u *Update, spec *Spec, memo *changeMemo) bool {
	waiting := 0
	for place := u.cursor; place < u.job.Size(); place++ {
		if t := u.job.rows[u.at(place)]; u.behind(t, spec) {
			switch c.rollTask(u, t, spec, memo) {
			case batchFull:
				return false
			case besideOthers:
				if waiting++; waiting > maxRollAhead && u.spreadBy == "" {
					return false
				}
			}
		}
		if waiting == 0 {
			u.cursor++
		}
	}
	return waiting == 0
}

// behind tells whether a running task has still to be dealt with.
func (u *Update) behind(t *Task, spec *Spec) bool {
	return t.state == stateRunning && t.cur.version != spec.Version && t.flags&taskSkipped == 0
}

// rollResult is what became of one task.
type rollResult uint8

const (
	rolled rollResult = iota
	// No further task may be disturbed now.
	batchFull
	// This one may not, as long as a neighbour is down, or so many of its domain are.
	besideOthers
)

// rollTask gives one running task the new spec, or tells why not now.
func (c *Cell) rollTask(u *Update, t *Task, spec *Spec, memo *changeMemo) rollResult {
	need := spec.Need(t.index)
	change := memo.between(t.cur.spec, spec, t.cur.spec.Need(t.index), need)
	same := c.sameSpec(t.cur.spec, spec)
	stays := same || c.staysPut(t.cur, spec, need)
	if same || change == changeInPlace && stays {
		c.updateInPlace(u, t, spec, need)
		return rolled
	}
	again := t.flags&taskUpdating != 0
	switch {
	case u.maxDisruptions > 0 && u.restarted+u.rescheduled >= u.maxDisruptions && !mutant.Planted(mutant.CapNotKept):
		t.flags |= taskSkipped
		u.skipped++
		c.clearUpdating(t)
		c.dirty(t)
		c.dirty(u)
		return rolled
	case c.lapsed(u) || c.holdForStops(t.cur) || !again && !c.mayDisturb(u):
		return batchFull
	case !again && (u.besideUpdated(t) || c.domainFull(u, t, memo)):
		return besideOthers
	}
	reason := "restarted by update " + u.uid.String()
	if stays && change != changeMove {
		u.restarted++
	} else {
		u.rescheduled++
		reason = "rescheduled by update " + u.uid.String()
	}
	if !again {
		t.flags |= taskUpdating
		u.down++
	}
	c.dirty(u)
	c.evict(t, edgeUpdate, statePending, borgpb.StopCause_STOP_CAUSE_UPDATE, reason, t.cur.grace())
	return rolled
}

// mayDisturb tells whether the update may take one more task down now.
func (c *Cell) mayDisturb(u *Update) bool {
	if u.gateShut() {
		return false
	}
	c.addExtra(u)
	return u.down < u.room()
}

// updateInPlace gives a running copy its new limits, priority and version.
func (c *Cell) updateInPlace(u *Update, t *Task, spec *Spec, need *Need) {
	p := t.cur
	old := p.spec
	r := p.room()
	r.sub(p.held())
	p.res, p.priority = &need.Resources, spec.Proto.Priority
	// What was estimated was for another limit.
	p.estimate = nil
	r.add(p.held())
	if p.wait != nil {
		p.wait.res = p.res
		p.wait.reckon()
	}
	if p.alloc == nil {
		c.giveUpYielding(p.machine, p.priority, p.res.DiskBytes, 0, t.ID().String)
		c.bandVolumes(p)
	}
	old.uses--
	c.unwant(p)
	c.bind(p, spec)
	c.dropUnused(old)
	u.inPlace++
	c.dirty(u)
	c.move(t, edgeUpdate, stateRunning, t.reason)
	if p.state == attemptRunning {
		c.clearUpdating(t)
	}
	c.emit(taskEvent(p, borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING, stateRunning, stateRunning))
}

// formatAnyVersionIsUp is the format from which on a task is no longer down for
// an update once it runs, with whichever spec. Before it the spec had to be the
// latest: a task that an update had disturbed, and that came up when the next
// one had begun, counted as down until it was reached, and with a batch of one
// it never was.
const formatAnyVersionIsUp = 2

// seenUp notes that a task that the update disturbed runs.
func (c *Cell) seenUp(t *Task) {
	if t.flags&taskUpdating == 0 || t.cur.state != attemptRunning {
		return
	}
	if c.format < formatAnyVersionIsUp && t.cur.version != t.job.latest().Version {
		return
	}
	if c.watch(t) {
		c.clearUpdating(t)
		c.touch(t.job, edgeUpdate)
	}
}

// clearUpdating notes that a task is no longer down for the update.
func (c *Cell) clearUpdating(t *Task) {
	if t.flags&taskUpdating == 0 {
		return
	}
	t.flags &^= taskUpdating
	c.dirty(t)
	c.unwatch(t)
	if u := t.job.update; u.Rolling() {
		u.down--
		if c.format >= FormatUpdates && u.policy.deadlineNs > 0 {
			u.progressNs = c.clock.cellNs
			c.dirty(u)
		}
	}
}

// rewind makes the update look again at a task that came back with an old spec.
func (c *Cell) rewind(t *Task) {
	if u := t.job.update; u.Rolling() {
		u.cursor = min(u.cursor, u.at(t.index))
	}
}

// change is what the difference of two specs means for a running task.
type change uint8

const (
	// Nothing it runs with differs, or only what can be changed while it runs.
	changeInPlace change = iota
	changeRestart
	// It has to go elsewhere: between a machine and an alloc set.
	changeMove
)

// changeMemo remembers the last answer: most tasks of a job differ alike.
type changeMemo struct {
	from, to *Need
	change   change
	// Nil: nobody asked for them yet.
	shares *shares
}

func (m *changeMemo) between(old, new *Spec, from, to *Need) change {
	if m.from != from || m.to != to {
		m.from, m.to, m.change = from, to, compare(old, new, from, to)
	}
	return m.change
}

func compare(old, new *Spec, from, to *Need) change {
	switch {
	case old.allocSet != new.allocSet:
		return changeMove
	case from.Resources.Ports != to.Resources.Ports || !sameDevices(&from.Resources, &to.Resources):
		return changeRestart
	case equalSpec(fixedPart(from.Merged()), fixedPart(to.Merged())):
		return changeInPlace
	default:
		return changeRestart
	}
}

func sameDevices(a, b *Resources) bool {
	return Resources{Devices: a.Devices}.Equal(Resources{Devices: b.Devices})
}

// fixedPart is what cannot change while the task runs.
func fixedPart(t *borgpb.TaskSpec) *borgpb.TaskSpec {
	f := new(borgpb.TaskSpec)
	copyFields(f, t)
	f.Resources, f.Constraints, f.Tolerations = nil, nil, nil
	f.GraceNs, f.CpuSlack, f.MemSlack, f.NoEstimation = 0, 0, 0, false
	f.NoticeNs, f.NoticeSignal = 0, false
	return f
}

func equalSpec(a, b *borgpb.TaskSpec) bool { return proto.Equal(a, b) }

// staysPut tells whether a running copy may stay where it is under a new spec.
func (c *Cell) staysPut(p *Copy, spec *Spec, need *Need) bool {
	m := p.machine
	if !spec.keeps(p.index, p.alloc) || failedConstraint(need.Task.Constraints, m) != nil || Untolerated(need.Task.Tolerations, m) != nil {
		return false
	}
	prod := isProd(spec.Proto.Priority)
	// It may be on what others do not use at the moment, as production never is.
	becomesProd := c.format >= FormatBudgets && prod && !isProd(p.priority)
	if need.Resources.Equal(*p.res) && !becomesProd {
		return true
	}
	r := p.room()
	held := r.held(prod)
	if p.wait != nil {
		held = held.Add(p.wait.discount.of(prod))
	}
	free := r.capacity.Sub(held).Add(p.Held(prod))
	if becomesProd {
		return need.Resources.shortOf(&free) == FitOK
	}
	// Less than before is always given, however full the machine is.
	more := need.Resources.Sub(*p.res)
	return more.shortOf(&Resources{}) == FitOK || need.Resources.shortOf(&free) == FitOK
}

func updateEvent(u *Update, kind borgpb.EventKind) Event {
	return Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_UPDATE, Key: u.job.key, UID: u.uid}
}
