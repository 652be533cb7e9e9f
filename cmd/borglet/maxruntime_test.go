package main

import (
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
)

// TestMaxRuntime ends runs that take too long: they have failed, or finished if their spec
// says so; a borglet that is restarted meanwhile counts on, and services have no limit.
func TestMaxRuntime(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			const limit = 3 * time.Second
			sleeps := func(finishes bool) *borgpb.TaskSpec {
				return &borgpb.TaskSpec{Args: []string{"sleep", "3600"}, MaxRuntimeNs: int64(limit), MaxRuntimeFinishes: finishes}
			}
			long := m.want(borgpb.JobKind_JOB_KIND_BATCH, sleeps(false))
			enough := m.want(borgpb.JobKind_JOB_KIND_BATCH, sleeps(true))
			short := m.want(borgpb.JobKind_JOB_KIND_BATCH, &borgpb.TaskSpec{Args: []string{"true"}, MaxRuntimeNs: int64(limit)})
			service := m.want(borgpb.JobKind_JOB_KIND_SERVICE, sleeps(false))
			m.untilState(long, running)
			m.kill()
			m.start()
			if r := m.untilState(long, failed); r.GetExit().GetReasonCode() != borgpb.ExitReason_EXIT_REASON_MAX_RUNTIME || !strings.Contains(r.GetExit().GetReason(), "longer than 3s") {
				t.Errorf("the exit of a run that took too long is %v", r.GetExit())
			}
			if r := m.untilState(enough, finished); r.GetExit().GetReasonCode() != borgpb.ExitReason_EXIT_REASON_MAX_RUNTIME {
				t.Errorf("the exit of a run that took long enough is %v", r.GetExit())
			}
			if r := m.untilState(short, finished); r.GetExit().GetReasonCode() != 0 {
				t.Errorf("the exit of a short run is %v", r.GetExit())
			}
			m.untilState(service, running)
		})
	}
}
