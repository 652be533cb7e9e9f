package borglet

import (
	"slices"
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
		cfg.HeldPorts = func(wanted []uint32, all PortRange) (PortHolders, error) {
			if all != (PortRange{20000, 20009}) {
				t.Errorf("HeldPorts was asked about %v", all)
			}
			return PortHolders{Others: []HeldPort{{20001, "a (process 1)"}, {20007, "nginx (process 812)"}}}, nil
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

// TestManyHeldPorts: with all ports of a machine held, each attempt tells of as many others
// as a report can name. So the cell knows all of them after a few attempts, not after one a port.
func TestManyHeldPorts(t *testing.T) {
	const first, last = 20000, 20255
	left := make(map[uint32]bool)
	a := startAgentWith(t, t.TempDir(), func(cfg *Config) {
		cfg.Spec.PortFirst, cfg.Spec.PortLast = first, last
		cfg.HeldPorts = func(wanted []uint32, all PortRange) (PortHolders, error) {
			var held []HeldPort
			for n := all.First; n <= all.Last; n++ {
				held = append(held, HeldPort{Port: n})
			}
			return PortHolders{Others: held}, nil
		}
	})
	for n := uint32(first); n <= last; n++ {
		left[n] = true
	}
	attempts := uint32(0)
	for granted := uint32(first); granted <= last; attempts++ {
		want := wanted(ID{JobUID: "1-1-0", Index: attempts, Attempt: 1})
		want.Ports, want.Spec.Ports = []uint32{granted}, []string{"http"}
		req := &borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{want}}
		tasks := a.until(req, allIn(borgpb.AttemptState_ATTEMPT_STATE_LOST)).Tasks
		at := slices.IndexFunc(tasks, func(r *borgpb.TaskReport) bool { return r.Index == attempts })
		if at < 0 {
			t.Fatalf("no report of task %d", attempts)
		}
		r := tasks[at]
		if len(r.HeldPorts) == 0 || r.HeldPorts[0].Port != granted {
			t.Fatalf("a report names %v, want port %d first", r.HeldPorts, granted)
		}
		for _, h := range r.HeldPorts {
			delete(left, h.Port)
		}
		for granted <= last && !left[granted] {
			granted++
		}
	}
	if want := uint32((last - first + 1) / maxHeldPortsTold); attempts != want {
		t.Errorf("all ports were told of after %d attempts, want %d", attempts, want)
	}
}
