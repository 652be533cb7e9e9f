package borglet

import (
	"testing"

	"borg/borglet/sockets"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestProcessesOfProduction: of tasks that together have more than half of the processes of all
// tasks, one that is not production ends. As many of production go on.
func TestProcessesOfProduction(t *testing.T) {
	free, prod := ID{"1-1-0", 0, 1}, ID{"1-2-0", 0, 1}
	desired := []*borgrpc.Desired{wanted(free), wanted(prod)}
	desired[0].Priority, desired[1].Priority = productionPriority-1, productionPriority
	for i := range uint64(8) {
		more := wanted(ID{"1-3-0", uint32(i), 1})
		more.Priority = desired[i%2].Priority
		desired = append(desired, more)
	}
	looks := make(chan SocketsHeld, 1)
	a := startAgentWith(t, t.TempDir(), func(c *Config) {
		c.SocketsHeld = func() (SocketsHeld, bool) {
			select {
			case ev := <-looks:
				return ev, true
			default:
				return SocketsHeld{}, false
			}
		}
	})
	req := &borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: desired}
	a.poll(req)
	a.until(req, func(r *borgrpc.PollResponse) bool {
		n := 0
		for _, task := range r.Tasks {
			if task.State == int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING) {
				n++
			}
		}
		return n == len(desired)
	})
	ev := SocketsHeld{Machine: sockets.Use{sockets.Processes: 800}, Copies: map[ID]sockets.Use{}, Runs: map[ID]uint32{}}
	for _, d := range desired {
		id, err := IDOf(d.GetCopy())
		if err != nil {
			t.Fatal(err)
		}
		ev.Copies[id], ev.Runs[id] = sockets.Use{sockets.Processes: 90}, 1
	}
	ev.Copies[free] = sockets.Use{sockets.Processes: 100}
	looks <- ev
	resp := a.until(req, func(r *borgrpc.PollResponse) bool {
		for _, task := range r.Tasks {
			if task.GetExit() != nil {
				return true
			}
		}
		return false
	})
	for _, task := range resp.Tasks {
		if is := task.GetExit() != nil; is != (task.GetJobUid() == free.JobUID) {
			t.Errorf("%v has ended: %v", task.GetJobUid(), task.GetExit())
		}
	}
}
