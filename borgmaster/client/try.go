package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgrpc"
)

const (
	// One replica may take so long before it is given up. A replica that is
	// stopped or cut off neither answers nor refuses.
	tryTimeout = 5 * time.Second
	// A replica that is silent for so long is not waited for alone: the next one
	// is asked as well, and the first answer counts.
	slowAfter = time.Second
	// So many replicas are asked the same at once.
	maxTries = 2
	// Pause after a whole round of replicas without an answer, doubled with
	// each round.
	minPause = 25 * time.Millisecond
	maxPause = time.Second
)

// attempt is one replica that was asked.
type attempt[R any] struct {
	replica int
	resp    R
	err     error
}

// tries are the replicas that are asked the same, one after the other. One
// goroutine owns it; each attempt has a goroutine of its own, which ends with
// its answer.
type tries[R any] struct {
	c *Client
	f func(context.Context, borgrpc.MasterServiceClient) (R, error)
	// The replica that is asked next.
	next     int
	underway map[int]bool
	answers  chan attempt[R]
}

// ask asks the next replica that is not being asked.
func (t *tries[R]) ask(ctx context.Context) {
	for t.underway[t.next] {
		t.next = (t.next + 1) % len(t.c.replicas)
	}
	i := t.next
	t.next = (i + 1) % len(t.c.replicas)
	t.underway[i] = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		resp, err := t.f(ctx, t.c.replicas[i].master)
		t.answers <- attempt[R]{i, resp, err}
	}()
}

// end waits for what is still under way, which the caller has cancelled.
func (t *tries[R]) end() {
	for range t.underway {
		<-t.answers
	}
}

// try calls f on one replica after another until one gives an answer, be it an
// error of its own, or the time is up.
func try[R any](ctx context.Context, c *Client, what string, f func(context.Context, borgrpc.MasterServiceClient) (R, error)) (R, error) {
	var none R
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	c.mu.Lock()
	first := c.current
	c.mu.Unlock()
	t := &tries[R]{c: c, f: f, next: first, underway: make(map[int]bool), answers: make(chan attempt[R], maxTries)}
	defer t.end()
	defer cancel()
	failed := make(map[string]error)
	pause := minPause
	slow := time.NewTimer(slowAfter)
	defer slow.Stop()
	t.ask(ctx)
	for n := 1; ; {
		select {
		case <-slow.C:
			if len(t.underway) < min(maxTries, len(c.replicas)) {
				c.config.Log.Debug("a replica is slow; another is asked too", "replica", c.replicas[(t.next+len(c.replicas)-1)%len(c.replicas)].addr)
				t.ask(ctx)
			}
			continue
		case a := <-t.answers:
			delete(t.underway, a.replica)
			if !again(ctx, a.err) {
				if a.err == nil {
					c.mu.Lock()
					c.current = a.replica
					c.mu.Unlock()
					return a.resp, nil
				}
				return none, answer(what, a.err)
			}
			addr := c.replicas[a.replica].addr
			if ctx.Err() == nil || failed[addr] == nil {
				failed[addr] = a.err
			}
			c.config.Log.Debug("no answer from a replica", "replica", addr, "attempt", n, "err", a.err)
		}
		if ctx.Err() == nil && n%len(c.replicas) == 0 {
			wait(ctx, pause/2+rand.N(pause))
			pause = min(2*pause, maxPause)
		}
		if ctx.Err() != nil {
			for len(t.underway) > 0 {
				a := <-t.answers
				delete(t.underway, a.replica)
				failed[c.replicas[a.replica].addr] = a.err
			}
			return none, c.gaveUp(ctx, what, began, failed)
		}
		n++
		t.ask(ctx)
		slow.Reset(slowAfter)
	}
}

// again tells whether another replica, or the same one a little later, may do
// better. Deadlines of the single try count as no answer; the caller's do not.
func again(ctx context.Context, err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted:
		return true
	case codes.DeadlineExceeded, codes.Canceled:
		return true
	case codes.Unknown:
		return errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil
	default:
		return false
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
