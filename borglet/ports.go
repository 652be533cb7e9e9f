package borglet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// portsEvery is how often is looked which ports tasks listen on.
	portsEvery = 30 * time.Second
	// maxPortsTold bounds what is said of one task.
	maxPortsTold = 5
)

// Listener is a socket that takes what comes to a port of the machine.
type Listener struct {
	// "tcp" or "udp".
	Proto string
	Addr  netip.AddrPort
}

func (l Listener) String() string { return l.Proto + " " + l.Addr.String() }

// ungranted are those of a task's listeners that others of the network reach and
// that it was not granted, in order.
func ungranted(listens []Listener, granted []uint32) []Listener {
	var found []Listener
	for _, l := range listens {
		if !l.Addr.Addr().Unmap().IsLoopback() && !slices.Contains(granted, uint32(l.Addr.Port())) && !slices.Contains(found, l) {
			found = append(found, l)
		}
	}
	slices.SortFunc(found, func(a, b Listener) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// strayText says it for people, and whether it is blocked; empty: there is nothing to
// say.
func strayText(found []Listener, blocked bool) string {
	if len(found) == 0 {
		return ""
	}
	var names []string
	for _, l := range found[:min(len(found), maxPortsTold)] {
		names = append(names, l.String())
	}
	text := "listens on " + strings.Join(names, ", ")
	if more := len(found) - maxPortsTold; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	text += ", which it was not granted"
	if blocked {
		text += " and nobody reaches from outside"
	}
	return text
}

// strays are the ports that tasks were found to listen on and were not granted. One
// that is there is never changed.
type strays struct {
	texts map[ID]string
	// ports of all tasks together.
	ports int
}

// lookAtPorts looks which ports tasks listen on, if that is due.
func (a *Agent) lookAtPorts(due *time.Time, ids []ID) {
	v, now := a.view.Load(), time.Now()
	if a.cfg.Listening == nil || v == nil || now.Before(*due) {
		return
	}
	*due = now.Add(portsEvery)
	listening, err := a.cfg.Listening(ids)
	if err != nil {
		a.cfg.Log.Warn("which ports tasks listen on is not known", "machine", a.cfg.Name, "err", err)
		return
	}
	next, was := &strays{texts: map[ID]string{}}, a.strays.Load()
	all := make(map[ID][]Listener)
	for id, listens := range listening {
		if found := ungranted(listens, v.ports[id]); len(found) > 0 {
			all[id] = found
		}
	}
	blocked := a.cfg.Runtime.Capabilities().Ports == "blocked"
	if a.cfg.Block != nil {
		if err := a.cfg.Block(all); err != nil {
			a.cfg.Log.Warn("ports that tasks were not granted are open", "machine", a.cfg.Name, "err", err)
			blocked = false
		}
	}
	for id, found := range all {
		next.texts[id], next.ports = strayText(found, blocked), next.ports+len(found)
		if was.texts[id] != next.texts[id] {
			a.cfg.Log.Warn("a task listens on ports that it was not granted", "machine", a.cfg.Name, "copy", id.String(), "ports", fmt.Sprint(found[:min(len(found), maxPortsTold)]), "blocked", blocked)
		}
	}
	a.strays.Store(next)
}
