package borglet

import (
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestWhoIsNotProductionGivesWay fills a machine beyond its memory: the batch task
// ends for want of memory, production goes on as the same process.
func TestWhoIsNotProductionGivesWay(t *testing.T) {
	a := startAgentWith(t, t.TempDir(), func(c *Config) {
		c.Spec.Capacity.MemBytes = 100 << 20
		c.AvailableMemBytes = func() (int64, bool) { return 1 << 40, true }
	})
	prod, batch := wanted(ID{"1-1-0", 0, 1}), wanted(ID{"1-2-0", 0, 1})
	prod.Priority, prod.Spec.Resources.MemBytes = 200, 60<<20
	batch.Kind, batch.Spec.Resources.MemBytes = borgpb.JobKind_JOB_KIND_BATCH, 50<<20
	prod.ReservedMemBytes, batch.ReservedMemBytes = 30<<20, 20<<20
	req := &borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{prod, batch}}
	a.poll(req)
	resp := a.until(req, func(r *borgrpc.PollResponse) bool {
		return len(r.Tasks) == 2 && r.Tasks[1].State == int32(borgpb.AttemptState_ATTEMPT_STATE_FAILED)
	})
	if got := resp.Tasks[1]; !got.GetExit().GetOom() || got.Text != squeezedText {
		t.Errorf("batch is reported as %v, want ended for want of memory", got)
	}
	if got := resp.Tasks[0]; got.State != int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING) || got.Restarts != 0 {
		t.Errorf("production is reported as %v, want running as it was", got)
	}
}

// TestPressure says when a machine is short of memory.
func TestPressure(t *testing.T) {
	const total = 1 << 30
	for _, c := range []struct {
		what       string
		used, free int64
		asked      bool
		room       int64
		want       bool
	}{
		{"all fits, and the machine is not asked", total, 0, false, total, false},
		{"more than the capacity", total + 1, 0, false, total, true},
		{"as much is left as must be", 100 << 20, total / sparePart, true, 100 << 20, false},
		{"others took the rest", 100 << 20, total/sparePart - 1, true, 100<<20 - 1, true},
		{"much is left, and the capacity counts", total + 1, total, true, total, true},
	} {
		a := &Agent{cfg: Config{Spec: &borgpb.MachineSpec{Capacity: &borgpb.Resources{MemBytes: total}}}}
		if c.asked {
			a.cfg.AvailableMemBytes = func() (int64, bool) { return c.free, true }
		}
		ev, is := a.pressed(map[ID]Stats{{"1-1-0", 0, 1}: {MemBytes: c.used}})
		if is != c.want || ev.RoomBytes != c.room || ev.CapacityBytes != total {
			t.Errorf("%s: %v with room for %d of %d, want %v and %d", c.what, is, ev.RoomBytes, ev.CapacityBytes, c.want, c.room)
		}
	}
	if free, ok := AvailableMemBytes(); !ok || free <= 0 {
		t.Errorf("this machine has %d bytes, %v", free, ok)
	}
}
