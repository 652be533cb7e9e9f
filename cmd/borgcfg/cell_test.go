package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/cellkey"
	"borg/borgmaster/journal"
	"borg/borgmaster/memlog"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler/process"
)

// testCell is the real masters and the real scheduler over a log in memory,
// with machines that only pretend.
type testCell struct {
	// Masters answer as those of a later build.
	newer atomic.Bool
	id    string
	ca    *identity.Authority
	corp  *corp
	addrs []string
	group *memlog.Group
	// Answers the gates of updates.
	metrics pretendMetrics
	stop    func()

	mu       sync.Mutex
	borglets []*pretendBorglet // guarded by mu
}

// inProcess runs the scheduler beside the masters.
type inProcess struct{ identity *identity.Source }

func (s inProcess) Run(ctx context.Context, addr, socket string) error {
	return process.Run(ctx, process.Config{Master: addr, Socket: socket, Identity: s.identity})
}

// source is who somebody of the cell is.
func (c *testCell) source(role identity.Role, id string) (*identity.Source, error) {
	return c.ca.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), identity.LifeOf(role))
}

// restoredCell is a cell that was restored, with these machines, none of which is up.
func restoredCell(id string, machines []string) (*borgcell.Cell, error) {
	c := borgcell.New(id, 1)
	ops := []*borgpb.Op{{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: borgcell.BuildFormat}}}}
	for _, name := range machines {
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 8 << 30},
		}}}})
	}
	entry := &borgpb.Entry{WallTimeNs: time.Now().UnixNano(), CellTimeNs: 1}
	for _, op := range ops {
		data, err := proto.Marshal(op)
		if err != nil {
			return nil, err
		}
		entry.Ops = append(entry.Ops, data)
	}
	data, err := proto.Marshal(entry)
	if err != nil {
		return nil, err
	}
	c.Apply(1, 1, data)
	return c, c.Restore(2)
}

// start starts the masters, of a restored cell if machines are named.
func (c *testCell) start(replicas int, id string, machines []string) error {
	c.id = id
	var err error
	if c.ca, err = identity.NewAuthority("test", time.Now(), rand.Reader); err != nil {
		return err
	}
	if c.corp, err = newCorp(); err != nil {
		return err
	}
	foreign, err := c.corp.trust()
	if err != nil {
		return err
	}
	sockets, err := os.MkdirTemp("", "borgcfg")
	if err != nil {
		return err
	}
	var listeners []net.Listener
	for range replicas {
		l, err := door.Listen("127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		c.addrs = append(c.addrs, l.Addr().String())
	}
	c.metrics.start()
	start := time.Now()
	clock := func() int64 { return int64(time.Since(start)) + 1 }
	config := memlog.Config{
		CellID: id, Epoch: 1, Replicas: replicas, Addrs: c.addrs,
		Clock: func() (int64, int64) { return clock(), time.Now().UnixNano() },
	}
	if len(machines) > 0 {
		config.Load = func() (*borgcell.Cell, error) { return restoredCell(id, machines) }
	}
	c.group, err = memlog.NewGroup(config)
	if err != nil {
		return err
	}
	key, err := cellkey.NewKey()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var servers []*door.Server
	var trails []io.Closer
	for i, l := range listeners {
		log := c.group.Replica(uint64(i + 1))
		self, err := c.source(identity.Master, strconv.Itoa(i+1))
		if err != nil {
			cancel()
			return err
		}
		self.Foreign = foreign
		scheduler, err := c.source(identity.Scheduler, strconv.Itoa(i+1))
		if err != nil {
			cancel()
			return err
		}
		trail, err := audit.Open(audit.Config{Dir: filepath.Join(sockets, "audit"+strconv.Itoa(i)), Replica: uint64(i + 1)})
		if err != nil {
			cancel()
			return err
		}
		trails = append(trails, trail)
		kept, err := journal.Open(journal.Config{Dir: filepath.Join(sockets, "events"+strconv.Itoa(i)), Replica: uint64(i + 1), Window: time.Second})
		if err != nil {
			cancel()
			return err
		}
		trails = append(trails, kept)
		m, err := borgmaster.New(borgmaster.Config{
			CellName: "test", Past: pretendPast{uint64(i + 1)}, Checkpoints: pretendPast{uint64(i + 1)}, Audit: trail, Journal: kept, Replica: uint64(i + 1), Addr: c.addrs[i], Log: log, Members: log,
			Scheduler: inProcess{scheduler}, Identity: self, Authority: c.ca, SchedulerSocket: filepath.Join(sockets, strconv.Itoa(i)),
			FirstAdmin: "root", Keys: cellkey.NewRing(nil, key), MetricGates: []string{c.metrics.URL}, PollPeriod: 50 * time.Millisecond, MonotonicNs: clock, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			cancel()
			return err
		}
		s := door.NewServer(m.Door())
		m.RegisterServices(newerMasters{s, &c.newer})
		servers = append(servers, s)
		running.Go(func() { _ = s.Serve(l) })
		running.Go(func() { _ = m.Run(ctx) })
	}
	c.stop = func() {
		cancel()
		for _, s := range servers {
			s.Stop()
		}
		running.Wait()
		c.metrics.Close()
		for _, t := range trails {
			t.Close()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, b := range c.borglets {
			b.stop()
		}
		os.RemoveAll(sockets)
	}
	c.group.Elect(1)
	return c.ripens()
}

// ripens waits until each master has the cell in the format of this build and with its first
// admin, so that no script depends on how soon that is.
func (c *testCell) ripens() error {
	deadline := time.Now().Add(5 * time.Minute)
	for i := range c.addrs {
		for ripe := false; !ripe; time.Sleep(time.Millisecond) {
			var format uint32
			var admins int
			c.group.Replica(uint64(i + 1)).View(func(c *borgcell.Cell) { format, admins = c.Format(), c.NumAdmins() })
			if ripe = format == borgcell.BuildFormat && admins > 0; !ripe && time.Now().After(deadline) {
				return fmt.Errorf("the cell of master %d is of format %d after a minute, and not of %d, or has %d admins", i+1, format, borgcell.BuildFormat, admins)
			}
		}
	}
	return nil
}

// mutated counts the ops in the log that somebody asked for, leaving out the
// cell's own.
func (c *testCell) mutated() int {
	n := 0
	for after := uint64(0); ; {
		entries, ok := c.group.Replica(1).Entries(after, 1000)
		if !ok || len(entries) == 0 {
			return n
		}
		for _, e := range entries {
			after = e.Index
			var entry borgpb.Entry
			if proto.Unmarshal(e.Data, &entry) != nil {
				continue
			}
			for _, data := range entry.Ops {
				var op borgpb.Op
				if proto.Unmarshal(data, &op) == nil && op.RequestId != "" {
					n++
				}
			}
		}
	}
}

// pretendBorglet runs nothing: a task whose program is /bin/true has finished
// at once, /bin/false has failed, /bin/warming has not passed its health check and
// /bin/ailing fails it, /bin/missing and /bin/absent are tried again
// and again, anything else runs until it is told to stop.
type pretendBorglet struct {
	borgrpc.UnimplementedBorgletServiceServer
	name, addr string
	spec       *borgpb.MachineSpec
	stop       func()

	mu     sync.Mutex
	copies map[string]*borgpb.TaskReport // guarded by mu, as the rest
	pids   int64
}

func (c *testCell) addBorglet(name string, cpuMilli int64) (string, error) {
	b := &pretendBorglet{name: name, copies: make(map[string]*borgpb.TaskReport), spec: &borgpb.MachineSpec{
		Capacity:   &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 4 << 30, DiskBytes: 4 << 30},
		Attributes: map[string]string{"arch": "amd64", "kernel": "6"}, PortFirst: 20000, PortLast: 20999,
	}}
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		return "", err
	}
	b.addr = l.Addr().String()
	b.spec.Addr = b.addr
	self, err := c.source(identity.Borglet, name)
	if err != nil {
		return "", err
	}
	s := door.NewServer(door.Config{Identity: self})
	borgrpc.RegisterBorgletServiceServer(s, b)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	b.stop = func() { s.Stop(); running.Wait() }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.borglets = append(c.borglets, b)
	return b.addr, nil
}

func (b *pretendBorglet) Describe(context.Context, *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	return &borgrpc.DescribeResponse{Name: b.name, Spec: proto.CloneOf(b.spec), Build: "pretend"}, nil
}

func (b *pretendBorglet) Poll(_ context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	allocs := map[string]*borgrpc.AllocUsage{}
	for _, d := range req.Desired {
		if d.Alloc != "" {
			allocs[d.Alloc] = &borgrpc.AllocUsage{Alloc: d.Alloc, Usage: &borgrpc.Usage{CpuMilliMean: 84, MemBytesPeak: 6 << 20}}
		}
		if key := d.Copy.String(); b.copies[key] == nil && d.Spec != nil {
			b.copies[key] = b.started(d)
		}
	}
	for _, s := range req.Stops {
		r := b.copies[s.Copy.String()]
		if r == nil {
			continue
		}
		switch borgpb.AttemptState(r.State) {
		case borgpb.AttemptState_ATTEMPT_STATE_STARTING, borgpb.AttemptState_ATTEMPT_STATE_RUNNING, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF:
			r.State = int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)
			r.Exit = &borgpb.Exit{Signal: 15, EndedWallNs: time.Now().UnixNano()}
		}
	}
	for _, f := range req.Forget {
		delete(b.copies, f.String())
	}
	resp := &borgrpc.PollResponse{Highest: req.Fence, Spec: proto.CloneOf(b.spec), Incarnation: "one"}
	resp.AllocUsage = slices.Collect(maps.Values(allocs))
	for _, n := range req.KeepVolumes {
		resp.VolumeUsage = append(resp.VolumeUsage, &borgrpc.VolumeUse{Name: n, DiskBytes: 256 << 10})
	}
	for _, r := range b.copies {
		resp.Tasks = append(resp.Tasks, proto.CloneOf(r))
		resp.Versions = append(resp.Versions, 0)
		resp.Usage = append(resp.Usage, &borgrpc.Usage{
			Copy: &borgrpc.CopyID{JobUid: r.JobUid, Index: r.Index, Attempt: r.Attempt}, CpuMilliMean: 42, MemBytesPeak: 3 << 20,
		})
	}
	return resp, nil
}

func (b *pretendBorglet) started(d *borgrpc.Desired) *borgpb.TaskReport {
	b.pids++
	r := &borgpb.TaskReport{
		JobUid: d.Copy.JobUid, Index: d.Copy.Index, Attempt: d.Copy.Attempt, Pid: b.pids,
		State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), StartedWallNs: time.Now().UnixNano(),
	}
	switch d.Spec.Args[0] {
	case "/bin/true":
		r.State = int32(borgpb.AttemptState_ATTEMPT_STATE_FINISHED)
		r.Exit = &borgpb.Exit{EndedWallNs: time.Now().UnixNano()}
	case "/bin/missing":
		r.State = int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF)
		r.Exit = &borgpb.Exit{Code: 127, EndedWallNs: time.Now().UnixNano()}
	case "/bin/absent":
		r.State = int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF)
		r.Exit = &borgpb.Exit{Code: 127, EndedWallNs: time.Now().UnixNano(), Error: `start "/bin/absent": no such file or directory`}
		r.Text = r.Exit.Error + "; starts again 10s after that"
	case "/bin/packaged":
		r.State, r.Pid, r.StartedWallNs = int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF), 0, 0
		r.Text = "bring its packages: package sha256:00: its manifest: it is not there; starts again 1s after that"
	case "/bin/warming":
		r.State, r.Text = int32(borgpb.AttemptState_ATTEMPT_STATE_STARTING), "no health check has passed yet: connection refused"
	case "/bin/ailing":
		r.Text = "health check fails: no answer within 5s"
	case "/bin/false":
		r.State = int32(borgpb.AttemptState_ATTEMPT_STATE_FAILED)
		r.Exit = &borgpb.Exit{Code: 1, EndedWallNs: time.Now().UnixNano()}
	}
	return r
}

func (b *pretendBorglet) ReadLog(req *borgrpc.ReadLogRequest, stream grpc.ServerStreamingServer[borgrpc.ReadLogResponse]) error {
	if req.Run == 2 {
		return grpcstatus.Error(codes.OutOfRange, "the copy has had one run only")
	}
	if req.Copy.Index == 3 {
		return grpcstatus.Error(codes.Unavailable, "gone away")
	}
	if req.Copy.Index == 4 && req.Stream == borgrpc.LogStream_LOG_STREAM_STDOUT {
		return nil
	}
	if req.Times && req.Run == 0 {
		return b.readTimes(req, stream)
	}
	text := fmt.Sprintf("%v of task %d attempt %d\n", req.Stream, req.Copy.Index, req.Copy.Attempt)
	if req.TailBytes > 0 {
		text = text[max(0, len(text)-int(req.TailBytes)):]
	}
	return stream.Send(&borgrpc.ReadLogResponse{Data: []byte(text), Stream: req.Stream, WallNs: 1})
}

// readTimes pretends that each task wrote a line at 1, 11 and 21 s after its index,
// and lost 1 MiB before the second.
func (b *pretendBorglet) readTimes(req *borgrpc.ReadLogRequest, stream grpc.ServerStreamingServer[borgrpc.ReadLogResponse]) error {
	for n, at := range []int64{1, 11, 21} {
		resp := &borgrpc.ReadLogResponse{Stream: req.Stream, WallNs: (at + int64(req.Copy.Index)) * int64(time.Second)}
		if resp.WallNs < req.SinceWallNs {
			continue
		}
		if n == 1 {
			resp.LostBytes = 1 << 20
		}
		// Lines come in pieces.
		for _, piece := range []string{"line ", fmt.Sprintf("%d at %d\n", n, at+int64(req.Copy.Index))} {
			resp.Data = []byte(piece)
			if err := stream.Send(resp); err != nil {
				return err
			}
			resp.LostBytes = 0
		}
	}
	if req.Follow {
		return stream.Send(&borgrpc.ReadLogResponse{Stream: req.Stream, AtEnd: true})
	}
	return nil
}

// runs reports whether a copy has a process.
func (b *pretendBorglet) runs(id *borgrpc.CopyID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.copies {
		if r.JobUid == id.JobUid && r.Index == id.Index && r.Attempt == id.Attempt {
			return r.State == int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)
		}
	}
	return false
}

// ExecCopy pretends to a few programs: echo and cat do what they do, exit ends with the
// code that it is given, hang waits for the caller to go.
func (b *pretendBorglet) ExecCopy(stream borgrpc.BorgletService_ExecCopyServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	say := func(r *borgrpc.ExecResponse) error { return stream.Send(r) }
	args := first.GetProgram().GetArgs()
	exit := &borgpb.Exit{}
	if !b.runs(first.Copy) {
		return grpcstatus.Errorf(codes.FailedPrecondition, "copy %s.%d.%d does not run on machine %s at this moment", first.Copy.JobUid, first.Copy.Index, first.Copy.Attempt, b.name)
	}
	switch args[0] {
	case "echo", "cat", "exit", "hang":
	default:
		return say(&borgrpc.ExecResponse{Exit: &borgpb.Exit{Code: 127, Error: fmt.Sprintf("start %q: no such file or directory", args[0])}})
	}
	if err := say(&borgrpc.ExecResponse{Started: "container"}); err != nil {
		return err
	}
	switch args[0] {
	case "echo":
		text := fmt.Sprintf("%s in copy %d of task %d by %s\n", strings.Join(args[1:], " "), first.Copy.Attempt, first.Copy.Index, first.By)
		err = say(&borgrpc.ExecResponse{Data: []byte(text), Stream: borgrpc.LogStream_LOG_STREAM_STDOUT})
	case "cat":
		for err == nil {
			var req *borgrpc.ExecCopyRequest
			if req, err = stream.Recv(); err != nil || req.GetInput().GetEnd() {
				break
			}
			err = say(&borgrpc.ExecResponse{Data: req.GetInput().GetData(), Stream: borgrpc.LogStream_LOG_STREAM_STDOUT})
		}
	case "exit":
		err = say(&borgrpc.ExecResponse{Data: []byte("it ends\n"), Stream: borgrpc.LogStream_LOG_STREAM_STDERR})
		fmt.Sscan(args[1], &exit.Code)
	case "hang":
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	if err != nil {
		return err
	}
	return say(&borgrpc.ExecResponse{Exit: exit})
}
