package scheduler_test

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// crashedCell is a cell in which n tasks wait that crashed twice on the first
// machine. Only the last one suits them besides, and that is full.
func crashedCell(tb testing.TB, machines, n int) (*world, *cell.Job) {
	tb.Helper()
	c := cell.New("bench", 1)
	s, err := scheduler.New(scheduler.Config{Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{cell: c, copy: c, s: s, wallNs: 1_800_000_000_000_000_000, timeNs: 1e9}
	must := func(op *borgpb.Op) {
		tb.Helper()
		r, events := w.apply(op)
		if r.GetRefusal() != nil || len(r.GetItems()) > 0 {
			tb.Fatalf("refused: %v", r)
		}
		s.Observe(c, events)
	}
	for i := range machines {
		spec := machineSpec(1_000_000, 1<<40, "arch=amd64")
		if i == 0 || i == machines-1 {
			spec.Attributes["arch"] = "arm"
		}
		if i == machines-1 {
			spec.Capacity.CpuMilli = 1
		}
		must(addMachine(fmt.Sprintf("m%05d", i), spec))
	}
	spec := service(uint32(n), 110, 100, 1<<20)
	spec.Kind, spec.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, 10
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "arch", Relation: borgpb.Relation_RELATION_EQUAL, Value: "arm"}}
	must(submitJob("ann", "odd", spec))
	j := c.Job(cell.JobKey{User: "ann", Name: "odd"})
	for attempt := range uint64(2) {
		for i := range uint32(n) {
			must(assign(&borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.UID().String(), Index: i, Machine: "m00000", LastAttempt: attempt}}}))
			must(reported(j, i, "m00000", attempt+1, borgpb.AttemptState_ATTEMPT_STATE_FAILED))
		}
	}
	// A second failure in a row delays the next attempt.
	w.timeNs += 2e9
	must(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	return w, j
}

// TestCrashedElsewhere wants a task that is kept away from where it crashed to go
// elsewhere, and back as soon as there is no elsewhere.
func TestCrashedElsewhere(t *testing.T) {
	w, j := crashedCell(t, 3, 2)
	if b := w.s.Pass(w.cell); len(b.Assign.GetAssignments()) > 0 {
		t.Fatalf("it is placed where it crashed, or where there is no room: %v", b.Assign)
	}
	if got := w.cell.CrashedOn(j, 0); got != (cell.Away{Crashed: "m00000"}) {
		t.Fatalf("it is kept away from %v", got)
	}
	// Nobody goes there any more: then there is no choice.
	_, events := w.apply(machineOp("drain", options{name: "m00002"}))
	w.s.Observe(w.cell, events)
	b := w.s.Pass(w.cell)
	if len(b.Assign.GetAssignments()) != 2 {
		t.Fatalf("%d of 2 are placed where there is no other place", len(b.Assign.GetAssignments()))
	}
	if r, _ := w.apply(assign(b.Assign)); len(r.GetItems()) > 0 {
		t.Fatalf("refused: %v", r)
	}
}

// TestCrashingServiceElsewhere wants a service that the cell takes off a machine where it
// crashes to go elsewhere, whoever else is kept from there, and its word in why.
func TestCrashingServiceElsewhere(t *testing.T) {
	c := cell.New("bench", 1)
	s, err := scheduler.New(scheduler.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{cell: c, copy: c, s: s, wallNs: 1_800_000_000_000_000_000, timeNs: 1e9}
	must := func(op *borgpb.Op) {
		t.Helper()
		r, events := w.apply(op)
		if r.GetRefusal() != nil || len(r.GetItems()) > 0 {
			t.Fatalf("refused: %v", r)
		}
		s.Observe(c, events)
	}
	for _, name := range []string{"m1", "m2", "m3"} {
		must(addMachine(name, machineSpec(1_000, 1<<40)))
	}
	must(submitJob("ann", "web", service(1, 110, 600, 1<<20)))
	j := c.Job(cell.JobKey{User: "ann", Name: "web"})
	place := func(machine string, last uint64) {
		t.Helper()
		must(assign(&borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.UID().String(), Machine: machine, LastAttempt: last}}}))
	}
	// A copy of it is in quarantine on the first, and it crashes on the second.
	place("m1", 0)
	must(reported(j, 0, "m1", 1, borgpb.AttemptState_ATTEMPT_STATE_RUNNING))
	must(asUser("ann", &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{User: "ann", Name: "web"}}}))
	place("m2", 1)
	crashed := reported(j, 0, "m2", 2, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF)
	crashed.GetReports().Machines[0].Tasks[0].Failures = 5
	must(crashed)
	must(reported(j, 0, "m2", 2, borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
	if away := c.CrashedOn(j, 0); away != (cell.Away{Kept: "m1", Crashed: "m2"}) {
		t.Fatalf("it is kept away from %+v", away)
	}
	why, err := s.Explain(c, j.Key(), 0)
	if err != nil {
		t.Fatal(err)
	}
	const want = "a copy of it is in quarantine on m1; it is placed elsewhere, it is kept away from m2, where it crashed 5 times, for another 1 h"
	if r := why.Reasons; len(r) == 0 || r[0].Test != "crashed" || r[0].Machines != 2 || r[0].Detail != want {
		t.Errorf("why says %+v", r)
	}
	b := s.Pass(c)
	if a := b.Assign.GetAssignments(); len(a) != 1 || a[0].Machine != "m3" {
		t.Fatalf("it is placed so: %v", b.Assign)
	}
}

// BenchmarkCrashed is what 200 tasks that crashed twice cost a pass over 10,000
// machines, and what it would cost to have the cell look at all machines for one.
func BenchmarkCrashed(b *testing.B) {
	w, j := crashedCell(b, 10_000, 200)
	// The first pass makes the arrays.
	w.s.Pass(w.cell)
	for range b.N {
		passes, walks := &spent{}, &spent{}
		for range 100 {
			passes.measure(func() { w.s.Pass(w.cell) })
		}
		walks.measure(func() {
			for i := range j.NumTasks() {
				if !w.cell.CrashedOn(j, i).Any() {
					b.Fatal("it is kept away from no machine")
				}
			}
		})
		b.ReportMetric(10*passes.cpu.Seconds(), "sched.crashed200.pass_cpu_ms")
		b.ReportMetric(1e6*walks.cpu.Seconds()/float64(j.NumTasks()), "sched.crashed.walk_cpu_us")
	}
}
