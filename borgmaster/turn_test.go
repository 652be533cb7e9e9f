package borgmaster

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/proto/door"
)

// TestTurnOfReads: a read waits for its turn, until it has it, gives up, or is refused with
// a time to come back; none of that leaves a turn taken.
func TestTurnOfReads(t *testing.T) {
	a := newAdmitter(admission.Config{Replica: 2}, func() int64 { return time.Now().UnixNano() })
	a.turns = admission.NewTurns[chan struct{}](2, 1, 1)
	defer a.close()
	ctx := context.Background()
	first, err := a.turn(ctx, "alice", false)
	if err != nil {
		t.Fatal(err)
	}

	if _, err = a.turn(ctx, "bob", false); status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) <= 0 ||
		!strings.Contains(err.Error(), `user "bob" waited 400 ms at replica 2 for its turn to read`) {
		t.Errorf("one who waited in vain hears: %v", err)
	}

	short, cancel := context.WithCancel(ctx)
	gone := make(chan error)
	go func() {
		_, err := a.turn(short, "carol", false)
		gone <- err
	}()
	cancel()
	if err := <-gone; status.Code(err) != codes.Canceled {
		t.Errorf("one who gave up hears: %v", err)
	}

	next := make(chan error)
	go func() {
		leave, err := a.turn(ctx, "dave", false)
		if err == nil {
			leave()
		}
		next <- err
	}()
	for {
		if _, turns := a.stats(); turns.Waiting == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	first()
	if err := <-next; err != nil {
		t.Errorf("one whose turn it was: %v", err)
	}
	leave, err := a.turn(ctx, "erin", false)
	if err != nil {
		t.Fatalf("after all have gone: %v", err)
	}
	leave()
}
