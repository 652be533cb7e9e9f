package borglet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"borg/proto/borgpb"
)

// protectedEvery is how often the borglet looks whether a task has bound a protected port.
const protectedEvery = 500 * time.Millisecond

// ProtectedPort is a TCP port of the machine that a program of the cell needs. It is no task's,
// also while that program does not run: it could not listen at its next start.
type ProtectedPort struct {
	Port uint16
	// The program, as "borglet m1"; at most 40 bytes.
	Of string
}

// protected returns the protected ports.
func (a *Agent) protected() []ProtectedPort {
	if a.cfg.Protected == nil {
		return nil
	}
	return a.cfg.Protected()
}

// protectedAmong returns which of some ports are protected, as held by who needs them.
func (a *Agent) protectedAmong(ports []uint32) (held []HeldPort) {
	for _, p := range a.protected() {
		if slices.Contains(ports, uint32(p.Port)) {
			held = append(held, HeldPort{Port: p.Port, By: p.Of})
		}
	}
	return held
}

// onProtectedPorts returns, as AtFault, the runs that have bound protected ports. A port that a
// copy was granted is its own.
func (a *Agent) onProtectedPorts() (faults []Event) {
	// The view is older than the look, so no later run of a copy is blamed.
	ports, v := a.protected(), a.view.Load()
	if a.cfg.ProtectedHolders == nil || len(ports) == 0 || v == nil || len(v.runs) == 0 {
		return nil
	}
	numbers := make([]uint16, 0, len(ports))
	for _, p := range ports {
		numbers = append(numbers, p.Port)
	}
	found, err := a.cfg.ProtectedHolders(numbers)
	if err != nil {
		if text := err.Error(); a.protectedErr != text {
			a.protectedErr = text
			a.cfg.Log.Warn("whether tasks have bound the cell's own ports is not known", "machine", a.cfg.Name, "err", err)
		}
		return nil
	}
	for _, id := range slices.SortedFunc(maps.Keys(found), compareIDs) {
		run, runs := v.runs[id]
		at := slices.IndexFunc(ports, func(p ProtectedPort) bool {
			return slices.Contains(found[id], p.Port) && !slices.Contains(v.ports[id], uint32(p.Port))
		})
		if !runs || at < 0 {
			continue
		}
		text := fmt.Sprintf("ended: it bound port %d, which %s needs", ports[at].Port, ports[at].Of)
		a.cfg.Log.Warn("a task has bound a port of the cell's own and is ended", "machine", a.cfg.Name, "copy", id.String(), "run", run, "port", ports[at].Port, "of", ports[at].Of)
		faults = append(faults, AtFault{ID: id, Run: run, Reason: borgpb.ExitReason_EXIT_REASON_PORT_OF_OTHER, Text: text})
	}
	return faults
}
