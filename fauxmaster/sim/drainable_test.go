package sim

import (
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// TestWaitsForPlace: of those who leave a drained machine, an extra task of an update that
// was given up needs no other place: the same drain ends it, and its row goes.
func TestWaitsForPlace(t *testing.T) {
	x := newPairing(t, cell.BuildFormat, borgpb.JobKind_JOB_KIND_SERVICE)
	if !waitsForPlace(x.job, 0) {
		t.Error("a pending task is said to need no place")
	}
	if waitsForPlace(x.job, x.job.NumTasks()) {
		t.Error("a task whose row is gone is said to need a place")
	}
	x.place("m1", 0)
	if waitsForPlace(x.job, 0) {
		t.Error("a task that has a place is said to need one")
	}
}

// TestExtraTaskRunsAgain: an extra task that was started again in the entry that ends its
// update may have run when the update took a task down, and counts as one that ran.
func TestExtraTaskRunsAgain(t *testing.T) {
	x := newPairing(t, cell.BuildFormat, borgpb.JobKind_JOB_KIND_SERVICE)
	r := rollout{policy: &borgpb.UpdatePolicy{BatchSize: 2, Surge: 2}, pace: newPace()}
	r.pace.size = x.job.Size()
	for _, c := range []struct {
		task uint32
		want int
	}{{0, 2}, {x.job.Size(), 3}} {
		r.pace.paceRestarts(c.task)
		if got := r.mayTakeDown(x.job); got != c.want {
			t.Errorf("with a restart of task %d of %d it may take down %d, want %d", c.task, x.job.Size(), got, c.want)
		}
	}
}
