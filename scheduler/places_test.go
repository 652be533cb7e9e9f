package scheduler_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestPlacesAreLeftToProduction: free tasks, however small, fill half of the places of the
// machines, each machine before any is refused; production finds a place, and why counts places.
func TestPlacesAreLeftToProduction(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	for _, name := range []string{"m1", "m2"} {
		w.must(t, addMachine(name, machineSpec(1_000_000, 1<<40)))
	}
	w.must(t, submitJob("mallory", "free", service(4200, 0, 1, 1)))
	if n := w.settleAll(t); n != 4096 {
		t.Fatalf("%d free tasks are placed, want 2048 a machine", n)
	}
	for name, n := range onMachines(w.copy, cell.JobKey{User: "mallory", Name: "free"}) {
		if n != 2048 {
			t.Errorf("%d free tasks are on %s, want 2048", n, name)
		}
	}
	waits := ""
	job := w.copy.Job(cell.JobKey{User: "mallory", Name: "free"})
	for index := range job.Size() {
		if job.Task(index).State() == borgpb.State_STATE_PENDING {
			why, err := w.s.Explain(w.copy, job.Key(), index)
			if err != nil {
				t.Fatal(err)
			}
			waits = why.Summary
			break
		}
	}
	if !strings.Contains(waits, "2 places") {
		t.Errorf("why of a free task: %q, want 2 places in it", waits)
	}
	w.must(t, submitJob("bob", "prod", service(100, 200, 100, 1<<20)))
	if n := w.settleAll(t); n != 100 {
		t.Errorf("%d production tasks are placed, want 100", n)
	}
}

// TestAllocPlacesAreLeftToProduction: allocs of the free band fill half of the places for allocs;
// the scheduler proposes no more, and production finds places.
func TestAllocPlacesAreLeftToProduction(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	w.must(t, addMachine("m1", machineSpec(1_000_000, 1<<40)))
	submit := func(user string, priority int32, n uint32) {
		spec, err := proto.Marshal(&borgpb.AllocSetSpec{Priority: priority, Allocs: n, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1}})
		if err != nil {
			t.Fatal(err)
		}
		w.must(t, asUser(user, &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: "set", Spec: spec}}}))
	}
	submit("mallory", 0, 2100)
	if n := w.settleAll(t); n != 2048 {
		t.Fatalf("%d free allocs are placed, want 2048", n)
	}
	why, err := w.s.Explain(w.copy, cell.JobKey{User: "mallory", Name: "set"}, 2099)
	if err != nil || !strings.Contains(why.Summary, "1 places") {
		t.Errorf("why of a free alloc: %+v, %v, want places in it", why, err)
	}
	submit("bob", 200, 100)
	if n := w.settleAll(t); n != 100 {
		t.Errorf("%d allocs of production are placed, want 100", n)
	}
}
