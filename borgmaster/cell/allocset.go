package cell

import (
	"slices"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

func (c *Cell) checkSubmitAllocSet(o *borgpb.SubmitAllocSet) (commit, *borgpb.Refusal) {
	key := JobKey{o.User, o.Name}
	if r := checkKey(key); r != nil {
		return nil, r
	}
	if r := c.checkFree(key); r != nil {
		return nil, r
	}
	if r := checkLabels(o.Labels, o.Annotations); r != nil {
		return nil, about(key.String(), r)
	}
	spec, specBytes, r := c.readGivenAllocSet(key, o.Spec)
	if r != nil {
		return nil, about(key.String(), r)
	}
	if r := c.checkSetPriority(key, spec.Priority); r != nil {
		return nil, about(key.String(), r)
	}
	labels, r := c.given(borgpb.Labelled_LABELLED_ALLOC_SET, o.Labels)
	if r != nil {
		return nil, about(key.String(), r)
	}
	if c.format >= FormatCores {
		if r := checkNoCPUDevice(spec.Resources, "spec.resources"); r != nil {
			return nil, about(key.String(), r)
		}
	}
	if r := c.checkSaver(key, spec, nil, specBytes); r != nil {
		return nil, about(key.String(), r)
	}
	each := withVolumes(FromProto(spec.Resources), spec.Volumes)
	if r := c.checkBounds(key.User, "spec.resources", &each); r != nil {
		return nil, about(key.String(), r)
	}
	if r := c.checkChargeOfSet(key, nil, spec, spec.Allocs); r != nil {
		return nil, r
	}
	specWeight := weighSet(specBytes)
	bytes := specWeight + runBytes + weight.Map(labels) + weight.Map(o.Annotations)
	if r := c.checkSetState(key, nil, spec.Priority, int64(spec.Allocs), bytes, len(spec.Volumes) > 0); r != nil {
		return nil, about(key.String(), r)
	}
	return func(res *borgpb.Result) {
		c.bury(key)
		s := &AllocSet{
			key: key, uid: c.newUID(), version: 1, labels: labels, annotations: o.Annotations,
			specBytes: specBytes, weight: specWeight, submittedWallNs: c.clock.wallNs, changedWallNs: c.clock.wallNs,
		}
		s.setSpec(spec)
		for i := range spec.Allocs {
			s.allocs = append(s.allocs, s.newAlloc(i))
		}
		s.counts[statePending] = spec.Allocs
		c.chargeUser(key.User, nil, s.charge())
		c.addAllocSet(s)
		u := s.stateUse()
		c.stateUse.count(key.User, &u, 1)
		c.dirty(s)
		c.emit(setEvent(s, borgpb.EventKind_EVENT_KIND_SUBMIT, stateNone,
			take(take(stateNone, edgeSubmit, stateAsked), edgeAccept, statePending)))
		res.Uid, res.Version = s.uid.String(), s.version
	}, nil
}

func readAllocSetSpec(data []byte, format uint32) (*borgpb.AllocSetSpec, *borgpb.Refusal) {
	if _, r := weighSpec(setShape, data); r != nil {
		return nil, r
	}
	spec := new(borgpb.AllocSetSpec)
	if r := decode(data, spec, format); r != nil {
		return nil, r
	}
	return spec, checkAllocSetSpec(spec)
}

// setSpec derives what placing needs from the spec.
func (s *AllocSet) setSpec(spec *borgpb.AllocSetSpec) {
	s.spec = spec
	s.need = &Need{Last: 1<<32 - 1, Resources: FromProto(spec.Resources), Task: Networked(&borgpb.TaskSpec{
		Resources: spec.Resources, Constraints: spec.Constraints, Tolerations: spec.Tolerations, Network: spec.Network,
	})}
	s.limits = limitsOf(spec)
	s.domains = newOccupancy(s.limits)
}

// res is what each alloc holds on its machine.
func (s *AllocSet) res() *Resources { return &s.need.Resources }

func (s *AllocSet) newAlloc(index uint32) *Alloc {
	return &Alloc{set: s, index: index, state: statePending, room: room{capacity: s.need.Resources}}
}

func (c *Cell) addAllocSet(s *AllocSet) {
	c.sets[s.key] = s
	c.setsByU[s.uid] = s
	at, _ := slices.BinarySearchFunc(c.setList, s.key, compareSet)
	c.setList = slices.Insert(c.setList, at, s)
	c.ownerBegins(s.key)
	c.chargeVolumesOf(s.key)
}

// stateOf follows from the allocs as a job's state follows from its tasks.
func (s *AllocSet) stateOf() state {
	switch {
	case s.counts[stateRunning] > 0:
		return stateRunning
	case s.counts[statePending] > 0:
		return statePending
	default:
		return stateDead
	}
}

func (c *Cell) checkKillAllocSet(o *borgpb.KillAllocSet) (commit, *borgpb.Refusal) {
	s, r := c.checkLiveSet(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	return func(res *borgpb.Result) {
		const cause = borgpb.StopCause_STOP_CAUSE_KILL
		from := s.stateOf()
		reason := "its alloc was killed"
		for _, a := range s.allocs {
			switch {
			case a.state == stateRunning:
				c.evictAlloc(a, edgeKill, stateDead, cause, reason, -1)
			default:
				c.moveAlloc(a, edgeKill, stateDead, reason)
				if a.lostOn != nil {
					c.dropLost(a, cause, reason)
				}
			}
		}
		s.reason, s.changedWallNs = clip(c.now.reason, maxReasonBytes), c.clock.wallNs
		was := s.stateUse()
		c.graveyard.addSet(c, s)
		c.dies(was, s.stateUse(), graveOfSet(s))
		c.ownerEnds(s.key, s.spec.Priority)
		c.dirty(s)
		e := setEvent(s, borgpb.EventKind_EVENT_KIND_KILL, from, stateDead)
		e.Reason = s.reason
		c.emit(e)
		res.Uid, res.Version = s.uid.String(), s.version
	}, nil
}

// moveAlloc takes an alloc along an edge.
func (c *Cell) moveAlloc(a *Alloc, e edge, to state, reason string) {
	if to == stateDead {
		c.chargeUser(a.set.key.User, chargeOfSet(a.set.spec, 1), nil)
	}
	a.set.counts[a.state]--
	a.state = take(a.state, e, to)
	a.set.counts[to]++
	if to == stateDead {
		c.chargeVolumes(TaskID{a.set.key, a.index})
	}
	a.reason = clip(reason, maxReasonBytes)
	if a.attempt != 0 || to != stateDead {
		a.changedWallNs = c.clock.wallNs
	} else {
		a.changedWallNs, a.reason = 0, ""
	}
	if a.attempt != 0 || a.recorded() {
		c.dirty(a)
	}
}

// placeAlloc gives an alloc its machine.
func (c *Cell) placeAlloc(a *Alloc, at place) {
	c.stopVictims(at.victims, &taking{a.Name, Preemptor{a.set.key.User, a.set.spec.Priority, a.set.spec.Preempt}, c.waitOf(a.set.spec.PreemptWaitNs, a.set.spec.Priority), at.why})
	if a.lostOn != nil {
		c.dropLost(a, borgpb.StopCause_STOP_CAUSE_DUPLICATE, "its alloc was placed on "+at.machine.name)
	}
	a.attempt = max(a.attempt, a.set.attemptFloor) + 1
	opened := c.openVolumes(TaskID{a.set.key, a.index}, at.machine, a.set.spec.Volumes, a.set.spec.Priority)
	c.enterMachine(a, at.machine)
	at.machine.room.add(inBoth(a.res()))
	a.takeDevices(at.machine, at.devices)
	a.wait = await(&at.machine.room, a.res(), at.victims.all())
	c.giveUpYielding(at.machine, a.set.spec.Priority, a.res().DiskBytes+volumeBytes(a.set.spec.Volumes), opened, a.Name)
	c.moveAlloc(a, edgeSchedule, stateRunning, "")
	c.emit(allocEvent(a, at.machine, borgpb.EventKind_EVENT_KIND_SCHEDULE, statePending, stateRunning))
}

// enterMachine puts an alloc into its machine's list.
func (c *Cell) enterMachine(a *Alloc, m *Machine) {
	a.machine = m
	m.allocs = insertAlloc(m.allocs, a)
	m.changes++
	a.set.domains.add(m, 1)
	c.reviewAlloc(a, m)
}

func insertAlloc(list []*Alloc, a *Alloc) []*Alloc {
	at, _ := slices.BinarySearchFunc(list, a, compareAlloc)
	return slices.Insert(list, at, a)
}

func compareAlloc(a, o *Alloc) int {
	if r := a.set.uid.Compare(o.set.uid); r != 0 {
		return r
	}
	return int(int64(a.index) - int64(o.index))
}

// evictAlloc takes a running alloc off its machine. The tasks in it are evicted
// with it; their copies hold their places on the machine itself until they have
// stopped. graceNs < 0: each task's own.
func (c *Cell) evictAlloc(a *Alloc, e edge, to state, cause borgpb.StopCause, reason string, graceNs int64) {
	m := a.machine
	c.leaveMachine(a)
	for _, p := range slices.Clone(a.copies) {
		if p.state.current() && cause == borgpb.StopCause_STOP_CAUSE_PREEMPTION {
			c.preempt(p, reason, graceNs)
		} else if p.state.current() {
			grace := p.grace()
			if graceNs >= 0 {
				grace = min(grace, graceNs)
			}
			c.evict(p.row(), edgeEvict, statePending, cause, reason, grace)
		} else if p.state == attemptQuarantined {
			c.letGo(p, cause, reason, graceNs)
		}
		c.detach(p)
	}
	c.moveAlloc(a, e, to, reason)
	ev := allocEvent(a, m, edgeEvents[e], stateRunning, to)
	ev.Cause, ev.Reason = cause, reason
	c.emit(ev)
	c.saveLeft(a, m)
}

// leaveMachine takes a running alloc out of its machine's list and room.
func (c *Cell) leaveMachine(a *Alloc) {
	m := a.machine
	if a.wait != nil {
		a.wait.drop()
		a.wait = nil
	}
	m.room.sub(inBoth(a.res()))
	a.dropDevices(m)
	c.leftPlace(a)
	m.allocs = slices.DeleteFunc(m.allocs, func(o *Alloc) bool { return o == a })
	m.changes++
	a.set.domains.add(m, -1)
	a.machine = nil
	c.reviewAlloc(a, m)
	c.lastToLeave(m)
}

// takeDevices and dropDevices keep which devices of its machine an alloc has.
func (a *Alloc) takeDevices(m *Machine, gs []DeviceGrant) {
	a.devices, a.room.parts = gs, gs
	m.room.holdDevices(gs)
}

func (a *Alloc) dropDevices(m *Machine) {
	m.room.dropDevices(a.devices)
	a.devices, a.room.parts = nil, nil
}

// loseAlloc leaves a running alloc behind on a machine that is down. It keeps
// its room there, for when the machine comes back first.
func (c *Cell) loseAlloc(a *Alloc, reason string) {
	m := a.machine
	a.set.domains.add(m, -1)
	a.machine, a.lostOn = nil, m
	c.reviewAlloc(a, m)
	c.moveAlloc(a, edgeEvict, statePending, reason)
	ev := allocEvent(a, m, borgpb.EventKind_EVENT_KIND_EVICT, stateRunning, statePending)
	ev.Reason = reason
	c.emit(ev)
}

// dropLost gives up what an alloc holds on a machine that is down. Copies left
// in it must stop when that machine comes back.
func (c *Cell) dropLost(a *Alloc, cause borgpb.StopCause, reason string) {
	m := a.lostOn
	a.lostOn = nil
	if a.wait != nil {
		a.wait.drop()
		a.wait = nil
	}
	m.room.sub(inBoth(a.res()))
	a.dropDevices(m)
	c.leftPlace(a)
	m.allocs = slices.DeleteFunc(m.allocs, func(o *Alloc) bool { return o == a })
	m.changes++
	for _, p := range slices.Clone(a.copies) {
		if p.state == attemptUnreachable && p.stop == nil {
			c.order(p, cause, reason, p.grace())
		} else if p.state == attemptQuarantined {
			c.letGo(p, cause, reason, -1)
		}
		c.detach(p)
	}
	c.dirty(a)
	c.saveLeft(a, m)
}

// returnAlloc takes an alloc back that waits and was on a machine that is up
// again.
func (c *Cell) returnAlloc(a *Alloc) {
	m := a.lostOn
	a.lostOn, a.machine = nil, m
	a.set.domains.add(m, 1)
	c.reviewAlloc(a, m)
	c.moveAlloc(a, edgeSchedule, stateRunning, "")
	c.emit(allocEvent(a, m, borgpb.EventKind_EVENT_KIND_RETURN, statePending, stateRunning))
}

func setEvent(s *AllocSet, kind borgpb.EventKind, from, to state) Event {
	return Event{
		Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, Key: s.key, UID: s.uid,
		From: from.proto(), To: to.proto(),
	}
}

func allocEvent(a *Alloc, m *Machine, kind borgpb.EventKind, from, to state) Event {
	return Event{
		Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_ALLOC, Key: a.set.key, Task: a.index,
		UID: a.set.uid, Attempt: a.attempt, Machine: m.name, From: from.proto(), To: to.proto(),
	}
}
