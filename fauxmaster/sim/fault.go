package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"

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
	// Tasks of the one giant job, and how often each task of the failing one
	// fails; 0: there is none.
	giantTasks, failures int
	// There are services that crash again and again, on one machine or on all; and borglets
	// start what crashes again sooner.
	crashServices bool
	// Replicas whose faults may last.
	weak [2]uint64
	// After a while the replicas have no faults, so that an elected one lives
	// long enough to call machines down.
	steady bool
	// There are services that nobody kills or changes.
	lasting bool
	// Not everything fits.
	tight bool
	// Jobs ask for devices, machines get taints and lose them.
	rich bool
	// Between two faults that are aimed at whoever is elected, and when they
	// begin; 0: none.
	electedNs, electedFromNs int64
	electedKinds             []faultKind
	// How late what the duties decide is proposed, at most.
	dutyLateNs int64
	// Orders to borglets that come late, by at most lateOrderNs.
	lateOrderPermille int
	lateOrderNs       int64
	// How long a replica is down after a crash, at most.
	backNs int64
	// A replica that is stopped is cut off from the others too, and for a while
	// after it goes on.
	cutStopped bool
	// Of many machines that are lost at once each is back after at most so long.
	manyLostNs int64
	// A partition is one of all replicas from one another.
	apart bool
	// Points at which aimed crashes strike; nil: any.
	points []string
	// How often a client asks for what he may not.
	trespassPermille int
	// How often a client writes or deletes a file.
	filesPermille int
	// When the certificates of a user are revoked, about, and how often somebody
	// forges messages of raft; 0: never.
	revokeNs, forgeNs int64
	// When an operator says that machines which cannot be reached are lost; zero: never.
	declareNs int64
	// When a checkpoint is taken with which the cell goes on when all disks are lost,
	// which is at the end of the first phase; 0: they are not.
	checkpointNs int64
	// Jobs have disruption budgets, and drains deadlines; and how many more drains
	// there are.
	budgets       bool
	drainsPercent int
	// Objects have labels, which are changed and ruled.
	labels bool
	// Copies are put in quarantine.
	quarantine bool
	// Alloc sets have savers, and are updated and resized.
	savers bool
	// Jobs have volumes, which are deleted.
	volumes bool
	// Alloc sets have volumes and networks, and jobs networks and cores of their own.
	places bool
	// Quotas are granted and enforced.
	quotas bool
	// Jobs are of many priorities, and bands collapse and do not.
	bands bool
	// There are cron and daemon jobs.
	kinds bool
	// Jobs start after others.
	follows bool
	// Users share jobs with groups, the policy of visibility is private now and then, and
	// watchers watch as users.
	private bool
	// Some jobs are updated again and again, with all that an update can be told.
	updates bool
	// Borglets tell what tasks use, and so there are reservations.
	reclaims bool
	// Machines are short of memory now and then. How much they have; 0: plenty.
	squeeze  bool
	memBytes int64
	// What a flooding user asks for in a second, and how long each op takes in the cell;
	// zero: nobody floods, and no time. floodAlone: nothing else is wrong.
	floodPerS, applyNs int64
	floodAlone         bool
	// Many users ask for much each; and how much longer each sync takes.
	crowd  bool
	syncNs int64
	// A user lists without end.
	lists bool
	// All machines are added at once, when replicas share them already; and they are lost for
	// long, and come back together. How many there are; 0: as the run is configured.
	newCell, allLost bool
	machines         int
	// Tasks of a job that does nothing but crash; 0: there is none.
	stormTasks int
	// Time between two changes of the members, about; 0: there are none. After fewer:
	// a cell that has shrunk stays small.
	membersNs int64
	// Members are replaced, and their number stays.
	replaceOnly bool
	// How much an elected replica appends that is not confirmed; 0: as in production.
	uncommittedBytes uint64
	// How long a checkpoint is on its way, at most.
	checkpointLateNs int64
	// Clients that watch.
	watchers int
	// Shims are killed while they make containers, and cgroups are not let go at once.
	mishaps bool
	// Replicas hand over to one another again and again, and nothing else is wrong; nothing
	// but replicas that crash is wrong.
	transfers, covered bool
	// Disks hang for long, one after the other, and nothing else is wrong.
	hangs bool
	// Time between two deaths of the elected master together with a machine that it
	// polls; 0: they do not die together.
	hostNs int64
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
	changeBuild
	stepMachineClock
	fullDisk
	writeErrors
	readErrors
	slowDisk
	clog
	swizzle
	aimedCrash
	// Drawn after all others, so that these are what they were before.
	hangDisk
	hangFollowers
	refuseCheckpoints
	passTime
	faultKinds
)

// firstDrawnLast is where the kinds begin that are drawn last.
const firstDrawnLast = hangDisk

// ofMachines are faults that touch no replica.
var ofMachines = []faultKind{cutMachine, loseMachine, loseMany, killBorglet, stepMachineClock}

func drawSwarm(r *rand.Rand) swarm {
	s := swarm{
		everyNs: between(r, 300*millisecond, 2*second), keep: [][]int{{keepSynced}, {keepTorn}, {keepSynced, keepTorn, keepAll}}[r.IntN(3)],
		tailEntries: []int{16, 64, 1000}[r.IntN(3)], cacheBytes: []int{1 << 10, 64 << 10, 1 << 20}[r.IntN(3)],
		flushNs: between(r, 50*millisecond, second), thinkNs: between(r, 200*millisecond, 800*millisecond),
		jobs: 2 + r.IntN(4), machineMilli: 12000, lostNs: []int64{3 * second, 30 * second, 60 * second}[r.IntN(3)],
		cutNs: []int64{second, 5 * second, 40 * second}[r.IntN(3)], electedNs: electedEveryNs, backNs: 3 * second, manyLostNs: 10 * second,
		electedKinds: []faultKind{crashReplica, pauseReplica, cutOneWay},
	}
	p := r.Perm(replicas)
	s.weak = [2]uint64{uint64(p[0]) + 1, uint64(p[1]) + 1}
	for k := range firstDrawnLast {
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
	full := false
	if r.IntN(5) < 2 {
		s.steady, s.lasting = true, true
		s.lostNs, s.cutNs, s.everyNs = 60*second, 40*second, min(s.everyNs, second)
		s.weights[loseMachine], s.weights[cutMachine] = 2, 8
		// Where there is no room elsewhere, tasks wait for their machine to return.
		full = r.IntN(2) == 0
	}
	if r.IntN(12) == 0 {
		s.giantTasks = 500 + r.IntN(1000)
	}
	if r.IntN(6) == 0 {
		s.failures = 25 + r.IntN(15)
	}
	s.crashServices = s.failures > 30
	s.weights[aimedCrash] = 0
	if r.IntN(3) == 0 {
		s.weights[aimedCrash] = 12
	}
	if r.IntN(3) == 0 {
		s.tight, s.machineMilli = true, 1000
	}
	if full {
		s.tight, s.machineMilli, s.jobs = true, 400, 10
	}
	s.rich = r.IntN(2) == 0
	s.trespassPermille, s.filesPermille = 30, 50
	if r.IntN(3) == 0 {
		s.revokeNs = between(r, 2*second, 8*second)
	}
	if r.IntN(4) == 0 {
		s.forgeNs = between(r, 200*millisecond, second)
	}
	s.budgets = r.IntN(2) == 0
	s.reclaims = r.IntN(3) == 0
	if r.IntN(4) == 0 {
		s.membersNs = between(r, second, 4*second)
	}
	if r.IntN(3) == 0 {
		s.weights[hangDisk], s.weights[hangFollowers], s.weights[refuseCheckpoints] = 1+r.IntN(2), r.IntN(2), 1
	}
	s.labels = r.IntN(3) == 0
	s.updates = r.IntN(4) == 0
	s.quotas = r.IntN(4) == 0
	s.mishaps = r.IntN(4) == 0
	s.bands = r.IntN(4) == 0
	if r.IntN(4) == 0 {
		s.kinds, s.weights[passTime] = true, 2
	}
	// The model of quotas does not follow what is charged for copies in quarantine.
	s.quarantine = r.IntN(3) == 0 && !s.quotas
	// Nor do those of quotas and labels follow updates of alloc sets.
	s.savers = r.IntN(3) == 0 && !s.quotas && !s.labels
	// Nor does that of quarantine know that a volume keeps a task from other machines.
	s.volumes = r.IntN(3) == 0 && !s.quotas && !s.labels && !s.quarantine
	s.squeeze = r.IntN(2) == 0 && s.reclaims
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
	if s.crashServices {
		return borglet.Backoff{FirstNs: 200 * millisecond, BaseNs: 200 * millisecond, MaxNs: 800 * millisecond, HealthyNs: 30 * second}
	}
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

// Whatever a seed draws, the cell is to get work done: of every calmEveryNs the
// end is calm, which is to say that a fault of a strong replica is over by then
// and none begins. Two replicas are weak and get no such rest.
const (
	calmEveryNs = 5 * second
	calmNs      = 2 * second
)

// calmAt is when it is calm next, or now.
func calmAt(now int64) int64 {
	n := (now - second) % calmEveryNs
	if n >= calmEveryNs-calmNs {
		return now
	}
	return now - n + calmEveryNs - calmNs
}

// unrest moves a time that is calm to the end of the calm.
func unrest(at int64) int64 {
	if calmAt(at) != at {
		return at
	}
	return at + calmEveryNs - (at-second)%calmEveryNs
}

func (w *World) weak(x *replicaNode) bool { return slices.Contains(w.swarm.weak[:], x.id) }

// lasts is how long a fault of some replicas may last.
func (w *World) lasts(ns int64, of ...*replicaNode) int64 {
	for _, x := range of {
		if !w.weak(x) {
			return min(ns, max(calmAt(w.now)-w.now, millisecond))
		}
	}
	return ns
}

// electedEveryNs lies between two faults that are aimed at whoever is elected,
// whatever else a seed has.
const electedEveryNs = 3 * second

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
			if at = unrest(at + between(r, w.swarm.everyNs/4, 2*w.swarm.everyNs)); at >= end {
				break
			}
			n := r.IntN(total)
			kind := faultKind(0)
			for n >= w.swarm.weights[kind] {
				n -= w.swarm.weights[kind]
				kind++
			}
			f := &fault{atNs: at, kind: kind, aimed: r.IntN(2) == 0}
			if w.swarm.steady && at > w.now+w.cfg.DurationNs*2/5 && !slices.Contains(ofMachines, kind) {
				continue
			}
			w.faults = append(w.faults, f)
		}
	}
	// From a stream of their own, so that a shorter run has the same faults.
	r = stream(w.cfg.Seed, "faults of the elected")
	every := w.swarm.electedNs
	if w.swarm.steady {
		end, every = w.now+w.cfg.DurationNs*2/5, min(every, 2*second)
	}
	if every == 0 {
		end = w.now
	}
	for at := w.now + w.swarm.electedFromNs + between(r, second, max(every, second)); at < end; at += between(r, every/2, 3*every/2) {
		kind := w.swarm.electedKinds[r.IntN(len(w.swarm.electedKinds))]
		if at := unrest(at); at < end {
			w.faults = append(w.faults, &fault{atNs: at, kind: kind, aimed: true})
		}
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

// fewElections tells whether a seed falls behind the changes of the elected
// replica that every one of them has.
func (w *World) fewElections() bool {
	const each = 6
	length := w.cfg.DurationNs
	if w.swarm.steady {
		length = length * 2 / 5
	}
	return w.cfg.Aim == "" && int64(w.result.Elections) < 1+(w.now-second)*each/length
}

// happen does what the fault is, and says it.
func (w *World) happen(f *fault) string {
	r := f.rand
	one := w.replicas[r.IntN(len(w.replicas))]
	m := w.machines[r.IntN(len(w.machines))]
	if f.aimed {
		for _, x := range w.replicas {
			if x.up && x.core.State().Leading {
				one = x
			}
		}
	}
	kind := f.kind
	if f.aimed && w.fewElections() && slices.Contains(w.swarm.electedKinds, kind) {
		// The surest way to another one.
		kind = crashReplica
	}
	switch kind {
	case crashReplica:
		return w.crash(f, one, false)
	case powerLoss:
		w.mark("all replicas without power")
		for _, x := range w.replicas {
			w.crash(f, x, true)
		}
		return "all replicas are without power"
	case pauseReplica:
		ns := between(r, 50*millisecond, 4*second)
		ns = w.lasts(ns, one)
		one.pause()
		w.after(ns, one.resume)
		if w.swarm.cutStopped {
			w.cutFromReplicas(one, ns+cutAfterStopNs)
		}
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
		n := max(1, len(w.machines)*(10+r.IntN(91))/100)
		if r.IntN(4) == 0 {
			n = len(w.machines)
		}
		for _, i := range r.Perm(len(w.machines))[:n] {
			w.loseFor(w.machines[i], between(r, second, w.swarm.manyLostNs))
		}
		if n == len(w.machines) {
			w.mark("all machines lost")
		}
		return fmt.Sprintf("%d machines are lost", n)
	case killBorglet:
		m.StopAgent()
		w.after(between(r, 10*millisecond, 3*second), m.StartAgent)
		return fmt.Sprintf("the borglet of %s is killed", m.name)
	case killScheduler:
		if one.up && one.master.scheduler != nil {
			one.master.stop()
			one.master.scheduler = newSchedulerProcess(one.master)
		}
		return fmt.Sprintf("the scheduler of replica %d is killed", one.id)
	case stepMachineClock:
		by := between(r, -90*second, 90*second)
		m.clock.wallOffNs += by
		w.mark("clock of a machine steps")
		return fmt.Sprintf("the wall clock of %s steps by %d ms", m.name, by/millisecond)
	case fullDisk, writeErrors, readErrors, slowDisk:
		return w.spoilDisk(f, one)
	case hangDisk:
		if w.swarm.hangs {
			// A fault of any other is over before the cell is to have its rest.
			weak := slices.DeleteFunc(slices.Clone(w.replicas), func(x *replicaNode) bool { return !w.weak(x) })
			return w.hangDisks(between(r, 6*second, 9*second), weak[r.IntN(len(weak))])
		}
		return w.hangDisks(between(r, 500*millisecond, 4*second), one)
	case hangFollowers:
		others := slices.DeleteFunc(slices.Clone(w.replicas), func(x *replicaNode) bool { return x == w.leader() })
		return w.hangDisks(between(r, second, 4*second), others...)
	case refuseCheckpoints:
		ns := between(r, second, 4*second)
		one.refusesUntilNs = w.now + ns
		return fmt.Sprintf("replica %d takes no checkpoint for %d ms", one.id, ns/millisecond)
	case clog:
		return w.clog(f)
	case swizzle:
		return w.swizzle(f)
	case aimedCrash:
		return w.aim(f)
	case stepWallClock:
		by := between(r, -90*second, 90*second)
		one.clock.wallOffNs += by
		return fmt.Sprintf("the wall clock of replica %d steps by %d ms", one.id, by/millisecond)
	case passTime:
		return w.passTime(f)
	case changeBuild:
		return w.changeBuildOf(f, one)
	}
	panic(fmt.Sprintf("there is no fault of kind %d", f.kind))
}

func (w *World) crash(f *fault, x *replicaNode, powerless bool) string {
	keep := w.swarm.keep[f.rand.IntN(len(w.swarm.keep))]
	back := between(f.rand, 20*millisecond, w.swarm.backNs)
	back = w.lasts(back, x)
	if !x.up {
		return fmt.Sprintf("replica %d would crash, and is down", x.id)
	}
	x.crash(keep, powerless)
	x.startAfter(back)
	return fmt.Sprintf("replica %d crashes, for %d ms", x.id, back/millisecond)
}

func (w *World) loseFor(m *machine, ns int64) {
	m.Lose()
	boot := m.Boot()
	w.after(ns, func() {
		if !m.Up() && m.Boot() == boot {
			m.Start()
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
	for _, c := range append(w.clients, w.operator.client) {
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
	if w.swarm.apart {
		for _, x := range w.replicas {
			for _, y := range w.replicas {
				if x != y {
					links = append(links, [2]int{replicaEnd(x.id), replicaEnd(y.id)})
				}
			}
		}
		// Longer than what is missed without an elected master may count.
		ns := between(f.rand, 7*second, 15*second)
		w.cutFor(links, ns)
		return fmt.Sprintf("the replicas are cut off from one another for %d ms", ns/millisecond)
	}
	for _, a := range ends {
		for _, b := range ends {
			if side[a] != side[b] {
				links = append(links, [2]int{a, b})
			}
		}
	}
	ns := w.lasts(between(f.rand, 200*millisecond, w.swarm.cutNs), w.replicas...)
	w.cutFor(links, ns)
	var with []int
	for _, x := range w.replicas {
		if side[replicaEnd(x.id)] == side[replicaEnd(w.replicas[0].id)] {
			with = append(with, int(x.id))
		}
	}
	return fmt.Sprintf("the network is split for %d ms, replicas %v on one side", ns/millisecond, with)
}

// cutAfterStopNs is longer than an elected replica needs to find out that nobody
// hears it.
const cutAfterStopNs = 500 * millisecond

// cutFromReplicas cuts a replica off from the others; clients still reach it.
func (w *World) cutFromReplicas(x *replicaNode, ns int64) {
	var links [][2]int
	for _, y := range w.replicas {
		if y != x {
			links = append(links, [2]int{replicaEnd(x.id), replicaEnd(y.id)}, [2]int{replicaEnd(y.id), replicaEnd(x.id)})
		}
	}
	w.cutFor(links, ns)
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
	ns := w.lasts(between(f.rand, 200*millisecond, w.swarm.cutNs), x)
	w.cutFor(links, ns)
	way := "is not heard by"
	if in {
		way = "does not hear"
	}
	return fmt.Sprintf("replica %d %s %d others for %d ms", x.id, way, len(links), ns/millisecond)
}

// cutMachine cuts a machine off from the replicas, from some or from all.
func (w *World) cutMachine(f *fault, m *machine) string {
	all := f.rand.IntN(2) == 0 || w.swarm.steady
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

// spoilDisk lets the disk of a replica fail for a while, or be slow.
func (w *World) spoilDisk(f *fault, x *replicaNode) string {
	ns := w.lasts(between(f.rand, 200*millisecond, 8*second), x)
	bytes, permille := f.rand.Int64N(64<<10), 5+f.rand.IntN(200)
	failing := x.errorPermille != 0 || x.disk.failure() != failure{}
	var what string
	switch {
	case f.kind == slowDisk:
		w.mark("slow disk")
		x.slowUntilNs = w.now + ns
		return fmt.Sprintf("the disk of replica %d is slow for %d ms", x.id, ns/millisecond)
	case failing:
		return fmt.Sprintf("the disk of replica %d would fail, and fails already", x.id)
	case f.kind == writeErrors:
		w.mark("disk returns errors")
		x.errorPermille = permille
		what = fmt.Sprintf("fails %d of 1000 writes", permille)
	case f.kind == readErrors:
		w.mark("disk cannot be read")
		x.disk.fail(failure{unreadable: true})
		what = "cannot be read"
	default:
		w.mark("disk full")
		x.settleDisk()
		if x.up && x.store.Received() != nil {
			bytes = 0
		}
		x.disk.fail(failure{err: syscall.ENOSPC, bytes: bytes})
		what = fmt.Sprintf("has room for %d bytes more", bytes)
	}
	w.failover.look()
	w.after(ns, x.mend)
	return fmt.Sprintf("the disk of replica %d %s, for %d ms", x.id, what, ns/millisecond)
}

// mend ends all faults of the disk.
func (r *replicaNode) mend() {
	r.errorPermille, r.slowUntilNs, r.hangsUntilNs, r.refusesUntilNs = 0, 0, 0, 0
	r.disk.fail(failure{})
	r.w.failover.look()
}

// hangDisks lets the syncs of some replicas hang.
func (w *World) hangDisks(ns int64, of ...*replicaNode) string {
	ns = w.lasts(ns, of...)
	var ids []uint64
	for _, x := range of {
		x.hangsUntilNs = w.now + ns
		ids = append(ids, x.id)
	}
	w.mark("disk hangs")
	return fmt.Sprintf("the disks of replicas %v hang for %d ms", ids, ns/millisecond)
}

// clog holds back all that goes over a link, and then delivers it.
func (w *World) clog(f *fault) string {
	ends := w.ends()
	from := replicaEnd(w.replicas[f.rand.IntN(len(w.replicas))].id)
	to := ends[f.rand.IntN(len(ends))]
	ns := between(f.rand, 100*millisecond, 5*second)
	if back := f.rand.IntN(2) == 0; back {
		from, to = to, from
	}
	l := [2]int{from, to}
	w.net.clogged[l]++
	w.mark("link clogged")
	w.failover.look()
	w.after(ns, func() { w.unclog(l) })
	return fmt.Sprintf("the link from %s to %s is clogged for %d ms", endName(from), endName(to), ns/millisecond)
}

func (w *World) unclog(l [2]int) {
	if w.net.clogged[l] == 0 {
		return
	}
	w.net.clogged[l]--
	w.failover.look()
	held := w.net.held[l]
	delete(w.net.held, l)
	for i, deliver := range held {
		w.after(int64(i)*microsecond, func() { w.net.arrive(l[0], l[1], deliver) })
	}
}

// swizzle cuts the links of some replicas one by one, and heals them in another
// order.
func (w *World) swizzle(f *fault) string {
	r := f.rand
	var links [][2]int
	perm := r.Perm(len(w.replicas))
	for _, i := range perm[:min(1+r.IntN(3), len(perm))] {
		for _, x := range w.replicas {
			if a, b := replicaEnd(w.replicas[i].id), replicaEnd(x.id); a != b {
				links = append(links, [2]int{a, b}, [2]int{b, a})
			}
		}
	}
	n := int64(len(links))
	lasts := w.lasts(between(r, 300*millisecond, 4*second), w.replicas...)
	heal := r.Perm(len(links))
	for i, l := range links {
		cut := lasts / 2 * int64(i) / n
		w.after(cut, func() {
			if !w.healed {
				w.cutFor([][2]int{l}, lasts/2+lasts/2*int64(heal[i])/n-cut)
			}
		})
	}
	w.mark("links cut one by one")
	return fmt.Sprintf("%d links are cut one by one and healed in another order, in %d ms", n, lasts/millisecond)
}

func endName(end int) string {
	switch {
	case end > 9_000:
		return fmt.Sprintf("client %d", end-10_000)
	case end >= 100:
		return fmt.Sprintf("machine %d", end-100)
	}
	return fmt.Sprintf("replica %d", end)
}

func (w *World) cutFor(links [][2]int, ns int64) {
	for _, l := range links {
		w.net.cut[l]++
	}
	w.failover.look()
	w.after(ns, func() {
		if w.healed {
			return
		}
		for _, l := range links {
			if w.net.cut[l] > 0 {
				w.net.cut[l]--
			}
		}
		w.failover.look()
	})
}

// heal ends the first phase: everything is there again and stays.
func (w *World) heal() {
	if w.healed {
		return
	}
	if w.restore.file != nil && w.restore.lost == nil {
		w.loseDisks()
		return
	}
	w.say("healed")
	w.healed = true
	clear(w.net.cut)
	for _, from := range w.ends() {
		for _, to := range w.ends() {
			for l := [2]int{from, to}; w.net.clogged[l] > 0; {
				w.unclog(l)
			}
		}
	}
	for _, x := range w.replicas {
		x.mend()
		x.resume()
		if !x.up {
			x.start()
		}
	}
	w.machinesBack()
	w.after(leaderWithinNs, func() {
		if w.leader() == nil {
			w.fail("L1: nobody is elected %d ms after healing", leaderWithinNs/millisecond)
		}
	})
	w.after(settleWithinNs, func() {
		letter, why := "L3", w.unsettled()
		if w.membersUnsettled() != "" {
			letter = "L6"
		} else if left := w.left(); left != "" && left == why {
			letter = "L10"
		}
		w.fail("%s: not settled %d s after healing: %s", letter, settleWithinNs/second, why)
	})
}

// machinesBack starts all machines and lets everybody reach them.
func (w *World) machinesBack() {
	for _, m := range w.machines {
		if !m.Up() {
			m.Start()
		}
		m.StartAgent()
		for _, o := range w.ends() {
			delete(w.net.cut, [2]int{machineEnd(m.i), o})
			delete(w.net.cut, [2]int{o, machineEnd(m.i)})
		}
	}
}
