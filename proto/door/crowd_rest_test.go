package door

import (
	"errors"
	"testing"
	"time"
)

// A connection rests the longer the later its caller was told to come back.
func TestRestAfter(t *testing.T) {
	for told, want := range map[time.Duration]time.Duration{
		0: 2 * time.Millisecond, 4 * time.Millisecond: 2 * time.Millisecond, 50 * time.Millisecond: 12500 * time.Microsecond,
		200 * time.Millisecond: 50 * time.Millisecond, 400 * time.Millisecond: 100 * time.Millisecond, 10 * time.Second: 100 * time.Millisecond,
	} {
		if got := restAfter(TooMuch("too much", told)); got != want {
			t.Errorf("told %v: %v, want %v", told, got, want)
		}
	}
	if got := restAfter(errors.New("any")); got != refusedPause {
		t.Errorf("told nothing: %v, want %v", got, refusedPause)
	}
}
