package borgmaster_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/memlog"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testCellID = "testcell"

// testCell is masters over a log in memory, with real doors between them.
type testCell struct {
	t     *testing.T
	group *memlog.Group
	addrs []string
	// By replica less one.
	masters []*borgmaster.Master
	// stop ends one master, by replica less one.
	stop []func()
	// Each ends what a master does by itself, and not its server.
	end []context.CancelFunc
	ops int
	// Those that look at the cell; nil before the first look.
	lookers map[string]borgrpc.MasterServiceClient
}

// clock lets time pass speed times as quickly as outside.
func clock(speed int64) func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start))*speed + 1 }
}

// runScheduler runs a scheduler beside the first replica until the test ends.
func (tc *testCell) runScheduler() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := process.Run(ctx, process.Config{Master: tc.addrs[0], Identity: source(tc.t, identity.Scheduler, "1")}); err != nil {
			tc.t.Error(err)
		}
	})
	tc.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// newCell starts n masters, the first of which is elected.
func newCell(t *testing.T, n int, change func(replica int, c *borgmaster.Config)) *testCell {
	t.Helper()
	return newCellAt(t, 1, n, change)
}

// newCellAt is newCell in which all clocks but the wall's go speed times as quickly
// as outside.
func newCellAt(t *testing.T, speed int64, n int, change func(replica int, c *borgmaster.Config)) *testCell {
	t.Helper()
	tc := &testCell{t: t}
	listeners := make([]net.Listener, n)
	for i := range listeners {
		l, err := door.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
		tc.addrs = append(tc.addrs, l.Addr().String())
	}
	now := clock(speed)
	var err error
	tc.group, err = memlog.NewGroup(memlog.Config{
		CellID: testCellID, Epoch: 1, Replicas: n, Addrs: tc.addrs,
		Clock: func() (int64, int64) { return now(), time.Now().UnixNano() },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range listeners {
		log := tc.group.Replica(uint64(i + 1))
		config := borgmaster.Config{
			CellName: "test", Replica: uint64(i + 1), Addr: tc.addrs[i], Log: log, Members: log,
			FirstAdmin: "root", Identity: source(t, identity.Master, fmt.Sprint(i+1)), Authority: ca, PollPeriod: 200 * time.Millisecond, MonotonicNs: clock(speed), Logger: slog.New(slog.DiscardHandler),
		}
		if change != nil {
			change(i+1, &config)
		}
		m, err := borgmaster.New(config)
		if err != nil {
			t.Fatal(err)
		}
		tc.masters = append(tc.masters, m)
		s := door.NewServer(m.Door())
		m.RegisterServices(s)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { s.Serve(l) })
		running.Go(func() { m.Run(ctx) })
		tc.end = append(tc.end, cancel)
		stop := sync.OnceFunc(func() {
			cancel()
			s.Stop()
			running.Wait()
		})
		tc.stop = append(tc.stop, stop)
		t.Cleanup(stop)
	}
	tc.group.Elect(1)
	return tc
}

func (tc *testCell) conn(replica int, role identity.Role, id string) *grpc.ClientConn {
	tc.t.Helper()
	who := source(tc.t, role, id)
	conn, err := door.Dial(tc.addrs[replica-1], who, door.AnyMaster(who))
	if err != nil {
		tc.t.Fatal(err)
	}
	tc.t.Cleanup(func() { conn.Close() })
	return conn
}

func (tc *testCell) client(replica int, name string) borgrpc.MasterServiceClient {
	return borgrpc.NewMasterServiceClient(tc.conn(replica, identity.User, name))
}

// looker is a client that is kept: a new connection for each of many looks would be a flood of
// handshakes.
func (tc *testCell) looker(replica int, name string) borgrpc.MasterServiceClient {
	tc.t.Helper()
	if tc.lookers == nil {
		tc.lookers = map[string]borgrpc.MasterServiceClient{}
	}
	key := fmt.Sprint(replica, "/", name)
	if tc.lookers[key] == nil {
		tc.lookers[key] = tc.client(replica, name)
	}
	return tc.lookers[key]
}

func (tc *testCell) scheduling(replica int) borgrpc.SchedulingServiceClient {
	return borgrpc.NewSchedulingServiceClient(tc.conn(replica, identity.Scheduler, "1"))
}

// op completes an op with a request id of its own.
func (tc *testCell) op(op *borgpb.Op) *borgpb.Op {
	tc.ops++
	op.RequestId = fmt.Sprintf("request-%d", tc.ops)
	op.RequestWallNs = time.Now().UnixNano()
	return op
}

// must makes a mutation that is to succeed.
func (tc *testCell) must(c borgrpc.MasterServiceClient, op *borgpb.Op) *borgpb.Result {
	tc.t.Helper()
	resp, err := c.Mutate(tc.t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)})
	if err != nil {
		tc.t.Fatalf("Mutate(%v): %v", op, err)
	}
	if resp.Result.Refusal != nil {
		tc.t.Fatalf("Mutate(%v) was refused: %v", op, resp.Result.Refusal)
	}
	return resp.Result
}

// submit is the op for a small job.
func submit(t testing.TB, owner, name string, tasks uint32) *borgpb.Op {
	t.Helper()
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", "1000"}, GraceNs: 1e9,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: owner, Name: name, Spec: spec}}}
}

func kill(owner, name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: owner, Name: name}}}
}

// addMachine adds the machine of a fake borglet.
func (tc *testCell) addMachine(b *fakeBorglet) {
	tc.t.Helper()
	tc.ops++
	resp, err := tc.client(1, "root").AddMachine(tc.t.Context(), &borgrpc.AddMachineRequest{
		Addr: b.addr, Attributes: map[string]string{"rack": "r1"},
		RequestId: fmt.Sprintf("add-%d", tc.ops), RequestWallNs: time.Now().UnixNano(),
	})
	if err != nil || resp.Result.Refusal != nil || resp.Name != b.name {
		tc.t.Fatalf("AddMachine(%s) = %v, %v", b.addr, resp, err)
	}
}

// place assigns every task of a job to a machine, as a scheduler would.
func (tc *testCell) place(owner, name, machine string) {
	tc.t.Helper()
	job, err := tc.client(1, owner).GetJob(tc.t.Context(), &borgrpc.GetJobRequest{User: owner, Name: name})
	if err != nil {
		tc.t.Fatal(err)
	}
	tasks := tc.tasks(owner, name)
	assign := &borgpb.Assign{}
	for _, task := range tasks {
		if task.Status.State == borgpb.State_STATE_PENDING {
			a := &borgpb.Assignment{
				Uid: job.Job.Meta.Uid, Index: task.Index, LastAttempt: task.Status.Attempt, Machine: machine, Version: job.Job.Meta.Version,
			}
			for range task.Spec.GetPorts() {
				a.Ports = append(a.Ports, 20000+uint32(len(assign.Assignments)+len(a.Ports)))
			}
			assign.Assignments = append(assign.Assignments, a)
		}
	}
	resp, err := tc.scheduling(1).Assign(tc.t.Context(), &borgrpc.AssignRequest{Assign: assign})
	if err != nil || resp.Result.Refusal != nil {
		tc.t.Fatalf("Assign(%v) = %v, %v", assign, resp, err)
	}
	for _, item := range resp.Result.Items {
		if item.Kind != 0 {
			tc.t.Fatalf("Assign: %v", item)
		}
	}
}

func (tc *testCell) tasks(owner, name string) []*borgpb.Task {
	tc.t.Helper()
	return tc.tasksAt(1, owner, name)
}

func (tc *testCell) tasksAt(replica int, owner, name string) []*borgpb.Task {
	tc.t.Helper()
	resp, err := tc.looker(replica, owner).ListTasks(tc.t.Context(), &borgrpc.ListTasksRequest{User: owner, Name: name, Attempts: true})
	if err != nil {
		tc.t.Fatal(err)
	}
	return resp.Tasks
}

// until waits for something to come true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
