package cell

import (
	"fmt"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Later tells whether a copy that the cell does not have is of a task that it has,
// and later than all that it knows of it: then it was placed after the checkpoint
// from which the cell was restored. Attempts are counted by one log, so whatever the
// cell has of the task had ended, or was told to stop, when that copy was placed.
func (c *Cell) Later(id CopyID) bool {
	j := c.jobsByUID[id.Job]
	if c.restored.fromIndex == 0 || id.Job.Epoch >= c.epoch || j == nil || j.deathSeq != 0 {
		return false
	}
	t := j.Task(id.Index)
	return t != nil && t.state != stateDead && id.Attempt > t.attempt && id.Attempt <= max(j.attemptFloor, t.attempt)
}

// hearMachines takes in what machines run that the cell does not have there.
func (c *Cell) hearMachines(o *borgpb.HearMachines, res *borgpb.Result) {
	for i, h := range o.Machines {
		m := c.machines[h.Machine]
		var r *borgpb.Refusal
		switch {
		case m == nil:
			r = notFound(clip(h.Machine, 64), "there is no such machine")
		case c.restored.fromIndex == 0 && (len(h.Missing)+len(h.Found) > 0 || h.Unknown > 0 || len(h.Left) == 0):
			r = badState(m.name, "the cell was not restored")
		case m.down:
			r = stale(m.name, "the machine is down")
		}
		if r != nil {
			if res.Items == nil {
				res.Items = newItems(len(o.Machines))
			}
			res.Items[i] = r
			continue
		}
		c.hearMachine(m, h)
	}
	c.endHoldIfHeard()
}

func (c *Cell) hearMachine(m *Machine, h *borgpb.HeardMachine) {
	for _, v := range h.Missing {
		uid, _ := parseUID(v.JobUid)
		if p := m.find(CopyID{uid, v.Index, v.Attempt}); p != nil && m.unheard && !mutant.Planted(mutant.PhantomKept) {
			c.missing(p)
		}
	}
	unknown := h.Unknown
	for _, f := range h.Found {
		var do func()
		if guarded(func() (r *borgpb.Refusal) { do, r = c.checkFound(m, f); return r }) != nil {
			unknown++
			continue
		}
		do()
	}
	stopped := c.stopLeft(m, h.Left)
	was := m.Closed()
	if m.unheard || m.unknown != unknown {
		m.unheard, m.unknown, m.changedWallNs = false, unknown, c.clock.wallNs
		c.lookAtSavers()
		c.dirty(m)
	}
	if was != m.Closed() || stopped > 0 {
		e := machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_HEARD)
		switch {
		case m.unknown > 0:
			e.Reason = m.closedWords()
		case stopped > 0:
			e.Reason = fmt.Sprintf("%d copies run there whose places the cell had given up: they are stopped", stopped)
		}
		c.emit(e)
	}
}

// missing records that a machine does not have a copy that the checkpoint says it
// has. How it ended nobody knows any more. If its task still counts on it, that
// waits for a place again; it does not die of it, and no failure is counted.
func (c *Cell) missing(p *Copy) {
	p.text = "its machine did not have it when the cell was restored"
	if p.pid != 0 {
		p.exit = &Exit{Unknown: true}
	}
	if !p.state.current() {
		c.hearEnd(p, attemptLost, nil)
		return
	}
	t := p.row()
	c.retire(t)
	c.end(p, attemptLost)
	c.move(t, edgeEvict, statePending, p.text)
	e := taskEvent(p, borgpb.EventKind_EVENT_KIND_EVICT, stateRunning, statePending)
	e.Reason, e.Exit = p.text, p.exit
	c.emit(e)
}

// checkFound decides whether a copy that runs is taken as its task's current one.
func (c *Cell) checkFound(m *Machine, f *borgpb.FoundCopy) (func(), *borgpb.Refusal) {
	uid, ok := parseUID(f.GetReport().GetJobUid())
	if !ok || !validReport(f.Report) {
		return nil, invalid("found", "a report that makes no sense")
	}
	id := CopyID{uid, f.Report.Index, f.Report.Attempt}
	if !c.Later(id) || attemptState(f.Report.State) == attemptStopping || attemptState(f.Report.State) == attemptStopped {
		return nil, stale(m.name, "copy %s is not a later one of a task of the cell", id)
	}
	j := c.jobsByUID[uid]
	at, r := c.foundPlace(m, j, f)
	if r != nil {
		return nil, r
	}
	return func() { c.adopt(j.rows[id.Index], at, f) }, nil
}

// foundPlace is the place that a copy holds where it runs. Whether there is room is
// not asked: it is there.
func (c *Cell) foundPlace(m *Machine, j *Job, f *borgpb.FoundCopy) (place, *borgpb.Refusal) {
	p := Placement{Job: j, Index: f.Report.Index, Machine: m, Ports: f.Ports}
	_, inside := j.AllocSet()
	if f.Alloc != "" {
		p.Alloc = c.AllocByName(f.Alloc)
	}
	need := j.Need(p.Index)
	switch {
	case p.Elsewhere(m):
		return place{}, stale(p.name(), "it does not belong to %s", m.name)
	case inside != (f.Alloc != "") || inside && (p.Alloc == nil || p.Alloc.machine != m):
		return place{}, stale(p.name(), "it runs in alloc %q, which the cell does not have on %s", clip(f.Alloc, 160), m.name)
	case !j.specFound(f).keeps(p.Index, p.Alloc):
		return place{}, stale(p.name(), "it runs in alloc %q, and belongs into the one of its index", clip(f.Alloc, 160))
	case len(m.copies) >= maxCopiesOnMachine:
		return place{}, about(p.name(), limit("", "%s holds %d copies", m.name, len(m.copies)))
	case len(f.Ports) != len(need.Task.Ports):
		return place{}, about(p.name(), invalid("ports", "%d ports for %d names", len(f.Ports), len(need.Task.Ports)))
	}
	if r := c.readGrants(&p, need, f.Devices); r != nil {
		return place{}, r
	}
	at := place{machine: m, alloc: p.Alloc, devices: p.Devices}
	for _, n := range f.Ports {
		if n == 0 || n > 65535 {
			return place{}, about(p.name(), invalid("ports", "%d is no port", n))
		}
		at.ports = append(at.ports, uint16(n))
	}
	return at, nil
}

// specFound is the spec that a copy was found to run with, or that its task has now.
func (j *Job) specFound(f *borgpb.FoundCopy) *Spec {
	if s := j.specAt(f.Version); s != nil {
		return s
	}
	return j.specOf(f.Report.Index)
}

// adopt makes a copy that runs its task's current one, as it is.
func (c *Cell) adopt(t *Task, at place, f *borgpb.FoundCopy) {
	j := t.job
	if t.cur != nil {
		c.evict(t, edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_DUPLICATE,
			fmt.Sprintf("attempt %d took its place on %s before the cell was restored", f.Report.Attempt, at.machine.name), t.cur.grace())
	}
	for p := t.past; p != nil; p = p.next {
		if p.state == attemptUnreachable && p.stop == nil {
			c.order(p, borgpb.StopCause_STOP_CAUSE_DUPLICATE, "a later attempt runs on "+at.machine.name, p.grace())
		}
	}
	spec := j.specFound(f)
	t.attempt = f.Report.Attempt
	t.flags &^= taskSkipped
	p := &Copy{
		job: j, index: t.index, attempt: t.attempt, priority: spec.Proto.Priority,
		machine: at.machine, alloc: at.alloc, state: attemptAssigned, kind: jobKind(spec.Proto.Kind),
		res: &spec.Need(t.index).Resources, ports: at.ports,
	}
	if len(at.devices) > 0 {
		p.rare().devices = at.devices
	}
	c.bind(p, spec)
	c.useVolumes(p)
	c.hold(p)
	t.cur = p
	c.enterDomains(p)
	c.move(t, edgeSchedule, stateRunning, "")
	c.emit(taskEvent(p, borgpb.EventKind_EVENT_KIND_RETURN, statePending, stateRunning))
	c.hear(p, f.Report)
	if at.machine.draining {
		j.leaveDueNs = 0
		c.vacate(at.machine)
	}
	c.leaveDueNs = 0
	c.leaveTainted()
}

// checkAdoptJob wants a job of an earlier epoch that the cell does not know, made of
// copies that run.
func (c *Cell) checkAdoptJob(o *borgpb.AdoptJob) (commit, *borgpb.Refusal) {
	key := JobKey{o.User, o.Name}
	if r := checkKey(key); r != nil {
		return nil, r
	}
	uid, ok := parseUID(o.Uid)
	switch {
	case !ok || uid.IsZero():
		return nil, about(key.String(), invalid("uid", "%q is not a uid", clip(o.Uid, 64)))
	case c.restored.fromIndex == 0 || uid.Epoch >= c.epoch:
		return nil, badState(key.String(), "job %s is not from before a restore", uid)
	case c.jobsByUID[uid] != nil:
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, key.String(), "uid", "the cell has job %s", uid)
	case len(o.Copies) == 0 || len(o.Copies) > maxAdopted:
		return nil, about(key.String(), limit("copies", "%d copies; want 1 to %d", len(o.Copies), maxAdopted))
	}
	spec, r := c.checkSubmit(key, &borgpb.SubmitJob{User: o.User, Name: o.Name, Spec: o.Spec})
	if r == nil && stands(spec.Proto.Kind) {
		r = invalid("spec.kind", "a daemon or cron job is not taken over; have its copies stopped and submit it anew")
	}
	if r != nil {
		return nil, about(key.String(), r)
	}
	j := &Job{
		key: key, uid: uid, version: max(c.floor(), 1), attemptFloor: c.floor(),
		submittedWallNs: c.clock.wallNs, changedWallNs: c.clock.wallNs,
		settled: take(take(stateNone, edgeSubmit, stateAsked), edgeAccept, statePending),
	}
	spec.job, spec.Version = j, j.version
	j.specs = []*Spec{spec}
	places := make([]place, len(o.Copies))
	seen := make(map[uint32]bool, len(o.Copies))
	for i, f := range o.Copies {
		if places[i], r = c.checkAdopted(j, spec, f, seen); r != nil {
			return nil, about(key.String(), r)
		}
	}
	return func(res *borgpb.Result) {
		c.bury(key)
		c.addJob(j)
		u := j.stateUse()
		c.stateUse.count(key.User, &u, 1)
		c.grow(j, spec.Proto.Tasks)
		c.limitDomains(j)
		c.dirty(spec)
		c.dirty(j)
		c.emit(jobEvent(j, borgpb.EventKind_EVENT_KIND_SUBMIT, stateNone, statePending))
		for i, f := range o.Copies {
			c.adopt(j.rows[f.Report.Index], places[i], f)
		}
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// maxAdopted bounds the copies of one AdoptJob.
const maxAdopted = 10_000

func (c *Cell) checkAdopted(j *Job, spec *Spec, f *borgpb.FoundCopy, seen map[uint32]bool) (place, *borgpb.Refusal) {
	rep := f.GetReport()
	m := c.machines[f.GetMachine()]
	state := attemptState(rep.GetState())
	switch {
	case m == nil || m.down:
		return place{}, notFound(clip(f.GetMachine(), 64), "there is no such machine that is up")
	case rep.GetJobUid() != j.uid.String() || !validReport(rep) || state == attemptStopping || state == attemptStopped:
		return place{}, invalid("copies", "a report that makes no sense here")
	case rep.Index >= spec.Proto.Tasks || seen[rep.Index]:
		return place{}, invalid("copies", "index %d is there twice, or is not below %d", rep.Index, spec.Proto.Tasks)
	case rep.Attempt == 0 || rep.Attempt > max(j.attemptFloor, 1):
		return place{}, invalid("copies", "attempt %d is not from before the restore", rep.Attempt)
	case m.find(CopyID{j.uid, rep.Index, rep.Attempt}) != nil:
		return place{}, stale(m.name, "copy %s.%d.%d is being stopped", j.uid, rep.Index, rep.Attempt)
	}
	seen[rep.Index] = true
	return c.foundPlace(m, j, f)
}

// checkStopUnknown wants copies that the cell does not have.
func (c *Cell) checkStopUnknown(o *borgpb.StopUnknown) (commit, *borgpb.Refusal) {
	m := c.machines[o.Machine]
	switch {
	case m == nil:
		return nil, notFound(clip(o.Machine, 64), "there is no such machine")
	case c.restored.fromIndex == 0:
		return nil, badState(m.name, "the cell was not restored")
	case len(o.Copies) == 0 || len(o.Copies) > maxStopUnknown:
		return nil, limit("copies", "%d copies; want 1 to %d", len(o.Copies), maxStopUnknown)
	case len(m.copies)+len(o.Copies) > maxCopiesOnMachine:
		return nil, about(m.name, limit("copies", "%s holds %d copies", m.name, len(m.copies)))
	}
	seen := make(map[CopyID]bool)
	for _, u := range o.Copies {
		if r := c.checkUnknown(m, u, seen); r != nil {
			return nil, about(m.name, r)
		}
	}
	return func(*borgpb.Result) {
		for _, u := range o.Copies {
			c.stopUnknown(m, u)
		}
		c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_HEARD))
	}, nil
}

// maxStopUnknown bounds the copies of one StopUnknown.
const maxStopUnknown = 1_000

func (c *Cell) checkUnknown(m *Machine, u *borgpb.UnknownCopy, seen map[CopyID]bool) *borgpb.Refusal {
	uid, ok := parseUID(u.JobUid)
	id := CopyID{uid, u.Index, u.Attempt}
	key := JobKey{u.User, u.Job}
	if r := c.checkCopyTold(u); r != nil {
		return r
	}
	j := c.jobsByUID[uid]
	switch {
	case !ok || u.Attempt == 0 || uid.Epoch >= c.epoch && (j == nil || u.Attempt > max(j.attemptFloor, 1)):
		return invalid("copies", "%s is not a copy from before the restore", id)
	case j != nil && j.key != key:
		return invalid("copies", "%s is of job %s, not of %s", id, j.key, key)
	case m.find(id) != nil || seen[id] || c.remembers(m, id):
		return stale(m.name, "the cell has copy %s", id)
	}
	seen[id] = true
	return nil
}

// checkCopyTold checks what is said of a copy that the cell does not have.
func (c *Cell) checkCopyTold(u *borgpb.UnknownCopy) *borgpb.Refusal {
	if r := checkKey(JobKey{u.User, u.Job}); r != nil {
		return r
	}
	if r := checkResources(u.Resources, "resources"); r != nil {
		return r
	}
	if u.Kind != borgpb.JobKind_JOB_KIND_SERVICE && u.Kind != borgpb.JobKind_JOB_KIND_BATCH && (u.Kind != borgpb.JobKind_JOB_KIND_DAEMON || c.format < FormatKinds) || u.Priority < 0 || u.Priority > maxPriority || u.GraceNs < 0 || u.GraceNs > maxGraceNs {
		return invalid("copies", "kind, priority or grace of a copy of %s/%s are odd", u.User, u.Job)
	}
	for _, n := range u.Ports {
		if n == 0 || n > 65535 {
			return invalid("copies", "%d is no port", n)
		}
	}
	return nil
}

// stopUnknown makes an orphan of a copy, with an order to stop it.
func (c *Cell) stopUnknown(m *Machine, u *borgpb.UnknownCopy) {
	uid, _ := parseUID(u.JobUid)
	j := c.jobsByUID[uid]
	if j == nil {
		j = &Job{uid: uid, key: JobKey{u.User, u.Job}, gone: true}
		for _, p := range m.copies {
			if p.job.uid == uid {
				j = p.job
			}
		}
	}
	res := FromProto(&borgpb.Resources{
		CpuMilli: u.Resources.GetCpuMilli(), MemBytes: u.Resources.GetMemBytes(), DiskBytes: u.Resources.GetDiskBytes(),
		DiskBytesPerS: u.Resources.GetDiskBytesPerS(), Ports: int64(len(u.Ports)),
	})
	p := &Copy{
		job: j, index: u.Index, attempt: u.Attempt, priority: u.Priority, machine: m, orphan: true,
		state: attemptStopping, kind: jobKind(u.Kind), res: &res,
	}
	for _, n := range u.Ports {
		p.ports = append(p.ports, uint16(n))
	}
	c.hold(p)
	c.order(p, borgpb.StopCause_STOP_CAUSE_KILL, "the restored cell does not know it: "+c.now.reason, u.GraceNs)
	c.reviewStopCharge(p)
	e := taskEvent(p, borgpb.EventKind_EVENT_KIND_KILL, stateRunning, stateDead)
	e.Cause, e.Reason = borgpb.StopCause_STOP_CAUSE_KILL, c.now.reason
	c.emit(e)
}
