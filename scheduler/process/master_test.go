package process_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// master is a master of one replica: a real cell behind the two calls that a
// scheduler makes.
type master struct {
	borgrpc.UnimplementedSchedulingServiceServer
	server *door.Server
	served chan struct{}
	addr   string

	mu sync.Mutex
	// Guarded by mu.
	cell    *cell.Cell
	entries []*borgrpc.CommittedEntry
	// changed is closed and replaced with each entry and each cut.
	changed chan struct{}
	// cuts counts the streams that were ended on purpose: a stream ends when it
	// is older than the last cut.
	cuts    int
	follows int
	skip    bool
	wallNs  int64
	// before is called ahead of each Assign that is applied; it may change the
	// cell, or refuse the call.
	before func() error
	// after is called when an Assign was applied; its error is the answer.
	after func() error
	// beforeMoves is before for MoveTasks.
	beforeMoves func() error
	// Of the assignments that were sent.
	done, refused int
}

func newMaster(t *testing.T) *master {
	t.Helper()
	m := &master{cell: cell.New("test", 1), changed: make(chan struct{}), wallNs: 1_800_000_000_000_000_000}
	m.listen(t, "127.0.0.1:0")
	t.Cleanup(func() { m.stop() })
	return m
}

func (m *master) listen(t *testing.T, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	m.addr = l.Addr().String()
	m.server = door.NewServer(door.Config{Identity: source(t, identity.Master, "1")})
	borgrpc.RegisterSchedulingServiceServer(m.server, m)
	m.served = make(chan struct{})
	go func() { defer close(m.served); _ = m.server.Serve(l) }()
}

func (m *master) stop() {
	m.cut()
	m.server.Stop()
	<-m.served
}

// wake tells the streams that something changed. mu is held.
func (m *master) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// cut ends all streams.
func (m *master) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cuts++
	m.wake()
}

// followed is how often a scheduler began to follow.
func (m *master) followed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follows
}

// do applies an op.
func (m *master) do(op *borgpb.Op) *borgpb.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.apply(op)
}

// pass lets time pass in the cell.
func (m *master) pass(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wallNs += int64(d)
	m.apply(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
}

func (m *master) apply(op *borgpb.Op) *borgpb.Result {
	data, err := proto.Marshal(op)
	if err != nil {
		panic(err)
	}
	m.wallNs += 1e6
	e, err := proto.Marshal(&borgpb.Entry{CellTimeNs: m.wallNs % 1e18, WallTimeNs: m.wallNs, Ops: [][]byte{data}})
	if err != nil {
		panic(err)
	}
	index := m.cell.Index() + 1
	results, _ := m.cell.Apply(index, 1, e)
	m.entries = append(m.entries, &borgrpc.CommittedEntry{Index: index, Term: 1, Data: e})
	m.wake()
	return results[0]
}

// view looks at the cell.
func (m *master) view(f func(c *cell.Cell)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.cell)
}

func (m *master) Follow(_ *borgrpc.FollowRequest, stream borgrpc.SchedulingService_FollowServer) error {
	m.mu.Lock()
	m.follows++
	born := m.cuts
	at := m.cell.Index()
	first := &borgrpc.FollowResponse{}
	for k, v := range m.cell.Records() {
		first.Records = append(first.Records, &borgrpc.Record{Key: slices.Clone(k), Value: slices.Clone(v)})
	}
	m.mu.Unlock()
	if err := stream.Send(first); err != nil {
		return err
	}
	if err := stream.Send(&borgrpc.FollowResponse{RecordsEnd: true, Index: at, CellId: "test", Epoch: 1}); err != nil {
		return err
	}
	for {
		m.mu.Lock()
		changed, over := m.changed, m.cuts != born
		if m.skip && at < m.cell.Index() {
			// An entry that this stream never sees.
			m.skip = false
			at++
		}
		entries := slices.Clone(m.entries[at:])
		m.mu.Unlock()
		if over {
			return status.Error(codes.Unavailable, "no longer elected")
		}
		if len(entries) > 0 {
			if err := stream.Send(&borgrpc.FollowResponse{Entries: entries}); err != nil {
				return err
			}
			at += uint64(len(entries))
			continue
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (m *master) Assign(_ context.Context, r *borgrpc.AssignRequest) (*borgrpc.AssignResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.before != nil {
		if err := m.before(); err != nil {
			return nil, err
		}
	}
	result := m.apply(&borgpb.Op{
		Principal: &borgpb.Principal{User: "scheduler", Role: borgpb.Role_ROLE_SCHEDULER},
		Op:        &borgpb.Op_Assign{Assign: r.GetAssign()},
	})
	n := len(r.GetAssign().GetAssignments())
	refused := 0
	for _, item := range result.GetItems() {
		if item.GetKind() != 0 {
			refused++
		}
	}
	if result.GetRefusal() != nil {
		refused = n
	}
	m.done += n - refused
	m.refused += refused
	if m.after != nil {
		if err := m.after(); err != nil {
			return nil, err
		}
	}
	return &borgrpc.AssignResponse{Result: result}, nil
}

func (m *master) MoveTasks(_ context.Context, r *borgrpc.MoveTasksRequest) (*borgrpc.MoveTasksResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.beforeMoves != nil {
		if err := m.beforeMoves(); err != nil {
			return nil, err
		}
	}
	result := m.apply(&borgpb.Op{
		Principal: &borgpb.Principal{User: "scheduler", Role: borgpb.Role_ROLE_SCHEDULER},
		Op:        &borgpb.Op_MoveTasks{MoveTasks: r.GetMove()},
	})
	if result.GetRefusal() != nil {
		m.refused++
	}
	return &borgrpc.MoveTasksResponse{Result: result}, nil
}

func addMachine(name string, cpuMilli int64) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "admin", Role: borgpb.Role_ROLE_USER},
		Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:7101", PortFirst: 20000, PortLast: 20099,
			Capacity: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 64 << 30},
		}}},
	}
}

func drainMachine(name string, drain bool) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "admin", Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name, Drain: drain}},
	}
}

func submitJob(name string, tasks uint32, cpuMilli int64) *borgpb.Op {
	data, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200,
		Task: &borgpb.TaskSpec{
			Args:      []string{"/bin/true"},
			Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 20},
		},
	})
	if err != nil {
		panic(fmt.Sprintf("marshal a spec: %v", err))
	}
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: name, Spec: data}},
	}
}
