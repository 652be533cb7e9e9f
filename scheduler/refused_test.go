package scheduler_test

import (
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestWhyNamesTheLimit: the search does not know how many volumes a user may have; what
// waits for that says so, with what to do, until there is room.
func TestWhyNamesTheLimit(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	w.must(t, addMachine("m", &borgpb.MachineSpec{Addr: "m:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 34, DiskBytes: 1 << 34}}))
	budget := func(n int64) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{
			User: "u", Amounts: []*borgpb.StateAmount{{Measure: cell.MeasureNamed("volumes"), Amount: n}}}}}
	}
	w.must(t, budget(1))
	w.must(t, submitJob("u", "j", &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 2, Priority: 100,
		Task: &borgpb.TaskSpec{Args: []string{"a"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20},
			Volumes: []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 1 << 20, KeepNs: 3600e9}}}}))
	if n := w.settleAll(t); n != 1 {
		t.Fatalf("%d tasks were placed, want the one whose volume is within the budget", n)
	}
	var waits string
	for index := range uint32(2) {
		why, err := w.s.Explain(w.copy, cell.JobKey{User: "u", Name: "j"}, index)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(why.Summary, "runs on") {
			waits = why.Summary
		}
	}
	for _, want := range []string{"the cell refused its placement", "user u has 1 volumes and may have 1", "borgcfg volume"} {
		if !strings.Contains(waits, want) {
			t.Errorf("why says %q, and nothing of %q", waits, want)
		}
	}
	w.must(t, budget(2))
	w.timeNs += 3600e9
	w.must(t, addMachine("n", &borgpb.MachineSpec{Addr: "n:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 34, DiskBytes: 1 << 34}}))
	if n := w.settleAll(t); n != 1 {
		t.Fatalf("%d tasks were placed with a larger budget, want 1", n)
	}
}
