package cell

import (
	"fmt"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// checkSubmitJob decides whether a job is accepted. An accepted job becomes
// pending here.
func (c *Cell) checkSubmitJob(o *borgpb.SubmitJob) (commit, *borgpb.Refusal) {
	key := JobKey{o.User, o.Name}
	if r := checkKey(key); r != nil {
		return nil, r
	}
	labels := o.Labels
	spec, r := c.checkSubmit(key, o)
	if r == nil {
		r = c.checkAdmission(key, spec)
	}
	if r == nil {
		r = c.checkJobState(key, spec, o.Labels, o.Annotations)
	}
	if r == nil {
		labels, r = c.given(borgpb.Labelled_LABELLED_JOB, o.Labels)
	}
	if r != nil {
		// The paper's reject edge: nothing is made, and what was dead stays so.
		to := stateNone
		if c.stateOfKey(key) == stateDead {
			to = stateDead
		}
		take(stateAsked, edgeReject, to)
		return nil, about(key.String(), r)
	}
	return func(res *borgpb.Result) {
		j := c.submit(key, spec, labels, o.Annotations)
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// submit makes a job that was checked.
func (c *Cell) submit(key JobKey, spec *Spec, labels, annotations map[string]string) *Job {
	c.bury(key)
	j := &Job{
		key: key, uid: c.newUID(), version: 1, labels: labels, annotations: annotations,
		submittedWallNs: c.clock.wallNs, changedWallNs: c.clock.wallNs,
		settled: take(take(stateNone, edgeSubmit, stateAsked), edgeAccept, statePending),
	}
	spec.job, spec.Version = j, 1
	j.specs = append(j.own.specs[:0], spec)
	c.addJob(j)
	c.stand(j)
	if !stands(spec.Proto.Kind) {
		c.addRows(j, spec.Proto.Tasks)
		c.recharge(j)
	}
	u := j.stateUse()
	c.stateUse.count(key.User, &u, 1)
	c.limitDomains(j)
	c.dirty(spec)
	c.dirty(j)
	c.emit(jobEvent(j, borgpb.EventKind_EVENT_KIND_SUBMIT, stateNone, statePending))
	if j.daemon != nil {
		c.seatJob(j)
	}
	if stands(spec.Proto.Kind) {
		c.touch(j, edgeSchedule)
	}
	// What it starts after may have failed already.
	c.review(j)
	return j
}

func (c *Cell) checkSubmit(key JobKey, o *borgpb.SubmitJob) (*Spec, *borgpb.Refusal) {
	if r := c.checkFree(key); r != nil {
		return nil, r
	}
	if r := checkLabels(o.Labels, o.Annotations); r != nil {
		return nil, r
	}
	spec, r := c.readGivenSpec(key, o.Spec)
	if r != nil {
		return nil, r
	}
	if c.counts.liveTasks()+int(spec.Proto.Tasks) > maxLiveTasks && spec.Proto.Kind != borgpb.JobKind_JOB_KIND_CRON {
		return nil, limit("spec.tasks", "the cell has %d tasks; at most %d", c.counts.liveTasks(), maxLiveTasks)
	}
	if r := c.checkOwned(key.User, spec); r != nil {
		return nil, r
	}
	if r := c.checkPowers(spec, nil); r != nil {
		return nil, r
	}
	return spec, c.checkLinks(spec.Proto, nil)
}

// formatLinks is the format in which a job began to name what is its asker's alone.
const formatLinks = 4

// checkLinks wants the objects that a spec names, and that who asks may name them.
// was is the spec that it takes the place of, or nil: what a job names already was
// decided when it began to.
func (c *Cell) checkLinks(s, was *borgpb.JobSpec) *borgpb.Refusal {
	if s.AllocSet != "" {
		k, _ := ParseJobKey(s.AllocSet)
		set := c.liveSet(k)
		if set == nil || s.AllocSet != was.GetAllocSet() && c.hides(k.User, set.labels) {
			return refuse(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, "", "spec.alloc_set", "there is no alloc set %s; submit it first", k)
		}
		if r := c.checkLink("spec.alloc_set", set.key); r != nil && s.AllocSet != was.GetAllocSet() {
			return r
		}
		if r := c.checkPriorityIn(set, s); r != nil {
			return r
		}
	}
	for _, name := range s.StartAfter {
		k, _ := ParseJobKey(name)
		if c.madeInTrial(k) {
			continue
		}
		j := c.Job(k)
		if j == nil || !slices.Contains(was.GetStartAfter(), name) && c.hides(k.User, j.labels) {
			return refuse(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, "", "spec.start_after", "there is no job %s", k)
		}
		if r := c.checkLink("spec.start_after", j.key); r != nil && !slices.Contains(was.GetStartAfter(), name) {
			return r
		}
	}
	if s.Parent == "" {
		return nil
	}
	if k, _ := ParseJobKey(s.Parent); !c.madeInTrial(k) {
		j := c.Job(k)
		if j == nil || j.deathSeq != 0 || s.Parent != was.GetParent() && c.hides(k.User, j.labels) {
			return refuse(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, "", "spec.parent", "there is no live job %s", k)
		}
		if r := c.checkLink("spec.parent", j.key); r != nil && s.Parent != was.GetParent() {
			return r
		}
	}
	return nil
}

// checkLink refuses that a job of who asks names an object of another user: it
// would take room that is his, or end when he ends something. An admin may; a task
// of an admin's is none.
func (c *Cell) checkLink(field string, object JobKey) *borgpb.Refusal {
	who := c.now.asker
	switch {
	case c.format < formatLinks || who.GetUser() == "" || who.User == object.User || mutant.Planted(mutant.LinkNotAsked):
		return nil
	case who.Task == "" && (c.users.admins == 0 || c.Has(who.User, Admin)):
		return nil
	case who.Task != "":
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", field, "%s belongs to user %s; a task of user %s names what is that user's alone", object, object.User, who.User)
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", field,
		"%s belongs to user %s; user %s needs the capability admin to name it, which can be granted by %s", object, object.User, who.User, c.grantWords(who.User, Admin))
}

func checkKey(key JobKey) *borgpb.Refusal {
	for _, q := range []struct{ field, name string }{{"user", key.User}, {"name", key.Name}} {
		if !validName(q.name) {
			return invalid(q.field, "%q is not a name: want 1 to 63 of a-z, 0-9 and -, not - at an end", clip(q.name, 64))
		}
	}
	return nil
}

// checkFree tells whether the key can be taken: jobs and alloc sets share one
// name space, and only what is dead gives way.
func (c *Cell) checkFree(key JobKey) *borgpb.Refusal {
	if s := c.stateOfKey(key); (s == stateNone || s == stateDead) && !c.madeInTrial(key) {
		if c.endingOf(key) {
			return badState(key.String(), "jobs that end with the one of that name are still being ended; try again in a moment")
		}
		return nil
	}
	what := "a job"
	if c.sets[key] != nil {
		what = "an alloc set"
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, key.String(), "name", "there is %s of that name; update it, or kill it first", what)
}

func (c *Cell) stateOfKey(key JobKey) state {
	if j := c.Job(key); j != nil {
		return j.state()
	}
	if s := c.sets[key]; s != nil {
		return s.stateOf()
	}
	return stateNone
}

func (c *Cell) addJob(j *Job) {
	c.jobsByUID[j.uid] = j
	c.jobs.add(j)
	c.jobRefs.add(j)
	c.ownerBegins(j.key)
}

// grow adds pending tasks up to n, and charges them.
func (c *Cell) grow(j *Job, n uint32) {
	was := len(j.rows)
	c.addRows(j, n)
	c.countTasksOf(j, len(j.rows)-was)
	c.recharge(j)
}

// addRows adds pending tasks up to n.
func (c *Cell) addRows(j *Job, n uint32) {
	first := uint32(len(j.rows))
	chunk := j.own.task[:]
	if n == 1 && j.rows == nil {
		j.rows, j.waiting = j.own.rows[:0], j.own.waiting[:0]
	} else {
		chunk = make([]Task, n-first)
		j.rows = slices.Grow(j.rows, len(chunk))
	}
	for i := range chunk {
		t := &chunk[i]
		t.job, t.index, t.state = j, first+uint32(i), statePending
		j.rows = append(j.rows, t)
		j.waiting.set(t.index)
	}
	c.countTasks(j, statePending, len(chunk))
}

func (c *Cell) checkKillJob(o *borgpb.KillJob) (commit, *borgpb.Refusal) {
	j, r := c.checkLive(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	return func(res *borgpb.Result) {
		c.kill(j, c.now.reason)
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

// checkLive wants a job that is not dead, at the expected version.
func (c *Cell) checkLive(key JobKey, expectVersion uint64) (*Job, *borgpb.Refusal) {
	if r := checkKey(key); r != nil {
		return nil, r
	}
	j := c.Job(key)
	if j == nil {
		return nil, notFound(key.String(), "there is no such job")
	}
	if r := conflict(key.String(), expectVersion, j.version); r != nil {
		return nil, r
	}
	if j.deathSeq != 0 {
		return nil, badState(key.String(), "the job is dead")
	}
	return j, nil
}

// kill ends all tasks of a job.
func (c *Cell) kill(j *Job, reason string) { c.endJob(j, borgpb.StopCause_STOP_CAUSE_KILL, reason) }

// endJob ends all tasks of a job for a cause.
func (c *Cell) endJob(j *Job, cause borgpb.StopCause, reason string) {
	j.ended = true
	c.expect(j, int(j.running))
	for _, t := range j.rows {
		c.killTask(t, cause, reason)
	}
	j.reason = clip(reason, maxReasonBytes)
	c.touch(j, edgeKill)
}

// killTask ends a task whatever its state; its copies are told to stop.
func (c *Cell) killTask(t *Task, cause borgpb.StopCause, reason string) {
	for p := t.past; p != nil; p = p.next {
		if p.state == attemptUnreachable && p.stop == nil {
			c.order(p, cause, reason, p.grace())
		}
	}
	c.letGoTask(t, cause, reason)
	switch t.state {
	case stateRunning:
		c.evict(t, edgeKill, stateDead, cause, reason, t.cur.grace())
	case statePending:
		c.move(t, edgeKill, stateDead, reason)
		if t.attempt != 0 {
			c.emit(Event{
				Kind: borgpb.EventKind_EVENT_KIND_KILL, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, Key: t.job.key,
				Task: t.index, UID: t.job.uid, Attempt: t.attempt, From: statePending.proto(), To: stateDead.proto(),
				Cause: cause, Reason: reason,
			})
		}
	}
}

func (c *Cell) checkResizeJob(o *borgpb.ResizeJob) (commit, *borgpb.Refusal) {
	j, r := c.checkLive(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	r = c.checkSize(j, o.Tasks)
	switch {
	case j.saving != nil:
		r = badState("", "%s", c.HeldBack(j))
	case j.daemon != nil:
		r = badState("", "its machines say how many tasks a daemon job has; update its constraints instead")
	case j.cron != nil:
		r = badState("", "a cron job has no tasks of its own; update the number of tasks of its runs instead")
	}
	if r != nil {
		return nil, about(j.key.String(), r)
	}
	if r := c.checkJobQuota(j.key, j, nil, o.Tasks+j.surging()); r != nil {
		return nil, r
	}
	if r := c.checkState(j.key.User, j.Priority(), &StateUse{measureTasks: int64(o.Tasks) - int64(j.Size())}); r != nil {
		return nil, about(j.key.String(), r)
	}
	return func(res *borgpb.Result) {
		if o.Tasks != j.Size() {
			j.version++
			c.resize(j, o.Tasks)
		}
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

func (c *Cell) checkSize(j *Job, tasks uint32) *borgpb.Refusal {
	if most := maxTasksPerJob - j.surging(); tasks < 1 || tasks > most {
		return invalid("tasks", "%d is not in 1 to %d", tasks, most)
	}
	if n := c.counts.liveTasks() + int(tasks) - len(j.rows); n > maxLiveTasks {
		return limit("tasks", "the cell would have %d tasks; at most %d", n, maxLiveTasks)
	}
	return nil
}

// resize adds pending tasks or ends those with the highest indices.
func (c *Cell) resize(j *Job, tasks uint32) {
	// Their indices may be those of others from now on.
	c.endExtra(j)
	was := len(j.rows)
	if int(tasks) > was {
		c.grow(j, tasks)
	}
	for len(j.rows) > int(tasks) {
		c.cutLast(j, borgpb.StopCause_STOP_CAUSE_RESIZE, "the job became smaller")
	}
	if u := j.update; u.Rolling() && u.policy.order == borgpb.UpdateOrder_UPDATE_ORDER_REVERSE {
		// All places in its order have moved.
		u.cursor = 0
	}
	j.changedWallNs = c.clock.wallNs
	c.dirty(j)
	c.touch(j, edgeKill)
	e := jobEvent(j, borgpb.EventKind_EVENT_KIND_RESIZE, j.settled, j.settled)
	e.Reason = fmt.Sprintf("%d to %d tasks", was, tasks)
	c.emit(e)
}

// cutLast ends the task with the highest index and forgets its row. Copies
// that still hold a place stay with their machine as orphans.
func (c *Cell) cutLast(j *Job, cause borgpb.StopCause, reason string) {
	t := j.rows[len(j.rows)-1]
	c.killTask(t, cause, reason)
	c.abandon(t)
	if !mutant.Planted(mutant.AttemptReused) {
		j.attemptFloor = max(j.attemptFloor, t.attempt)
	}
	c.countTasks(j, stateDead, -1)
	c.countTasksOf(j, -1)
	if t.flags&taskFinished != 0 {
		j.finished--
	}
	j.rows[t.index] = nil
	j.rows = j.rows[:t.index]
	c.dropCanary(t)
	if t.recorded() {
		c.dirty(t)
	}
}

// abandon makes orphans of the copies of a row that is going away.
func (c *Cell) abandon(t *Task) {
	for p := t.past; p != nil; {
		next := p.next
		if p.state == attemptStopping {
			p.job.stopping--
		}
		p.orphan, p.next = true, nil
		c.reviewStopCharge(p)
		c.dirty(p)
		p = next
	}
	t.past = nil
	c.lookAtSavers()
}

func jobEvent(j *Job, kind borgpb.EventKind, from, to state) Event {
	return Event{
		Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Key: j.key, UID: j.uid,
		From: from.proto(), To: to.proto(),
	}
}
