package borglet

import (
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// A task that is not ready is told so, goes on, and is ready again with the first check
// that it passes; a borglet that is restarted says the same of it.
func TestReadiness(t *testing.T) {
	core := NewCore(CoreConfig{Backoff: DefaultBackoff(), Boot: "boot"})
	id := ID{"1-5-0", 0, 1}
	now := Now{MonoNs: 1, WallNs: 1}
	var record Record
	checks := 0
	step := func(ev Event) {
		t.Helper()
		for _, e := range core.Step(now, ev) {
			switch e := e.(type) {
			case Save:
				record = e.Record
			case Start:
				record = e.Record
			case Check:
				if checks++; !e.Ready {
					t.Errorf("a health check of a task that has none")
				}
			case Kill, Terminate:
				t.Fatalf("%T of a task that is not ready", e)
			}
		}
	}
	// check lets the next check come, and answers it.
	check := func(failure string) {
		t.Helper()
		before := checks
		due, ok := core.NextNs()
		if !ok {
			t.Fatal("no check is due")
		}
		now.WallNs += due - now.MonoNs
		now.MonoNs = due
		step(Tick{})
		if checks != before+1 {
			t.Fatalf("%d checks at a time", checks-before)
		}
		step(Checked{ID: id, Run: record.Run, Failure: failure, Ready: true})
	}
	want := func(state borgpb.AttemptState, text string) {
		t.Helper()
		r := core.State().Tasks[0]
		if r.GetState() != int32(state) || !strings.Contains(r.GetText(), text) || text == "" && r.GetText() != "" {
			t.Errorf("state %v, %q, want %v, %q", borgpb.AttemptState(r.GetState()), r.GetText(), state, text)
		}
	}
	const starting, running = borgpb.AttemptState_ATTEMPT_STATE_STARTING, borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	step(Polled{Desired: []*borgrpc.Desired{{
		Copy: id.wire(), User: "alice", Job: "web", Kind: borgpb.JobKind_JOB_KIND_SERVICE, Version: 1, Ports: []uint32{1},
		Spec: &borgpb.TaskSpec{Args: []string{"x"}, Ports: []string{"http"}, Ready: &borgpb.HealthCheck{HttpPath: "/ready", Failures: 2}},
	}}})
	step(Observed{ID: id, Run: 1, Kind: Running, Pid: 7, StartedWallNs: now.WallNs})
	want(starting, notYetReady)
	for range 20 {
		check("503")
	}
	want(starting, notYetReady+": 503")
	check("")
	want(running, "")
	if !record.Ready {
		t.Error("that it is ready is not written down")
	}
	began := now.MonoNs
	check("500")
	want(running, "")
	if now.MonoNs-began < defaultCheckPeriodNs {
		t.Errorf("the next check came after %v", time.Duration(now.MonoNs-began))
	}
	check("")
	check("500")
	want(running, "")
	check("502")
	want(starting, "not ready: 502")
	if record.Ready {
		t.Error("that it is not ready is not written down")
	}
	step(Checked{ID: id, Run: record.Run, Ready: true})
	want(starting, "not ready: 502")
	check("")
	want(running, "")

	core = NewCore(CoreConfig{Backoff: DefaultBackoff(), Boot: "boot"})
	step(Recovered{Copies: []Found{{Record: record, Observed: Observed{ID: id, Run: 1, Kind: Running, Pid: 7, StartedWallNs: record.StartedWallNs}}}})
	want(running, "")
	check("")
	want(running, "")
}
