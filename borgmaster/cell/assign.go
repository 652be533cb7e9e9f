package cell

import (
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// assignAll applies a batch of assignments, each checked against the state
// that the ones before it left. An assignment is refused here. Those of a gang,
// which follow one another, are done together or not at all.
func (c *Cell) assignAll(o *borgpb.Assign, res *borgpb.Result) {
	c.enableAll(o.Enable)
	c.now.events = slices.Grow(c.now.events, len(o.Assignments))
	refuse := func(i int, r *borgpb.Refusal) {
		if res.Items == nil {
			res.Items = newItems(len(o.Assignments))
		}
		res.Items[i] = r
	}
	for i, n := 0, 0; i < len(o.Assignments); i += n {
		if n = c.gangAt(o.Assignments[i:]); n > 0 {
			c.assignGang(o.Assignments[i:i+n], func(k int, r *borgpb.Refusal) { refuse(i+k, r) })
			continue
		}
		n = 1
		var do func()
		refusal := guarded(func() (r *borgpb.Refusal) {
			do, r = c.checkAssignment(o.Assignments[i])
			return r
		})
		if refusal != nil {
			refuse(i, refusal)
			continue
		}
		do()
	}
}

// newItems makes results that all say: done.
func newItems(n int) []*borgpb.Refusal {
	all := make([]borgpb.Refusal, n)
	items := make([]*borgpb.Refusal, n)
	for i := range items {
		items[i] = &all[i]
	}
	return items
}

// checkAssignment decides whether one assignment still holds.
func (c *Cell) checkAssignment(a *borgpb.Assignment) (func(), *borgpb.Refusal) {
	p, r := c.placement(a)
	if r != nil {
		return nil, r
	}
	if r := c.readGrants(&p, p.asker().need, a.Devices); r != nil {
		return nil, r
	}
	v, r := c.checkPlace(&p, nil)
	if r != nil {
		return nil, r
	}
	return c.placing(&p, v), nil
}

// placement is what an assignment asks for, if who is to be placed still waits.
func (c *Cell) placement(a *borgpb.Assignment) (p Placement, r *borgpb.Refusal) {
	uid, ok := parseUID(a.Uid)
	if !ok {
		return p, invalid("uid", "%q is not a uid", clip(a.Uid, 64))
	}
	p = Placement{Index: a.Index, Ports: a.Ports}
	if p.Job = c.jobsByUID[uid]; p.Job == nil {
		if p.Set = c.setsByU[uid]; p.Set == nil {
			return p, stale(a.Uid, "there is no such job or alloc set any more")
		}
		r = c.checkAllocWaits(p.Set, a)
	} else {
		r = c.checkTaskWaits(p.Job, a)
	}
	if r == nil {
		r = c.findPlace(&p, a)
	}
	return p, r
}

// placing returns what gives a task or alloc the place that was checked.
func (c *Cell) placing(p *Placement, v *victims) func() {
	at := place{machine: p.Machine, alloc: p.Alloc, devices: p.Devices, victims: v, why: p.why}
	if p.Set != nil {
		alloc := p.Set.allocs[p.Index]
		return func() { c.placeAlloc(alloc, at) }
	}
	if len(p.Ports) > 0 {
		at.ports = make([]uint16, len(p.Ports))
		for i, n := range p.Ports {
			at.ports[i] = uint16(n)
		}
	}
	t := p.Job.rows[p.Index]
	return func() { c.schedule(t, at) }
}

// checkTaskWaits wants a task that is as the scheduler saw it.
func (c *Cell) checkTaskWaits(j *Job, a *borgpb.Assignment) *borgpb.Refusal {
	if int(a.Index) >= len(j.rows) {
		return stale(TaskID{j.key, a.Index}.String(), "the job has only %d tasks", len(j.rows))
	}
	t := j.rows[a.Index]
	switch {
	case mutant.Planted(mutant.StaleAssignmentTaken):
		return nil
	case t.state != statePending:
		return stale(t.ID().String(), "the task is %v, not pending", t.state)
	case t.attempt != a.LastAttempt:
		return stale(t.ID().String(), "its last attempt is %d, not %d", t.attempt, a.LastAttempt)
	case a.Version != 0 && (a.Version < j.latest().Version || a.Version > j.version):
		return stale(t.ID().String(), "the job's version is %d, not %d", j.version, a.Version)
	case !c.eligible(j) || j.roomToRun() == 0 || c.Queued(j):
		return badState(t.ID().String(), "%s", c.HeldBack(j))
	case c.RetryWords(j, a.Index) != "":
		return badState(t.ID().String(), "%s", c.RetryWords(j, a.Index))
	case len(a.Ports) != len(j.Need(a.Index).Task.Ports):
		return about(t.ID().String(), invalid("ports", "%d ports for %d names", len(a.Ports), len(j.Need(a.Index).Task.Ports)))
	}
	live := 0
	for p := t.past; p != nil; p = p.next {
		if p.state.live() {
			live++
		}
	}
	if live >= maxLiveCopiesOfTask {
		return about(t.ID().String(), limit("", "%d copies of it have not stopped yet", live))
	}
	return nil
}

func (c *Cell) checkAllocWaits(s *AllocSet, a *borgpb.Assignment) *borgpb.Refusal {
	if int(a.Index) >= len(s.allocs) {
		return stale(TaskID{s.key, a.Index}.String(), "the alloc set has only %d allocs", len(s.allocs))
	}
	o := s.allocs[a.Index]
	switch {
	case o.state != statePending:
		return stale(o.Name(), "the alloc is %v, not pending", o.state)
	case o.attempt != a.LastAttempt:
		return stale(o.Name(), "its last attempt is %d, not %d", o.attempt, a.LastAttempt)
	case a.Version != 0 && a.Version != s.version:
		return stale(o.Name(), "the alloc set's version is %d, not %d", s.version, a.Version)
	case a.Alloc != "" || len(a.Ports) > 0:
		return about(o.Name(), invalid("alloc", "an alloc is placed on a machine, without ports of its own"))
	}
	return nil
}

// findPlace looks up the machine or alloc that an assignment names.
func (c *Cell) findPlace(p *Placement, a *borgpb.Assignment) *borgpb.Refusal {
	if a.Alloc != "" {
		if p.Alloc = c.AllocByName(a.Alloc); p.Alloc == nil {
			return notFound(p.name(), "there is no alloc %q", clip(a.Alloc, 160))
		}
		if p.Machine = p.Alloc.machine; p.Machine == nil {
			return stale(p.name(), "the alloc %s is %v", a.Alloc, p.Alloc.state)
		}
		if a.Machine != "" && a.Machine != p.Machine.name {
			return stale(p.name(), "the alloc %s is on %s, not on %q", a.Alloc, p.Machine.name, clip(a.Machine, 64))
		}
	} else if p.Machine = c.machines[a.Machine]; p.Machine == nil {
		return notFound(p.name(), "there is no machine %q", clip(a.Machine, 64))
	}
	if r := c.checkPlaces(p, Places{}); r != nil {
		return r
	}
	if more := p.newVolumes(); more > 0 {
		of, _ := p.asksVolumes()
		if r := c.checkVolumesOf(of.Job.User, p.Machine, p.asker().by.Priority, more); r != nil {
			return about(p.name(), r)
		}
	}
	if r := checkVictimsWhy(a); r != nil {
		return about(p.name(), r)
	}
	p.why = a.VictimsWhy
	for _, v := range a.Victims {
		uid, ok := parseUID(v.JobUid)
		if !ok {
			return about(p.name(), invalid("victims", "%q is not a uid", clip(v.JobUid, 64)))
		}
		p.Victims = append(p.Victims, CopyID{uid, v.Index, v.Attempt})
	}
	return nil
}
