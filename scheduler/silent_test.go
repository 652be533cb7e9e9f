package scheduler_test

import (
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestSilentMachineGetsNothing: nothing is placed on a machine that is silent, and the
// explanation says so; once it answers the task is placed there.
func TestSilentMachineGetsNothing(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	w.must(t, addMachine("m", &borgpb.MachineSpec{Addr: "m:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 34}}))
	w.must(t, submitJob("u", "j", &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 100,
		Task: &borgpb.TaskSpec{Args: []string{"a"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}}}))
	w.catchUp()
	w.s.SetSilent([]string{"m", "unknown"})
	if n := len(w.s.Pass(w.copy).Assign.GetAssignments()); n != 0 {
		t.Fatalf("%d tasks are placed on a silent machine", n)
	}
	why, err := w.s.Explain(w.copy, cell.JobKey{User: "u", Name: "j"}, 0)
	if err != nil || !strings.Contains(why.Summary, "1 would do and is silent") {
		t.Fatalf("%v, %v", why, err)
	}
	w.s.SetSilent(nil)
	if n := len(w.s.Pass(w.copy).Assign.GetAssignments()); n != 1 {
		t.Fatalf("%d tasks are placed once it answers", n)
	}
}
