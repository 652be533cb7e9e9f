package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

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
	// Between two faults that are aimed at whoever is elected; 0: none.
	electedNs int64
	// How late what the duties decide is proposed, at most.
	dutyLateNs int64
	// Orders to borglets that come late, by at most lateOrderNs.
	lateOrderPermille int
	lateOrderNs       int64
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
		cutNs: []int64{second, 5 * second, 40 * second}[r.IntN(3)], electedNs: electedEveryNs,
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

// fault is one fault of a run. All that it draws comes from its own stream, so
// that it stays what it is when others are left out.
type fault struct {
	number int
	atNs   int64
	kind   faultKind
	rand   *rand.Rand
	// Aims at whoever is elected.
	aimed bool
}

// electedEveryNs lies between two faults that are aimed at whoever is elected,
// whatever else a seed has.
const electedEveryNs = 4 * second

// planFaults draws when each fault comes and of which kind it is.
func (w *World) planFaults() {
	r := stream(w.cfg.Seed, "faults")
	end := w.now + w.cfg.DurationNs
	total := 0
	for _, n := range w.swarm.weights {
		total += n
	}
	if total > 0 {
		for at := w.now; ; {
			if at += between(r, w.swarm.everyNs/4, 2*w.swarm.everyNs); at >= end {
				break
			}
			n := r.IntN(total)
			kind := faultKind(0)
			for n >= w.swarm.weights[kind] {
				n -= w.swarm.weights[kind]
				kind++
			}
			w.faults = append(w.faults, &fault{atNs: at, kind: kind, aimed: r.IntN(2) == 0})
		}
	}
	every := w.swarm.electedNs
	if every == 0 {
		end = w.now
	}
	for at := w.now + between(r, second, max(every, second)); at < end; at += between(r, every/2, 3*every/2) {
		kind := []faultKind{crashReplica, pauseReplica, cutOneWay}[r.IntN(3)]
		w.faults = append(w.faults, &fault{atNs: at, kind: kind, aimed: true})
	}
	slices.SortStableFunc(w.faults, func(a, b *fault) int { return cmp.Compare(a.atNs, b.atNs) })
	for i, f := range w.faults {
		f.number, f.rand = i, stream(w.cfg.Seed, fmt.Sprint("fault ", i))
		w.at(f.atNs, func() { w.come(f) })
	}
}

// come lets a fault happen, unless it is left out.
func (w *World) come(f *fault) {
	what := "left out"
	if !slices.Contains(w.cfg.Without, f.number) {
		what = w.happen(f)
	}
	w.say("fault %d: %s", f.number, what)
	w.result.Faults = append(w.result.Faults, fmt.Sprintf("%.6f s: %s", float64(w.now-second)/1e9, what))
}

// happen does what the fault is, and says it.
func (w *World) happen(f *fault) string {
	r := f.rand
	one := w.replicas[r.IntN(replicas)]
	m := w.machines[r.IntN(len(w.machines))]
	if f.aimed {
		for _, x := range w.replicas {
			if x.up && x.core.State().Leading {
				one = x
			}
		}
	}
	switch f.kind {
	case crashReplica:
		return w.crash(f, one)
	case powerLoss:
		w.mark("all replicas without power")
		for _, x := range w.replicas {
			w.crash(f, x)
		}
		return "all replicas are without power"
	case pauseReplica:
		ns := between(r, 50*millisecond, 4*second)
		one.pause()
		w.after(ns, one.resume)
		return fmt.Sprintf("replica %d is stopped for %d ms", one.id, ns/millisecond)
	case partition:
		return w.partition(f)
	case cutOneWay:
		return w.cutOneWay(f, one)
	case cutMachine:
		return w.cutMachine(f, m)
	case loseMachine:
		ns := between(r, second, w.swarm.lostNs)
		w.loseFor(m, ns)
		return fmt.Sprintf("machine %s is lost for %d ms", m.name, ns/millisecond)
	case loseMany:
		n := 1 + r.IntN(len(w.machines))
		for _, x := range w.machines[:n] {
			w.loseFor(x, between(r, second, 10*second))
		}
		return fmt.Sprintf("%d machines are lost", n)
	case killBorglet:
		m.stopAgent()
		w.after(between(r, 10*millisecond, 3*second), m.startAgent)
		return fmt.Sprintf("the borglet of %s is killed", m.name)
	case killScheduler:
		if one.up && one.master.scheduler != nil {
			one.master.stop()
			one.master.scheduler = newSchedulerProcess(one.master)
		}
		return fmt.Sprintf("the scheduler of replica %d is killed", one.id)
	case stepWallClock:
		by := between(r, -90*second, 90*second)
		one.clock.wallOffNs += by
		return fmt.Sprintf("the wall clock of replica %d steps by %d ms", one.id, by/millisecond)
	}
	panic(fmt.Sprintf("there is no fault of kind %d", f.kind))
}

func (w *World) crash(f *fault, x *replicaNode) string {
	keep := w.swarm.keep[f.rand.IntN(len(w.swarm.keep))]
	back := between(f.rand, 20*millisecond, 3*second)
	if !x.up {
		return fmt.Sprintf("replica %d would crash, and is down", x.id)
	}
	x.crash(keep)
	life := x.life
	w.after(back, func() {
		if !x.up && x.life == life {
			x.start()
		}
	})
	return fmt.Sprintf("replica %d crashes, for %d ms", x.id, back/millisecond)
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
	for _, c := range append(w.clients, w.operator) {
		all = append(all, clientEnd(c.i))
	}
	return all
}

// partition splits everything in two for a while.
func (w *World) partition(f *fault) string {
	side := map[int]bool{}
	ends := w.ends()
	for _, e := range ends {
		side[e] = f.rand.IntN(2) == 0
	}
	w.mark("partition")
	var links [][2]int
	for _, a := range ends {
		for _, b := range ends {
			if side[a] != side[b] {
				links = append(links, [2]int{a, b})
			}
		}
	}
	ns := between(f.rand, 200*millisecond, w.swarm.cutNs)
	w.cutFor(links, ns)
	var with []int
	for id := uint64(1); id <= replicas; id++ {
		if side[replicaEnd(id)] == side[replicaEnd(1)] {
			with = append(with, int(id))
		}
	}
	return fmt.Sprintf("the network is split for %d ms, replicas %v on one side", ns/millisecond, with)
}

// cutOneWay lets a replica no longer hear some others, or they it.
func (w *World) cutOneWay(f *fault, x *replicaNode) string {
	var links [][2]int
	in := f.rand.IntN(2) == 0
	for _, e := range w.ends() {
		// Drawn for each end, so that whose replica it is does not shift it.
		spared := f.rand.IntN(3) == 0
		if e == replicaEnd(x.id) || spared {
			continue
		}
		if in {
			links = append(links, [2]int{e, replicaEnd(x.id)})
		} else {
			links = append(links, [2]int{replicaEnd(x.id), e})
		}
	}
	w.mark("cut one way")
	ns := between(f.rand, 200*millisecond, w.swarm.cutNs)
	w.cutFor(links, ns)
	way := "is not heard by"
	if in {
		way = "does not hear"
	}
	return fmt.Sprintf("replica %d %s %d others for %d ms", x.id, way, len(links), ns/millisecond)
}

// cutMachine cuts a machine off from the replicas, from some or from all.
func (w *World) cutMachine(f *fault, m *machine) string {
	all := f.rand.IntN(2) == 0
	var links [][2]int
	for _, x := range w.replicas {
		if some := f.rand.IntN(2) == 0; all || some {
			links = append(links, [2]int{replicaEnd(x.id), machineEnd(m.i)}, [2]int{machineEnd(m.i), replicaEnd(x.id)})
		}
	}
	w.mark("machine cut off")
	ns := between(f.rand, 200*millisecond, 2*w.swarm.cutNs)
	w.cutFor(links, ns)
	return fmt.Sprintf("machine %s is cut off from %d replicas for %d ms", m.name, len(links)/2, ns/millisecond)
}

func (w *World) cutFor(links [][2]int, ns int64) {
	for _, l := range links {
		w.net.cut[l]++
	}
	w.after(ns, func() {
		if w.healed {
			return
		}
		for _, l := range links {
			w.net.cut[l]--
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
