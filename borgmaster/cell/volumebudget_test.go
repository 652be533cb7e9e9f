package cell

import (
	"testing"

	"borg/proto/borgpb"
)

// TestVolumeBudgetCountsNewVolumes: a user at the budget of volumes gets no new one, and
// a job that is submitted again finds the volume that it has.
func TestVolumeBudgetCountsNewVolumes(t *testing.T) {
	d := &driver{budgetLog(t)}
	m := addMachine("m1", 10_000, 1<<34)
	m.GetAddMachine().Spec.Capacity.DiskBytes = 100 << 30
	d.do(m)
	d.do(stateBudgetOp("u", measureVolumes, 1))
	spec := service(1, 200, 1, 1)
	spec.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 1 << 30}}
	running := func(name string) bool {
		for d.step(10) {
		}
		_, n, _ := d.c.Job(JobKey{"u", name}).Counts()
		return n == 1
	}
	for round := range 2 {
		d.do(submitBy(t, "u", "first", spec))
		if !running("first") {
			t.Fatalf("round %d: the task does not run on its own volume", round)
		}
		d.do(by("u", killJob("first")))
		for d.step(10) {
		}
	}
	d.do(submitBy(t, "u", "second", spec))
	for range 3 {
		d.step(10)
	}
	if _, n, _ := d.c.Job(JobKey{"u", "second"}).Counts(); n != 0 {
		t.Error("beyond the budget another volume was made")
	}
	d.fine()
}
