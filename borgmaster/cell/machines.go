package cell

import (
	"maps"
	"slices"

	"borg/proto/borgpb"
)

func (c *Cell) checkAddMachine(o *borgpb.AddMachine) (commit, *borgpb.Refusal) {
	if !validName(o.Name) {
		return nil, invalid("name", "%q is not a name: want 1 to 63 of a-z, 0-9 and -, not - at an end", clip(o.Name, 64))
	}
	if c.machines[o.Name] != nil {
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, o.Name, "name", "there is a machine of that name")
	}
	if len(c.machineList) >= maxMachines {
		return nil, limit("", "the cell has %d machines", len(c.machineList))
	}
	if r := checkLabels(o.Labels, o.Annotations); r != nil {
		return nil, about(o.Name, r)
	}
	if r := c.checkMachine(o.Spec); r != nil {
		return nil, about(o.Name, r)
	}
	if r := c.checkNamed(o.Spec.Attributes); r != nil {
		return nil, about(o.Name, r)
	}
	labels, r := c.given(borgpb.Labelled_LABELLED_MACHINE, o.Labels)
	if r != nil {
		return nil, about(o.Name, r)
	}
	return func(res *borgpb.Result) {
		s := o.Spec
		m := &Machine{
			name: o.Name, uid: c.newUID(), version: 1, labels: labels, annotations: o.Annotations,
			addr: s.Addr, attributes: s.Attributes, portFirst: uint16(s.PortFirst), portLast: uint16(s.PortLast),
			changedWallNs: c.clock.wallNs,
		}
		for _, t := range s.Taints {
			m.taints = append(m.taints, c.newTaint(t))
		}
		c.actTaints(m)
		c.setPackages(m, &borgpb.PackageChange{Port: s.GetPackages().GetPort(), Add: s.GetPackages().GetDigests()})
		m.room.capacity = FromProto(s.Capacity)
		m.derive()
		// It may have been a machine of the cell after the checkpoint.
		m.unheard = c.restored.fromIndex != 0
		c.addMachine(m)
		c.lookAtSavers()
		c.dirty(m)
		c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_ADD))
		c.seatMachine(m)
		res.Uid, res.Version = m.uid.String(), m.version
	}, nil
}

func (c *Cell) addMachine(m *Machine) {
	m.named, m.held = c.format >= formatLimits, &c.restored
	c.machines[m.name] = m
	at, _ := slices.BinarySearchFunc(c.machineList, m.name, compareMachine)
	c.machineList = slices.Insert(c.machineList, at, m)
	c.counts.countMachineState(m, 1)
	c.countMachine(&m.room.capacity, true)
}

func compareMachine(m *Machine, name string) int {
	switch {
	case m.name < name:
		return -1
	case m.name > name:
		return 1
	}
	return 0
}

// derive computes what follows from what is said of the machine.
func (m *Machine) derive() {
	m.room.capacity.Ports = 0
	if m.portFirst != 0 {
		m.room.capacity.Ports = int64(m.portLast) - int64(m.portFirst) + 1 - int64(len(m.heldPorts))
		if len(m.heldPorts) == maxHeldPorts {
			m.room.capacity.Ports = 0
		}
	}
	m.domains[DomainMachine] = domain{DomainMachine, true, m.name}
	m.domains[DomainRack] = m.outer(DomainRack, "rack")
	m.domains[DomainPower] = m.outer(DomainPower, "power")
}

// checkNamed keeps anything else from going by the name of a machine.
func (c *Cell) checkNamed(attributes map[string]string) *borgpb.Refusal {
	if _, given := attributes[NameAttribute]; given && c.format >= formatLimits {
		return invalid("attributes", "%s is the name of the machine and cannot be set; choose another name for the attribute", NameAttribute)
	}
	return nil
}

// nameMachines lets constraints find the names of machines, when the format
// begins that knows it.
func (c *Cell) nameMachines() {
	for _, m := range c.machineList {
		m.named = true
	}
}

// outer is the failure domain that an attribute names.
func (m *Machine) outer(kind DomainKind, key string) domain {
	if v, ok := m.attributes[key]; ok {
		return domain{kind, false, v}
	}
	return domain{kind, true, m.name}
}

func (c *Cell) checkSetMachine(o *borgpb.SetMachine) (commit, *borgpb.Refusal) {
	m := c.machines[o.Name]
	if m == nil {
		return nil, notFound(clip(o.Name, 64), "there is no such machine")
	}
	if r := conflict(m.name, o.ExpectVersion, m.version); r != nil {
		return nil, r
	}
	if r := c.checkNamed(o.SetAttributes); r != nil {
		return nil, about(m.name, r)
	}
	attributes := maps.Clone(m.attributes)
	if attributes == nil {
		attributes = make(map[string]string)
	}
	for _, k := range o.RemoveAttributes {
		delete(attributes, k)
	}
	maps.Copy(attributes, o.SetAttributes)
	if r := checkAttributes(attributes); r != nil {
		return nil, about(m.name, r)
	}
	if r := checkPortRange(o.PortFirst, o.PortLast); r != nil {
		return nil, about(m.name, r)
	}
	if len(o.Addr) > maxAddrBytes {
		return nil, about(m.name, invalid("addr", "longer than %d bytes", maxAddrBytes))
	}
	if r := checkCapacity(o.Capacity, "capacity"); r != nil {
		return nil, about(m.name, r)
	}
	if r := c.checkTaints(o.SetTaints, "set_taints"); r != nil {
		return nil, about(m.name, r)
	}
	if r := checkPackageChange(m, o.Packages); r != nil {
		return nil, about(m.name, r)
	}
	if n := len(c.changedTaints(m, o)); n > maxTaints {
		return nil, about(m.name, limit("set_taints", "it would have %d taints; at most %d", n, maxTaints))
	}
	return func(res *borgpb.Result) {
		packages := o.Packages != nil && c.setPackages(m, o.Packages)
		switch {
		case c.setMachine(m, o, attributes):
			m.version++
			m.changedWallNs = c.clock.wallNs
			c.dirty(m)
			c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_SET))
			c.seatMachine(m)
			c.leaveDueNs = 0
			c.leaveTainted()
		case packages:
			m.version++
			c.dirty(m)
			c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_PACKAGES))
		}
		res.Uid, res.Version = m.uid.String(), m.version
	}, nil
}

// setMachine changes what is said of a machine and tells whether anything is
// new. Tasks that no longer suit it stay until an update or their end.
func (c *Cell) setMachine(m *Machine, o *borgpb.SetMachine, attributes map[string]string) (changed bool) {
	c.countAll(m, -1)
	if !maps.Equal(attributes, m.attributes) {
		m.attributes, changed = attributes, true
	}
	if o.Addr != "" && o.Addr != m.addr {
		m.addr, changed = o.Addr, true
	}
	if o.Capacity != nil {
		capacity := FromProto(o.Capacity)
		capacity.Ports = m.room.capacity.Ports
		if !capacity.Equal(m.room.capacity) {
			c.countMachine(&m.room.capacity, false)
			c.countMachine(&capacity, true)
			m.room.capacity, changed = capacity, true
		}
	}
	if first, last := uint16(o.PortFirst), uint16(o.PortLast); first != 0 && (first != m.portFirst || last != m.portLast) {
		m.portFirst, m.portLast, changed = first, last, true
		c.keepHeldPorts(m, func(h heldPort) bool { return h.number >= first && h.number <= last })
	}
	if taints := c.changedTaints(m, o); !slices.EqualFunc(taints, m.taints, Taint.same) {
		m.taints, changed = taints, true
		c.actTaints(m)
	}
	m.derive()
	c.countAll(m, 1)
	return changed
}

// countAll counts what is on a machine in, or out of, its failure domains.
func (c *Cell) countAll(m *Machine, n int) {
	for _, p := range m.copies {
		if p.state.current() {
			p.job.domains.add(m, n)
		}
	}
	for _, a := range m.allocs {
		if a.machine == m {
			a.set.domains.add(m, n)
		}
	}
}

func (c *Cell) checkRemoveMachine(o *borgpb.RemoveMachine) (commit, *borgpb.Refusal) {
	m := c.machines[o.Name]
	if m == nil {
		return nil, notFound(clip(o.Name, 64), "there is no such machine")
	}
	n := len(m.copies)
	switch {
	case o.Force:
	case c.format >= FormatLeftovers && m.unknown > 0:
		return nil, badState(m.name, "it runs %d tasks that the restored cell does not know (borgcfg restore unknown), and they would run on; adopt or stop them first, or force", m.unknown)
	case n == 0 || m.down && c.format < FormatLeftovers:
	case m.down:
		return nil, badState(m.name, "it does not answer, and nobody has heard the end of %d copies of tasks there, which may run on; bring it back, or force", n)
	case m.draining:
		return nil, badState(m.name, "it drains, and %d copies of tasks hold places on it still; see what they wait for with borgcfg machine drains %s, or force", n, m.name)
	default:
		return nil, badState(m.name, "%d copies of tasks hold places on it; drain it first, or force", n)
	}
	for _, v := range m.volumes {
		if !v.givenUp && !o.GiveUpVolumes {
			return nil, badState(m.name, "volume %s is on it, and would be lost; give volumes up with it: --give-up-volumes", v.FullName())
		}
	}
	return func(res *borgpb.Result) {
		if c.format >= FormatLeftovers {
			res.LeftRunning = uint32(n) + m.unknown
		}
		c.removeMachine(m)
		res.Uid, res.Version = m.uid.String(), m.version
	}, nil
}

// removeMachine takes a machine out of the cell. What was on it is never to be
// heard of again.
func (c *Cell) removeMachine(m *Machine) {
	reason := "machine " + m.name + " was removed"
	c.unseatMachine(m)
	for _, p := range slices.Clone(m.copies) {
		if p.state.current() {
			c.loseTask(p.row(), reason)
		}
		c.end(p, attemptLost)
	}
	for _, a := range slices.Clone(m.allocs) {
		if a.lostOn == m {
			c.dropLost(a, borgpb.StopCause_STOP_CAUSE_UNSPECIFIED, reason)
		} else {
			c.evictAlloc(a, edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_UNSPECIFIED, reason, 0)
		}
	}
	c.endSavers(m, reason)
	c.lookAtSavers()
	c.leaveVolumes(m, reason)
	c.endDrain(m)
	m.gone = true
	c.setPackages(m, &borgpb.PackageChange{Remove: m.packages})
	delete(c.machines, m.name)
	at, _ := slices.BinarySearchFunc(c.machineList, m.name, compareMachine)
	c.machineList = slices.Delete(c.machineList, at, at+1)
	c.counts.countMachineState(m, -1)
	c.countMachine(&m.room.capacity, false)
	c.dirty(m)
	c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_REMOVE))
}

func machineEvent(m *Machine, kind borgpb.EventKind) Event {
	return Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, UID: m.uid, Machine: m.name}
}
