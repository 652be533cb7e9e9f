package borgmaster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/identity"
	"borg/proto/door"
)

// TestDecodingTakesTurns: large messages of users and their tasks are decoded in the turns of reads and
// on the time of their user; other programs of the cell wait for nobody.
func TestDecodingTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmitter(admission.Config{Replica: 2}, func() int64 { return time.Now().UnixNano() })
		defer a.close()
		a.places, a.turns = 1, admission.NewTurns[chan struct{}](2, 1, 1)
		m := &Master{admit: a}
		ctx := context.Background()
		alice, bob := identity.Name{Role: identity.User, ID: "alice"}, identity.Name{Role: identity.User, ID: "bob"}
		leave, err := m.decodeTurn(ctx, alice)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.decodeTurn(ctx, bob); status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) <= 0 {
			t.Errorf("a second message at once: %v", err)
		}
		if free, err := m.decodeTurn(ctx, identity.Name{Role: identity.Borglet, ID: "m1"}); err != nil {
			t.Errorf("a borglet: %v", err)
		} else {
			free()
		}

		// Alice's messages keep the turn for as long as all of her time, and more.
		time.Sleep(100 * time.Second)
		leave()
		if _, err := m.decodeTurn(ctx, alice); status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) <= 0 {
			t.Errorf("a message of a user whose time is used up: %v", err)
		}
		if next, err := m.decodeTurn(ctx, bob); err != nil {
			t.Errorf("a message of another user: %v", err)
		} else {
			next()
		}
	})
}
