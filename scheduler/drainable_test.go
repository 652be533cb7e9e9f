package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"

	"google.golang.org/protobuf/proto"
)

// TestDrainable takes the word of what can go in random cells: those machines are
// drained, and then all that ran there runs elsewhere, without anybody giving way and
// without a deadline. Where a single machine cannot go, its drain leaves something, or
// somebody waits.
func TestDrainable(t *testing.T) {
	first, last := moveSeeds(t, 150)
	seen := make(map[string]int)
	for seed := first; seed <= last; seed++ {
		r := rand.New(rand.NewPCG(seed, 9))
		w := tightCell(t, r, scheduler.RescheduleOff)
		w.startAll()
		w.settleAll(t)
		if problem := judged(t, w, r, seen); problem != "" {
			t.Fatalf("%s\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", problem, seed, t.Name())
		}
	}
	t.Logf("%v", seen)
	if seen["go"] < 20 || seen["held back"] < 20 || seen["no place"] < 20 {
		t.Errorf("too little of something: %v", seen)
	}
}

func judged(t *testing.T, w *world, r *rand.Rand, seen map[string]int) string {
	for m := range w.copy.Machines() {
		for _, v := range scheduler.JudgeDrain(w.s, w.copy, []string{m.Name()}) {
			if len(v.Holds) > 0 {
				seen["held back"]++
			}
			if len(v.Homeless) > 0 {
				seen["no place"]++
			}
		}
	}
	if problem := heldAlike(w.copy); problem != "" {
		return problem
	}
	found, all := w.s.Drainable(w.copy, nil, 1+r.IntN(3), nil)
	if !all {
		return "the search ended early"
	}
	var names []string
	for _, v := range found {
		names = append(names, v.Machine)
		if v.Tasks > 0 {
			seen["go"]++
		}
	}
	if again := scheduler.JudgeDrain(w.s, w.copy, names); slices.ContainsFunc(again, func(v scheduler.DrainVerdict) bool { return !v.Safe }) {
		return fmt.Sprintf("%v can go together, and cannot when they are named: %+v", names, again)
	}
	displaced := make(map[cell.TaskID]bool)
	for _, name := range names {
		for p := range w.cell.Machine(name).Copies() {
			if p.Current() {
				displaced[p.TaskID()] = true
			}
		}
		w.must(t, drainMachine(name, true))
		for p := range w.cell.Machine(name).Copies() {
			if p.Current() {
				return fmt.Sprintf("%s can go with %v, and %v is held back", name, names, p.TaskID())
			}
		}
	}
	for id := range displaced {
		// There is a place for each, over the others; who is placed first is the
		// scheduler's choice, so that only a task alone is sure of one.
		j := w.cell.Job(id.Job)
		if len(displaced) > 1 {
			break
		}
		if !slices.ContainsFunc(slices.Collect(w.cell.Machines()), func(m *cell.Machine) bool {
			return w.cell.Fit(&cell.Placement{Job: j, Index: id.Index, Machine: m, AnyPorts: true}, nil) == cell.FitOK
		}) {
			return fmt.Sprintf("%v was to have a place and has none", id)
		}
	}
	return ""
}

// TestNotDrainable names what stands in the way.
func TestNotDrainable(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	for _, name := range []string{"m0", "m1", "m2"} {
		w.must(t, addMachine(name, machineSpec(4000, 16<<30)))
	}
	web := service(3, 200, 1000, 1<<30)
	web.MaxPerMachine, web.DisruptionBudget = 1, &borgpb.DisruptionBudget{MaxDown: 1}
	w.must(t, submitJob("ann", "web", web))
	w.settleAll(t)
	// It is limited to one a machine, so that nobody has another place.
	w.startAll()
	got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0", "m1", "none"})
	if len(got) != 2 || got[0].Safe || len(got[0].Holds) != 0 || len(got[0].Homeless) != 1 || len(got[1].Holds) != 0 || len(got[1].Homeless) != 1 {
		t.Errorf("%+v, want none to have a place, and no budget to count one that stays", got)
	}
	w.must(t, addMachine("m3", machineSpec(4000, 16<<30)))
	w.catchUp()
	// Two machines together are too many.
	got = scheduler.JudgeDrain(w.s, w.copy, []string{"m0", "m1"})
	if len(got) != 2 || !got[0].Safe || got[1].Safe || len(got[1].Holds) != 1 || len(got[1].Homeless) != 1 {
		t.Errorf("%+v", got)
	}
	// A machine that is named twice leaves once: its tasks are counted once as going.
	twice := scheduler.JudgeDrain(w.s, w.copy, []string{"m0", "m1", "m0", "m0", "m1"})
	if !reflect.DeepEqual(twice, got) {
		t.Errorf("with names repeated: %+v, want %+v", twice, got)
	}
	if found, _ := w.s.Drainable(w.copy, nil, 4, nil); len(found) != 1 || found[0].Machine != "m3" {
		t.Errorf("%+v, want the empty one alone: all others need it", found)
	}
}

// TestStayersAreNotCountedOn: when a machine cannot go, the next one that is named is judged
// with all of the first still there. A place in a failure domain that only the first would
// have left is no place.
func TestStayersAreNotCountedOn(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	w.must(t, addMachine("m0", machineSpec(4000, 16<<30, "rack=a", "pin=yes", "small=yes")))
	w.must(t, addMachine("m1", machineSpec(4000, 16<<30, "rack=b", "large=yes")))
	web := service(2, 200, 1000, 1<<30)
	web.MaxPerRack = 1
	// Task 0 runs on m0 and may go to m3; task 1 runs on m1 and may go to m2.
	web.Task.Constraints = []*borgpb.Constraint{{Key: "small", Relation: borgpb.Relation_RELATION_PRESENT}}
	web.Overrides = []*borgpb.TaskOverride{{First: 1, Last: 1, Spec: &borgpb.TaskSpec{
		Constraints: []*borgpb.Constraint{{Key: "large", Relation: borgpb.Relation_RELATION_PRESENT}},
	}}}
	w.must(t, submitJob("ann", "web", web))
	pinned := service(1, 200, 1000, 1<<30)
	pinned.Task.Constraints = []*borgpb.Constraint{{Key: "pin", Relation: borgpb.Relation_RELATION_PRESENT}}
	w.must(t, submitJob("ann", "pinned", pinned))
	w.settleAll(t)
	w.startAll()
	w.must(t, addMachine("m2", machineSpec(4000, 16<<30, "rack=a", "large=yes")))
	w.must(t, addMachine("m3", machineSpec(4000, 16<<30, "rack=c", "small=yes")))
	w.catchUp()
	got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0", "m1"})
	if len(got) != 2 || !slices.Equal(got[0].Homeless, []string{"ann/pinned/0"}) || !slices.Equal(got[1].Homeless, []string{"ann/web/1"}) {
		t.Errorf("%+v, want m0 to stay for what is pinned to it, and the task of m1 to find rack a full", got)
	}
	// With nothing that keeps m0, both can go.
	w.must(t, addMachine("m4", machineSpec(4000, 16<<30, "pin=yes")))
	w.catchUp()
	if got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0", "m1"}); len(got) != 2 || !got[0].Safe || !got[1].Safe {
		t.Errorf("%+v, want both to go", got)
	}
}

// TestSaverHolds: a machine where something has yet to be saved cannot go, although its saver
// is still to come; as a drain would tell.
func TestSaverHolds(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	w.must(t, addMachine("m0", machineSpec(4000, 16<<30)))
	small := &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20, DiskBytes: 1 << 20}
	w.must(t, submitAllocSet("ann", "place", &borgpb.AllocSetSpec{
		Allocs: 1, Priority: 200, Resources: small, Saver: &borgpb.Saver{Task: &borgpb.TaskSpec{Resources: small, Args: []string{"save"}}},
	}))
	inside := service(1, 200, 10, 1<<10)
	inside.AllocSet, inside.Task.Resources.DiskBytes = "ann/place", 1<<10
	w.must(t, submitJob("ann", "web", inside))
	w.settleAll(t)
	w.startAll()
	if got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0"}); len(got) != 1 || len(got[0].Holds) != 0 {
		t.Errorf("%+v, want nothing to hold the alloc: it is saved when it has left", got)
	}
	// Its saver comes when what ran in it has stopped.
	w.must(t, drainMachine("m0", true))
	w.catchUp()
	blocks := w.cell.Blockers(w.cell.Machine("m0"), 9)
	if got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0"}); len(got) != 1 || got[0].Safe || len(got[0].Holds) != 1 || len(blocks) != 1 || got[0].Holds[0] != blocks[0] {
		t.Errorf("%+v, want the hold of a drain: %+v", got, blocks)
	}
}

// TestLeavesItsAllocSet: a task that runs in an alloc, and that an update has out of allocs, needs
// a machine of its own when its alloc moves.
func TestLeavesItsAllocSet(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	w.must(t, addMachine("m0", machineSpec(4000, 16<<30)))
	small := &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20, DiskBytes: 1 << 20}
	w.must(t, submitAllocSet("ann", "place", &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: small}))
	inside := service(2, 200, 10, 1<<10)
	inside.AllocSet, inside.Update = "ann/place", &borgpb.UpdatePolicy{BatchSize: 1}
	w.must(t, submitJob("ann", "web", inside))
	w.settleAll(t)
	w.startAll()
	w.must(t, addMachine("m1", machineSpec(4000, 16<<30)))
	w.catchUp()
	if got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0"}); len(got) != 1 || !got[0].Safe {
		t.Fatalf("%+v, want the alloc to find a place with all that runs in it", got)
	}
	outside := proto.CloneOf(inside)
	outside.AllocSet = ""
	outside.Task.Constraints = []*borgpb.Constraint{{Key: "nowhere", Relation: borgpb.Relation_RELATION_PRESENT}}
	// One of the two waits for a machine, the other one for that.
	data, err := proto.Marshal(outside)
	if err != nil {
		t.Fatal(err)
	}
	w.must(t, &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "ann", Name: "web", Spec: data}}})
	w.catchUp()
	if got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0"}); len(got) != 1 || got[0].Safe || !slices.Equal(got[0].Homeless, []string{"ann/web/1"}) {
		t.Errorf("%+v, want no place for the task that still runs in the alloc", got)
	}
}

// TestDaemonsNeedNoPlace: tasks of daemon jobs end with their machine, so that no machine
// stays because of them, and none of them is moved.
func TestDaemonsNeedNoPlace(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	for _, name := range []string{"m0", "m1"} {
		w.must(t, addMachine(name, machineSpec(4000, 16<<30)))
	}
	logs := service(0, 200, 1000, 1<<30)
	logs.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	w.must(t, submitJob("ann", "logs", logs))
	w.settleAll(t)
	w.startAll()
	got := scheduler.JudgeDrain(w.s, w.copy, []string{"m0", "m1"})
	if len(got) != 2 || !got[0].Safe || !got[1].Safe || got[0].Tasks != 1 || got[1].Tasks != 1 {
		t.Errorf("%+v, want both to go although nothing takes their daemons", got)
	}
	for m := range w.copy.Machines() {
		for p := range m.Copies() {
			if !p.Stays() || w.copy.Unmovable(p) == "" {
				t.Errorf("%v on %s may be moved", p.TaskID(), m.Name())
			}
		}
	}
}

// TestJudgeDrainIsBounded: machines that are named are judged until the search has done its
// work, and the answer says that it stopped. The first one always is.
func TestJudgeDrainIsBounded(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprint("m", i))
		w.must(t, addMachine(names[i], machineSpec(4000, 16<<30)))
	}
	web := service(4, 200, 1000, 1<<30)
	web.MaxPerMachine = 1
	w.must(t, submitJob("ann", "web", web))
	w.settleAll(t)
	w.startAll()
	scheduler.SetDrainWork(w.s, 1)
	got, all := w.s.JudgeDrain(w.copy, names, nil)
	if all || len(got) == 0 || len(got) == len(names) {
		t.Errorf("%d of %d machines are judged (all: %v), want the first ones only", len(got), len(names), all)
	}
	if again, all := w.s.JudgeDrain(w.copy, names[:1], nil); len(again) != 1 || !all {
		t.Errorf("one machine: %d are judged (all: %v)", len(again), all)
	}
	scheduler.SetDrainWork(w.s, 1<<40)
	if got, all := w.s.JudgeDrain(w.copy, names, nil); len(got) != len(names) || !all {
		t.Errorf("without a bound: %d of %d machines are judged (all: %v)", len(got), len(names), all)
	}
}

// heldAlike lets all copies of a cell go, one after another, and compares what holds each by
// HoldNext with what HoldOf says of all that go.
func heldAlike(c *cell.Cell) string {
	var going []*cell.Copy
	running := make(cell.Going)
	for m := range c.Machines() {
		for p := range m.Copies() {
			all, next := c.HoldOf(append(slices.Clone(going), p)), c.HoldNext(running, p)
			if all != nil && next != nil {
				// Of the tasks that would go down together each may be named.
				all.Task, next.Task = cell.TaskID{}, cell.TaskID{}
			}
			if !reflect.DeepEqual(all, next) {
				return fmt.Sprintf("%v beside %d that go: held by %+v, and %+v of all together", p.TaskID(), len(going), next, all)
			}
			if next == nil {
				going = append(going, p)
				running.Add(p)
			}
		}
	}
	return ""
}

// TestJudgeDrainStops: the search ends when nobody waits for its answer any more.
func TestJudgeDrainStops(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	w.must(t, addMachine("m0", machineSpec(4000, 16<<30)))
	w.must(t, addMachine("m1", machineSpec(4000, 16<<30)))
	w.settleAll(t)
	asked := 0
	stop := func() bool { asked++; return asked > 1 }
	if got, all := w.s.JudgeDrain(w.copy, []string{"m0", "m1"}, func() bool { return true }); len(got) != 1 || all {
		t.Errorf("%d machines are judged (all: %v), want the first", len(got), all)
	}
	if got, all := w.s.Drainable(w.copy, nil, 2, stop); len(got) != 1 || all {
		t.Errorf("%d machines are found (all: %v), want one", len(got), all)
	}
}

// TestOverlayWork: to lay a plan over a machine costs what the plan has on that machine, and,
// for a job that limits its tasks, what it has of that job; Overlay says so.
func TestOverlayWork(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	w.must(t, addMachine("m0", machineSpec(4000, 16<<30)))
	w.must(t, addMachine("m1", machineSpec(4000, 16<<30)))
	spread := service(8, 200, 100, 1<<20)
	spread.MaxPerRack = 8
	w.must(t, submitJob("ann", "web", service(8, 200, 100, 1<<20)))
	w.must(t, submitJob("ann", "spread", spread))
	w.settleAll(t)
	w.startAll()
	m0, m1 := w.copy.Machine("m0"), w.copy.Machine("m1")
	var moves cell.Moves
	var laid cell.Overlay
	for _, name := range []string{"web", "spread"} {
		j := w.copy.Job(cell.JobKey{User: "ann", Name: name})
		for i, task := range j.Tasks() {
			moves.Leave(task.Current())
			moves.Lay(cell.Placement{Job: j, Index: i, Machine: m0})
		}
	}
	for _, k := range []struct {
		job  string
		on   *cell.Machine
		want int
	}{{"web", m1, 0}, {"web", m0, 16}, {"spread", m1, 16}, {"spread", m0, 32}} {
		j := w.copy.Job(cell.JobKey{User: "ann", Name: k.job})
		if got := moves.Overlay(&cell.Placement{Job: j, Machine: k.on}, &laid); got != k.want {
			t.Errorf("%s on %s: the overlay costs %d, want %d", k.job, k.on.Name(), got, k.want)
		}
	}
	moves.Cut(8, 8)
	j := w.copy.Job(cell.JobKey{User: "ann", Name: "spread"})
	if got := moves.Overlay(&cell.Placement{Job: j, Machine: m0}, &laid); got != 8 || laid.Limits.CPUMilli != 800 {
		t.Errorf("cut back to those of web: the overlay costs %d and takes %+v", got, laid.Limits)
	}
}

// TestShortOfItsOwn: what is at most free of a resource is that of machines short of it, not of
// those that failed the same test and have enough.
func TestShortOfItsOwn(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	for i, mem := range []int64{1 << 30, 2 << 30, 8 << 30} {
		w.must(t, addMachine(fmt.Sprint("m", i), machineSpec(1000, mem)))
	}
	w.must(t, submitJob("ann", "web", service(1, 200, 2000, 4<<30)))
	w.settleAll(t)
	why, err := w.s.Explain(w.copy, cell.JobKey{User: "ann", Name: "web"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	const want = "2 of them are short of memory too: needs 4.0 GiB, at most 2.0 GiB is free"
	if !slices.ContainsFunc(why.Reasons, func(r scheduler.Reason) bool { return strings.Contains(r.Detail, want) }) {
		t.Errorf("%+v, want %q", why.Reasons, want)
	}
}
