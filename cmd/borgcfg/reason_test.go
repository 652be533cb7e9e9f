package main

import (
	"testing"

	"borg/proto/borgpb"
)

// TestReasonOfTheDead: a run that was ended says why in the same column, whether that counts as finished or
// failed, and what was taken down says so beside its last exit.
func TestReasonOfTheDead(t *testing.T) {
	const why = "max_runtime: it ran for longer than 4s"
	ended := &borgpb.Exit{Signal: 15, Reason: why}
	for _, c := range []struct {
		name        string
		st          *borgpb.TaskStatus
		reason, end string
	}{
		{"failed", &borgpb.TaskStatus{State: borgpb.State_STATE_DEAD, AttemptState: borgpb.AttemptState_ATTEMPT_STATE_FAILED, Reason: why, LastExit: ended}, why, "signal 15 (TERM)"},
		{"finished", &borgpb.TaskStatus{State: borgpb.State_STATE_DEAD, AttemptState: borgpb.AttemptState_ATTEMPT_STATE_FINISHED, LastExit: ended}, why, "signal 15 (TERM)"},
		{"down", &borgpb.TaskStatus{State: borgpb.State_STATE_DEAD, AttemptState: borgpb.AttemptState_ATTEMPT_STATE_STOPPED, LastExit: &borgpb.Exit{Code: 7}}, "taken down", "exit 7"},
		{"runs", &borgpb.TaskStatus{State: borgpb.State_STATE_RUNNING, LastExit: ended}, "", "signal 15 (TERM): " + why},
	} {
		if reason := taskReason(c.st); reason != c.reason || endText(c.st.LastExit, reason) != c.end {
			t.Errorf("%s: REASON %q, LAST END %q; want %q and %q", c.name, reason, endText(c.st.LastExit, reason), c.reason, c.end)
		}
	}
}
