package borglet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"borg/proto/borgpb"
)

// maxHeldPortsTold bounds the ports that one report names.
const maxHeldPortsTold = 64

// HeldPort is a port of the machine that some program holds.
type HeldPort struct {
	Port uint16
	// The program and its process id, at most 40 bytes; empty when it is not known.
	By string `json:",omitempty"`
}

// PortHolders is who holds ports of a machine's network.
type PortHolders struct {
	// Ports that programs hold which are no tasks of this borglet.
	Others []HeldPort
	// Ports that each copy holds, without those that the kernel gives out.
	Copies map[ID][]uint16
}

// PortRange is the ports of a machine that may be granted, first to last inclusive.
type PortRange struct{ First, Last uint16 }

// PortsHeld says that a run was not started because others hold ports that its copy was
// granted.
type PortsHeld struct {
	ID  ID
	Run uint32
	// Those ports first.
	Ports []HeldPort
	Text  string
}

func (PortsHeld) event() {}

// portsHeldError is PortsHeld before the core hears of it.
type portsHeldError struct {
	ports []HeldPort
	text  string
}

func (e *portsHeldError) Error() string { return e.text }

const (
	// portsFreedIn is how long a start waits for the end of tasks that hold its ports.
	portsFreedIn = 10 * time.Second
	// portsFreedEvery is how often it looks meanwhile.
	portsFreedEvery = 50 * time.Millisecond
)

// freePorts frees the ports that a run was granted: it ends tasks that hold them and were
// not granted them, and returns an error if others hold them. EADDRINUSE is the task's own
// affair and cannot be seen from outside, so the sockets are looked at before the start.
// The last run of the copy has been destroyed, so none of them is its own.
func (a *Agent) freePorts(r Record, l *Launch) error {
	if a.cfg.HeldPorts == nil || l.Network != "" || len(l.Ports) == 0 {
		return nil
	}
	if held := a.protectedAmong(l.Ports); len(held) > 0 {
		return a.heldPorts(held, l)
	}
	all := PortRange{uint16(a.cfg.Spec.GetPortFirst()), uint16(a.cfg.Spec.GetPortLast())}
	for until := time.Now().Add(portsFreedIn); ; {
		found, err := a.cfg.HeldPorts(l.Ports, all)
		if err != nil {
			a.cfg.Log.Warn("whether others hold the ports of a task is not known", "machine", a.cfg.Name, "copy", l.ID.String(), "err", err)
			return nil
		}
		faults, held := a.takenPorts(found, l.Ports, a.taskName(r))
		if len(faults) == 0 {
			return a.heldPorts(append(held, found.Others...), l)
		}
		if time.Now().After(until) {
			return fmt.Errorf("a task that was not granted a port of this task has not ended within %v", portsFreedIn)
		}
		for _, f := range faults {
			a.results <- f
		}
		select {
		case <-time.After(portsFreedEvery):
		case <-a.life.Done():
			return errors.New("the borglet ends")
		}
	}
}

// takenPorts returns the runs that hold a wanted port that they were not granted. Any other
// copy that holds one is not to blame: the port is held.
func (a *Agent) takenPorts(found PortHolders, wanted []uint32, owner string) (faults []AtFault, held []HeldPort) {
	v := a.view.Load()
	for _, id := range slices.SortedFunc(maps.Keys(found.Copies), compareIDs) {
		ports := slices.DeleteFunc(slices.Clone(found.Copies[id]), func(n uint16) bool { return !slices.Contains(wanted, uint32(n)) })
		notGranted := slices.IndexFunc(ports, func(n uint16) bool { return !slices.Contains(v.ports[id], uint32(n)) })
		if run, runs := v.runs[id]; runs && notGranted >= 0 {
			text := fmt.Sprintf("ended: it bound port %d, which was granted to %s", ports[notGranted], owner)
			faults = append(faults, AtFault{ID: id, Run: run, Reason: borgpb.ExitReason_EXIT_REASON_PORT_OF_OTHER, Text: text})
			continue
		}
		for _, n := range ports {
			held = append(held, HeldPort{Port: n, By: "another task"})
		}
	}
	return faults, held
}

// heldPorts returns an error if a port of the run is among held, which it reorders.
func (a *Agent) heldPorts(held []HeldPort, l *Launch) error {
	granted := func(h HeldPort) bool { return slices.Contains(l.Ports, uint32(h.Port)) }
	first := slices.IndexFunc(held, granted)
	if first < 0 {
		return nil
	}
	from := held[first].Port
	slices.SortFunc(held, func(x, y HeldPort) int {
		if granted(x) != granted(y) {
			if granted(x) {
				return -1
			}
			return 1
		}
		// Ports from the granted one on come first. A report cannot name more than
		// maxHeldPortsTold, so that the next attempt, at a later port, names other ones.
		return int(x.Port-from) - int(y.Port-from)
	})
	e := &portsHeldError{ports: held[:min(len(held), maxHeldPortsTold)]}
	for _, h := range e.ports {
		if !granted(h) {
			break
		}
		if e.text != "" {
			e.text += ", "
		}
		e.text += fmt.Sprintf("port %d of %s is held by ", h.Port, a.cfg.Name)
		if h.By == "" {
			e.text += "another program"
		} else {
			e.text += h.By
		}
	}
	e.text += "; the task gets another port or machine"
	return e
}

// portsHeld ends a copy that has to get other ports.
func (c *Core) portsHeld(ev PortsHeld) {
	t := c.copies[ev.ID]
	if t == nil || t.Run != ev.Run || t.phase != starting {
		return
	}
	if t.Stop != nil || t.Quarantined {
		c.notStarted(t, ev.Text, borgpb.ExitReason_EXIT_REASON_NOT_STARTED)
		return
	}
	if t.Exit != nil && t.Restarts > 0 {
		t.Restarts-- // no process of this run was started
	}
	t.HeldPorts = ev.Ports
	c.end(t, borgpb.AttemptState_ATTEMPT_STATE_LOST, bounded(ev.Text))
}

func heldPortsProto(ports []HeldPort) []*borgpb.HeldPort {
	var list []*borgpb.HeldPort
	for _, h := range ports {
		list = append(list, &borgpb.HeldPort{Port: uint32(h.Port), By: h.By})
	}
	return list
}

// heldPortsIn is what a report of that state says of held ports: nothing before the end.
func (t *task) heldPortsIn(state borgpb.AttemptState) []HeldPort {
	if state != borgpb.AttemptState_ATTEMPT_STATE_LOST {
		return nil
	}
	return t.HeldPorts
}
