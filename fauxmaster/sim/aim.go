package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Aim bends what a seed is made of towards one kind of trouble, so that it goes
// there sooner and oftener than chance would take it.
type Aim struct {
	Name string
	// Why says what it is for.
	Why string
	// DurationNs is how long the first phase must be to come there.
	DurationNs int64
	shape      func(s *swarm)
}

// only leaves the faults that are named, each with its weight against the
// others.
func (s *swarm) only(weights map[faultKind]int) {
	s.weights = [faultKinds]int{}
	for kind, n := range weights {
		s.weights[kind] = n
	}
}

// calm takes away what happens to messages and disks by chance.
func (s *swarm) calm() {
	s.lossPermille, s.dupPermille, s.latePermille, s.lateNs, s.stallPermille, s.driftPPM = 0, 0, 0, 0, 0, 0
	s.giantTasks, s.failures, s.steady, s.lasting, s.rich, s.reclaims = 0, 0, false, false, false, false
	s.crashServices = false
	s.trespassPermille, s.revokeNs, s.forgeNs, s.filesPermille = 0, 0, 0, 0
	s.budgets, s.membersNs, s.labels, s.updates, s.quotas, s.kinds = false, 0, false, false, false, false
	s.mishaps, s.bands, s.quarantine, s.savers = false, false, false, false
	s.floodPerS, s.applyNs, s.floodAlone, s.stormTasks = 0, 0, false, 0
	s.crowd, s.syncNs, s.lists = false, 0, false
	s.transfers, s.covered, s.hangs = false, false, false
	s.newCell, s.allLost, s.machines = false, false, 0
	s.volumes, s.places, s.squeeze, s.memBytes = false, false, false, 0
	s.follows, s.private = false, false
}

// Aims are all there are.
var Aims = []Aim{
	{"churn", "many jobs, few faults: the rules of the cell", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 1})
		s.tight, s.machineMilli, s.thinkNs, s.jobs = false, 8000, 30*millisecond, 3
	}},
	{"tight", "machines that are full: who may use which room", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 1})
		s.tight, s.machineMilli, s.thinkNs, s.jobs = true, 1000, 30*millisecond, 5
	}},
	{"crowded", "machines that are full, with devices and taints: who may be placed where", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 2})
		s.tight, s.rich, s.machineMilli, s.thinkNs, s.jobs = true, true, 2000, 30*millisecond, 5
	}},
	{"tainted", "machines with devices and taints, and room for all", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.rich, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, false, 12000, 30*millisecond, 4
	}},
	{"limited", "jobs that limit themselves by an attribute, and packages that are banned", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.rich, s.tight, s.machineMilli, s.thinkNs, s.jobs, s.everyNs = true, true, 4000, 20*millisecond, 6, 60*millisecond
	}},
	{"budgets", "jobs with disruption budgets, on machines that are emptied again and again", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 1})
		s.budgets, s.drainsPercent, s.jobs = true, 40, 4
		s.tight, s.machineMilli, s.thinkNs, s.everyNs = false, 3000, 60*millisecond, second
	}},
	{"labels", "labels that are changed and ruled", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, crashReplica: 1})
		s.labels, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, false, 8000, 20*millisecond, 3
	}},
	{"bands", "jobs of many priorities on machines that are full, and bands that collapse and do not", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 1})
		s.bands, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, true, 1500, 20*millisecond, 5
	}},
	{"quotas", "quotas that are granted, enforced, passed and taken back", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, crashReplica: 1})
		s.quotas, s.rich, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, true, false, 8000, 20*millisecond, 3
	}},
	{"kinds", "cron and daemon jobs, clocks that step, machines that come to match or no longer do, and masters that follow one another", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{passTime: 6, stepWallClock: 2, crashReplica: 1, killBorglet: 1})
		s.kinds, s.tight, s.machineMilli, s.thinkNs, s.jobs, s.everyNs, s.electedNs = true, false, 8000, 20*millisecond, 2, 100*millisecond, 1500*millisecond
	}},
	{"late-slots", "what a master says of slots of cron jobs is proposed late, perhaps when it is elected again", 15 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{passTime: 1})
		s.kinds, s.tight, s.machineMilli, s.thinkNs, s.jobs, s.everyNs = true, false, 8000, 100*millisecond, 2, 200*millisecond
		s.electedNs, s.electedKinds, s.dutyLateNs = 700*millisecond, []faultKind{pauseReplica}, 4*second
	}},
	{"followers", "jobs that start after others, which finish, fail and are killed", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, crashReplica: 1, killScheduler: 1})
		s.follows, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, false, 8000, 20*millisecond, 3
	}},
	{"private", "users who watch while the policy of visibility is private, and changes, as do groups and labels", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 2, pauseReplica: 1, killBorglet: 1})
		s.private, s.tight, s.machineMilli, s.thinkNs, s.jobs, s.watchers = true, false, 8000, 20*millisecond, 3, 15
	}},
	{"quarantine", "copies that are put in quarantine and let go, on machines that come and go", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, crashReplica: 1, killScheduler: 1})
		s.quarantine, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, false, 8000, 20*millisecond, 3
	}},
	{"crashes", "tasks that crash again and again, on few machines that have room and are emptied now and then", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, crashReplica: 1, killScheduler: 1})
		s.failures, s.machines, s.drainsPercent, s.tight, s.machineMilli, s.thinkNs, s.jobs = 100, 8, 10, false, 12000, 20*millisecond, 3
	}},
	{"crashing-services", "services that crash again and again, on one machine or wherever they are, and machines that are emptied now and then", 20 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, crashReplica: 1, killScheduler: 1})
		s.crashServices, s.machines, s.drainsPercent, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, 8, -4, false, 12000, 600*millisecond, 3
	}},
	{"savers", "alloc sets with savers that come, change and go, on machines that are emptied and lost", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 2, killScheduler: 1, cutMachine: 1, loseMachine: 1})
		s.savers, s.budgets, s.drainsPercent, s.tight = true, true, 30, false
		s.machineMilli, s.thinkNs, s.jobs, s.everyNs = 8000, 40*millisecond, 3, second
	}},
	{"volumes", "jobs with volumes that come, change and go, volumes that are deleted, and machines that are emptied and lost", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 2, killScheduler: 1, cutMachine: 1, loseMachine: 1, crashReplica: 1})
		s.volumes, s.drainsPercent, s.tight = true, 10, false
		s.machineMilli, s.thinkNs, s.jobs, s.everyNs = 8000, 30*millisecond, 2, second
	}},
	{"places", "alloc sets with volumes and networks, jobs in them and jobs with networks and cores of their own, on machines that are emptied and lost", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 2, killScheduler: 1, cutMachine: 1, loseMachine: 1, crashReplica: 1})
		s.places, s.drainsPercent, s.tight = true, 5, false
		s.machineMilli, s.thinkNs, s.jobs, s.everyNs = 16000, 30*millisecond, 2, second
	}},
	{"giving-way", "jobs that give way again and again, and a scheduler that spares those who did often", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1})
		s.bands, s.tight, s.machineMilli, s.thinkNs, s.jobs, s.everyNs = true, true, 1500, 15*millisecond, 6, 2*second
	}},
	{"updates", "jobs that are updated again and again, to good versions and bad ones", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 1})
		s.updates, s.jobs = true, 2
		s.tight, s.machineMilli, s.thinkNs, s.everyNs = false, 6000, 60*millisecond, second
	}},
	{"schedulers", "schedulers that are killed with placements under way", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.everyNs, s.thinkNs = 60*millisecond, 30*millisecond
	}},
	{"retry", "messages are lost, doubled and late: all is said again", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 2, pauseReplica: 1})
		s.lossPermille, s.dupPermille, s.latePermille, s.lateNs = 100, 50, 100, 2*second
		s.everyNs, s.thinkNs, s.electedNs = 500*millisecond, 40*millisecond, 2*second
	}},
	{"unsynced", "replicas lose what was not synced, all at once too", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 4, powerLoss: 2})
		s.keep, s.everyNs, s.thinkNs, s.flushNs = []int{keepSynced}, 400*millisecond, 30*millisecond, 100*millisecond
		s.tailEntries = 16
	}},
	{"short-log", "replicas crash, and keep no more of their logs than they must", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 4, powerLoss: 1})
		s.keep, s.everyNs, s.thinkNs, s.flushNs, s.tailEntries = []int{keepAll}, 400*millisecond, 10*millisecond, 20*millisecond, 1
	}},
	{"stalls", "all replicas lose their power while disks are slow", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{powerLoss: 1})
		s.keep, s.everyNs, s.thinkNs, s.stallPermille, s.backNs = []int{keepSynced}, 500*millisecond, 20*millisecond, 150, 100*millisecond
	}},
	{"torn", "replicas lose a part of what was not synced", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 4, powerLoss: 2})
		s.keep, s.everyNs, s.thinkNs, s.flushNs = []int{keepTorn}, 400*millisecond, 30*millisecond, 50*millisecond
	}},
	{"partition", "the network is split and replicas stop: who is elected is not always who thinks so", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{partition: 1, cutOneWay: 1})
		s.everyNs, s.cutNs, s.thinkNs, s.electedNs = 700*millisecond, second, 20*millisecond, 0
		s.driftPPM = 250_000
	}},
	{"stopped", "the elected replica is stopped and cut off, and does not know that another was elected", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{pauseReplica: 1})
		s.everyNs, s.thinkNs, s.electedNs, s.cutStopped = 800*millisecond, 20*millisecond, 0, true
	}},
	{"votes", "elections with replicas that crash between them", 20 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{powerLoss: 1, aimedCrash: 3})
		s.points = []string{newerTerm}
		s.keep, s.everyNs, s.backNs, s.electedNs, s.thinkNs = []int{keepSynced}, 120*millisecond, 30*millisecond, 0, second
		s.latePermille, s.lateNs = 250, 150*millisecond
	}},
	{"conflict", "logs that differ, and crashes soon after", 20 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{partition: 3, cutOneWay: 3, aimedCrash: 4})
		s.points = []string{replacedEntries}
		s.keep, s.everyNs, s.cutNs, s.electedNs = []int{keepAll}, 200*millisecond, 500*millisecond, 0
		s.thinkNs, s.tailEntries, s.flushNs = 20*millisecond, 1000, second
	}},
	{"borglet-restart", "borglets are killed and machines lost again and again", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 8, loseMachine: 4})
		// Copies live long enough to be there when their machine is back.
		s.everyNs, s.lostNs, s.thinkNs = 60*millisecond, 2*second, 800*millisecond
		s.tight, s.machineMilli = false, 12000
	}},
	{"mishaps", "shims are killed while they make containers, cgroups are not let go at once, and borglets are killed", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1})
		s.mishaps, s.tight, s.machineMilli, s.thinkNs, s.jobs = true, false, 12000, 50*millisecond, 4
	}},
	{"unkept-end", "borglets are killed when they have heard that a copy is over", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{aimedCrash: 1})
		s.points, s.everyNs, s.thinkNs = []string{saidNotKept}, 50*millisecond, 20*millisecond
	}},
	{"stale-replica", "borglets are killed while orders of replicas that are behind are under way", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 6, pauseReplica: 1})
		s.lateOrderPermille, s.lateOrderNs = 300, 3*second
		s.everyNs, s.lostNs, s.thinkNs, s.jobs = 60*millisecond, 2*second, 30*millisecond, 3
	}},
	{"cut-machine", "machines that some replicas reach and others do not, for long", 60 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{cutMachine: 1})
		s.everyNs, s.cutNs, s.electedNs, s.thinkNs = 2*second, 40*second, 0, 10*second
		s.tight, s.machineMilli = false, 8000
	}},
	{"outage", "machines are away for long, and come back", 90 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{cutMachine: 4, loseMany: 1})
		s.manyLostNs = 90 * second
		s.everyNs, s.cutNs, s.lostNs, s.electedNs, s.thinkNs, s.declareNs = 3*second, 40*second, 60*second, 0, 30*second, 30*second
		s.tight, s.machineMilli, s.jobs, s.lasting = true, 1500, 5, true
	}},
	{"outage-flap", "most machines are away for long, and masters follow one another meanwhile", 90 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{loseMany: 1})
		s.everyNs, s.manyLostNs, s.lostNs, s.electedNs, s.thinkNs = 40*second, 90*second, 60*second, 8*second, 30*second
		s.tight, s.machineMilli, s.jobs, s.lasting = true, 1500, 3, true
	}},
	{"full-outage", "machines of a full cell are away for long: what ran there waits for them", 90 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{cutMachine: 1})
		s.everyNs, s.cutNs, s.electedNs, s.thinkNs = 2*second, 20*second, 0, 2*second
		s.tight, s.machineMilli, s.jobs, s.lasting = true, 500, 8, true
	}},
	{"leader-flap", "masters follow one another, or there is none for a while, with machines away", 60 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{cutMachine: 6, partition: 1})
		s.everyNs, s.cutNs, s.electedNs, s.thinkNs, s.apart = 2*second, 40*second, 12*second, 10*second, true
	}},
	{"new-cell", "all machines of a cell come at once, when replicas share them already", 9 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.machines, s.newCell = 5*second, 0, 2*second, newMachines, true
		s.tight, s.machineMilli, s.jobs = false, 4000, 2
	}},
	{"returns", "all machines are away for long and come back together, and some are connected to in vain at first", 52 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.machines, s.allLost = 10*second, 0, 5*second, manyMachines, true
		s.tight, s.machineMilli, s.jobs, s.lasting = false, 4000, 2, true
	}},
	{"transfers", "replicas hand over to one another again and again, and nothing else is wrong", 6 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.transfers = 5*second, 0, 40*millisecond, true
		s.tight, s.machineMilli, s.jobs = false, 8000, 2
	}},
	{"shares", "replicas crash and come back, and share the machines anew", 20 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.backNs, s.covered = 7*second, 9*second, second, 9*second, true
		s.electedKinds, s.keep = []faultKind{crashReplica}, []int{keepAll}
		s.tight, s.machineMilli, s.jobs, s.machines = false, 4000, 2, 24
	}},
	{"old-cells", "disks of replicas hang for long while all else of them works", 30 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{hangDisk: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.hangs = 5*second, 0, 200*millisecond, true
		s.tight, s.machineMilli, s.jobs = false, 8000, 2
	}},
	{"hosts", "the elected master dies, and a machine with it that it polled", 60 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.hostNs = 10*second, 0, 5*second, 15*second
		s.tight, s.machineMilli, s.jobs, s.lasting = false, 4000, 2, true
	}},
	{"strangers", "clients ask for what is not theirs, go on when they were revoked, and forge messages of raft", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.thinkNs, s.trespassPermille, s.revokeNs, s.forgeNs, s.filesPermille = 30*millisecond, 200, 4*second, 300*millisecond, 100
	}},
	{"files", "users and their tasks write the same few files, and masters follow one another", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 1, killBorglet: 1})
		s.thinkNs, s.filesPermille, s.electedNs = 30*millisecond, 500, 3*second
		s.tight, s.machineMilli = false, 8000
	}},
	{"watchers", "clients that watch and stall, replicas that forget soon what changed, and masters that follow one another", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 2, pauseReplica: 3, partition: 2})
		s.keep, s.tailEntries, s.flushNs = []int{keepAll}, 1, 20*millisecond
		s.everyNs, s.cutNs, s.electedNs, s.thinkNs = 400*millisecond, second, 2*second, 20*millisecond
		s.tight, s.machineMilli, s.jobs, s.watchers = false, 8000, 3, 10
	}},
	{"restored", "all disks are lost while tasks come and go, and a checkpoint of before is restored", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 2, loseMachine: 1})
		s.tight, s.machineMilli, s.jobs, s.thinkNs, s.lostNs = false, 12000, 4, 100*millisecond, 2*second
		s.checkpointNs = 4 * second
	}},
	{"reclaimed", "machines that are full by limits and not by what is used, and masters follow one another", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.reclaims, s.tight, s.machineMilli, s.thinkNs, s.jobs, s.electedNs = true, true, 1500, 200*millisecond, 4, 3*second
	}},
	{"squeezed", "machines that are short of memory, with tasks that use more now and less then", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killBorglet: 1, killScheduler: 1})
		s.reclaims, s.squeeze, s.memBytes = true, true, squeezedMemBytes
		s.tight, s.machineMilli, s.thinkNs, s.jobs, s.machines, s.everyNs = true, 12000, 500*millisecond, 10, 3, second
	}},
	{"flood", "one user asks for ten times what the log can do, and the tasks of a job do nothing but crash", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.tight, s.machineMilli, s.thinkNs, s.jobs, s.electedNs = false, 12000, 100*millisecond, 3, 0
		s.floodPerS, s.applyNs, s.floodAlone, s.stormTasks = 2_000, 5*millisecond, true, 400
	}},
	{"crowd", "many users ask for much each, and one who asks for little comes and goes", 9 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.tight, s.machineMilli, s.thinkNs, s.jobs, s.electedNs = false, 12000, 100*millisecond, 3, 0
		s.crowd, s.syncNs, s.applyNs, s.floodAlone = true, 15*millisecond, 50*microsecond, true
	}},
	{"lists", "one user lists without end", 8 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{killScheduler: 1})
		s.tight, s.machineMilli, s.thinkNs, s.jobs, s.electedNs = false, 12000, 100*millisecond, 3, 0
		s.lists, s.applyNs, s.floodAlone = true, 5*millisecond, true
	}},
	{"members", "replicas are replaced, added and taken out, while others are away", 15 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 3, powerLoss: 1, pauseReplica: 1, partition: 1})
		s.keep, s.everyNs, s.backNs, s.cutNs, s.electedNs = []int{keepSynced}, 500*millisecond, 6*second, 3*second, 3*second
		s.thinkNs, s.tailEntries, s.flushNs, s.membersNs = 50*millisecond, 16, 100*millisecond, 700*millisecond
	}},
	{"hung-disks", "disks of replicas hang, most often that of the elected one", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{hangDisk: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.electedKinds = second, 2*second, 30*millisecond, []faultKind{hangDisk}
	}},
	{"full-disks", "disks of replicas are full, or fail now and then, and logs are short", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{fullDisk: 2, writeErrors: 4, crashReplica: 1})
		s.keep, s.everyNs, s.thinkNs, s.flushNs, s.tailEntries = []int{keepAll}, 300*millisecond, 10*millisecond, 50*millisecond, 1
	}},
	{"slow-checkpoints", "checkpoints are longer on their way than logs are kept", 15 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.flushNs, s.tailEntries = 4*second, 0, 5*millisecond, 20*millisecond, 1
		s.backNs, s.checkpointLateNs = second, 800*millisecond
	}},
	{"refused-checkpoints", "replicas that crashed take no checkpoint for a while, and logs are short", 10 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{crashReplica: 1, refuseCheckpoints: 3})
		s.everyNs, s.electedNs, s.thinkNs, s.flushNs, s.tailEntries = 400*millisecond, 0, 10*millisecond, 20*millisecond, 1
	}},
	{"no-majority", "the disks of all but the elected replica hang: it is heard, and nothing is confirmed", 12 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{hangFollowers: 1})
		s.everyNs, s.electedNs, s.thinkNs, s.uncommittedBytes = 3*second, 0, 5*millisecond, 1<<10
	}},
	{SweepAim, "nothing fails but one disk, and replicas are replaced: every write is to fail once", 30 * second, func(s *swarm) {
		s.calm()
		s.only(nil)
		s.electedNs, s.thinkNs, s.flushNs, s.tailEntries, s.tight, s.machineMilli = 0, 800*millisecond, 300*millisecond, 64, false, 12000
		s.membersNs, s.replaceOnly = 2*second, true
	}},
	{"late-duties", "what a master decides is proposed late, perhaps when it is elected again", 60 * second, func(s *swarm) {
		s.calm()
		s.only(map[faultKind]int{cutMachine: 1})
		s.everyNs, s.cutNs, s.thinkNs = 1500*millisecond, 40*second, 20*second
		s.electedFromNs, s.electedNs, s.electedKinds = 22*second, 2*second, []faultKind{pauseReplica}
		s.dutyLateNs = 40 * second
	}},
}

// FindAim returns the aim of that name.
func FindAim(name string) (Aim, error) {
	i := slices.IndexFunc(Aims, func(a Aim) bool { return a.Name == name })
	if i < 0 {
		var names []string
		for _, a := range Aims {
			names = append(names, a.Name)
		}
		return Aim{}, fmt.Errorf("aim %q is not known; there are %s", name, strings.Join(names, ", "))
	}
	return Aims[i], nil
}

// shape bends what a seed is made of towards an aim, which is known by its
// name; empty: none.
func shape(aim string, s *swarm) error {
	if aim == "" {
		return nil
	}
	a, err := FindAim(aim)
	if err == nil {
		a.shape(s)
	}
	return err
}
