package borgmaster_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// fakeBorglet obeys orders at once and keeps to the fence as a real one must.
type fakeBorglet struct {
	borgrpc.UnimplementedBorgletServiceServer
	name, addr string
	t          *testing.T
	stopServer func()
	// Connections to it that are open.
	open atomic.Int64

	mu sync.Mutex
	// Guarded by mu, as is all that follows.
	spec    *borgpb.MachineSpec
	fence   *borgrpc.Fence
	copies  map[string]*heldCopy
	pids    int64
	forgot  int
	starts  int
	fenced  int
	cellID  string
	pollers map[uint64]int
	// What each copy uses; nil: nothing is said of it.
	uses *borgrpc.Usage
	// Whether its tasks ignore SIGTERM: an order to stop ends none of them.
	stubborn bool
}

type heldCopy struct {
	report  *borgpb.TaskReport
	version uint64
	spec    *borgpb.TaskSpec
}

func startBorglet(t *testing.T, name string) *fakeBorglet {
	t.Helper()
	b := &fakeBorglet{name: name, t: t, copies: map[string]*heldCopy{}, pollers: map[uint64]int{}, spec: &borgpb.MachineSpec{
		Capacity:   &borgpb.Resources{CpuMilli: 4000, MemBytes: 4 << 30, DiskBytes: 4 << 30},
		Attributes: map[string]string{"kernel": "6.1"}, PortFirst: 20000, PortLast: 20999,
	}}
	b.serve("127.0.0.1:0")
	t.Cleanup(func() { b.stop() })
	return b
}

// openListener counts the connections that are open.
type openListener struct {
	net.Listener
	open *atomic.Int64
}

func (l openListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &openConn{Conn: conn, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type openConn struct {
	net.Conn
	closed func()
}

func (c *openConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (b *fakeBorglet) serve(addr string) {
	b.t.Helper()
	l, err := door.Listen(addr)
	if err != nil {
		b.t.Fatal(err)
	}
	s := door.NewServer(door.Config{Identity: source(b.t, identity.Borglet, b.name)})
	borgrpc.RegisterBorgletServiceServer(s, b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(openListener{l, &b.open})
	}()
	b.addr = l.Addr().String()
	b.stopServer = sync.OnceFunc(func() { s.Stop(); <-done })
}

// stop makes the machine unreachable; serve(b.addr) brings it back.
func (b *fakeBorglet) stop() { b.stopServer() }

func (b *fakeBorglet) Describe(context.Context, *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &borgrpc.DescribeResponse{Name: b.name, Spec: proto.CloneOf(b.spec), CellId: b.cellID, Build: "fake"}, nil
}

func key(c *borgrpc.CopyID) string { return c.String() }

func before(a, b *borgrpc.Fence) bool {
	if a.Epoch != b.Epoch {
		return a.Epoch < b.Epoch
	}
	if a.Term != b.Term {
		return a.Term < b.Term
	}
	return a.Index < b.Index
}

func (b *fakeBorglet) Poll(_ context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fence != nil && before(req.Fence, b.fence) {
		b.fenced++
		return &borgrpc.PollResponse{Fenced: true, Highest: b.fence}, nil
	}
	b.fence = req.Fence
	b.pollers[req.Replica]++
	for _, d := range req.Desired {
		c := b.copies[key(d.Copy)]
		switch {
		case c == nil && d.Spec != nil:
			b.pids++
			b.starts++
			b.copies[key(d.Copy)] = &heldCopy{version: d.Version, spec: d.Spec, report: &borgpb.TaskReport{
				JobUid: d.Copy.JobUid, Index: d.Copy.Index, Attempt: d.Copy.Attempt,
				State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: b.pids, StartedWallNs: 1,
			}}
		case c != nil && d.Spec != nil:
			c.version, c.spec = d.Version, d.Spec
		}
	}
	for _, s := range req.Stops {
		if c := b.copies[key(s.Copy)]; c != nil && !b.stubborn {
			c.report = proto.CloneOf(c.report)
			c.report.State = int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)
			c.report.Exit = &borgpb.Exit{Signal: 15, EndedWallNs: 2}
		}
	}
	for _, f := range req.Forget {
		if b.copies[key(f)] != nil {
			delete(b.copies, key(f))
			b.forgot++
		}
	}
	resp := &borgrpc.PollResponse{Highest: b.fence, Spec: proto.CloneOf(b.spec), Incarnation: "one"}
	for _, c := range b.copies {
		resp.Tasks = append(resp.Tasks, c.report)
		resp.Versions = append(resp.Versions, c.version)
		if b.uses != nil {
			u := proto.CloneOf(b.uses)
			u.Copy = &borgrpc.CopyID{JobUid: c.report.JobUid, Index: c.report.Index, Attempt: c.report.Attempt}
			resp.Usage = append(resp.Usage, u)
		}
	}
	return resp, nil
}

func (b *fakeBorglet) ReadLog(req *borgrpc.ReadLogRequest, stream grpc.ServerStreamingServer[borgrpc.ReadLogResponse]) error {
	for _, line := range []string{"hello ", key(req.Copy)} {
		if err := stream.Send(&borgrpc.ReadLogResponse{Data: []byte(line), Stream: borgrpc.LogStream_LOG_STREAM_STDOUT}); err != nil {
			return err
		}
	}
	if req.Follow {
		<-stream.Context().Done()
	}
	return nil
}

// held returns how many copies the machine has in a state.
func (b *fakeBorglet) held(state borgpb.AttemptState) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, c := range b.copies {
		if c.report.State == int32(state) {
			n++
		}
	}
	return n
}

// change does something to the machine behind the master's back.
func (b *fakeBorglet) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}
