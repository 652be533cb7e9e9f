package sim

import (
	"math/rand/v2"

	"borg/borglet"
)

// swarm is what a seed is made of: which faults there are and how often. Most
// are off in most seeds, so that those that are on can go far.
type swarm struct {
	lossPermille, dupPermille, latePermille int
	lateNs                                  int64
	stallPermille                           int
	driftPPM                                int64
	// Kinds of faults and how often each comes against the others; 0: never.
	weights [faultKinds]int
	// Mean time between faults.
	everyNs int64
	// What a crash may leave of what a disk had not synced.
	keep        []int
	tailEntries int
	cacheBytes  int
	flushNs     int64
	thinkNs     int64
	// How long a machine is lost, and a network cut, at most.
	lostNs, cutNs int64
	jobs          int
	machineMilli  int64
	// Not everything fits.
	tight bool
}

type faultKind int

const (
	crashReplica faultKind = iota
	powerLoss
	pauseReplica
	partition
	cutOneWay
	cutMachine
	loseMachine
	loseMany
	killBorglet
	killScheduler
	stepWallClock
	faultKinds
)

func drawSwarm(r *rand.Rand) swarm {
	s := swarm{
		everyNs: between(r, 300*millisecond, 2*second), keep: [][]int{{keepSynced}, {keepTorn}, {keepSynced, keepTorn, keepAll}}[r.IntN(3)],
		tailEntries: []int{16, 64, 1000}[r.IntN(3)], cacheBytes: []int{1 << 10, 64 << 10, 1 << 20}[r.IntN(3)],
		flushNs: between(r, 50*millisecond, second), thinkNs: between(r, 20*millisecond, 400*millisecond),
		jobs: 2 + r.IntN(4), machineMilli: 8000, lostNs: []int64{3 * second, 30 * second, 60 * second}[r.IntN(3)],
		cutNs: []int64{second, 5 * second, 40 * second}[r.IntN(3)],
	}
	for k := range s.weights {
		if r.IntN(2) == 0 {
			s.weights[k] = 1 + r.IntN(4)
		}
	}
	if r.IntN(2) == 0 {
		s.lossPermille = r.IntN(60)
	}
	if r.IntN(2) == 0 {
		s.dupPermille = r.IntN(40)
	}
	if r.IntN(2) == 0 {
		s.latePermille, s.lateNs = r.IntN(50), between(r, 5*millisecond, 3*second)
	}
	if r.IntN(3) == 0 {
		s.stallPermille = 1 + r.IntN(5)
	}
	if r.IntN(2) == 0 {
		s.driftPPM = r.Int64N(100_000)
	}
	if r.IntN(3) == 0 {
		s.tight, s.machineMilli = true, 1000
	}
	return s
}

func (s *swarm) drawClock(r *rand.Rand) clock {
	c := clock{wallOffNs: between(r, -second, second)}
	if s.driftPPM > 0 {
		c.ratePPM = between(r, -s.driftPPM, s.driftPPM)
	}
	return c
}

// backoff is that of a borglet, shorter, so that a run sees more of it.
func (s *swarm) backoff() borglet.Backoff {
	return borglet.Backoff{FirstNs: 200 * millisecond, BaseNs: second, MaxNs: 8 * second, HealthyNs: 30 * second}
}

// scheduleFault lets faults come until the end of the first phase.
func (w *World) scheduleFault() {
	total := 0
	for _, n := range w.swarm.weights {
		total += n
	}
	if total == 0 {
		return
	}
	w.after(between(w.faultRand, w.swarm.everyNs/4, 2*w.swarm.everyNs), func() {
		if w.healed {
			return
		}
		n := w.faultRand.IntN(total)
		kind := faultKind(0)
		for n >= w.swarm.weights[kind] {
			n -= w.swarm.weights[kind]
			kind++
		}
		w.fault(kind)
		w.scheduleFault()
	})
}

func (w *World) fault(kind faultKind) {
	r := w.faultRand
	one := w.replicas[r.IntN(replicas)]
	if r.IntN(2) == 0 {
		// Aim at whoever is elected.
		for _, x := range w.replicas {
			if x.up && x.core.State().Leading {
				one = x
			}
		}
	}
	m := w.machines[r.IntN(len(w.machines))]
	switch kind {
	case crashReplica:
		w.crash(one)
	case powerLoss:
		w.mark("all replicas without power")
		for _, x := range w.replicas {
			w.crash(x)
		}
	case pauseReplica:
		one.pause()
		w.after(between(r, 50*millisecond, 4*second), one.resume)
	case partition:
		w.partition()
	case cutOneWay:
		w.cutOneWay(one)
	case cutMachine:
		w.cutMachine(m)
	case loseMachine:
		w.loseFor(m, between(r, second, w.swarm.lostNs))
	case loseMany:
		n := 1 + r.IntN(len(w.machines))
		for _, x := range w.machines[:n] {
			w.loseFor(x, between(r, second, 10*second))
		}
	case killBorglet:
		m.stopAgent()
		w.after(between(r, 10*millisecond, 3*second), m.startAgent)
	case killScheduler:
		if one.up && one.master.scheduler != nil {
			one.master.stop()
			one.master.scheduler = newSchedulerProcess(one.master)
		}
	case stepWallClock:
		one.clock.wallOffNs += between(r, -90*second, 90*second)
		w.say("the wall clock of replica %d steps", one.id)
	}
}

func (w *World) crash(x *replicaNode) {
	keep := w.swarm.keep[w.faultRand.IntN(len(w.swarm.keep))]
	back := between(w.faultRand, 20*millisecond, 3*second)
	if !x.up {
		return
	}
	x.crash(keep)
	life := x.life
	w.after(back, func() {
		if !x.up && x.life == life {
			x.start()
		}
	})
}

func (w *World) loseFor(m *machine, ns int64) {
	m.lose()
	boot := m.boot
	w.after(ns, func() {
		if !m.up && m.boot == boot {
			m.start()
		}
	})
}

func (w *World) ends() (all []int) {
	for _, x := range w.replicas {
		all = append(all, replicaEnd(x.id))
	}
	for _, m := range w.machines {
		all = append(all, machineEnd(m.i))
	}
	for _, c := range w.clients {
		all = append(all, clientEnd(c.i))
	}
	return all
}

// partition splits everything in two for a while.
func (w *World) partition() {
	side := map[int]bool{}
	ends := w.ends()
	for _, e := range ends {
		side[e] = w.faultRand.IntN(2) == 0
	}
	w.say("the network is split: %v", side)
	w.mark("partition")
	var links [][2]int
	for _, a := range ends {
		for _, b := range ends {
			if side[a] != side[b] {
				links = append(links, [2]int{a, b})
			}
		}
	}
	w.cutFor(links, between(w.faultRand, 200*millisecond, w.swarm.cutNs))
}

// cutOneWay lets a replica no longer hear some others, or they it.
func (w *World) cutOneWay(x *replicaNode) {
	var links [][2]int
	in := w.faultRand.IntN(2) == 0
	for _, e := range w.ends() {
		if e == replicaEnd(x.id) || w.faultRand.IntN(3) == 0 {
			continue
		}
		if in {
			links = append(links, [2]int{e, replicaEnd(x.id)})
		} else {
			links = append(links, [2]int{replicaEnd(x.id), e})
		}
	}
	w.say("replica %d is cut off one way, %d links", x.id, len(links))
	w.mark("cut one way")
	w.cutFor(links, between(w.faultRand, 200*millisecond, w.swarm.cutNs))
}

// cutMachine cuts a machine off from the replicas, from some or from all.
func (w *World) cutMachine(m *machine) {
	all := w.faultRand.IntN(2) == 0
	var links [][2]int
	for _, x := range w.replicas {
		if all || w.faultRand.IntN(2) == 0 {
			links = append(links, [2]int{replicaEnd(x.id), machineEnd(m.i)}, [2]int{machineEnd(m.i), replicaEnd(x.id)})
		}
	}
	w.say("machine %s is cut off, %d links", m.name, len(links))
	w.mark("machine cut off")
	w.cutFor(links, between(w.faultRand, 200*millisecond, 2*w.swarm.cutNs))
}

func (w *World) cutFor(links [][2]int, ns int64) {
	for _, l := range links {
		w.net.cut[l] = true
	}
	w.after(ns, func() {
		for _, l := range links {
			delete(w.net.cut, l)
		}
	})
}

// heal ends the first phase: everything is there again and stays.
func (w *World) heal() {
	w.say("healed")
	w.healed = true
	clear(w.net.cut)
	for _, x := range w.replicas {
		x.resume()
		if !x.up {
			x.start()
		}
	}
	for _, m := range w.machines {
		if !m.up {
			m.start()
		}
		m.startAgent()
	}
	w.after(leaderWithinNs, func() {
		if w.leader() == nil {
			w.fail("L1: nobody is elected %d ms after healing", leaderWithinNs/millisecond)
		}
	})
	w.after(settleWithinNs, func() { w.fail("L3: not settled %d s after healing: %s", settleWithinNs/second, w.unsettled()) })
}
