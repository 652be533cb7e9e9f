package cell

import (
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
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

	// Tasks disturbed and not yet seen running since; derived.
	down uint32
	// Every task below it has been dealt with; derived.
	cursor uint32
}

// UID of the update.
func (u *Update) UID() UID { return u.uid }

// Rolling tells that it is under way.
func (u *Update) Rolling() bool {
	return u != nil && u.state == borgpb.UpdateState_UPDATE_STATE_ROLLING
}

func (c *Cell) checkUpdateJob(o *borgpb.UpdateJob) (commit, *borgpb.Refusal) {
	j, r := c.checkLive(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	if r := checkLabels(o.Labels, o.Annotations); r != nil {
		return nil, about(j.key.String(), r)
	}
	spec, r := readSpec(j.key, o.Spec, c.format)
	if r == nil && spec.Proto.Kind != j.Kind() {
		r = invalid("spec.kind", "the kind of a job cannot change; kill it and submit it anew")
	}
	if r == nil {
		r = c.checkSize(j, spec.Proto.Tasks)
	}
	if r == nil {
		r = c.checkSecrets(j.key.User, spec)
	}
	if r == nil {
		r = c.checkLinks(spec.Proto, j.latest().Proto)
	}
	if r != nil {
		return nil, about(j.key.String(), r)
	}
	return func(res *borgpb.Result) {
		j.labels, j.annotations = o.Labels, o.Annotations
		c.dirty(j)
		if string(o.Spec) != string(j.latest().Bytes) {
			c.startUpdate(j, spec)
			res.UpdateUid = j.update.uid.String()
		}
		c.touch(j, edgeUpdate)
		if int(spec.Proto.Tasks) != len(j.rows) {
			if res.UpdateUid == "" {
				// The same spec undoes a resize.
				j.version++
			}
			c.resize(j, spec.Proto.Tasks)
		}
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// startUpdate gives a job a new spec. Pending tasks simply take it when they
// are placed; what runs is rolled over by roll. A newer update replaces an
// older one, but the tasks that are down for that still count as down.
func (c *Cell) startUpdate(j *Job, spec *Spec) {
	was := j.latest()
	var down uint32
	if j.update.Rolling() {
		down = j.update.down
		c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_REPLACED, "a newer update took its place")
	}
	if j.update == nil {
		j.update = &Update{}
	}
	policy := spec.Proto.Update
	j.version++
	u := j.update
	*u = Update{
		mark: u.mark, job: j, uid: c.newUID(), fromVersion: was.Version, toVersion: j.version,
		batchSize: max(policy.GetBatchSize(), 1), maxDisruptions: policy.GetMaxDisruptions(),
		state: borgpb.UpdateState_UPDATE_STATE_ROLLING, startedWallNs: c.clock.wallNs, down: down,
	}
	c.links.remove(j)
	spec.job, spec.Version = j, j.version
	j.specs = append(j.specs, spec)
	c.links.add(j)
	c.dropUnused(was)
	c.limitDomains(j)
	j.leaveDueNs = 0
	for _, t := range j.rows {
		if t.flags&taskSkipped != 0 {
			t.flags &^= taskSkipped
			c.dirty(t)
		}
	}
	j.changedWallNs = c.clock.wallNs
	c.dirty(j)
	c.dirty(spec)
	c.dirty(u)
	c.emit(updateEvent(u, borgpb.EventKind_EVENT_KIND_UPDATE_START))
	kind := borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING
	if j.settled == statePending {
		kind = borgpb.EventKind_EVENT_KIND_UPDATE_PENDING
	}
	c.emit(jobEvent(j, kind, j.settled, take(j.settled, edgeUpdate, j.settled)))
}

// endUpdate closes the update that rolls, if any.
func (c *Cell) endUpdate(j *Job, to borgpb.UpdateState, reason string) {
	u := j.update
	if !u.Rolling() {
		return
	}
	u.state, u.reason, u.endedWallNs = to, reason, c.clock.wallNs
	c.dirty(u)
	e := updateEvent(u, borgpb.EventKind_EVENT_KIND_UPDATE_DONE)
	e.Reason = reason
	c.emit(e)
}

// roll takes the update of a job as far as its batch size lets it. It looks
// only at what is, so it may be called whenever something changed.
func (c *Cell) roll(j *Job) {
	u := j.update
	if !u.Rolling() || c.restored.held {
		return
	}
	spec := j.latest()
	var memo changeMemo
	for int(u.cursor) < len(j.rows) {
		t := j.rows[u.cursor]
		if t.state == stateRunning && t.cur.version != spec.Version && t.flags&taskSkipped == 0 {
			if !c.rollTask(u, t, spec, &memo) {
				return
			}
		}
		u.cursor++
	}
	if u.down == 0 {
		c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_DONE, "")
	}
}

// rollTask gives one running task the new spec, and tells whether it could.
func (c *Cell) rollTask(u *Update, t *Task, spec *Spec, memo *changeMemo) bool {
	need := spec.Need(t.index)
	change := memo.between(t.cur.spec, spec, t.cur.spec.Need(t.index), need)
	stays := c.staysPut(t.cur, spec, need)
	if change == changeInPlace && stays {
		c.updateInPlace(u, t, spec, need)
		return true
	}
	again := t.flags&taskUpdating != 0
	switch {
	case u.maxDisruptions > 0 && u.restarted+u.rescheduled >= u.maxDisruptions:
		t.flags |= taskSkipped
		u.skipped++
		c.clearUpdating(t)
		c.dirty(t)
		c.dirty(u)
		return true
	case !again && u.down >= u.batchSize:
		return false
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
	return true
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
	c.clearUpdating(t)
	c.touch(t.job, edgeUpdate)
}

// clearUpdating notes that a task is no longer down for the update.
func (c *Cell) clearUpdating(t *Task) {
	if t.flags&taskUpdating == 0 {
		return
	}
	t.flags &^= taskUpdating
	c.dirty(t)
	if u := t.job.update; u.Rolling() {
		u.down--
	}
}

// rewind makes the update look again at a task that came back with an old spec.
func (c *Cell) rewind(t *Task) {
	if u := t.job.update; u.Rolling() {
		u.cursor = min(u.cursor, t.index)
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
	case equalSpec(fixedPart(from.Task), fixedPart(to.Task)):
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
	return f
}

func equalSpec(a, b *borgpb.TaskSpec) bool { return proto.Equal(a, b) }

// staysPut tells whether a running copy may stay where it is under a new spec.
func (c *Cell) staysPut(p *Copy, spec *Spec, need *Need) bool {
	m := p.machine
	if failedConstraint(need.Task.Constraints, m) != nil || Untolerated(need.Task.Tolerations, m) != nil {
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
