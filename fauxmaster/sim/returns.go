package sim

import "fmt"

const (
	// All machines are lost for longer than makes them machines that were silent for long.
	allLostNs = 10 * second
	allAwayNs = 30 * second
	// Enough that most of them cannot be reached until more are back than are taken for few.
	manyMachines = 24
	// Most are connected to in vain for at most brieflyVainNs after they are back, and one of
	// three for longVainNs to twice as long, though it is there too.
	brieflyVainNs = 500 * millisecond
	longVainNs    = 3500 * millisecond
	// None is called down within that.
	backForNs = 9 * second
	// By then most of those that could be connected to soon were heard.
	mostBackNs = 3 * second
)

// loseAll loses all machines, and has them come back together: then all are connected to at
// once, some of them in vain for a while.
func (w *World) loseAll() {
	if !w.swarm.allLost {
		return
	}
	w.at(allLostNs, func() {
		r := stream(w.cfg.Seed, "returns")
		for i, m := range w.machines {
			vain := between(r, 0, brieflyVainNs)
			if i%3 == 0 {
				vain = between(r, longVainNs, 2*longVainNs)
			}
			var links [][2]int
			for _, x := range w.replicas {
				links = append(links, [2]int{replicaEnd(x.id), machineEnd(m.i)}, [2]int{machineEnd(m.i), replicaEnd(x.id)})
			}
			w.loseFor(m, allAwayNs)
			w.cutFor(links, allAwayNs+vain)
			w.after(allAwayNs, func() { w.truth.backNs[m.name] = w.now })
		}
		w.mark("all machines lost")
		w.result.Faults = append(w.result.Faults, fmt.Sprintf("%.6f s: all machines are lost for %d ms", float64(w.now-second)/1e9, allAwayNs/millisecond))
		w.after(allAwayNs+mostBackNs, w.someInVain)
	})
}

// someInVain notes that most machines are heard again, and others that are back are not.
func (w *World) someInVain() {
	heard := 0
	for _, m := range w.machines {
		if w.truth.reachedNs[m.name] > w.truth.backNs[m.name] {
			heard++
		}
	}
	if n := len(w.machines); heard < n && 2*heard > n {
		w.mark("back and not heard")
	}
}
