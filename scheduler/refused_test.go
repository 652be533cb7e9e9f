package scheduler_test

import (
	"fmt"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestWhyNamesTheLimit: what waits because its user may have no more volumes says so, with
// what to do, until there is room.
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
	for _, want := range []string{"user u has 1 volumes and may have 1", "borgcfg volume"} {
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

// TestVolumesBeyondTheBudget: the scheduler asks for no place for a task whose new volumes
// are beyond the budget, so that the cell refuses each at most once, however long they wait.
func TestVolumesBeyondTheBudget(t *testing.T) {
	const tasks = 20
	w := newWorld(t, scheduler.Config{})
	budget := func(n int64) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{
			User: "u", Amounts: []*borgpb.StateAmount{{Measure: cell.MeasureNamed("volumes"), Amount: n}}}}}
	}
	add := func(name string) {
		w.must(t, addMachine(name, &borgpb.MachineSpec{Addr: name + ":1", Capacity: &borgpb.Resources{CpuMilli: 40_000, MemBytes: 1 << 34, DiskBytes: 1 << 34}}))
	}
	add("m")
	w.must(t, budget(1))
	w.must(t, submitJob("u", "j", &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 100,
		Task: &borgpb.TaskSpec{Args: []string{"a"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20},
			Volumes: []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 1 << 20, KeepNs: 3600e9}}}}))
	placed, refused := 0, 0
	for round := range 30 {
		n, m := w.settleCounted(t)
		placed, refused = placed+n, refused+m
		w.timeNs += 3600e9
		add(fmt.Sprint("n", round))
	}
	if placed != 1 || refused > tasks {
		t.Errorf("in 30 rounds %d tasks were placed and %d assignments refused, want 1 and at most %d", placed, refused, tasks)
	}
	w.must(t, budget(tasks))
	for range 3 {
		w.timeNs += 3600e9
		n, _ := w.settleCounted(t)
		placed += n
	}
	if placed != tasks {
		t.Errorf("with a budget for all of them %d tasks were placed, want %d", placed, tasks)
	}
}
