package cell

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// formatHeldPorts is the format in which ports are left out that others hold.
const formatHeldPorts = FormatExitWays

// heldPort is a port of a machine that a program which is no task of it holds.
type heldPort struct {
	number uint16
	// Cell time from which it may be granted again.
	untilNs int64
	// The program, for people; empty when it is not known.
	by string
}

func comparePort(h heldPort, number uint16) int { return cmp.Compare(h.number, number) }

// HeldByOther reports whether the port is left out on the machine because a program
// that is no task of it holds it. With maxHeldPorts of them the machine grants none, so
// that its tasks do not try port after port.
func (m *Machine) HeldByOther(port uint16) bool {
	if len(m.heldPorts) == 0 {
		return false
	}
	_, held := slices.BinarySearchFunc(m.heldPorts, port, comparePort)
	return held || len(m.heldPorts) == maxHeldPorts
}

// HeldPortsWords names the ports of a machine that other programs hold, and those programs unless
// the cell is private: they may be somebody's. It says when the last of them may be granted
// again: until then nobody looks whether the program still has it. It is empty if there are none.
func (c *Cell) HeldPortsWords(m *Machine) string {
	var names []string
	for _, h := range m.heldPorts[:min(len(m.heldPorts), maxHeldPortsNamed)] {
		name := fmt.Sprint(h.number)
		if h.by != "" && !c.Private() {
			name += " by " + h.by
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	words := strings.Join(names, ", ")
	if more := len(m.heldPorts) - len(names); more > 0 {
		words += fmt.Sprintf(" and %d more", more)
	}
	last := slices.MaxFunc(m.heldPorts, func(x, y heldPort) int { return cmp.Compare(x.untilNs, y.untilNs) })
	left := (max(last.untilNs-c.clock.cellNs, 0) + second - 1) / second
	return fmt.Sprintf("ports of %s held by other programs: %s (as last seen; looked at again in %d s)", m.name, words, left)
}

func (c *Cell) heldPortsProto(m *Machine) []*borgpb.HeldPort {
	var list []*borgpb.HeldPort
	for _, h := range m.heldPorts {
		list = append(list, &borgpb.HeldPort{Port: uint32(h.number), By: h.by, LeftNs: max(h.untilNs-c.clock.cellNs, 0)})
	}
	return list
}

func validHeldPorts(ports []*borgpb.HeldPort) bool {
	return len(ports) <= maxHeldPortsTold && !slices.ContainsFunc(ports, func(h *borgpb.HeldPort) bool {
		return h.Port == 0 || h.Port > 1<<16-1 || len(h.By) > maxHeldByBytes || h.LeftNs != 0
	})
}

// leaveOut keeps ports of the machine from being granted for a while. Ports that copies
// hold, and ports out of its range, do not count. When there are too many, the machine
// grants none until the first may be granted again.
func (c *Cell) leaveOut(m *Machine, ports []*borgpb.HeldPort) {
	changed := false
	for _, h := range ports {
		number := uint16(h.Port)
		if _, granted := slices.BinarySearch(m.ports, number); granted || number < m.portFirst || number > m.portLast {
			continue
		}
		now := heldPort{number, c.clock.cellNs + heldPortNs, h.By}
		at, known := slices.BinarySearchFunc(m.heldPorts, number, comparePort)
		switch {
		case known:
			m.heldPorts[at] = now
		case len(m.heldPorts) == maxHeldPorts:
			continue
		default:
			m.heldPorts = slices.Insert(m.heldPorts, at, now)
		}
		changed = true
	}
	if changed {
		c.heldPortsDueNs = min(c.heldPortsDueNs, c.clock.cellNs+heldPortNs)
		c.portsChanged(m)
	}
}

// portsOn lets ports be granted again whose time is over.
func (c *Cell) portsOn() {
	if c.clock.cellNs < c.heldPortsDueNs {
		return
	}
	c.heldPortsDueNs = maxTimeNs
	for _, m := range c.machineList {
		c.keepHeldPorts(m, func(h heldPort) bool { return h.untilNs > c.clock.cellNs })
		for _, h := range m.heldPorts {
			c.heldPortsDueNs = min(c.heldPortsDueNs, h.untilNs)
		}
	}
}

// keepHeldPorts forgets the ports that keep does not want.
func (c *Cell) keepHeldPorts(m *Machine, keep func(heldPort) bool) {
	before := len(m.heldPorts)
	m.heldPorts = slices.DeleteFunc(m.heldPorts, func(h heldPort) bool { return !keep(h) })
	if len(m.heldPorts) != before {
		c.portsChanged(m)
	}
}

func (c *Cell) portsChanged(m *Machine) {
	if len(m.heldPorts) == 0 {
		m.heldPorts = nil
	}
	m.derive()
	m.changes++
	c.dirty(m)
	e := machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_PORTS)
	e.Reason = c.HeldPortsWords(m)
	c.emit(e)
}

// checkHeldPorts is the invariant of the ports of a machine that others hold.
func (c *Cell) checkHeldPorts(m *Machine) error {
	for i, h := range m.heldPorts {
		_, granted := slices.BinarySearch(m.ports, h.number)
		switch {
		case c.format < formatHeldPorts, len(m.heldPorts) > maxHeldPorts, i > 0 && m.heldPorts[i-1].number >= h.number:
			return fmt.Errorf("held ports %v in format %d", m.heldPorts, c.format)
		case granted, h.number < m.portFirst, h.number > m.portLast:
			return fmt.Errorf("port %d is held by others and granted, or out of range", h.number)
		case h.untilNs <= c.clock.cellNs, h.untilNs < c.heldPortsDueNs:
			return fmt.Errorf("port %d should be granted again since %d, it is %d", h.number, h.untilNs, c.clock.cellNs)
		}
	}
	return nil
}

func (e *encoder) heldPorts(m *Machine) {
	if len(m.heldPorts) == 0 {
		return
	}
	e.byte(tagHeldPorts)
	e.uint(uint64(len(m.heldPorts)))
	for _, h := range m.heldPorts {
		e.uint(uint64(h.number))
		e.int(h.untilNs)
		e.str(h.by)
	}
}

func (l *loader) heldPorts(d *decoder, m *Machine) error {
	if l.c.format < formatHeldPorts || !d.tagged(tagHeldPorts) {
		return nil
	}
	for range d.count() {
		h := heldPort{d.uint16(), d.int(), d.str()}
		if n := len(m.heldPorts); n == maxHeldPorts || n > 0 && m.heldPorts[n-1].number >= h.number || len(h.by) > maxHeldByBytes {
			return errOdd
		}
		m.heldPorts = append(m.heldPorts, h)
	}
	if len(m.heldPorts) == 0 {
		return errOdd
	}
	return nil
}
