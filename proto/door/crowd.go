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
	"borg/proto/door/entrance"
)

const (
	// maxHandshakes bounds the connections from one address that have not yet said
	// who they are. With one more the oldest of them is dropped.
	maxHandshakes = 2048
	// maxHandshakesInAll bounds the same from all addresses. With one more the oldest of
	// the address that has most is dropped.
	maxHandshakesInAll = 8192
	// maxConnsOfOne bounds the connections of one caller who is no master.
	maxConnsOfOne = 1024
	// maxConnsOfUser bounds the connections of one user and of its tasks together.
	maxConnsOfUser = 4096
	// maxCallsOfUser bounds the calls that these have under way together: one that
	// waits for its message or its answer costs some 17 KiB.
	maxCallsOfUser = 4096
	// maxCallsOfOne bounds the calls that one connection of such a caller has under
	// way: each may hold a message.
	maxCallsOfOne = 1024
	// A connection rests after each call that was not admitted: for this part of the time
	// after which its caller was told to come back, within bounds. Whoever asks again and
	// again is told a longer one each time.
	refusedPart                     = 4
	refusedPause, refusedPauseLimit = 2 * time.Millisecond, 100 * time.Millisecond
	// And for so long for each connection that the caller has: to be refused on many costs
	// no more than on few.
	refusedPauseEach = 2 * time.Millisecond
)

// crowd counts who is at a door, so that nobody keeps others out.
type crowd struct {
	// Those who have not yet said who they are.
	hall *entrance.Hall
	// Those who were here, so that they need not wait behind strangers when they come again.
	passes *passes

	mu sync.Mutex
	// By caller, without masters; guarded by mu.
	callers map[identity.Name]*present
	// By whoUses, without masters; guarded by mu.
	users map[string]*presentUser
	// Bytes that all of them have sent and no handler has taken.
	receiving atomic.Int64
}

// presentUser is what a user and its tasks have at a door.
type presentUser struct {
	// Bytes of answers that were not read, on all connections.
	answers atomic.Int64
	// Connections, with mu.
	flows map[*inflow]bool
	// Calls under way.
	calls atomic.Int64
	// Bytes that they have sent and no handler has taken.
	receiving atomic.Int64
}

// whoUses is whom what a caller has is counted for: tasks are their user's.
func whoUses(name identity.Name) string {
	if name.Role == identity.User || name.Role == identity.Task {
		return name.User()
	}
	return name.String()
}

// hangUpLargest closes the connection that holds most of what no handler has taken;
// of one user, or nil: of all.
func (c *crowd) hangUpLargest(of *presentUser) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var largest *inflow
	look := func(u *presentUser) {
		for f := range u.flows {
			if !f.closing.Load() && (largest == nil || f.held.Load() > largest.held.Load()) {
				largest = f
			}
		}
	}
	if of != nil {
		look(of)
	} else {
		for _, u := range c.users {
			look(u)
		}
	}
	if largest == nil || largest.closing.Swap(true) {
		return
	}
	hungUp.Add(1)
	// Not by the goroutine that reads from another connection: to close waits for TLS.
	go largest.hangUp()
}

// present is what one caller has at a door.
type present struct {
	// His connections. Changed with mu.
	conns atomic.Int64
}

func newCrowd() *crowd {
	return &crowd{hall: newHall(), passes: newPasses(), callers: make(map[identity.Name]*present), users: make(map[string]*presentUser)}
}

func newHall() *entrance.Hall {
	return entrance.NewHall(entrance.Limits{Host: maxHandshakes, All: maxHandshakesInAll})
}

// admit counts a connection of a caller who is known until it is closed. Masters are not
// counted.
func (c *crowd) admit(conn net.Conn, name identity.Name) (net.Conn, *present, *inflow, error) {
	if name.Role == identity.Master || name.Role == identity.Scheduler {
		return buffered(conn, nil), nil, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	here, user := c.callers[name], c.users[whoUses(name)]
	switch {
	case here != nil && here.conns.Load() >= maxConnsOfOne:
		return nil, nil, nil, fmt.Errorf("%s has %d connections already", name.Words(), maxConnsOfOne)
	case user != nil && len(user.flows) >= maxConnsOfUser:
		return nil, nil, nil, fmt.Errorf("%s: its user has %d connections already", name.Words(), maxConnsOfUser)
	}
	if here == nil {
		here = new(present)
		c.callers[name] = here
	}
	if user == nil {
		user = &presentUser{flows: make(map[*inflow]bool)}
		c.users[whoUses(name)] = user
	}
	here.conns.Add(1)
	flow := newInflow(c, user)
	user.flows[flow] = true
	leave := func() {
		if here.conns.Add(-1) == 0 {
			delete(c.callers, name)
		}
		if delete(user.flows, flow); len(user.flows) == 0 {
			delete(c.users, whoUses(name))
		}
	}
	counted := &countedConn{Conn: buffered(conn, flow), leave: sync.OnceFunc(func() { c.less(leave); flow.out.close() })}
	flow.hangUp = func() { counted.Close() }
	return counted, here, flow, nil
}

func (c *crowd) less(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

type countedConn struct {
	net.Conn
	leave func()
}

func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// restAfter is how long nothing is read from a connection after a call on it was refused, of
// a caller who has so many.
func restAfter(refused error, conns int64) time.Duration {
	rest := min(max(RetryAfter(refused)/refusedPart, refusedPause), refusedPauseLimit)
	return max(rest, refusedPauseEach*time.Duration(conns))
}

// tap refuses a call before anything of its message is read: one that is not for
// this caller's role, and one too many. It is called by the goroutine that reads from the
// connection, and holds its lock; guard looks again, at more.
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
	if err == nil && info.flow != nil && info.flow.user.calls.Load() >= maxCallsOfUser {
		err = TooMuch(fmt.Sprintf("%s: its user has %d calls under way", info.name.Words(), maxCallsOfUser), time.Second)
	}
	if err == nil && info.name.Role != identity.Master && c.Admit != nil {
		if err = c.Admit(call.FullMethodName, info.name); err != nil {
			// Nothing else is read from this connection meanwhile: whoever goes on asking
			// is slowed down by it, and costs less. To sleep here would keep its lock.
			info.rest(restAfter(err, info.conns()))
		}
	}
	if err != nil {
		c.tell(ctx, call.FullMethodName, err)
		return ctx, err
	}
	if info.flow != nil {
		ctx = context.WithValue(ctx, receivingKey{}, info.flow.begin(RequestBytes(call.FullMethodName, info.name.Role)))
	}
	return ctx, nil
}
