package linkshard

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

func crashReport(job string, index uint32, state borgpb.AttemptState, restarts uint32) *borgpb.TaskReport {
	return &borgpb.TaskReport{JobUid: job, Index: index, Attempt: 1, State: int32(state), Restarts: restarts}
}

// TestCrashBudget: a job of a thousand tasks that crash again and again passes on what
// its budget holds; other jobs, and ends that free room, pass at once.
func TestCrashBudget(t *testing.T) {
	const storm, calm = "1-1-1", "1-2-1"
	var b crashBudget
	passed := 0
	for second := range int64(60) {
		for index := range uint32(1000) {
			passed += len(b.within(second*1e9, []*borgpb.TaskReport{crashReport(storm, index, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, uint32(second))}))
		}
		others := []*borgpb.TaskReport{
			crashReport(calm, 0, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, 1),
			crashReport(storm, 0, borgpb.AttemptState_ATTEMPT_STATE_STOPPED, 9),
			crashReport(storm, 1, borgpb.AttemptState_ATTEMPT_STATE_RUNNING, 0),
		}
		if got := b.within(second*1e9, others); len(got) != len(others) {
			t.Fatalf("second %d: %d of %d others pass", second, len(got), len(others))
		}
	}
	if want := crashBurst + 59*crashesPerS; passed != want {
		t.Errorf("%d reports of crashes of one job in a minute, want %d", passed, want)
	}
	if b.held == 0 {
		t.Error("nothing counts as left for later")
	}
}

// TestCrashBudgetIsBounded: what is remembered of jobs is bounded.
func TestCrashBudgetIsBounded(t *testing.T) {
	var b crashBudget
	for n := range maxCrashingJobs + 100 {
		if !b.spend(int64(n), fmt.Sprintf("1-%d-1", n+1)) {
			t.Fatalf("job %d has nothing", n)
		}
	}
	if len(b.fullNs) > maxCrashingJobs {
		t.Errorf("%d jobs are remembered", len(b.fullNs))
	}
}
