package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

func killOp() *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}}
}

// A mutation that gets no answer is tried elsewhere, as the same request.
func TestMutateKeepsItsRequestID(t *testing.T) {
	busy, good := startMaster(t), startMaster(t)
	busy.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		return nil, status.Error(codes.Unavailable, "nobody is elected")
	}
	c := newClient(t, Config{Masters: []string{busy.addr, deadAddr(t), good.addr}, Identity: source(t, identity.User, "alice")})
	c.current = 0
	result, err := c.Mutate(t.Context(), killOp())
	if err != nil || result.Index != 7 {
		t.Fatalf("Mutate = %v, %v", result, err)
	}
	if len(busy.ops) != 1 || len(good.ops) != 1 || busy.ops[0].RequestId != good.ops[0].RequestId || len(good.ops[0].RequestId) != 26 {
		t.Errorf("the masters saw %v and %v, want one request twice", busy.ops, good.ops)
	}
	if good.ops[0].RequestWallNs == 0 || good.callers[0] != "alice" {
		t.Errorf("op %v of caller %v lacks its time or its user", good.ops[0], good.callers)
	}
	// The one that answered is asked first from now on.
	if _, err := c.Mutate(t.Context(), killOp()); err != nil {
		t.Fatal(err)
	}
	if len(busy.ops) != 1 || len(good.ops) != 2 || good.ops[0].RequestId == good.ops[1].RequestId {
		t.Errorf("second mutation: %d and %d calls, ids %v", len(busy.ops), len(good.ops), good.ops)
	}
}

// A replica that hangs is not waited for alone: another one is asked the same
// while it is still being asked.
func TestHungMaster(t *testing.T) {
	hung, good := startMaster(t), startMaster(t)
	hung.hung = make(chan error, 1)
	c := newClient(t, Config{Masters: []string{hung.addr, deadAddr(t), good.addr}, Identity: source(t, identity.User, "alice")})
	c.current = 0
	result, err := c.Mutate(t.Context(), killOp())
	if err != nil || result.Index != 7 {
		t.Fatalf("Mutate = %v, %v", result, err)
	}
	if err := <-hung.hung; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that hung ended with %v, want that it was cancelled for the other's answer", err)
	}
	if len(hung.ops) != 1 || len(good.ops) != 1 || hung.ops[0].RequestId != good.ops[0].RequestId {
		t.Errorf("the masters saw %v and %v, want one request twice", hung.ops, good.ops)
	}
	if c.current != 2 {
		t.Errorf("replica %d is asked first from now on, want the one that answered", c.current)
	}
}

// A replica that answers after another one was asked as well is still heard.
func TestSlowMaster(t *testing.T) {
	slow, hung := startMaster(t), startMaster(t)
	also := make(chan struct{})
	slow.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		<-also
		return &borgpb.Result{Index: 8}, nil
	}
	hung.hung, hung.asked = make(chan error, 1), also
	c := newClient(t, Config{Masters: []string{slow.addr, hung.addr}, Identity: source(t, identity.User, "alice")})
	c.current = 0
	result, err := c.Mutate(t.Context(), killOp())
	if err != nil || result.Index != 8 {
		t.Fatalf("Mutate = %v, %v", result, err)
	}
	if err := <-hung.hung; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that hung ended with %v, want that it was cancelled for the other's answer", err)
	}
	if c.current != 0 {
		t.Errorf("replica %d is asked first from now on, want the one that answered", c.current)
	}
}

// A single replica that has nobody elected for a while is asked again.
func TestMutateWaitsForAnElection(t *testing.T) {
	m := startMaster(t)
	left := 4
	m.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		if left--; left > 0 {
			return nil, status.Error(codes.Unavailable, "nobody is elected")
		}
		return &borgpb.Result{Index: 9}, nil
	}
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	result, err := c.Mutate(t.Context(), killOp())
	if err != nil || result.Index != 9 || len(m.ops) != 4 {
		t.Fatalf("Mutate = %v, %v after %d tries", result, err, len(m.ops))
	}
}

// Nobody waits long for a replica that says nothing, at first.
func TestMutateLeavesASilentReplica(t *testing.T) {
	m := startMaster(t)
	m.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		if len(m.ops) < 3 {
			return nil, status.Error(codes.Unavailable, "nobody is elected")
		}
		return &borgpb.Result{Index: 9}, nil
	}
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	if _, err := c.Mutate(t.Context(), killOp()); err != nil {
		t.Fatal(err)
	}
	for i, most := range []time.Duration{mutateTryTimeout, 2 * mutateTryTimeout, 4 * mutateTryTimeout} {
		if i >= len(m.waits) || m.waits[i] > most {
			t.Fatalf("the tries had %v, and try %d should have at most %v", m.waits, i, most)
		}
	}
}

func TestRefusal(t *testing.T) {
	m := startMaster(t)
	m.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		return &borgpb.Result{Index: 3, Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, Object: "alice/web", Message: "version is 4, not 3", Field: "expect_version"}}, nil
	}
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	result, err := c.Mutate(t.Context(), killOp())
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Word() != "conflict" || result.Index != 3 {
		t.Fatalf("Mutate = %v, %v", result, err)
	}
	if want := "alice/web: version is 4, not 3 (expect_version)"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if len(m.ops) != 1 {
		t.Errorf("a refusal was tried %d times", len(m.ops))
	}
}

func TestAnswersHaveTypes(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	for _, tc := range []struct {
		code codes.Code
		as   any
	}{
		{codes.NotFound, new(*NotFoundError)}, {codes.PermissionDenied, new(*NotAllowedError)}, {codes.Unauthenticated, new(*NotAllowedError)},
		{codes.InvalidArgument, new(*InvalidError)}, {codes.FailedPrecondition, new(*StateError)},
		{codes.Internal, new(*AnswerError)}, {codes.Aborted, new(*AnswerError)}, {codes.AlreadyExists, new(*AnswerError)},
	} {
		m.err = status.Error(tc.code, "so it is")
		_, err := c.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "web"})
		if !errors.As(err, tc.as) || !strings.Contains(err.Error(), "so it is") {
			t.Errorf("%v: error %T %v, want %T", tc.code, err, err, tc.as)
		}
	}
}

func TestUnreachable(t *testing.T) {
	dead := deadAddr(t)
	c := newClient(t, Config{Masters: []string{dead}, Timeout: 200 * time.Millisecond, Identity: source(t, identity.User, "alice")})
	_, err := c.GetCell(t.Context())
	var away *UnreachableError
	if !errors.As(err, &away) || away.Answered || !strings.Contains(err.Error(), dead+": connect: connection refused") {
		t.Fatalf("GetCell: %v", err)
	}
	m := startMaster(t)
	m.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		return nil, status.Error(codes.Unavailable, "nobody is elected")
	}
	c = newClient(t, Config{Masters: []string{m.addr, dead}, Timeout: 200 * time.Millisecond, Identity: source(t, identity.User, "alice")})
	_, err = c.Mutate(t.Context(), killOp())
	if !errors.As(err, &away) || !away.Answered || !away.Unknown {
		t.Fatalf("Mutate: %#v", err)
	}
}

func TestCancelledCall(t *testing.T) {
	c := newClient(t, Config{Masters: []string{deadAddr(t)}, Identity: source(t, identity.User, "alice")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.GetCell(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("GetCell: %v, want that it was cancelled", err)
	}
}

// Masters of another cell are found out before anything is changed.
func TestOtherCell(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, CellID: "id-2", Identity: source(t, identity.User, "alice")})
	_, err := c.Mutate(t.Context(), killOp())
	var other *OtherCellError
	if !errors.As(err, &other) || other.Got != "id-1" || len(m.ops) != 0 {
		t.Fatalf("Mutate: %v after %d ops", err, len(m.ops))
	}
	c = newClient(t, Config{Masters: []string{m.addr}, CellID: "id-1", Identity: source(t, identity.User, "alice")})
	if _, err := c.Mutate(t.Context(), killOp()); err != nil {
		t.Fatal(err)
	}
}

func TestSurvey(t *testing.T) {
	one, dead, two := startMaster(t), deadAddr(t), startMaster(t)
	two.err = status.Error(codes.Internal, "broken")
	c := newClient(t, Config{Masters: []string{one.addr, dead, two.addr}, Identity: source(t, identity.User, "alice")})
	views := c.Survey(t.Context())
	if len(views) != 3 || views[0].Cell.GetCellName() != "cell" || views[0].Err != nil {
		t.Fatalf("Survey = %v", views)
	}
	if views[1].Addr != dead || views[1].Err == nil || !strings.Contains(views[1].Err.Error(), "connection refused") {
		t.Errorf("nobody there: %v", views[1])
	}
	if views[2].Err == nil || views[2].Err.Error() != "broken" {
		t.Errorf("broken: %v", views[2])
	}
}

func TestListAllTasks(t *testing.T) {
	m := startMaster(t)
	c := newClient(t, Config{Masters: []string{m.addr}, Identity: source(t, identity.User, "alice")})
	for max, want := range map[int]int{0: 5, 3: 4} {
		resp, err := c.ListAllTasks(t.Context(), &borgrpc.ListTasksRequest{Used: true}, max)
		if err != nil || len(resp.Tasks) != want {
			t.Fatalf("ListAllTasks(max %d) = %v, %v; want %d tasks", max, resp, err, want)
		}
		for i, task := range resp.Tasks {
			if task.Index != uint32(i) {
				t.Errorf("task %d is at place %d", task.Index, i)
			}
		}
	}
}

// When the replica that tells of events goes away, another continues: each
// event once, in order.
func TestEventsGoOn(t *testing.T) {
	event := func(index uint64, n uint32) *borgpb.Event { return &borgpb.Event{Index: index, N: n} }
	first, second := startMaster(t), startMaster(t)
	first.events = func(_ *borgrpc.EventsRequest, send func(*borgrpc.EventsResponse) error) error {
		_ = send(&borgrpc.EventsResponse{Events: []*borgpb.Event{event(5, 0), event(6, 0)}})
		_ = send(&borgrpc.EventsResponse{Events: []*borgpb.Event{event(6, 1)}})
		return status.Error(codes.Unavailable, "told to stop")
	}
	var asked *borgrpc.EventsRequest
	second.events = func(req *borgrpc.EventsRequest, send func(*borgrpc.EventsResponse) error) error {
		asked = req
		_ = send(&borgrpc.EventsResponse{Events: []*borgpb.Event{event(6, 0), event(6, 1), event(6, 2)}})
		return send(&borgrpc.EventsResponse{Events: []*borgpb.Event{event(7, 0)}})
	}
	c := newClient(t, Config{Masters: []string{first.addr, second.addr}, Identity: source(t, identity.User, "alice")})
	c.current = 0
	enough := errors.New("enough")
	var got [][2]uint64
	err := c.Events(t.Context(), &borgrpc.EventsRequest{Follow: true, Last: 10}, func(resp *borgrpc.EventsResponse) error {
		for _, e := range resp.Events {
			got = append(got, [2]uint64{e.Index, uint64(e.N)})
			if e.Index == 7 {
				return enough
			}
		}
		return nil
	})
	want := [][2]uint64{{5, 0}, {6, 0}, {6, 1}, {6, 2}, {7, 0}}
	if !errors.Is(err, enough) || !slices.Equal(got, want) {
		t.Fatalf("Events gave %v, %v; want %v", got, err, want)
	}
	if asked.FromIndex != 6 || asked.Last != 0 {
		t.Errorf("the second replica was asked for %v", asked)
	}
}

// A log that broke off is not begun again: its bytes would come twice. One that
// did not begin is asked for elsewhere.
func TestLogsBreakOff(t *testing.T) {
	busy, m := startMaster(t), startMaster(t)
	busy.err = status.Error(codes.Unavailable, "nobody is elected")
	c := newClient(t, Config{Masters: []string{busy.addr, m.addr}, Identity: source(t, identity.User, "alice")})
	c.current = 0
	var got []byte
	err := c.Logs(t.Context(), &borgrpc.LogsRequest{User: "alice", Name: "web"}, func(resp *borgrpc.LogsResponse) error {
		got = append(got, resp.Data...)
		return nil
	})
	var broken *BrokenStreamError
	if !errors.As(err, &broken) || string(got) != "one " {
		t.Fatalf("Logs gave %q, %v", got, err)
	}
	if want := "read the log of alice/web/0: the answer broke off: told to stop"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestRequestIDs(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	seen := make(map[string]bool)
	last := ""
	for i := range 1000 {
		id, wallNs := NewRequestID(now.Add(time.Duration(i) * time.Millisecond))
		if len(id) != 26 || strings.Trim(id, alphabet) != "" || seen[id] {
			t.Fatalf("id %q is not new or not well formed", id)
		}
		if wallNs != now.UnixNano()+int64(i)*1e6 {
			t.Fatalf("wall time %d", wallNs)
		}
		if id <= last {
			t.Fatalf("%q does not sort after %q, which is older", id, last)
		}
		seen[id], last = true, id
	}
	// The time is in the first ten characters, as in a ULID.
	if id, _ := NewRequestID(now); !strings.HasPrefix(id, "01hf7yat00") {
		t.Errorf("id %q of %v does not begin with its time", id, now)
	}
}

// TestComesBackLater: who is asked to come back later does so, at the same master, and
// says why it takes long.
func TestComesBackLater(t *testing.T) {
	m := startMaster(t)
	tries := 0
	m.mutate = func(*borgpb.Op) (*borgpb.Result, error) {
		if tries++; tries < 3 {
			return nil, door.TooMuch("user alice asks for too much", 20*time.Millisecond)
		}
		return &borgpb.Result{Index: 9}, nil
	}
	var said []string
	c, err := New(Config{Masters: []string{m.addr, "127.0.0.1:1"}, Identity: source(t, identity.User, "alice"), Waits: func(what, why string, wait time.Duration) {
		if wait < 20*time.Millisecond || wait > 25*time.Millisecond {
			t.Errorf("waits %v when told 20 ms", wait)
		}
		said = append(said, what+": "+why)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.current = 0
	res, err := c.Mutate(context.Background(), &borgpb.Op{})
	if err != nil || res.Index != 9 {
		t.Fatalf("%v, %v", res, err)
	}
	if want := []string{"change the cell: user alice asks for too much", "change the cell: user alice asks for too much"}; !slices.Equal(said, want) {
		t.Errorf("it said %q", said)
	}
	if m.ops[0].RequestId != m.ops[2].RequestId {
		t.Error("the request id did not stay the same")
	}
}

// TestLearnsWhoIsElected: mutations go straight to whom the last answer named, and
// anywhere again when that one fails; reads stay where they were.
func TestLearnsWhoIsElected(t *testing.T) {
	first, elected := startMaster(t), startMaster(t)
	elected.elected, elected.number = &borgpb.Member{Id: 2, Addr: "elsewhere:7002"}, 2
	first.elected, first.number = &borgpb.Member{Id: 2, Addr: elected.addr}, 1
	c, err := New(Config{Masters: []string{first.addr, elected.addr}, Identity: source(t, identity.User, "alice")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.current = 0
	change := func(wantFirst, wantElected int) {
		t.Helper()
		if _, err := c.Mutate(context.Background(), &borgpb.Op{}); err != nil {
			t.Fatal(err)
		}
		if len(first.ops) != wantFirst || len(elected.ops) != wantElected || c.current != 0 {
			t.Errorf("%d and %d mutations, want %d and %d; reads go to %d", len(first.ops), len(elected.ops), wantFirst, wantElected, c.current)
		}
	}
	change(1, 0)
	change(1, 1)
	// By its number, although it is known by another address.
	change(1, 2)
	elected.mutate = func(*borgpb.Op) (*borgpb.Result, error) { return nil, status.Error(codes.Unavailable, "stopping") }
	first.elected = nil
	change(2, 3)
	change(3, 3)
}

// A master that is not believed any more, as one that was taken out of the cell, is
// passed over; when none is believed, that is the answer.
func TestDistrustedMasterIsPassedOver(t *testing.T) {
	stranger, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	who, err := stranger.Source(identity.Name{Cell: "test", Role: identity.Master, ID: "2"}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	s := door.NewServer(door.Config{Identity: who})
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	good := startMaster(t)
	for range 4 {
		// Whoever is asked first is drawn.
		c := newClient(t, Config{Masters: []string{l.Addr().String(), good.addr}, Identity: source(t, identity.User, "alice")})
		if _, err := c.Mutate(t.Context(), killOp()); err != nil {
			t.Errorf("with one master that is not believed: %v", err)
		}
	}
	c := newClient(t, Config{Masters: []string{l.Addr().String()}, Identity: source(t, identity.User, "alice")})
	var distrusted *DistrustedError
	if _, err := c.Mutate(t.Context(), killOp()); !errors.As(err, &distrusted) {
		t.Errorf("with no master that is believed: %v", err)
	}
}

// TestAStreamThatNobodyServes: where no master serves it, a deadline of the caller is no other end
// than the client's own. A stream that follows may be quiet for ever.
func TestAStreamThatNobodyServes(t *testing.T) {
	m := startMaster(t)
	m.events = func(*borgrpc.EventsRequest, func(*borgrpc.EventsResponse) error) error {
		<-t.Context().Done()
		return nil
	}
	late := errors.New("--timeout has passed")
	for _, tc := range []struct {
		master string
		follow bool
		away   bool
	}{{deadAddr(t), false, true}, {deadAddr(t), true, true}, {m.addr, false, true}, {m.addr, true, false}} {
		c := newClient(t, Config{Masters: []string{tc.master}, Identity: source(t, identity.User, "alice")})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, late)
		err := c.Events(ctx, &borgrpc.EventsRequest{Follow: tc.follow}, func(*borgrpc.EventsResponse) error { return nil })
		cancel()
		var away *UnreachableError
		if errors.As(err, &away) != tc.away || !tc.away && !errors.Is(err, late) {
			t.Errorf("follow %v of %s: %v", tc.follow, tc.master, err)
		}
	}
}

// TestRetriesAreTold: Config.Retries is called once for a call that no master serves, before the call is given up.
func TestRetriesAreTold(t *testing.T) {
	dead := deadAddr(t)
	var told []string
	c := newClient(t, Config{Masters: []string{dead}, Timeout: 2*retriesAfter + 2*maxPause, Identity: source(t, identity.User, "alice"), Retries: func(what string, said map[string]error, left time.Duration) {
		told = append(told, fmt.Sprint(what, " ", said[dead], " ", left > 0))
	}})
	want := "ask for the cell connect: connection refused true"
	if _, err := c.GetCell(t.Context()); err == nil || len(told) != 1 || told[0] != want {
		t.Errorf("GetCell: %v; told %q, want %q once", err, told, want)
	}
}
