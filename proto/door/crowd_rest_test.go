package door

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
)

// A connection rests the longer the later its caller was told to come back, and the more
// connections he has.
func TestRestAfter(t *testing.T) {
	for told, want := range map[time.Duration]time.Duration{
		0: 2 * time.Millisecond, 4 * time.Millisecond: 2 * time.Millisecond, 50 * time.Millisecond: 12500 * time.Microsecond,
		200 * time.Millisecond: 50 * time.Millisecond, 400 * time.Millisecond: 100 * time.Millisecond, 10 * time.Second: 100 * time.Millisecond,
	} {
		if got := restAfter(TooMuch("too much", told), 1); got != want {
			t.Errorf("told %v: %v, want %v", told, got, want)
		}
	}
	if got := restAfter(errors.New("any"), 1); got != refusedPause {
		t.Errorf("told nothing: %v, want %v", got, refusedPause)
	}
	for conns, want := range map[int64]time.Duration{1: 50 * time.Millisecond, 25: 50 * time.Millisecond, 100: 200 * time.Millisecond, maxConnsOfOne: 2048 * time.Millisecond} {
		if got := restAfter(TooMuch("too much", 200*time.Millisecond), conns); got != want {
			t.Errorf("with %d connections: %v, want %v", conns, got, want)
		}
	}
}

// Nothing is read from a connection that rests, and then little at a time, until it was not
// refused anything for a while. It rests no longer than is good for it, and not when it is
// closed.
func TestRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := reading(near, identity.Name{Role: identity.User})
		go func() {
			for {
				if _, err := far.Write(bytes.Repeat([]byte{1}, 4*restingBytes)); err != nil {
					return
				}
			}
		}()
		read := func(what string, wait time.Duration, most int) {
			t.Helper()
			began := time.Now()
			n, err := c.Read(make([]byte, 4*restingBytes))
			if took := time.Since(began); err != nil || took != wait || n != most {
				t.Errorf("%s: %d bytes after %v (%v), want %d after %v", what, n, took, err, most, wait)
			}
		}
		read("as it comes", 0, 4*restingBytes)
		c.rest(100 * time.Millisecond)
		c.rest(200 * time.Millisecond)
		read("refused twice", 300*time.Millisecond, restingBytes)
		read("soon after", 0, restingBytes)
		for range 100 {
			c.rest(time.Second)
		}
		read("refused again and again", restLimit, restingBytes)
		time.Sleep(restingFor + time.Second)
		read("the rest of what was written", 0, restingBytes)
		read("after a while", 0, 4*restingBytes)
		c.rest(time.Second)
		began := time.Now()
		time.AfterFunc(time.Millisecond, func() { c.Close() })
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(began) != time.Millisecond {
			t.Errorf("closed after a millisecond: %v after %v", err, time.Since(began))
		}
		far.Close()
	})
}
