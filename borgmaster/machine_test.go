package borgmaster_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// fakeProcess is a scheduler process that does nothing but run.
type fakeProcess struct {
	die            chan struct{}
	started, ended atomic.Int64
}

func (p *fakeProcess) Run(ctx context.Context, _, _ string) error {
	p.started.Add(1)
	defer p.ended.Add(1)
	select {
	case <-ctx.Done():
		return nil
	case <-p.die:
		return errors.New("killed")
	}
}

func (p *fakeProcess) running() int64 { return p.started.Load() - p.ended.Load() }

func TestTasksRunAndStop(t *testing.T) {
	tc := newCell(t, 2, nil)
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 3))
	tc.place("alice", "web", "m1")
	until(t, "the cell has heard that all run", func() bool {
		for _, task := range tc.tasks("alice", "web") {
			if task.Status.AttemptState != borgpb.AttemptState_ATTEMPT_STATE_RUNNING || task.Status.Pid == 0 {
				return false
			}
		}
		return true
	})
	b.change(func() {
		for _, c := range b.copies {
			if c.spec.GetArgs()[0] != "/bin/sleep" {
				t.Errorf("the borglet was given %v", c.spec)
			}
		}
	})
	log, err := tc.client(2, "alice").Logs(t.Context(), &borgrpc.LogsRequest{User: "alice", Name: "web", Index: 2})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for {
		chunk, err := log.Recv()
		if err != nil {
			break
		}
		text.Write(chunk.Data)
	}
	if !strings.HasPrefix(text.String(), "hello ") || !strings.Contains(text.String(), "index:2") {
		t.Errorf("the log is %q, want that of task 2", text.String())
	}
	// This borglet is one that knows no runs: what it sends is not passed off as one.
	if log, err = tc.client(2, "alice").Logs(t.Context(), &borgrpc.LogsRequest{User: "alice", Name: "web", Index: 2, Previous: true}); err == nil {
		_, err = log.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is older") {
		t.Errorf("the run before, of an older borglet: %v", err)
	}
	tc.must(tc.client(1, "alice"), kill("alice", "web"))
	until(t, "the machine has forgotten the stopped copies", func() bool {
		return b.held(borgpb.AttemptState_ATTEMPT_STATE_STOPPED) == 0 && b.held(borgpb.AttemptState_ATTEMPT_STATE_RUNNING) == 0
	})
	for _, task := range tc.tasks("alice", "web") {
		if len(task.Status.Attempts) != 1 || task.Status.Attempts[0].State != borgpb.AttemptState_ATTEMPT_STATE_STOPPED || task.Status.Attempts[0].Exit.GetSignal() != 15 {
			t.Errorf("after the kill task %d has the attempts %v, want one that was stopped by signal 15", task.Index, task.Status.Attempts)
		}
	}
	if b.starts != 3 {
		t.Errorf("%d copies were started, want 3", b.starts)
	}
}

func TestAddMachineRefusals(t *testing.T) {
	tc := newCell(t, 1, nil)
	add := func(who, addr string) (*borgrpc.AddMachineResponse, error) {
		tc.ops++
		return tc.client(1, who).AddMachine(t.Context(), &borgrpc.AddMachineRequest{Addr: addr, RequestId: "x" + addr, RequestWallNs: time.Now().UnixNano()})
	}
	if _, err := add("root", "127.0.0.1:1"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no borglet answers at 127.0.0.1:1") {
		t.Errorf("AddMachine where nobody listens: %v", err)
	}
	b := startBorglet(t, "m1")
	b.change(func() { b.cellID = "other" })
	if resp, err := add("root", b.addr); err != nil || !strings.Contains(resp.Result.Refusal.GetMessage(), "obeys another cell, other") {
		t.Errorf("AddMachine of another cell's borglet = %v, %v", resp, err)
	}
	if resp, err := add("alice", b.addr); err != nil || resp.Result.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("AddMachine by a user = %v, %v", resp, err)
	}
}

func (tc *testCell) machine(name string) *borgpb.Machine {
	tc.t.Helper()
	resp, err := tc.looker(1, "root").ListMachines(tc.t.Context(), &borgrpc.ListMachinesRequest{Name: name})
	if err != nil {
		tc.t.Fatal(err)
	}
	return resp.Machines[0]
}

func TestWhatTheBorgletSaysIsFollowed(t *testing.T) {
	tc := newCell(t, 1, nil)
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	if m := tc.machine("m1"); m.Spec.Attributes["rack"] != "r1" || m.Spec.Attributes["kernel"] != "6.1" || m.Spec.Addr != b.addr {
		t.Errorf("the machine was added as %v", m.Spec)
	}
	tc.must(tc.client(1, "root"), &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m1", SetAttributes: map[string]string{"rack": "r7"}}}})
	b.change(func() {
		b.spec.Attributes["kernel"] = "6.12"
		b.spec.Capacity.CpuMilli = 8000
	})
	until(t, "kernel and capacity are the new ones", func() bool {
		m := tc.machine("m1")
		return m.Spec.Attributes["kernel"] == "6.12" && m.Spec.Capacity.CpuMilli == 8000
	})
	if rack := tc.machine("m1").Spec.Attributes["rack"]; rack != "r7" {
		t.Errorf("the operator's rack is now %q, want r7", rack)
	}
}

func TestUnknownCopiesAreListedAndLeftAlone(t *testing.T) {
	tc := newCell(t, 2, nil)
	b := startBorglet(t, "m1")
	stray := &borgpb.TaskReport{JobUid: "7-99-0", Index: 4, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: 77}
	b.change(func() { b.copies["stray"] = &heldCopy{report: stray, version: 1} })
	tc.addMachine(b)
	until(t, "the stray copy is listed", func() bool {
		unknown := tc.machine("m1").Status.UnknownTasks
		return len(unknown) == 1 && proto.Equal(unknown[0], stray)
	})
	// Another master learns of it too.
	tc.group.Elect(2)
	until(t, "the new master lists it", func() bool { return len(tc.machine("m1").Status.UnknownTasks) == 1 })
	if b.held(borgpb.AttemptState_ATTEMPT_STATE_RUNNING) != 1 {
		t.Error("the stray copy was not left alone")
	}
	b.change(func() { delete(b.copies, "stray") })
	until(t, "it is no longer listed", func() bool { return len(tc.machine("m1").Status.UnknownTasks) == 0 })
}

func TestMachineDownAndBack(t *testing.T) {
	t.Parallel()
	// Six times as fast as outside: down takes a detection window of 16 s.
	tc := newCell(t, 3, func(_ int, c *borgmaster.Config) { c.MonotonicNs = clock(6) })
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	tc.place("alice", "web", "m1")
	until(t, "it runs", func() bool { return tc.tasks("alice", "web")[0].Status.Pid != 0 })
	b.stop()
	until(t, "the machine is down", func() bool { return tc.machine("m1").Status.State == borgpb.MachineState_MACHINE_STATE_DOWN })
	if reason := tc.machine("m1").Status.Reason; !strings.Contains(reason, "could not reach it either") {
		t.Errorf("it is down because of %q, want two replicas' word", reason)
	}
	if task := tc.tasks("alice", "web")[0]; task.Status.State != borgpb.State_STATE_PENDING {
		t.Errorf("its task is %v, want pending again", task.Status.State)
	}
	b.serve(b.addr)
	until(t, "the machine is up again", func() bool { return tc.machine("m1").Status.State == borgpb.MachineState_MACHINE_STATE_UP })
	until(t, "the task was taken back as it is", func() bool {
		s := tc.tasks("alice", "web")[0].Status
		return s.State == borgpb.State_STATE_RUNNING && s.Attempt == 1
	})
	if b.starts != 1 {
		t.Errorf("%d copies were started, want the one that never stopped", b.starts)
	}
}

func TestDeathOfAFollowerMovesNoTask(t *testing.T) {
	t.Parallel()
	tc := newCell(t, 3, func(_ int, c *borgmaster.Config) { c.MonotonicNs = clock(2) })
	machines := map[string]*fakeBorglet{}
	for _, name := range []string{"m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"} {
		machines[name] = startBorglet(t, name)
		tc.addMachine(machines[name])
		tc.must(tc.client(1, "alice"), submit(t, "alice", "on-"+name, 1))
		tc.place("alice", "on-"+name, name)
	}
	// polled returns the machines that a replica has polled since the last call.
	polled := func(replica uint64) (names []string) {
		for name, b := range machines {
			b.change(func() {
				if b.pollers[replica] > 0 {
					names = append(names, name)
				}
				clear(b.pollers)
			})
		}
		return names
	}
	live := func() (n int) {
		resp, err := borgrpc.NewMemberServiceClient(tc.conn(1, identity.User, "root")).ListMembers(t.Context(), &borgrpc.ListMembersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range resp.Members {
			if m.Live {
				n++
			}
		}
		return n
	}
	until(t, "all run", func() bool {
		n := 0
		for name := range machines {
			if tc.tasks("alice", "on-"+name)[0].Status.Pid != 0 {
				n++
			}
		}
		return n == len(machines) && live() == 3
	})
	var orphans []string
	polled(3)
	until(t, "replica 3 polls its share", func() bool { orphans = polled(3); return len(orphans) > 0 })
	tc.stop[2]()
	until(t, "the master sees that it is gone", func() bool { return live() == 2 })
	polled(3)
	until(t, "its machines are polled by others", func() bool {
		for _, name := range orphans {
			b := machines[name]
			b.mu.Lock()
			others := b.pollers[1] + b.pollers[2]
			b.mu.Unlock()
			if others == 0 {
				return false
			}
		}
		return true
	})
	for name, b := range machines {
		task := tc.tasks("alice", "on-"+name)[0].Status
		if b.starts != 1 || task.Attempt != 1 || task.State != borgpb.State_STATE_RUNNING {
			t.Errorf("the task on %s: %d starts, %v, want the one copy running", name, b.starts, task)
		}
	}
	for _, e := range readEvents(t, tc.client(1, "root"), &borgrpc.EventsRequest{}) {
		if e.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_DOWN || e.Kind == borgpb.EventKind_EVENT_KIND_EVICT {
			t.Errorf("the death of a follower caused %v", e)
		}
	}
}

// TestNextStandsBy: beside the replica that polls a machine the one that is next for it
// is connected.
func TestNextStandsBy(t *testing.T) {
	tc := newCell(t, 3, nil)
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	until(t, "two replicas are connected to the machine, and it is polled", func() (yes bool) {
		b.change(func() { yes = b.open.Load() == 2 && len(b.pollers) > 0 })
		return yes
	})
	b.change(func() {
		if len(b.pollers) != 1 {
			t.Errorf("%d replicas have polled it: %v; want one", len(b.pollers), b.pollers)
		}
	})
}
