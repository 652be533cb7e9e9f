package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"
)

// finalError is an error that waiting does not mend.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// until calls f again and again until it returns nil, a finalError, or ctx is
// done. What it waits for and what f said last are in the error.
func until(ctx context.Context, what string, f func(context.Context) error) error {
	began := time.Now()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		// That the time was up in the middle of a question says less than the
		// answer before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		var final *finalError
		if errors.As(err, &final) {
			return fmt.Errorf("waited until %s: %w", what, final.err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.Canceled) {
				return fmt.Errorf("wait until %s: %w", what, context.Canceled)
			}
			return fmt.Errorf("waited %s until %s; seen last: %w", time.Since(began).Round(time.Second), what, last)
		}
	}
}

// userName is the name of the user who runs us, as the cell takes it.
func userName() string {
	u, err := user.Current()
	if err != nil {
		return "user"
	}
	var b strings.Builder
	for _, r := range strings.ToLower(u.Username) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if b.Len() > 0 {
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String()[:min(b.Len(), 63)], "-")
	if name == "" {
		return "user"
	}
	return name
}
