package door

import (
	"context"
	"errors"
	"testing"
)

// TestBorgletsAreShakenInTurn: so many handshakes with borglets at once, and those whose
// other end says nothing keep nobody waiting for ever.
func TestBorgletsAreShakenInTurn(t *testing.T) {
	if n := len(shaking.withBorglets); n != 0 {
		t.Fatalf("%d are under way before the test", n)
	}
	var ends []func(bool)
	for n := range maxShaking {
		end, err := shakeInTurn(t.Context())
		if err != nil {
			t.Fatalf("handshake %d: %v", n+1, err)
		}
		ends = append(ends, end)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := shakeInTurn(gone); !errors.Is(err, context.Canceled) {
		t.Fatalf("who waits no more hears %v", err)
	}
	ends[0](true)
	// The others say nothing: in time as many more have their turns.
	for n := range maxShaking {
		end, err := shakeInTurn(t.Context())
		if err != nil {
			t.Fatalf("handshake %d behind silent ones: %v", n+1, err)
		}
		ends = append(ends, end)
	}
	for _, end := range ends {
		end(false)
		end(false) // Over once is over.
	}
	if n := len(shaking.withBorglets); n != 0 {
		t.Errorf("%d have their turns when all are over", n)
	}
}
