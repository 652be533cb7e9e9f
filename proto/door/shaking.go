package door

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// So many handshakes with borglets are under way at once, of those that are answered in
	// time: each is half a millisecond of signatures at both ends, and thousands begin
	// together when as many machines come back.
	maxShaking = 8
	// One that takes so much longer than others did lately, and at least so long, waits for
	// the other end, and keeps nobody waiting.
	slowShakingFactor, slowShakingLeast = 8, 100 * time.Millisecond
	// What others did is an average over about so many.
	shakingLag = 16
)

// shaking are the handshakes of this process's callers, with borglets, and those at its
// doors that are at work. Whatever else a process has to do, its log before all, would
// wait for a processor behind all that begin together.
var shaking = struct {
	withBorglets, atDoors chan struct{}
	// How long one with a borglet takes; nanoseconds.
	takesNs atomic.Int64
}{
	withBorglets: make(chan struct{}, maxShaking),
	atDoors:      make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1)),
}

// shakeInTurn waits for a turn for a handshake with a borglet. It ends with done, or when it
// takes too long.
func shakeInTurn(ctx context.Context) (done func(ok bool), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case shaking.withBorglets <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-shaking.withBorglets })
	began := time.Now()
	slow := time.AfterFunc(max(slowShakingFactor*time.Duration(shaking.takesNs.Load()), slowShakingLeast), leave)
	return func(ok bool) {
		slow.Stop()
		leave()
		if was := shaking.takesNs.Load(); ok {
			shaking.takesNs.Store(was + (int64(time.Since(began))-was)/shakingLag)
		}
	}, nil
}

// shakingConn is a connection during its handshake at a door, which has a turn while it is
// at work and leaves it to others while it waits for the other end.
type shakingConn struct {
	net.Conn
	// Nobody waits for the handshake any more, though it may be at work still. Set with mu.
	over atomic.Bool
	mu   sync.Mutex
	// It has its turn now. Guarded by mu.
	turn bool
}

// inTurn waits for a turn, in which a handshake is made over a connection until its end.
func inTurn(raw net.Conn) *shakingConn {
	shaking.atDoors <- struct{}{}
	return &shakingConn{Conn: raw, turn: true}
}

func (c *shakingConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over.Store(true)
	c.leave()
}

// leave is called with mu.
func (c *shakingConn) leave() {
	if c.turn {
		c.turn = false
		<-shaking.atDoors
	}
}

// away does what may wait for the other end, without a turn.
func (c *shakingConn) away(do func([]byte) (int, error), b []byte) (int, error) {
	if c.over.Load() {
		return do(b)
	}
	c.mu.Lock()
	c.leave()
	c.mu.Unlock()
	n, err := do(b)
	shaking.atDoors <- struct{}{}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn = true; c.over.Load() {
		c.leave()
	}
	return n, err
}

// Read implements net.Conn.
func (c *shakingConn) Read(b []byte) (int, error) { return c.away(c.Conn.Read, b) }

// Write implements net.Conn.
func (c *shakingConn) Write(b []byte) (int, error) { return c.away(c.Conn.Write, b) }
