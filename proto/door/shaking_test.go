package door

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"
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

// pipeConn is a connection whose other end says what it is told to, when it is told to.
type pipeConn struct {
	net.Conn
	say chan error
	// Reads that wait.
	waiting atomic.Int32
}

func (c *pipeConn) Read(b []byte) (int, error) {
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	err := <-c.say
	return len(b), err
}

func (c *pipeConn) Write(b []byte) (int, error) { return c.Read(b) }

// TestWhoWaitsForTheOtherEndHasNoTurn at a door: thousands that say nothing keep nobody
// out, and who is back waits for his turn.
func TestWhoWaitsForTheOtherEndHasNoTurn(t *testing.T) {
	turns := cap(shaking.atDoors)
	var silent []*pipeConn
	done := make(chan int)
	for i := range 10 * turns {
		c := &pipeConn{say: make(chan error)}
		silent = append(silent, c)
		go func() {
			turn := inTurn(c)
			defer turn.end()
			var n int
			if i%2 == 0 {
				n, _ = turn.Read(make([]byte, 7))
			} else {
				n, _ = turn.Write(make([]byte, 7))
			}
			done <- n
		}()
	}
	for _, c := range silent {
		for deadline := time.Now().Add(5 * time.Minute); c.waiting.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a handshake waits for its turn while all others wait for their other ends")
			}
		}
	}
	var atWork []*shakingConn
	for range turns {
		atWork = append(atWork, inTurn(nil))
	}
	for _, c := range silent {
		c.say <- nil
	}
	select {
	case <-done:
		t.Error("one goes on while as many as may be are at work")
	case <-time.After(50 * time.Millisecond):
	}
	for _, turn := range atWork {
		turn.end()
		turn.end() // Over once is over.
	}
	for range silent {
		if n := <-done; n != 7 {
			t.Errorf("%d bytes came, want 7", n)
		}
	}
	// Whoever gave up waiting leaves nothing when the other end speaks after all.
	late := &pipeConn{say: make(chan error)}
	turn := inTurn(late)
	go func() {
		n, _ := turn.Read(make([]byte, 7))
		done <- n
	}()
	for late.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	turn.end()
	late.say <- nil
	<-done
	if n := len(shaking.atDoors); n != 0 {
		t.Errorf("%d have their turns when all are over", n)
	}
}
