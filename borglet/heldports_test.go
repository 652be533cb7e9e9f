package borglet

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestHeldPorts: a run whose port others hold is not started, and the cell hears which
// ports are held, those of the task first. It is no failure and no end of a process.
func TestHeldPorts(t *testing.T) {
	a := startAgentWith(t, t.TempDir(), func(cfg *Config) {
		cfg.Spec.PortFirst, cfg.Spec.PortLast = 20000, 20009
		cfg.HeldPorts = func(wanted []uint32, all PortRange) ([]HeldPort, error) {
			if all != (PortRange{20000, 20009}) {
				t.Errorf("HeldPorts was asked about %v", all)
			}
			return []HeldPort{{20001, "a (process 1)"}, {20007, "nginx (process 812)"}}, nil
		}
	})
	id := ID{JobUID: "1-1-0", Index: 0, Attempt: 1}
	want := wanted(id)
	want.Ports, want.Spec.Ports = []uint32{20007}, []string{"http"}
	req := &borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{want}}
	r := a.until(req, allIn(borgpb.AttemptState_ATTEMPT_STATE_LOST)).Tasks[0]
	if len(r.HeldPorts) != 2 || r.HeldPorts[0].Port != 20007 || r.HeldPorts[1].Port != 20001 || r.Exit != nil || r.Failures != 0 || r.Restarts != 0 {
		t.Errorf("the report is %v", r)
	}
	if !strings.Contains(r.Text, "port 20007 of m1 is held by nginx (process 812)") || strings.Contains(r.Text, "20001") {
		t.Errorf("it says %q", r.Text)
	}
}
