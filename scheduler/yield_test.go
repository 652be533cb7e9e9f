package scheduler_test

import (
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestKeptVolumesBeginToYield: production that waits for the disk of kept volumes is placed when
// the job of their name ends, which tells of them with one event, without their machines; and not
// while there is such a job.
func TestKeptVolumesBeginToYield(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	w.must(t, addMachine("m", &borgpb.MachineSpec{Addr: "m:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 34, DiskBytes: 8 << 30}}))
	job := func(priority int32, diskBytes int64) *borgpb.JobSpec {
		return &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: priority,
			Task: &borgpb.TaskSpec{Args: []string{"a"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20, DiskBytes: diskBytes}}}
	}
	settles := func(what string, want int) {
		t.Helper()
		if n := w.settleAll(t); n != want {
			t.Fatalf("%s: %d tasks were placed, want %d", what, n, want)
		}
	}
	kill := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "low"}}}
	low := job(0, 0)
	low.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 6 << 30, KeepNs: 3600e9}}
	w.must(t, submitJob("u", "low", low))
	settles("the job with a volume", 1)
	uid := w.cell.Job(cell.JobKey{User: "u", Name: "low"}).UID().String()
	w.must(t, kill)
	w.must(t, &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: "m", Tasks: []*borgpb.TaskReport{{JobUid: uid, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}}}}}}})
	settles("nobody", 0)
	w.must(t, submitJob("u", "low", job(0, 1<<40)))
	w.must(t, submitJob("v", "prod", job(200, 5<<30)))
	settles("production beside a job that may have its volume back", 0)
	w.must(t, kill)
	settles("production when that has ended", 1)
}
