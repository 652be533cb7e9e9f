package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"borg/proto/borgrpc"
	"borg/proto/door"
)

// attempt is one replica that was asked.
type attempt[R any] struct {
	replica int
	resp    R
	err     error
}

// tries are the replicas that are asked the same, one after the other. One
// goroutine owns it; each attempt but the first has a goroutine of its own, which
// ends with its answer.
type tries[R any] struct {
	c *Client
	// Replicas that may be asked, as known at the beginning.
	replicas []*replica
	what     string
	began    time.Time
	f        func(context.Context, *replica) (R, error)
	// The replica that is asked next.
	next int
	// How long it is waited for.
	each     time.Duration
	underway map[int]bool
	answers  chan attempt[R]
	// What the replicas said last that gave no answer, by address.
	failed map[string]error
	// told: Config.Retries has heard of it.
	told bool

	// What came of it, once decided is done: for the goroutine of the caller.
	resp    R
	err     error
	decided sync.WaitGroup
}

// ask asks the next replica that is not being asked.
func (t *tries[R]) ask(ctx context.Context) {
	for t.underway[t.next] {
		t.next = (t.next + 1) % len(t.replicas)
	}
	i := t.next
	t.next = (i + 1) % len(t.replicas)
	t.underway[i] = true
	each := t.each
	go func() {
		ctx, cancel := context.WithTimeout(ctx, each)
		defer cancel()
		resp, err := t.f(ctx, t.replicas[i])
		t.answers <- attempt[R]{i, resp, err}
	}()
}

// tellRetries tells of a call that nobody has served for some time, and reports whether it did.
func (c *Client) tellRetries(ctx context.Context, what string, began time.Time, failed map[string]error) bool {
	until, bounded := ctx.Deadline()
	if c.config.Retries == nil || !bounded || time.Since(began) < retriesAfter {
		return false
	}
	said := make(map[string]error, len(failed))
	for addr, err := range failed {
		said[addr] = errors.New(plain(err))
	}
	c.config.Retries(what, said, time.Until(until))
	return true
}

// end waits for what is still under way, once ctx is done, and notes
// what the replicas said that had said nothing else.
func (t *tries[R]) end() {
	for range t.underway {
		t.note(<-t.answers)
	}
	clear(t.underway)
}

func (t *tries[R]) note(a attempt[R]) {
	if addr := t.replicas[a.replica].addr; t.failed[addr] == nil {
		t.failed[addr] = a.err
	}
}

// try calls f on one replica after another until one gives an answer, be it an
// error of its own, or the time is up. Each has so long for it, and more with
// each round, up to tryTimeout.
func try[R any](ctx context.Context, c *Client, what string, each time.Duration, f func(context.Context, borgrpc.MasterServiceClient) (R, error)) (R, error) {
	return tryEach(ctx, c, what, each, func(ctx context.Context, r *replica) (R, error) { return f(ctx, r.master) })
}

// answeredBy notes who is asked first the next time. The elected master is asked for
// what only it can do; what others can do as well is not heaped on it.
func (c *Client) answeredBy(replica int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replica != c.elected {
		c.current = replica
	}
}

func (c *Client) failedAt(replica int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elected == replica {
		c.elected = -1
	}
}

// tryIdentity is try for what IdentityService answers.
func tryIdentity[R any](ctx context.Context, c *Client, what string, f func(context.Context, borgrpc.IdentityServiceClient) (R, error)) (R, error) {
	return tryEach(ctx, c, what, tryTimeout, func(ctx context.Context, r *replica) (R, error) {
		return f(ctx, borgrpc.NewIdentityServiceClient(r.conn))
	})
}

func tryEach[R any](ctx context.Context, c *Client, what string, each time.Duration, f func(context.Context, *replica) (R, error)) (R, error) {
	c.mu.Lock()
	first := c.current
	c.mu.Unlock()
	return tryFrom(ctx, c, first, what, each, f)
}

// tryFrom is tryEach that begins with a given replica. Nearly always that one answers, and
// soon: it is asked by the goroutine of the caller, and what it takes to ask others is made
// only when it fails, or is silent for so long that it is no longer waited for alone.
func tryFrom[R any](ctx context.Context, c *Client, first int, what string, each time.Duration, f func(context.Context, *replica) (R, error)) (R, error) {
	all := c.all()
	t := &tries[R]{c: c, replicas: all, what: what, began: time.Now(), f: f, next: (first + 1) % len(all), each: each, answers: make(chan attempt[R], maxTries)}
	alone, giveUp := context.WithDeadline(ctx, t.began.Add(min(each, c.config.Timeout)))
	defer giveUp()
	t.decided.Add(1)
	slow := time.AfterFunc(slowAfter, func() {
		defer t.decided.Done()
		t.resp, t.err = t.beside(ctx, first, 0, giveUp)
	})
	resp, err := f(alone, all[first])
	switch inTime := slow.Stop(); {
	case inTime && err == nil:
		c.answeredBy(first)
		return resp, nil
	case inTime:
		t.answers <- attempt[R]{first, resp, err}
		return t.beside(ctx, first, slowAfter, giveUp)
	}
	t.answers <- attempt[R]{first, resp, err}
	t.decided.Wait()
	return t.resp, t.err
}

// beside takes over while the first replica is being asked: the next one is asked
// when it has given no answer, or so long from now. It ends with the first answer
// of any; giveUp ends the first attempt.
func (t *tries[R]) beside(ctx context.Context, first int, after time.Duration, giveUp context.CancelFunc) (R, error) {
	var none R
	c := t.c
	ctx, cancel := context.WithDeadline(ctx, t.began.Add(c.config.Timeout))
	t.underway = map[int]bool{first: true}
	t.failed = make(map[string]error)
	distrusted := make(map[int]bool)
	defer t.end()
	defer giveUp()
	defer cancel()
	pause := minPause
	// Fires when one that is under way has been silent for long, or when the
	// pause after a whole round is over.
	next := time.NewTimer(after)
	defer next.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			t.end()
			return none, c.gaveUp(ctx, t.what, t.began, t.failed)
		case <-next.C:
			if len(t.underway) < min(maxTries, len(t.replicas)) {
				c.config.Log.Debug("another replica is asked", "waiting", len(t.underway))
				t.ask(ctx)
				next.Reset(slowAfter)
			}
			continue
		case a := <-t.answers:
			delete(t.underway, a.replica)
			// One that was taken out of the cell is not believed any more; the others are
			// asked before that is taken for a word on all.
			if door.Distrusted(a.err) {
				distrusted[a.replica] = true
			}
			if len(distrusted) == len(t.replicas) || !door.Distrusted(a.err) && !again(ctx, a.err) {
				if a.err == nil {
					c.answeredBy(a.replica)
					if len(t.failed) > 0 || len(t.underway) > 0 {
						c.lookAround(t.replicas[a.replica])
					}
					return a.resp, nil
				}
				return none, answer(t.what, a.err)
			}
			if ctx.Err() != nil {
				t.note(a)
				continue
			}
			if retry := door.RetryAfter(a.err); retry > 0 {
				// It is not this replica that is in the way: others would say the same.
				t.failed[t.replicas[a.replica].addr] = a.err
				t.next = a.replica
				wait := retry + rand.N(retry/4+1)
				next.Reset(wait)
				if c.config.Waits != nil {
					c.config.Waits(t.what, plain(a.err), wait)
				}
				c.config.Log.Debug("asked to come back later", "replica", t.replicas[a.replica].addr, "wait", wait, "err", a.err)
				continue
			}
			c.failedAt(a.replica)
			n++
			t.failed[t.replicas[a.replica].addr] = a.err
			c.config.Log.Debug("no answer from a replica", "replica", t.replicas[a.replica].addr, "attempt", n, "err", a.err)
		}
		if n%len(t.replicas) == 0 {
			t.told = t.told || c.tellRetries(ctx, t.what, t.began, t.failed)
			next.Reset(pause/2 + rand.N(pause))
			pause = min(2*pause, maxPause)
			t.each = min(2*t.each, tryTimeout)
			continue
		}
		t.ask(ctx)
		next.Reset(slowAfter)
	}
}
