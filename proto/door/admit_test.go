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
