package client

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMaster answers as it is told to.
type fakeMaster struct {
	borgrpc.UnimplementedMasterServiceServer
	addr string

	mu      sync.Mutex // guards what follows
	mutate  func(*borgpb.Op) (*borgpb.Result, error)
	events  func(*borgrpc.EventsRequest, func(*borgrpc.EventsResponse) error) error
	files   func(func(*borgrpc.WatchFilesResponse) error) error
	cellID  string
	ops     []*borgpb.Op
	callers []string
	// How long each mutation would have been waited for.
	waits []time.Duration
	err   error
	// Who is elected and its own number, as each answer to a mutation says.
	elected *borgpb.Member
	number  uint64
	// Not nil: a mutation is never answered, and how its call ended comes here.
	hung chan error
	// Not nil: it is closed when the mutation that hangs has come.
	asked chan struct{}
	// Streams of mutations that were begun. An old master has none; they end with end.
	streams int
	old     bool
	end     chan struct{}
	// The members that it tells of.
	members []*borgpb.Member
	stop    func()
}

func startMaster(t *testing.T) *fakeMaster {
	t.Helper()
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &fakeMaster{addr: l.Addr().String(), cellID: "id-1"}
	s := door.NewServer(door.Config{Identity: source(t, identity.Master, "1")})
	borgrpc.RegisterMasterServiceServer(s, m)
	borgrpc.RegisterFileServiceServer(s, &fakeFiles{m: m})
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	m.stop = s.Stop
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return m
}

func (m *fakeMaster) Mutate(ctx context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hung != nil {
		m.ops = append(m.ops, req.Op)
		if m.asked != nil {
			close(m.asked)
		}
		<-ctx.Done()
		m.hung <- ctx.Err()
		return nil, ctx.Err()
	}
	m.ops = append(m.ops, req.Op)
	m.callers = append(m.callers, door.Caller(ctx).ID)
	if d, ok := ctx.Deadline(); ok {
		m.waits = append(m.waits, time.Until(d))
	}
	if m.mutate == nil {
		return &borgrpc.MutateResponse{Result: &borgpb.Result{Index: 7}, Elected: m.elected, Replica: m.number}, nil
	}
	r, err := m.mutate(req.Op)
	if err != nil {
		return nil, err
	}
	return &borgrpc.MutateResponse{Result: r, Elected: m.elected, Replica: m.number}, nil
}

// Mutations answers like Mutate, from a master that is not old.
func (m *fakeMaster) Mutations(stream borgrpc.MasterService_MutationsServer) error {
	m.mu.Lock()
	m.streams++
	old, end := m.old, m.end
	m.mu.Unlock()
	if old {
		return m.UnimplementedMasterServiceServer.Mutations(stream)
	}
	asked := make(chan error, 1)
	go func() {
		for {
			req, err := stream.Recv()
			var resp *borgrpc.MutateResponse
			if err == nil {
				resp, err = m.Mutate(stream.Context(), req)
			}
			if err == nil {
				err = stream.Send(resp)
			}
			if err != nil {
				asked <- err
				return
			}
		}
	}()
	select {
	case err := <-asked:
		if err == io.EOF {
			return nil
		}
		return err
	case <-end:
		return status.Error(codes.Unavailable, "this replica is stopping")
	}
}

func (m *fakeMaster) GetCell(context.Context, *borgrpc.GetCellRequest) (*borgrpc.GetCellResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &borgrpc.GetCellResponse{CellName: "cell", CellId: m.cellID, Members: m.members}, m.err
}

func (m *fakeMaster) GetJob(context.Context, *borgrpc.GetJobRequest) (*borgrpc.GetJobResponse, error) {
	return nil, m.err
}

// ListTasks gives out five tasks, two on a page.
func (m *fakeMaster) ListTasks(_ context.Context, req *borgrpc.ListTasksRequest) (*borgrpc.ListTasksResponse, error) {
	resp := &borgrpc.ListTasksResponse{}
	if !req.Used {
		return nil, status.Error(codes.InvalidArgument, "what was asked for was not passed on")
	}
	first := uint32(0)
	if req.After != "" {
		first = uint32(req.After[0]-'0') + 1
	}
	for i := first; i < 5 && len(resp.Tasks) < 2; i++ {
		resp.Tasks = append(resp.Tasks, &borgpb.Task{Index: i})
		if len(resp.Tasks) == 2 && i < 4 {
			resp.NextAfter = string(rune('0' + i))
		}
	}
	return resp, nil
}

func (m *fakeMaster) Events(req *borgrpc.EventsRequest, stream grpc.ServerStreamingServer[borgrpc.EventsResponse]) error {
	m.mu.Lock()
	f := m.events
	m.mu.Unlock()
	if f == nil {
		return status.Error(codes.Unavailable, "no events here")
	}
	return f(req, stream.Send)
}

// fakeFiles is the FileService of a fakeMaster.
type fakeFiles struct {
	borgrpc.UnimplementedFileServiceServer
	m *fakeMaster
}

func (f *fakeFiles) WatchFiles(_ *borgrpc.WatchFilesRequest, stream grpc.ServerStreamingServer[borgrpc.WatchFilesResponse]) error {
	f.m.mu.Lock()
	watch := f.m.files
	f.m.mu.Unlock()
	return watch(stream.Send)
}

// Logs sends one piece and then goes away.
func (m *fakeMaster) Logs(_ *borgrpc.LogsRequest, stream grpc.ServerStreamingServer[borgrpc.LogsResponse]) error {
	if m.err != nil {
		return m.err
	}
	if err := stream.Send(&borgrpc.LogsResponse{Data: []byte("one ")}); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "told to stop")
}

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// deadAddr is an address at which nobody listens.
func deadAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
