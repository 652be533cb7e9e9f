package door

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"borg/identity"
)

const (
	// maxHandshakes bounds the connections from one address that have not yet said
	// who they are. More are closed unheard.
	maxHandshakes = 2048
	// maxConnsOfOne bounds the connections of one caller who is no master.
	maxConnsOfOne = 1024
	// maxCallsOfOne bounds the calls that one connection of such a caller has under
	// way: each may hold a message.
	maxCallsOfOne = 1024
	// A connection rests after each call that was not admitted: for this part of the time
	// after which its caller was told to come back, within bounds. Whoever asks again and
	// again is told a longer one each time.
	refusedPart                     = 4
	refusedPause, refusedPauseLimit = 2 * time.Millisecond, 100 * time.Millisecond
)

// crowd counts who is at a door, so that nobody keeps others out.
type crowd struct {
	mu sync.Mutex
	// By host; guarded by mu.
	handshakes map[string]int
	// By caller, without masters; guarded by mu.
	conns map[identity.Name]int
	// Bytes of answers that each of them has not read; guarded by mu.
	answers map[identity.Name]*atomic.Int64
}

func newCrowd() *crowd {
	return &crowd{handshakes: make(map[string]int), conns: make(map[identity.Name]int), answers: make(map[identity.Name]*atomic.Int64)}
}

// enter is called before a handshake; leave when it has ended.
func (c *crowd) enter(addr net.Addr) (leave func(), err error) {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		host = addr.String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handshakes[host] >= maxHandshakes {
		return nil, fmt.Errorf("%d connections from %s have not yet said who they are", maxHandshakes, host)
	}
	c.handshakes[host]++
	return func() { c.less(func() { decrement(c.handshakes, host) }) }, nil
}

// admit counts a connection of a caller who is known until it is closed.
func (c *crowd) admit(conn net.Conn, name identity.Name) (net.Conn, *atomic.Int64, error) {
	if name.Role == identity.Master {
		return conn, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[name] >= maxConnsOfOne {
		return nil, nil, fmt.Errorf("%s has %d connections already", name.Words(), maxConnsOfOne)
	}
	if c.conns[name]++; c.answers[name] == nil {
		c.answers[name] = new(atomic.Int64)
	}
	leave := func() {
		if decrement(c.conns, name); c.conns[name] == 0 {
			delete(c.answers, name)
		}
	}
	return &countedConn{Conn: conn, leave: sync.OnceFunc(func() { c.less(leave) })}, c.answers[name], nil
}

func (c *crowd) less(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func decrement[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

type countedConn struct {
	net.Conn
	leave func()
}

func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// restAfter is how long nothing is read from a connection after a call on it was refused.
func restAfter(refused error) time.Duration {
	return min(max(RetryAfter(refused)/refusedPart, refusedPause), refusedPauseLimit)
}

// tap refuses a call before anything of its message is read: one that is not for
// this caller's role, and one too many. It is called by the goroutine of the
// connection, which reads nothing else meanwhile; guard looks again, at more.
func (c *Config) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return ctx, status.Error(codes.Unauthenticated, "nobody knows who calls")
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok {
		return ctx, status.Error(codes.Unauthenticated, "nobody knows who calls")
	}
	var err error
	// Who speaks for whom is for guard to find out.
	if len(call.Header.Get(behalfKey)) == 0 {
		err = Allowed(call.FullMethodName, info.name)
	}
	if err == nil && info.name.Role != identity.Master && info.calls != nil && info.calls.Load() >= maxCallsOfOne {
		err = status.Errorf(codes.ResourceExhausted, "%s has %d calls under way on one connection", info.name.Words(), maxCallsOfOne)
	}
	if err == nil && info.name.Role != identity.Master && c.Admit != nil {
		if err = c.Admit(call.FullMethodName, info.name); err != nil {
			// Nothing else is read from this connection meanwhile: whoever goes on asking
			// is slowed down by it, and costs less.
			time.Sleep(restAfter(err))
		}
	}
	if err != nil {
		c.tell(ctx, call.FullMethodName, err)
	}
	return ctx, err
}
