package cell

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// JobProto shows a job. The spec's number of tasks is the present one.
func (c *Cell) JobProto(j *Job) *borgpb.Job {
	p := j.Alone()
	if p.Spec.Tasks != j.Size() && !stands(j.Kind()) {
		p.Spec = proto.CloneOf(p.Spec)
		p.Spec.Tasks = j.Size()
	}
	if p.Status.Reason == "" && j.pending > 0 {
		p.Status.Reason = c.HeldBack(j)
	}
	return p
}

// Alone shows what of a job follows from its own tasks: not what it waits for. The
// spec is as it was committed, with the number of tasks of then.
func (j *Job) Alone() *borgpb.Job {
	st := new(borgpb.JobStatus)
	j.PutStatus(st)
	return &borgpb.Job{Meta: j.meta(j.version), Spec: j.Spec(), Status: st}
}

// PutStatus makes a status that of Alone, whatever it was.
func (j *Job) PutStatus(st *borgpb.JobStatus) {
	*st = borgpb.JobStatus{
		State: j.State(), Reason: j.reason, Pending: j.pending, Running: j.running, Dead: j.dead,
		Finished: j.finished, SubmittedWallNs: j.submittedWallNs, ChangedWallNs: j.changedWallNs,
		Stopping: j.stopping, Started: j.started, Down: j.Down(), Cron: j.cronProto(), CronSlotWallNs: j.slotNs,
	}
	if j.daemon != nil {
		st.Unseated = uint32(len(j.daemon.unseated))
	}
	if j.update.Rolling() {
		st.UpdateUid = j.update.uid.String()
	}
}

func (j *Job) meta(version uint64) *borgpb.Meta {
	return &borgpb.Meta{
		User: j.key.User, Name: j.key.Name, Uid: j.uid.String(), Version: version,
		Labels: j.labels, Annotations: j.annotations,
	}
}

// TaskProto shows a task, with the attempts before the current one if asked.
// It returns nil when there is no such task.
func (c *Cell) TaskProto(j *Job, index uint32, attempts bool) *borgpb.Task {
	t := j.Task(index)
	if t == nil {
		return nil
	}
	v := new(Looker).Look(t, nil)
	p := v.Proto(j.meta(v.Version()), index)
	if attempts {
		for past := range t.Past() {
			a := past.Proto()
			a.Quarantine = past.quarantineProto(c)
			p.Status.Attempts = append(p.Status.Attempts, a)
		}
	}
	return p
}

// Proto shows a copy as an attempt.
func (p *Copy) Proto() *borgpb.Attempt {
	a := &borgpb.Attempt{
		User: p.job.key.User, Job: p.job.key.Name, JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt,
		Machine: p.machine.name, State: p.State(), Cause: p.Cause(), Reason: p.Reason(), Exit: p.Exit(),
		Restarts: p.restarts, StopIndex: p.StopIndex(), GraceNs: p.GraceNs(), NoticeNs: p.NoticeNs(), EndedWallNs: p.endedWallNs,
		Resources: p.res.Proto(), Ports: p.Ports(), Devices: GrantsProto(p.Devices()),
	}
	if p.alloc != nil {
		a.Alloc = p.alloc.Name()
	}
	return a
}

// MachineProto shows a machine.
func (c *Cell) MachineProto(m *Machine) *borgpb.Machine {
	p := m.Alone()
	st := p.Status
	st.Limits, st.Reserved = m.Limits().Proto(), m.room.taken.others.Proto()
	st.Tasks, st.Allocs = uint32(len(m.copies)), uint32(len(m.allocs))
	st.Drain, st.HeldPorts = c.drainProto(m), c.heldPortsProto(m)
	return p
}

// Alone shows what is said of a machine itself: not what is placed there, nor how far
// it has been emptied.
func (m *Machine) Alone() *borgpb.Machine {
	spec := &borgpb.MachineSpec{
		Addr: m.addr, Capacity: m.room.capacity.Proto(), Attributes: m.attributes,
		PortFirst: uint32(m.portFirst), PortLast: uint32(m.portLast), Packages: m.PackagesProto(),
	}
	for _, t := range m.taints {
		spec.Taints = append(spec.Taints, &borgpb.Taint{Key: t.Key, Value: t.Value, Evict: t.Evict, PreferNot: t.PreferNot})
	}
	var drain *borgpb.Drain
	if d := m.drain; d != nil {
		drain = &borgpb.Drain{Reason: d.reason, User: d.user, SinceWallNs: d.sinceWallNs, Forced: d.forced}
	}
	return &borgpb.Machine{
		Meta: &borgpb.Meta{Name: m.name, Uid: m.uid.String(), Version: m.version, Labels: m.labels, Annotations: m.annotations},
		Spec: spec,
		Status: &borgpb.MachineStatus{
			State: m.State(), Reason: m.reason, Draining: m.draining, ChangedWallNs: m.changedWallNs, Drain: drain,
		},
	}
}

// AllocSetProto shows an alloc set.
func (c *Cell) AllocSetProto(s *AllocSet) *borgpb.AllocSet {
	return &borgpb.AllocSet{
		Meta: s.meta(),
		Spec: sized(s.spec, s.NumAllocs()),
		Status: &borgpb.AllocSetStatus{
			Behind: s.behind,
			State:  s.State(), Reason: s.reason, Pending: s.counts[statePending], Running: s.counts[stateRunning],
			Dead: s.counts[stateDead], SubmittedWallNs: s.submittedWallNs, ChangedWallNs: s.changedWallNs,
		},
	}
}

func (s *AllocSet) meta() *borgpb.Meta {
	return &borgpb.Meta{
		User: s.key.User, Name: s.key.Name, Uid: s.uid.String(), Version: s.version,
		Labels: s.labels, Annotations: s.annotations,
	}
}

// AllocProto shows an alloc.
func (c *Cell) AllocProto(a *Alloc) *borgpb.Alloc {
	p := a.Alone()
	p.Status.Used = a.limits().Proto()
	if a.behind {
		p.Status.Holds = a.room.capacity.Proto()
	}
	for _, o := range a.copies {
		p.Status.Tasks = append(p.Status.Tasks, o.TaskID().String())
	}
	return p
}

// Alone shows what is said of an alloc itself: not what is placed in it.
func (a *Alloc) Alone() *borgpb.Alloc {
	v := a.View()
	return v.Proto(a.set.meta(), a.index)
}

// UpdateProto shows the job's update that rolls or rolled last; nil: none.
func (c *Cell) UpdateProto(j *Job) *borgpb.Update {
	u := j.update
	if u == nil {
		return nil
	}
	p := &borgpb.Update{
		Meta: &borgpb.Meta{User: j.key.User, Name: j.key.Name, Uid: u.uid.String(), Version: 1},
		Spec: &borgpb.UpdateSpec{
			FromVersion: u.fromVersion, ToVersion: u.toVersion, BatchSize: u.batchSize, MaxDisruptions: u.maxDisruptions,
			StableVersion: u.stable, Rollback: u.rollback,
		},
		Status: &borgpb.UpdateStatus{
			State: u.state, Reason: u.reason, InPlace: u.inPlace, Restarted: u.restarted, Rescheduled: u.rescheduled,
			Skipped: u.skipped, Remaining: u.remaining(), StartedWallNs: u.startedWallNs, EndedWallNs: u.endedWallNs,
			Failures: u.failures, Extra: u.extra, Gate: u.gate.words,
		},
	}
	if u.policy != (rollPolicy{}) || u.pace != (pace{}) {
		p.Spec.Policy = u.policyProto()
	}
	c.updateWaits(u, p.Status)
	return p
}

// updateWaits shows what an update waits for, and until when.
func (c *Cell) updateWaits(u *Update, st *borgpb.UpdateStatus) {
	left := func(atNs int64) int64 { return max(atNs-c.clock.cellNs, 1) }
	for _, t := range u.job.rows {
		if p := t.cur; p != nil && p.version != u.toVersion {
			st.Old++
		}
	}
	if u.closeNs != 0 {
		st.CloseLeftNs = left(u.closeNs)
	}
	if !u.Rolling() {
		return
	}
	switch {
	case c.restored.held:
		st.WaitsFor = "the end of the hold: the cell was restored"
	case u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED:
		st.WaitsFor = "somebody to resume it: it is paused"
	case u.state == borgpb.UpdateState_UPDATE_STATE_CANARY:
		st.WaitsFor = "somebody to promote it: its canaries are healthy"
		if u.canaryNs != 0 && u.policy.canaryWatchNs > 0 {
			st.WaitsFor, st.PromoteLeftNs = "its canaries, which are watched", left(u.canaryNs+u.policy.canaryWatchNs)
			if u.canaryEndNs() <= c.clock.cellNs {
				st.WaitsFor = "a sign from the machine of each canary that it still runs and is well"
			}
		}
	case c.lapsed(u):
		st.WaitsFor = "a pulse from its monitor"
	case c.asksGate(u):
		if st.WaitsFor = "an answer of its gate"; u.gate.words != "" {
			st.WaitsFor = "its gate: " + u.gate.words
		}
		if due := c.gateEndNs(u); due < maxTimeNs {
			st.GateLeftNs = left(due)
		}
	case c.waitOfUpdate(u) != "":
		st.WaitsFor = "tasks to end: " + c.waitOfUpdate(u)
	case u.down > 0:
		st.WaitsFor = u.waitsForTask(c.clock.cellNs)
	}
	if u.policy.deadlineNs > 0 && u.state != borgpb.UpdateState_UPDATE_STATE_PAUSED && u.state != borgpb.UpdateState_UPDATE_STATE_CANARY && !c.lapsed(u) && !c.asksGate(u) {
		st.DeadlineLeftNs = left(u.progressNs + u.policy.deadlineNs)
	}
}

// waitsForTask names the first task that is down for the update, and how it is.
func (u *Update) waitsForTask(nowNs int64) string {
	for _, t := range u.job.rows {
		if t.flags&taskUpdating == 0 {
			continue
		}
		words := "task " + strconv.FormatUint(uint64(t.index), 10)
		switch {
		case t.state == statePending:
			words += ", which waits for a place"
		case t.cur.upNs() != 0 && t.cur.upNs()+u.policy.watchNs <= nowNs:
			words += ", of which nothing was heard since it was to run for " + spanWords(u.policy.watchNs) + ": its machine is " + t.cur.machine.name
		case t.cur.upNs() != 0:
			words += ", which runs and is watched for " + spanWords(u.policy.watchNs)
		default:
			words += ", which is not running yet"
			if why := t.cur.Reason(); why != "" {
				words += ": " + why
			}
		}
		if u.down > 1 {
			words += fmt.Sprintf("; and %d more", u.down-1)
		}
		return words
	}
	return ""
}

// remaining counts the tasks that the update has still to deal with, those
// that are down for it among them.
func (u *Update) remaining() uint32 {
	if !u.Rolling() {
		return 0
	}
	n := u.down - u.extrasDown()
	for place := u.cursor; place < u.job.Size(); place++ {
		t := u.job.rows[u.at(place)]
		if t.state == stateRunning && t.cur.version != u.toVersion && t.flags&(taskSkipped|taskUpdating) == 0 {
			n++
		}
	}
	return n
}
