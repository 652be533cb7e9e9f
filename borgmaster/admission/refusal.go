package admission

import (
	"fmt"
	"time"
)

// Refusal is an answer that a call is not served now.
type Refusal struct {
	User string
	// Which bound it met, in words, and what sets that bound.
	Why, Bound string
	// After which it is worth another try.
	RetryNs int64
	// In the words of another replica.
	said string
}

// Bounds of Refusal.RetryNs.
const (
	maxRetryNs = 10e9
	minRetryNs = 50e6
)

func (r *Refusal) Error() string {
	if r.said != "" {
		return r.said
	}
	return fmt.Sprintf("user %q %s (%s); nothing was done, try again in %v", r.User, r.Why, r.Bound, time.Duration(r.RetryNs))
}

func refuse(user string, retryNs int64, bound, why string, args ...any) *Refusal {
	return &Refusal{User: user, Why: fmt.Sprintf(why, args...), Bound: bound, RetryNs: retryIn(retryNs)}
}

// retryIn is within bounds, and in whole tens of milliseconds, for people.
func retryIn(ns int64) int64 { return min(max(ns, minRetryNs), maxRetryNs) / 10e6 * 10e6 }

// later returns the refusal for a caller that asks again with ns left to wait.
func (r *Refusal) later(ns int64) *Refusal {
	again := *r
	again.RetryNs = retryIn(ns + r.RetryNs/2)
	return &again
}

// Elsewhere returns the refusal that another replica sent, in its words.
func Elsewhere(user, text string, retryNs int64) *Refusal {
	return &Refusal{User: user, RetryNs: min(retryNs, maxRetryNs), said: text}
}
