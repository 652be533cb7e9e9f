package sim

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

const (
	// In a new cell the replicas share the machines for a while before there are any. Then all
	// come at once, and the first poll of each begins with a handshake.
	machinesComeNs = 4 * second
	handshakeNs    = 300 * millisecond
	// Enough that each replica asks some at once, and can tell that none of them answers.
	newMachines = 80
	// Whoever lost his share by then has none for a minute.
	sharedWithinNs = 3 * second
	lookAtSharesNs = 500 * millisecond
	// The number of who adds them, as an end of the network.
	fillerClient = 9_300
)

// machinesCome adds all machines at once, where the operator does not add one after the
// other, and looks from then on who shares them.
func (w *World) machinesCome() {
	if !w.swarm.newCell {
		return
	}
	r := stream(w.cfg.Seed, "machines come")
	for _, m := range w.machines {
		tries := 0
		var ask func()
		ask = func() {
			if w.truth.cell.Machine(m.name) != nil {
				return
			}
			tries++
			w.askAny(r, w.operator.self(), fillerClient, &borgpb.Op{
				RequestId: fmt.Sprintf("new-machine-%s-%d", m.name, tries), RequestWallNs: w.wallNs(),
				Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: m.name, Spec: m.spec()}},
			}, func(error) { w.after(dutyTickNs, ask) })
		}
		w.at(machinesComeNs, ask)
	}
	var look func()
	look = func() {
		if x := w.leader(); x != nil && !w.healed {
			live, _ := x.master.duties.Live()
			w.allShare(live)
		}
		w.after(lookAtSharesNs, look)
	}
	w.at(machinesComeNs+sharedWithinNs, look)
}

// allShare: L11, where nothing fails all replicas share the machines.
func (w *World) allShare(live []uint64) {
	for _, x := range w.replicas {
		if !slices.Contains(live, x.id) {
			w.fail("L11: replica %d has no share of the machines, which are polled by %v", x.id, live)
		}
	}
}
