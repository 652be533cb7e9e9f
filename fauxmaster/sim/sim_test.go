package sim

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/borgmaster/replica"
	"borg/fauxmaster/pretend"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler"
)

// TestSeeds runs some seeds; each that fails says how to see it again. A third
// of what 30 s must bring is asked of 10 s.
func TestSeeds(t *testing.T) {
	const lengthNs = 10 * second
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	marks := map[string]int{}
	for seed := uint64(1); seed <= seeds; seed++ {
		r := Run(Config{Seed: seed, DurationNs: lengthNs})
		if r.Violation != nil {
			t.Errorf("seed %d: %v\n\tsee it with: %s", seed, r.Violation, r.Command(lengthNs))
			continue
		}
		if r.Acknowledged < 500/3 || r.Reads == 0 || r.Started < 100/3 || r.Elections == 0 {
			t.Errorf("seed %d: %d mutations, %d reads, %d processes, %d elections: too little happened",
				seed, r.Acknowledged, r.Reads, r.Started, r.Elections)
		}
		for name, n := range r.Marks {
			marks[name] += n
		}
	}
	if testing.Short() {
		return
	}
	// What so few seeds come to all the same.
	for _, name := range []string{
		"checkpoint installed", "stale fence refused", "retry answered from memory", "borglet took over copies",
		"replica ended for its disk", "task in an alloc", "digest logged",
	} {
		if marks[name] == 0 {
			t.Errorf("no seed came to: %s", name)
		}
	}
}

// TestStrangers: who asks for what is not his is refused, and all that is there to
// be refused comes.
func TestStrangers(t *testing.T) {
	comesTo(t, "strangers", 2, 6*second, "trespass refused", "revoked caller refused", "logged in again", "forged message refused")
}

// comesTo runs seeds of an aim until they have come to all marks, and fails if that takes more
// seeds than it may, or if one shows a violation. A short run has one seed, which need not come to
// all of them.
func comesTo(t *testing.T, aim string, seeds uint64, durationNs int64, marks ...string) {
	t.Helper()
	if testing.Short() {
		seeds, marks = 1, nil
	}
	came := map[string]int{}
	missing := func(mark string) bool { return came[mark] == 0 }
	for seed := uint64(1); seed == 1 || seed <= seeds && slices.ContainsFunc(marks, missing); seed++ {
		r := Run(Config{Seed: seed, DurationNs: durationNs, Aim: aim})
		if r.Violation != nil {
			t.Errorf("seed %d: %v; run it again: fauxmaster faults --seed %d --aim %s --duration %ds", seed, r.Violation, seed, aim, durationNs/second)
		}
		for mark, n := range r.Marks {
			came[mark] += n
		}
	}
	for _, mark := range slices.DeleteFunc(marks, func(m string) bool { return !missing(m) }) {
		t.Errorf("none of %d seeds came to: %s", seeds, mark)
	}
}

// TestLabels: labels are changed and ruled.
func TestLabels(t *testing.T) {
	comesTo(t, "labels", 2, 8*second, "label refused by a rule", "labels changed alone", "rules for labels changed")
}

// TestQuotas: quotas are granted, enforced, passed and taken back.
func TestQuotas(t *testing.T) {
	comesTo(t, "quotas", 3, 8*second, "refused for want of quota", "quotas enforced or not", "quota granted", "let in by quota")
}

// TestBands: jobs of many priorities take each other's places, and bands collapse.
func TestBands(t *testing.T) {
	comesTo(t, "bands", 8, 8*second, "bands collapse", "gave way within a band", "victim told ahead")
}

// TestQuarantines: copies are put in quarantine and let go.
func TestQuarantines(t *testing.T) {
	comesTo(t, "quarantine", 3, 8*second, "quarantine begun", "placed with a copy in quarantine")
}

// TestCrashes: tasks crash again and again, and go elsewhere.
func TestCrashes(t *testing.T) {
	comesTo(t, "crashes", 2, 8*second, "kept away from where it crashed")
}

// TestCrashingServices: services crash again and again, go elsewhere, and some crash there too
// or have to go back.
func TestCrashingServices(t *testing.T) {
	comesTo(t, "crashing-services", 2, 20*second, "service tried elsewhere", "crashes everywhere", "crashed there again", "crashes as a job")
}

// TestFollowers: jobs start after others, which finish and fail.
func TestFollowers(t *testing.T) {
	comesTo(t, "followers", 2, 8*second, "started after another job finished", "started after another job failed", "ended with the job before", "waits for a job that failed")
}

// TestPrivate: users watch while the policy of visibility is private, and changes.
func TestPrivate(t *testing.T) {
	comesTo(t, "private", 2, 8*second, "private policy set", "told of what is shared")
}

// TestSavers: alloc sets with savers come, change and go, on machines that are emptied and lost.
func TestSavers(t *testing.T) {
	comesTo(t, "savers", 2, 12*second, "alloc with a saver left", "what an alloc left is saved", "what an alloc left is given up")
}

// TestPlaces: alloc sets have volumes and networks, jobs networks and cores.
func TestPlaces(t *testing.T) {
	comesTo(t, "places", 2, 12*second, "alloc placed where its volume is", "placed where its volume is", "copies share an address", "cores of its own")
}

// TestVolumes: jobs with volumes come, change and go, and volumes are deleted.
func TestVolumes(t *testing.T) {
	comesTo(t, "volumes", 2, 12*second, "volume given up", "volume deleted", "placed where its volume is")
}

// TestGivingWay: tasks of jobs give way again and again, as often as they may.
func TestGivingWay(t *testing.T) {
	comesTo(t, "giving-way", 2, 8*second, "job spared")
}

// TestKinds: slots of cron jobs come while clocks step and masters follow one another, and
// machines come to match daemon jobs and no longer do.
func TestKinds(t *testing.T) {
	comesTo(t, "kinds", 4, 8*second, "slot of a cron job run", "slot of a cron job skipped", "slots of a cron job missed", "runs of a cron job overlap", "cron job run by hand", "hole in a daemon job")
}

// TestBudgets: machines are emptied again and again, and jobs have disruption budgets.
func TestBudgets(t *testing.T) {
	comesTo(t, "budgets", 4, 8*second, "task disturbed within its budget", "drain held back by nothing", "drain came to its deadline", "task moved", "machine cannot go for a budget", "task leaves a machine that can go")
}

// TestUpdates: jobs are updated again and again, to good versions and bad ones.
func TestUpdates(t *testing.T) {
	comesTo(t, "updates", 4, 8*second, "update with a policy", "task disturbed by an update with a policy", "update rolled back", "canary runs", "update with extra tasks", "extra task runs", "update spread over shelves", "gate let a batch go")
}

// TestRestored: all disks are lost, and a checkpoint of before is restored.
func TestRestored(t *testing.T) {
	comesTo(t, "restored", 3, 8*second, "all disks lost", "old checkpoint restored", "acknowledged and lost with the disks", "unknown job adopted")
}

// TestReclaimed: what production does not use is given to others, while masters
// follow one another.
func TestReclaimed(t *testing.T) {
	comesTo(t, "reclaimed", 10, 12*second, "reservation below the limit", "reservation rose", "reservation moved far", "placed in reclaimed resources")
}

// TestSqueezed: machines run short of memory, and somebody gives way.
func TestSqueezed(t *testing.T) {
	comesTo(t, "squeezed", 2, 6*second, "ended for want of memory")
}

// TestFlood: one user asks for ten times what the log can do, tasks crash, and others go on.
func TestFlood(t *testing.T) {
	r := Run(Config{Seed: 1, DurationNs: 6 * second, Aim: "flood"})
	if r.Violation != nil {
		t.Error(r.Violation)
	}
	for _, name := range []string{"flood turned away", "op refused for work budget", "answered beside a flood", "crash storm"} {
		if r.Marks[name] == 0 {
			t.Errorf("the seed did not come to: %s", name)
		}
	}
}

// TestCrowd: many users ask for much each, alone, beside one who asks for little, and when he
// does no more.
func TestCrowd(t *testing.T) {
	comesTo(t, "crowd", 1, 9*second, "crowd goes on", "window small beside a crowd", "answered beside a flood")
}

// TestLists: one user lists without end, and others go on.
func TestLists(t *testing.T) {
	comesTo(t, "lists", 1, 6*second, "listed beside many lists", "answered beside a flood")
}

// TestNewCell: all machines come at once, and all replicas share them.
func TestNewCell(t *testing.T) {
	comesTo(t, "new-cell", 3, 9*second, "gang placed")
}

// TestTransfers: replicas hand over to one another, and writes go on.
func TestTransfers(t *testing.T) {
	comesTo(t, "transfers", 1, 4*second, "election transferred")
}

// TestOldCells: replicas whose disks hang poll no machines.
func TestOldCells(t *testing.T) {
	comesTo(t, "old-cells", 1, 20*second, "replica with an old cell")
}

// TestShares: replicas crash, and all machines are polled.
func TestShares(t *testing.T) {
	comesTo(t, "shares", 1, 12*second, "all that is there is polled")
}

// TestReturns: all machines come back at once, and none of them is called down.
func TestReturns(t *testing.T) {
	comesTo(t, "returns", 1, 52*second, "all machines lost", "back and not heard", "no machine answers a replica")
}

// TestMembers: replicas are replaced, added and taken out while others are away.
func TestMembers(t *testing.T) {
	comesTo(t, "members", 6, 10*second, "member joined", "member given its vote", "member taken out", "change of members refused", "election transferred", "disk lost")
}

// TestDisks: disks hang, are full, and take no checkpoint, and what is not confirmed
// has a bound.
func TestDisks(t *testing.T) {
	if testing.Short() {
		t.Skip("runs ten cells: make e2e")
	}
	for aim, mark := range map[string]string{
		"hung-disks": "disk hangs", "no-majority": "appended as much as may be", "refused-checkpoints": "checkpoint refused",
		"slow-checkpoints": "checkpoint installed", "full-disks": "replica ended for its disk",
	} {
		came := 0
		for seed := uint64(1); seed <= 2; seed++ {
			r := Run(Config{Seed: seed, DurationNs: 10 * second, Aim: aim})
			if r.Violation != nil {
				t.Errorf("aim %s, seed %d: %v", aim, seed, r.Violation)
			}
			came += r.Marks[mark]
		}
		if came == 0 {
			t.Errorf("aim %s did not come to: %s", aim, mark)
		}
	}
}

// TestFiles: users and tasks write the same few files while masters follow one
// another.
func TestFiles(t *testing.T) {
	r := Run(Config{Seed: 1, DurationNs: 4 * second, Aim: "files"})
	if r.Violation != nil {
		t.Error(r.Violation)
	}
	for _, name := range []string{"file was of another version", "file written by a task", "trespass refused"} {
		if r.Marks[name] == 0 {
			t.Errorf("the seed did not come to: %s", name)
		}
	}
	if r.History.Unknown > 0 {
		t.Errorf("histories: %+v", r.History)
	}
}

// TestMarks: whoever counts a state that is not in the list hears of it.
func TestMarks(t *testing.T) {
	for _, name := range RequiredMarks() {
		if _, ok := Marks[name]; !ok {
			t.Errorf("%q is required and not in the list", name)
		}
	}
	for name := range notRequired {
		if _, ok := Marks[name]; !ok {
			t.Errorf("%q is not required, and not in the list", name)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("an unknown mark was counted")
		}
	}()
	(&World{marks: map[string]int{}}).mark("nothing of the kind")
}

// TestRegressions runs seeds that once showed a fault of ours. What each showed
// has a test of its own beside the fault: a seed becomes another run when the
// simulator changes.
func TestRegressions(t *testing.T) {
	for _, c := range []struct {
		seed     uint64
		lengthNs int64
		showed   string
	}{
		{5017, 30 * second, "a borglet said that a copy had ended, was lost before it wrote so, and started it again (borglet/testdata/core/end_is_kept_first.txt)"},
		{1136, 30 * second, "limits that changed while a poll was out were not sent, since the machine rested on the orders of before (borgmaster/linkshard, TestRestsOnlyOnOrdersOfNow)"},
		{1875, 30 * second, "of two replicas one was taken out, and the other one lost power before it had written that this was committed: nobody could be elected (borgmaster/replica/testdata/core/removal)"},
	} {
		if r := Run(Config{Seed: c.seed, DurationNs: c.lengthNs}); r.Violation != nil {
			t.Errorf("seed %d: %v\n\tonce showed: %s\n\tsee it with: %s", c.seed, r.Violation, c.showed, r.Command(c.lengthNs))
		}
	}
}

// TestReplay makes the same runs twice, with other numbers of processors: every
// event must come again.
func TestReplay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, seed := range []uint64{2, 3, 311} {
		runtime.GOMAXPROCS(runtime.NumCPU())
		first := Run(Config{Seed: seed, DurationNs: 6 * second})
		runtime.GOMAXPROCS(1)
		again := Run(Config{Seed: seed, DurationNs: 6 * second})
		if first.Hash != again.Hash || first.Events != again.Events {
			t.Errorf("seed %d: hash %x after %d events, then %x after %d", seed, first.Hash, first.Events, again.Hash, again.Events)
		}
	}
}

// TestWithout: what is left out does not come, and all else stays as it was drawn.
func TestWithout(t *testing.T) {
	cfg := Config{Seed: 8, DurationNs: 6 * second}
	all := Run(cfg)
	if len(all.Faults) < 3 {
		t.Fatalf("%d faults in %+v", len(all.Faults), cfg)
	}
	var lines strings.Builder
	cfg.Without, cfg.WithoutClients, cfg.Trace = []int{0, 2}, []int{1, 3}, &lines
	some := Run(cfg)
	if all.Violation != nil || some.Violation != nil || len(some.Faults) != len(all.Faults) {
		t.Fatalf("%v with %d faults, and %v with %d", all.Violation, len(all.Faults), some.Violation, len(some.Faults))
	}
	for i, was := range all.Faults {
		at, _, _ := strings.Cut(was, ": ")
		now, what, _ := strings.Cut(some.Faults[i], ": ")
		if at != now || (what == "left out") != (i == 0 || i == 2) {
			t.Errorf("fault %d was %q and is %q", i, was, some.Faults[i])
		}
	}
	for client, there := range map[string]bool{"c00": true, "c01": false, "c02": true, "c03": false} {
		if strings.Contains(lines.String(), "client "+client+" asks") != there {
			t.Errorf("client %s asks for something: %v", client, !there)
		}
	}
}

// TestTrace: a trace says what happened, and does not change it.
func TestTrace(t *testing.T) {
	var lines strings.Builder
	traced := Run(Config{Seed: 4, DurationNs: 2 * second, Trace: &lines})
	if silent := Run(Config{Seed: 4, DurationNs: 2 * second}); silent.Hash != traced.Hash {
		t.Errorf("hash %x without a trace and %x with one", silent.Hash, traced.Hash)
	}
	for _, want := range []string{"is elected in term", "client ", "polls m", "runs as pid", "healed", "settled at index"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the trace does not say %q", want)
		}
	}
}

// TestCheckers breaks what must hold by hand: a checker that never speaks is
// worth nothing.
func TestCheckers(t *testing.T) {
	fresh := func() *World {
		w := &World{marks: map[string]int{}}
		w.truth, w.failover = newTruth(w), newFailover(w)
		return w
	}
	tooOld := &borgpb.Result{Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD}}
	for want, breakIt := range map[string]func(w *World){
		"S1":  func(w *World) { w.truth.elected(1, 7); w.truth.elected(2, 7) },
		"S1 ": func(w *World) { w.truth.elected(1, 7); w.truth.follows(3, replica.CoreState{Elected: 2, Term: 7}) },
		"S4":  func(w *World) { w.truth.answered(addMachine("x"), done(9)) },
		"S4 ": func(w *World) { w.truth.forgotten(borgmaster.CommittedEntry{Index: 9}, addMachine("x"), tooOld) },
		"S4  ": func(w *World) {
			op := addMachine("x")
			op.RequestWallNs = -20 * 60 * second
			w.truth.done["x"] = doneAt{index: 3, times: 1, wallNs: -10 * 60 * second}
			w.truth.forgotten(borgmaster.CommittedEntry{Index: 9}, op, tooOld)
		},
		"S5": func(w *World) {
			r := &replicaNode{w: w, cell: w.truth.cell}
			w.truth.read(r, 5)
		},
		"S21": func(w *World) {
			w.truth.asked["x"] = asking{caller: caller{name: identity.Name{Role: identity.User, ID: "u1"}}}
			op := addMachine("x")
			op.Principal = &borgpb.Principal{User: "u1", Role: borgpb.Role_ROLE_USER}
			w.truth.owned(op, []string{"u0"})
		},
		"S21 ": func(w *World) {
			u2 := caller{name: identity.Name{Role: identity.User, ID: "u2"}, issuedNs: 3}
			w.truth.revoked["u2"] = revocation{atNs: 10, wallNs: 3}
			w.truth.showed(u2, 11)
		},
		"S21  ": func(w *World) {
			w.truth.asked["x"] = asking{caller: caller{name: identity.Name{Role: identity.Task, ID: "u0/j/0"}}}
			op := writeFile("x", nil)
			op.Principal = &borgpb.Principal{User: "u0", Role: borgpb.Role_ROLE_TASK, Task: "u0/j/0"}
			w.truth.owned(op, []string{"u0"})
		},
		"S22": func(w *World) {
			w.truth.fileDone(writeFile("x", nil), &borgpb.Result{Version: 3})
			w.truth.fileDone(writeFile("y", new(uint64(2))), &borgpb.Result{Version: 4})
		},
		"S22 ": func(w *World) {
			w.truth.fileDone(writeFile("x", nil), &borgpb.Result{Version: 3})
			w.truth.fileDone(writeFile("y", nil), &borgpb.Result{Version: 3})
		},
		"S27": func(w *World) {
			w.truth.lanes(borgmaster.CommittedEntry{}, []*borgpb.Op{{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_USER}}, {Principal: ownOp()}})
		},
		"S27 ": func(w *World) {
			for range 4*mostOfAStorm + 1 {
				w.truth.crashed(&borgpb.TaskReport{State: int32(borgpb.AttemptState_ATTEMPT_STATE_FAILED)})
			}
		},
		"S36": func(w *World) {
			w.truth.keptEpoch, w.truth.kept = w.truth.cell.Epoch(), kept{{Index: 1}: 5}
			w.truth.quarantines(borgmaster.CommittedEntry{}, nil)
		},
		"S37": func(w *World) {
			w.swarm.savers = true
			w.truth.saving = saversModel{epoch: w.truth.cell.Epoch(), left: map[cell.UID]leaving{{}: {}}}
			w.truth.saves(borgmaster.CommittedEntry{}, nil)
		},
		"S39": func(w *World) {
			at := volumeAt{borglet.VolumeID{User: "u", Job: "j", Name: "data"}, "m"}
			w.truth.volume.kept = map[volumeAt]bool{at: true}
			w.truth.volumeEvent(borgmaster.CommittedEntry{}, &cell.Event{
				Kind: borgpb.EventKind_EVENT_KIND_VOLUME_GONE, Name: "u/j/0/data", Key: cell.JobKey{User: "u", Name: "j"}, Machine: "m",
			})
		},
		"S40": func(w *World) {
			// Of a copy that runs, and has one thread of a core.
			w.truth.coreHeld("m", borglet.ID{}, []cell.DeviceGrant{{Name: borgpb.ExclusiveCPU, Number: 1}}, map[uint32]borglet.ID{})
		},
		"S41": func(w *World) {
			m := addressModel{}
			m.holds(w, "u/j/0", "m", "10.0.0.1")
			m.holds(w, "u/j/1", "m", "10.0.0.1")
		},
		"S38": func(w *World) { w.truth.spares(&cell.Event{}, 110, churnMost+1) },
		"S32": func(w *World) {
			w.truth.labelled.policy = labelPolicies[2]
			w.swarm.labels = true
			w.truth.labelsBy(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "j"}}}, nil)
		},
		"S32 ": func(w *World) {
			w.truth.labelsBy(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "j"}}}, &borgpb.Refusal{Field: "labels"})
		},
		"S29": func(w *World) {
			w.truth.saleHolds(bandOf{"u", borgpb.Band_BAND_PRODUCTION}, grantOf{amounts: amounts{"cpu": 1 << 40}}, nil)
		},
		"S29 ": func(w *World) {
			w.truth.quota.enforced = true
			w.truth.quotaHolds(&quotaEntry{refused: []*borgpb.SubmitJob{{User: "u", Name: "j", Spec: encode(&borgpb.JobSpec{Tasks: 1})}}})
		},
		"S28": func(w *World) {
			w.truth.asks(1, &borgrpc.PollRequest{Machine: "m"}, &borgrpc.PollRequest{Machine: "m", Stops: []*borgrpc.Stop{{}}})
		},
		"S44": func(w *World) { w.truth.bareGoes([]scheduler.DrainVerdict{{Machine: "m"}}) },
		"S45": func(w *World) {
			w.truth.squeezed(&machine{}, squeezeOf([]int32{200, 100}, 0))
		},
		"S45 ": func(w *World) {
			w.truth.squeezed(&machine{}, squeezeOf([]int32{100, 50, 50}, 0, 1))
		},
		"S45  ": func(w *World) { w.truth.squeezed(&machine{}, squeezeOf([]int32{100, 50})) },
		"S45   ": func(w *World) {
			s := squeezeOf([]int32{100, 50}, 0, 1)
			s.Was.RoomBytes = 10
			w.truth.squeezed(&machine{}, s)
		},
		"S43": func(w *World) {
			w.truth.movedFar(1, []moving{{was: cell.Resources{CPUMilli: 1000, MemBytes: 1 << 30}, to: &borgpb.TaskReservation{CpuMilli: 950, MemBytes: 1<<30 - 1<<20}}})
		},
		"L8": func(w *World) {
			w.swarm.floodAlone, w.now = true, 9*second
			w.beside("x", 8*second, nil)
		},
		"L8 ": func(w *World) {
			w.swarm.floodAlone, w.now = true, 9*second
			w.beside("x", 9*second, errTooMuch{&admission.Refusal{}})
		},
		"L8  ":   func(w *World) { w.crowdGot("alone", 1000) },
		"L8   ":  func(w *World) { w.now = 9 * second; w.listed(8*second, nil) },
		"L8    ": func(w *World) { w.listed(w.now, errTooMuch{&admission.Refusal{}}) },
		"L12": func(w *World) {
			w.swarm.transfers, w.wroteNs, w.now = true, second, second+transferGapNs+1
			w.wrote()
		},
		"L13": func(w *World) {
			w.now = 9 * second
			w.stillPolled("m", second)
		},
		"L14": func(w *World) { w.asksBy(&replicaNode{id: 1}, "m", oldestCellNs+1) },
		"L11": func(w *World) {
			w.replicas = []*replicaNode{{id: 1}, {id: 2}}
			w.allShare([]uint64{1})
		},
		"S22  ": func(w *World) {
			w.truth.fileDone(writeFile("x", nil), &borgpb.Result{Version: 3})
			w.truth.filesAre()
		},
	} {
		w := fresh()
		breakIt(w)
		if w.failure == nil || !strings.Contains(w.failure.Error(), strings.TrimSpace(want)+":") {
			t.Errorf("%s is broken and the run says %v", want, w.failure)
		}
	}
}

// squeezeOf is a look at a machine that has room for one copy of those that use 10 bytes
// each, with such priorities, and ends some.
func squeezeOf(priorities []int32, ends ...int) (s pretend.Squeeze) {
	s.Was = borglet.Squeezed{RoomBytes: 10, CapacityBytes: 10}
	for i, p := range priorities {
		s.Shares = append(s.Shares, pretend.Share{ID: borglet.ID{Index: uint32(i)}, Desired: &borgrpc.Desired{Priority: p}, UsedBytes: 10, ReservedBytes: 10})
	}
	for _, i := range ends {
		s.Ends = append(s.Ends, s.Shares[i].ID)
	}
	return s
}

func addMachine(id string) *borgpb.Op {
	return &borgpb.Op{RequestId: id, Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: id}}}
}

func writeFile(id string, ifVersion *uint64) *borgpb.Op {
	return &borgpb.Op{RequestId: id, Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "u1", Name: "leader", IfVersion: ifVersion}}}
}

func done(index uint64) *borgpb.Result { return &borgpb.Result{Index: index} }
