package door_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestLargeMessagesWaitForATurn: a message of more than 4 KiB is decoded in a turn, a smaller one
// without, and a call whose turn is refused is refused.
func TestLargeMessagesWaitForATurn(t *testing.T) {
	var asked, left atomic.Int32
	var refuse atomic.Bool
	addr := serve(t, "127.0.0.1:0", door.Config{
		Identity: source(t, identity.Master, "1"),
		Turn: func(_ context.Context, who identity.Name) (func(), error) {
			if who.ID != "alice" {
				t.Errorf("the turn is asked for %s", who.Words())
			}
			asked.Add(1)
			if refuse.Load() {
				return nil, door.TooMuch("not now", time.Second)
			}
			return func() { left.Add(1) }, nil
		},
	})
	alice := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.User, "alice"), name(identity.Master, "")))
	list := func(bytes int) error {
		_, err := alice.ListJobs(t.Context(), &borgrpc.ListJobsRequest{Selector: strings.Repeat("x", bytes)})
		return err
	}
	if err := list(4000); asked.Load() != 0 {
		t.Errorf("a small message asked for %d turns: %v", asked.Load(), err)
	}
	if err := list(5000); asked.Load() != 1 || left.Load() != 1 {
		t.Errorf("a large message asked for %d turns and left %d: %v", asked.Load(), left.Load(), err)
	}
	refuse.Store(true)
	if err := list(5000); status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) != time.Second {
		t.Errorf("a large message without a turn: %v", err)
	}
}
