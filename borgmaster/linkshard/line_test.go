package linkshard

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// listening is a borglet that remembers what it was asked.
type listening struct {
	borgrpc.UnimplementedBorgletServiceServer
	// It knows no streams.
	old bool

	mu sync.Mutex
	// What each poll came to, and how many came alone. Guarded by mu.
	heard []*borgrpc.PollRequest
	alone int
	// What it answers instead; nil: all is well. Guarded by mu.
	fail func() error
}

func (l *listening) Poll(_ context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	l.mu.Lock()
	l.alone++
	l.mu.Unlock()
	return l.answer(req)
}

func (l *listening) answer(req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	l.mu.Lock()
	l.heard = append(l.heard, req)
	fail := l.fail
	l.mu.Unlock()
	if fail != nil {
		if err := fail(); err != nil {
			return nil, err
		}
	}
	return &borgrpc.PollResponse{Unchanged: true, Spec: &borgpb.MachineSpec{Addr: "here:1"}}, nil
}

func (l *listening) Polls(stream borgrpc.BorgletService_PollsServer) error {
	if l.old {
		return l.UnimplementedBorgletServiceServer.Polls(stream)
	}
	return borglet.AnswerPolls(stream, l.answer)
}

// serve returns who calls it, and what ends it.
func (l *listening) serve(t *testing.T, addr string) (client borgrpc.BorgletServiceClient, at string, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	borgrpc.RegisterBorgletServiceServer(server, l)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	end = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(end)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return borgrpc.NewBorgletServiceClient(conn), listener.Addr().String(), end
}

func orders(index uint64, machine string) *borgrpc.PollRequest {
	return &borgrpc.PollRequest{
		Fence: &borgrpc.Fence{CellId: "c", Term: 1, Index: index}, Machine: machine, Replica: 2, KnownHash: []byte{byte(index)},
		Desired: []*borgrpc.Desired{{Job: "web"}}, Stops: []*borgrpc.Stop{{Index: 7}}, Forget: []*borgrpc.CopyID{{Index: 4}},
		Describe: []*borgrpc.CopyID{{Index: 5}}, Belief: &borgrpc.Belief{Removed: []uint64{9}},
		Packages: []*borgrpc.WantedPackage{{Digest: "sha256:1", Origin: true}},
	}
}

func TestLine(t *testing.T) {
	l := &listening{}
	client, addr, _ := l.serve(t, "127.0.0.1:0")
	ln := newLine(t.Context())
	var sent []*borgrpc.PollRequest
	ask := func(asked uint64, req *borgrpc.PollRequest) *borgrpc.PollResponse {
		t.Helper()
		resp, err := ln.poll(client, addr, proto.CloneOf(req), asked, PollTimeout)
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, req)
		return resp
	}
	first := ask(1, orders(1, "m1"))
	again := ask(1, orders(2, "m1"))
	if first.Spec == nil || again.Spec != nil {
		t.Errorf("the machine is told as %v and then as %v; want once", first.Spec, again.Spec)
	}
	other := orders(3, "m1")
	other.Stops = nil
	ask(2, other)
	believes := proto.CloneOf(other)
	believes.Belief.Removed = []uint64{9, 10}
	ask(2, believes)
	later := proto.CloneOf(believes)
	later.Fence.Index = 8
	ask(2, later)
	if !slices.EqualFunc(l.heard, sent, func(a, b *borgrpc.PollRequest) bool { return proto.Equal(a, b) }) {
		t.Errorf("the borglet heard\n%v\nwant\n%v", l.heard, sent)
	}
	if l.alone != 0 {
		t.Errorf("%d polls came alone; want all on one stream", l.alone)
	}
}

func TestLineEnds(t *testing.T) {
	l := &listening{}
	client, addr, end := l.serve(t, "127.0.0.1:0")
	ln := newLine(t.Context())
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); err != nil {
		t.Fatal(err)
	}
	l.fail = func() error { return status.Error(codes.FailedPrecondition, "it holds tasks of m2") }
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a poll that is refused: %v", err)
	}
	l.fail = nil
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); err != nil {
		t.Errorf("the poll after one that was refused: %v", err)
	}
	hung := make(chan struct{})
	l.fail = func() error { <-hung; return nil }
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a poll that is not answered: %v", err)
	}
	l.mu.Lock()
	l.fail = nil
	l.mu.Unlock()
	close(hung)
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); err != nil {
		t.Errorf("the poll after one that was not answered: %v", err)
	}
	before := len(l.heard)
	end()
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); !strings.Contains(door.Reason(err), "refused") {
		t.Errorf("a poll of nobody: %v", err)
	}
	anew := &listening{}
	_, _, _ = anew.serve(t, addr)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		_, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout)
		if err == nil {
			break
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("the borglet is back and not reached: %v", err)
		}
	}
	if got := anew.heard[0]; !proto.Equal(got, orders(1, "m1")) || len(l.heard) != before {
		t.Errorf("a borglet that is new hears %v; want all of it", got)
	}
	ln.hangUp()
	if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); err == nil {
		t.Error("a line that was hung up goes on")
	}
}

func TestLineToAnOldBorglet(t *testing.T) {
	l := &listening{old: true}
	client, addr, _ := l.serve(t, "127.0.0.1:0")
	ln := newLine(t.Context())
	for range 3 {
		if _, err := ln.poll(client, addr, orders(1, "m1"), 1, PollTimeout); err != nil {
			t.Fatal(err)
		}
	}
	if l.alone != 3 || !proto.Equal(l.heard[2], orders(1, "m1")) {
		t.Errorf("a borglet that knows no streams was polled %d times alone, last %v; want 3, in full", l.alone, l.heard[2])
	}
}

// TestOrdersAfterARefusal: what a borglet held is forgotten when it refuses a poll, and the
// numbers of its orders go on: its line may repeat those of the last number.
func TestOrdersAfterARefusal(t *testing.T) {
	known := &Known{asked: 7, Hash: []byte{1}}
	s := NewStation(Config{NowNs: func() int64 { return 1 }, Logger: slog.New(slog.DiscardHandler)})
	s.warn("borglet refuses polls", Poll{Machine: "m", known: known}, "no")
	if known.asked != 7 || known.Hash != nil || known.warnedNs != 1 {
		t.Errorf("it is %+v", known)
	}
}
