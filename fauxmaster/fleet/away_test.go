package fleet

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// What asks for a connection to a machine that is away gets no answer, as of a host that
// is not there, and others get theirs; once it is back it takes them again.
func TestAwayTakesNoConnections(t *testing.T) {
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := &Fleet{reach: newReach()}
	f.reach.listens(l)
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	dial := func(k int, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", Addr(k, port).String())
		if err == nil {
			conn.Close()
		}
		return err
	}
	const plenty, moment = time.Minute, 200 * time.Millisecond
	if err := f.Vanish(1, 3); err != nil {
		t.Fatal(err)
	}
	for k := 1; k <= 600; k += 85 {
		if k%3 != 0 {
			if err := dial(k, plenty); err != nil {
				t.Errorf("machine %d is not away: %v", k, err)
			}
		}
	}
	for _, k := range []int{3, 300, 65_538} {
		if err := dial(k, moment); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			t.Errorf("machine %d is away: %v, want no answer", k, err)
		}
	}
	for range 2 {
		if err := f.Vanish(0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := dial(3, plenty); err != nil {
		t.Errorf("machine 3 is back: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
