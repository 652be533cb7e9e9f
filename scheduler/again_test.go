package scheduler_test

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestNotTriedAgain counts what passes look at while tasks wait that fit
// nowhere: nothing as long as nothing changed that matters to them, then one
// machine for each class.
func TestNotTriedAgain(t *testing.T) {
	c := loaded(t, workload{seed: 4, machines: 100, tasks: 1000, plain: true, uniform: true, fillPercent: 40})
	_, s := pack(t, c, scheduler.Config{Seed: 1})
	w := &world{cell: c, copy: c, s: s, wallNs: c.WallNs(), timeNs: c.TimeNs()}
	pass := func(op *borgpb.Op) scheduler.Stats {
		t.Helper()
		before := s.Stats()
		w.take(t, &spent{}, op)
		w.online(t, &spent{})
		after := s.Stats()
		return scheduler.Stats{
			Placed: after.Placed - before.Placed, Searches: after.Searches - before.Searches, Looked: after.Looked - before.Looked,
		}
	}
	// Two jobs of one class, one of another; none of them fits.
	pass(submitJob("ann", "one", service(50, 110, 500_000, 1<<30)))
	if got := pass(submitJob("bob", "two", service(50, 110, 500_000, 1<<30))); got.Searches != 0 {
		t.Errorf("a job of a class that fits nowhere: %+v, want no search", got)
	}
	pass(submitJob("cyd", "three", service(50, 110, 600_000, 1<<30)))

	if got := pass(submitJob("dan", "small", service(1, 200, 100, 1<<20))); got.Placed != 1 || got.Searches != 1 {
		t.Errorf("a task that has room: %+v, want one search, for itself", got)
	}
	j := c.Job(cell.JobKey{User: "dan", Name: "small"})
	m := j.Task(0).Current().Machine()
	if got := pass(reported(j, 0, m.Name(), 1, borgpb.AttemptState_ATTEMPT_STATE_RUNNING)); got.Searches != 0 {
		t.Errorf("a task started: %+v, want no search", got)
	}
	// Free room on one machine; each class looks there, for room and for who
	// could give way.
	got := pass(asUser("dan", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "dan", Name: "small"}}}))
	if got.Searches > 2 || got.Looked > 4 {
		t.Errorf("a task stops: %+v, want at most two searches of one machine", got)
	}
	got = pass(reported(j, 0, m.Name(), 1, borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
	if got.Searches != 0 || got.Looked > 4 {
		t.Errorf("a task is gone: %+v, want one machine looked at and no search, as there is too little even if all give way", got)
	}
	if got := pass(addMachine("late", machineSpec(8000, 32<<30))); got.Searches != 0 || got.Placed != 0 {
		t.Errorf("a machine came: %+v, want no search", got)
	}
	if got := pass(addMachine("large", machineSpec(550_000, 1<<40))); got.Searches != 2 || got.Placed != 1 {
		t.Errorf("a machine came on which one of the first class has room: %+v, want two searches, the second in vain", got)
	}
}

// TestOnlyNewOnesHaveATurn: while nothing changes that matters to those who wait, a pass
// looks at those alone who came since, however many wait; then at all again.
func TestOnlyNewOnesHaveATurn(t *testing.T) {
	const waiting = 300
	w := newWorld(t, scheduler.Config{Seed: 1})
	pass := func(op *borgpb.Op) (placed int, turns uint64) {
		t.Helper()
		turns, placed = w.s.Turns(), w.s.Stats().Placed
		w.take(t, &spent{}, op)
		w.online(t, &spent{})
		return w.s.Stats().Placed - placed, w.s.Turns() - turns
	}
	pass(addMachine("small", machineSpec(1000, 4<<30)))
	for i := range waiting {
		pass(submitJob("ann", fmt.Sprint("one-", i), service(1, 110, 5_000, 1<<30)))
	}
	if _, turns := pass(submitJob("bob", "two", service(1, 110, 5_000, 1<<30))); turns != 1 {
		t.Errorf("beside %d jobs that fit nowhere a new one comes, and %d have a turn, want it alone", waiting, turns)
	}
	if placed, turns := pass(submitJob("cyd", "fits", service(1, 110, 100, 1<<20))); placed != 1 || turns != 1 {
		t.Errorf("a new one that fits comes: %d are placed and %d had a turn, want it alone", placed, turns)
	}
	if placed, _ := pass(addMachine("large", machineSpec(2_000_000, 4<<40))); placed != waiting+1 {
		t.Errorf("a machine with room for all comes, and %d of %d are placed", placed, waiting+1)
	}
	for i := range waiting {
		if j := w.cell.Job(cell.JobKey{User: "ann", Name: fmt.Sprint("one-", i)}); j.Task(0).State() != borgpb.State_STATE_RUNNING {
			t.Fatalf("%v waits although there is room", j.Key())
		}
	}
}

// TestUnsuitedHaveNoTurn: jobs that no machine suits have a turn once, and one in the next pass that
// parks them; then none, whatever ends elsewhere, until a machine changes.
func TestUnsuitedHaveNoTurn(t *testing.T) {
	const waiting = 300
	w := newWorld(t, scheduler.Config{Seed: 1})
	pass := func(op *borgpb.Op) (placed int, turns uint64) {
		t.Helper()
		turns, placed = w.s.Turns(), w.s.Stats().Placed
		w.take(t, &spent{}, op)
		w.online(t, &spent{})
		return w.s.Stats().Placed - placed, w.s.Turns() - turns
	}
	pass(addMachine("m1", machineSpec(8000, 4<<30, "rack=r1")))
	for i := range waiting {
		spec := service(1, 0, 100, 1<<20)
		// One half asks for an attribute that no machine has, the other for another value.
		key := []string{fmt.Sprint("key-", i), "rack"}[i%2]
		spec.Task.Constraints = []*borgpb.Constraint{
			{Key: key, Relation: borgpb.Relation_RELATION_EQUAL, Value: "r2"},
			{Key: fmt.Sprint("soft-", i), Relation: borgpb.Relation_RELATION_PRESENT, Soft: true},
		}
		if placed, _ := pass(submitJob("ann", fmt.Sprint("none-", i), spec)); placed != 0 {
			t.Fatalf("%d is placed although no machine suits it", i)
		}
	}
	turns := []uint64{}
	for i := range 3 {
		name := fmt.Sprint("one-", i)
		if placed, _ := pass(submitJob("bob", name, service(1, 200, 100, 1<<20))); placed != 1 {
			t.Fatal("a job that fits waits")
		}
		_, n := pass(reported(w.cell.Job(cell.JobKey{User: "bob", Name: name}), 0, "m1", 1, borgpb.AttemptState_ATTEMPT_STATE_FAILED))
		turns = append(turns, n)
	}
	if turns[1] > 2 || turns[2] > 2 {
		t.Errorf("turns after each end: %d, want no more than those of bob's jobs from the second on", turns)
	}
	// A machine with an attribute that none had, and one with another value.
	if placed, _ := pass(addMachine("m2", machineSpec(8000, 4<<30, "key-0=r2"))); placed != 1 {
		t.Errorf("a machine came that one of them asks for, and %d are placed", placed)
	}
	if placed, _ := pass(addMachine("m3", machineSpec(80_000, 4<<30, "rack=r2"))); placed != waiting/2 {
		t.Errorf("a machine came that half of them ask for, and %d are placed, want %d", placed, waiting/2)
	}
	set := &borgpb.SetMachine{Name: "m1", SetAttributes: map[string]string{"key-2": "r2"}}
	if placed, _ := pass(asUser("admin", &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}})); placed != 1 {
		t.Errorf("a machine has an attribute now that one asks for, and %d are placed", placed)
	}
}
