package door_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestAdmit: a call is refused by its head, with the time to wait; masters are not asked.
func TestAdmit(t *testing.T) {
	var asked atomic.Int32
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := door.NewServer(door.Config{Identity: source(t, identity.Master, "1"), Admit: func(method string, who identity.Name) error {
		asked.Add(1)
		return door.TooMuch(who.ID+" asks "+method+" too often", 1500*time.Millisecond)
	}})
	borgrpc.RegisterMasterServiceServer(s, caller{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	who := source(t, identity.User, "alice")
	conn, err := door.Dial(l.Addr().String(), who, door.AnyMaster(who))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = borgrpc.NewMasterServiceClient(conn).GetCell(context.Background(), &borgrpc.GetCellRequest{})
	if status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) != 1500*time.Millisecond || !strings.Contains(err.Error(), "alice asks /borgrpc.MasterService/GetCell too often") {
		t.Errorf("refused with %v, to come back after %v", err, door.RetryAfter(err))
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// TestAdmitRepeated: each mutation of a stream is asked about once, and counted as a call.
func TestAdmitRepeated(t *testing.T) {
	var mu sync.Mutex
	asked, revoked, counted := 0, false, map[door.Call]int{}
	addr := serve(t, "127.0.0.1:0", door.Config{
		Identity: source(t, identity.Master, "1"),
		Admit: func(method string, who identity.Name) error {
			mu.Lock()
			defer mu.Unlock()
			if asked++; asked == 6 {
				return door.TooMuch(who.ID+" asks "+method+" too often", 1500*time.Millisecond)
			}
			return nil
		},
		Revoked: func(identity.Name, time.Time) bool { mu.Lock(); defer mu.Unlock(); return revoked },
		Called: func(c door.Call) {
			mu.Lock()
			defer mu.Unlock()
			c.Took = 0
			counted[c]++
		},
	})
	alice := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.User, "alice"), name(identity.Master, "")))
	begin := func() func() error {
		stream, err := alice.Mutations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return func() error {
			if err := stream.Send(&borgrpc.MutateRequest{}); err != nil {
				t.Fatal(err)
			}
			_, err := stream.Recv()
			return err
		}
	}
	ask := begin()
	for range 5 {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(); status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) != 1500*time.Millisecond {
		t.Errorf("the one too many: %v, to come back after %v", err, door.RetryAfter(err))
	}
	ask = begin()
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	revoked = true
	mu.Unlock()
	if err := ask(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("a mutation of somebody who was revoked: %v, want Unauthenticated", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := counted[door.Call{Method: "/borgrpc.MasterService/Mutations"}]; asked != 7 || n != 6 {
		t.Errorf("asked about %d mutations and counted %d, want 7 and 6: %v", asked, n, counted)
	}
}
