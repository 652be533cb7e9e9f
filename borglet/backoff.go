package borglet

import (
	"errors"
	"time"

	"borg/mutant"
)

// Backoff is how long a service task waits before it is started again. The
// first restart comes after FirstNs, since most tasks that end once do well
// the second time; then BaseNs, doubling up to MaxNs.
type Backoff struct {
	FirstNs int64
	BaseNs  int64
	MaxNs   int64
	// A run of this length counts as healthy: the next end is a first one.
	HealthyNs int64
}

// DefaultBackoff is 1 s, then 10 s doubling to 5 min; 10 min are healthy.
func DefaultBackoff() Backoff {
	return Backoff{
		FirstNs:   int64(time.Second),
		BaseNs:    int64(10 * time.Second),
		MaxNs:     int64(5 * time.Minute),
		HealthyNs: int64(10 * time.Minute),
	}
}

// Validate says what is wrong with it.
func (b Backoff) Validate() error {
	if b.FirstNs <= 0 || b.BaseNs <= 0 || b.MaxNs < b.BaseNs || b.HealthyNs <= 0 {
		return errors.New("restart backoff: all times must be above zero, and the longest not below the base")
	}
	return nil
}

// delayNs is the wait after the given number of ends in a row before this one.
func (b Backoff) delayNs(failures uint32) int64 {
	if mutant.Planted(mutant.BackoffForgotten) {
		return 0
	}
	if failures == 0 {
		return min(b.FirstNs, b.MaxNs)
	}
	delay := b.BaseNs
	for range failures - 1 {
		if delay >= b.MaxNs {
			break
		}
		delay *= 2
	}
	return min(delay, b.MaxNs)
}
