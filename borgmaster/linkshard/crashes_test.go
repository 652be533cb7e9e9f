package linkshard

import (
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// TestCrashBudget: a job of a thousand tasks that crash again and again passes on what
// its budget holds, and another job has its own.
func TestCrashBudget(t *testing.T) {
	storm, calm := cell.UID{Epoch: 1, Index: 1}, cell.UID{Epoch: 1, Index: 2}
	var b crashBudget
	passed := 0
	for second := range int64(60) {
		for range 1000 {
			if b.spend(second*1e9, storm) {
				passed++
			}
		}
		if !b.spend(second*1e9, calm) {
			t.Fatalf("second %d: the other job has nothing", second)
		}
	}
	if want := crashBurst + 59*crashesPerS; passed != want {
		t.Errorf("%d reports of crashes of one job in a minute, want %d", passed, want)
	}
	if b.held == 0 {
		t.Error("nothing counts as left for later")
	}
}

// TestCrash: what counts as one.
func TestCrash(t *testing.T) {
	for _, c := range []struct {
		state    borgpb.AttemptState
		restarts uint32
		want     bool
	}{
		{borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, 1, true},
		{borgpb.AttemptState_ATTEMPT_STATE_FAILED, 0, true},
		{borgpb.AttemptState_ATTEMPT_STATE_RUNNING, 3, true},
		{borgpb.AttemptState_ATTEMPT_STATE_RUNNING, 0, false},
		{borgpb.AttemptState_ATTEMPT_STATE_STOPPED, 9, false},
		{borgpb.AttemptState_ATTEMPT_STATE_FINISHED, 9, false},
	} {
		if got := crash(&borgpb.TaskReport{State: int32(c.state), Restarts: c.restarts}); got != c.want {
			t.Errorf("%v with %d restarts is a crash: %v", c.state, c.restarts, got)
		}
	}
}

// TestCrashBudgetIsBounded: what is remembered of jobs is bounded.
func TestCrashBudgetIsBounded(t *testing.T) {
	var b crashBudget
	for n := range maxCrashingJobs + 100 {
		if !b.spend(int64(n), cell.UID{Epoch: 1, Index: uint64(n) + 1}) {
			t.Fatalf("job %d has nothing", n)
		}
	}
	if len(b.fullNs) > maxCrashingJobs {
		t.Errorf("%d jobs are remembered", len(b.fullNs))
	}
}
