package door

import (
	"context"
	"fmt"
	"net"
	"slices"
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
	// maxHandshakes bounds the connections from one address that have not finished their
	// handshake. One more drops the oldest of them.
	maxHandshakes = 2048
	// maxHandshakesInAll bounds those from all addresses. One more drops the oldest of the
	// address that has most.
	maxHandshakesInAll = 8192
	// maxConnsOfOne bounds the connections of one caller, unless it is a master.
	maxConnsOfOne = 1024
	// maxConnsOfUser bounds the connections of one user and of its tasks together.
	maxConnsOfUser = 4096
	// maxCallsOfUser bounds the concurrent calls of one user and of its tasks together. A call
	// that waits for its message or its answer takes some 17 KiB.
	maxCallsOfUser = 4096
	// maxCallsOfOne bounds the concurrent calls on one connection, each of which may hold a
	// message.
	maxCallsOfOne = 1024
	// After a call that was not admitted nothing is read from its connection for this part of
	// the retry time, within bounds. A caller that keeps asking gets longer retry times.
	refusedPart                     = 4
	refusedPause, refusedPauseLimit = 2 * time.Millisecond, 100 * time.Millisecond
	// And for at least this time for each connection of the caller, so that refusals on many
	// connections cost no more than on few.
	refusedPauseEach = 2 * time.Millisecond
)

// crowd counts the connections and calls at a door, by caller and by user.
type crowd struct {
	// Connections that have not finished their handshake.
	hall *entrance.Hall
	// Those who were here, so that they need not wait behind strangers when they come again.
	passes *passes

	mu sync.Mutex
	// By caller, masters left out; guarded by mu.
	callers map[identity.Name]*present
	// By chargedUser, masters left out; guarded by mu.
	users map[string]*presentUser
	// Connections that hangUpLargest has closed and that still hold something; guarded by mu.
	leaving []*inflow
	// The sums of presentUser's receiving and answers.
	receiving, answers atomic.Int64
}

// presentUser is what a user and its tasks have at a door.
type presentUser struct {
	// Bytes of answers that were not read, on all connections.
	answers atomic.Int64
	// Connections; guarded by crowd.mu.
	flows map[*inflow]bool
	// Concurrent calls.
	calls atomic.Int64
	// Bytes received from them that were not decoded, and the memory of messages that were
	// and are not answered.
	receiving atomic.Int64
	// Frames that carry no message.
	idle *idleFrames
	// What was thrown away of it.
	waste waste
	// Key in crowd.users.
	key string
}

func newPresentUser(key string) *presentUser {
	return &presentUser{flows: make(map[*inflow]bool), idle: idleOfUser(), key: key}
}

// chargedUser returns the key under which a caller's connections and calls count: a task's
// count for its user.
func chargedUser(name identity.Name) string {
	if name.Role == identity.User || name.Role == identity.Task {
		return name.User()
	}
	return name.String()
}

// hangUpLargest closes the connection that holds most, of one user, or of all users if of is
// nil, if together they hold more than most. Connections that are being closed do not count:
// what they hold is given back soon, and nobody else is to be closed for it. sum is what the
// caller has counted, with those.
func (c *crowd) hangUpLargest(of *presentUser, holds func(*inflow) int64, sum, most int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Until they have given it back this is called for each frame that comes; without this it would
	// look at all connections each time.
	c.leaving = slices.DeleteFunc(c.leaving, func(f *inflow) bool { return f.held.Load() <= 0 && f.unread.Load() <= 0 })
	for _, f := range c.leaving {
		if of == nil || f.user == of {
			sum -= holds(f)
		}
	}
	if sum <= most {
		return
	}
	var largest *inflow
	var all int64
	look := func(u *presentUser) {
		for f := range u.flows {
			if f.closing.Load() {
				continue
			}
			all += holds(f)
			if largest == nil || holds(f) > holds(largest) {
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
	if largest == nil || all <= most || largest.closing.Swap(true) {
		return
	}
	hungUp.Add(1)
	c.leaving = append(c.leaving, largest)
	// In a goroutine of its own: closing waits for TLS, and the caller reads from another
	// connection.
	go largest.hangUp()
}

// present is what one caller has at a door.
type present struct {
	// Number of its connections; changed with crowd.mu held.
	conns atomic.Int64
}

func newCrowd() *crowd {
	return &crowd{hall: newHall(), passes: newPasses(), callers: make(map[identity.Name]*present), users: make(map[string]*presentUser)}
}

func newHall() *entrance.Hall {
	return entrance.NewHall(entrance.Limits{Host: maxHandshakes, All: maxHandshakesInAll})
}

// admit counts a connection of a known caller until it is closed, or returns an error if there
// are too many. Masters and schedulers are not counted.
func (c *crowd) admit(conn *readingConn, name identity.Name) (net.Conn, *present, *inflow, error) {
	if name.Role == identity.Master || name.Role == identity.Scheduler {
		return buffered(conn, nil), nil, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	here, user := c.callers[name], c.users[chargedUser(name)]
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
		user = newPresentUser(chargedUser(name))
		c.users[user.key] = user
	}
	here.conns.Add(1)
	flow := newInflow(c, user)
	flow.rest, flow.wait = conn.rest, conn.wait
	user.flows[flow] = true
	leave := func() {
		if here.conns.Add(-1) == 0 {
			delete(c.callers, name)
		}
		delete(user.flows, flow)
		flow.gone.Store(true)
		user.waste.add(flow.held.Load() + flow.unread.Load())
		c.forgetIdle(user)
	}
	counted := &countedConn{Conn: buffered(conn, flow), leave: sync.OnceFunc(func() { c.less(leave); flow.out.close() })}
	flow.hangUp = func() { counted.Close() }
	return counted, here, flow, nil
}

// forget drops a user who has no connection and no call any more. Calls go on for a while
// after their connection was closed, and count.
func (c *crowd) forget(user *presentUser) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetIdle(user)
}

// forgetIdle is forget, if nothing counts that was thrown away of the user; else that is looked at
// again later. The caller holds mu.
func (c *crowd) forgetIdle(user *presentUser) {
	if len(user.flows) != 0 || user.calls.Load() > 0 || c.users[user.key] != user {
		return
	}
	if owed := user.waste.owed(); owed > 0 {
		time.AfterFunc(owed, func() { c.forget(user) })
		return
	}
	delete(c.users, user.key)
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

// restAfter returns how long nothing is read from a connection after a call on it was refused.
// conns is the number of the caller's connections.
func restAfter(refused error, conns int64) time.Duration {
	rest := min(max(RetryAfter(refused)/refusedPart, refusedPause), refusedPauseLimit)
	return max(rest, refusedPauseEach*time.Duration(conns))
}

// tap refuses a call before its message is read if the caller's role does not allow it or the
// caller makes too many. The goroutine that reads from the connection calls it with the lock of
// the connection held. guard checks again, and more.
func (c *Config) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return ctx, status.Error(codes.Unauthenticated, "the connection has no identity; connect with a certificate of the cell")
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok {
		return ctx, status.Error(codes.Unauthenticated, "the connection has no identity; connect with a certificate of the cell")
	}
	if info.flow != nil {
		info.flow.called(RequestBytes(call.FullMethodName, info.name.Role))
	}
	var err error
	switch behalf := len(call.Header.Get(behalfKey)) > 0; {
	case !behalf:
		err = Allowed(call.FullMethodName, info.name)
	case info.name.Role != identity.Master:
		err = notForOthers(info.name)
	}
	// For a call that a master forwards, guard checks the role.
	if err == nil && info.flow == nil && info.name.Role != identity.Master && info.calls != nil && info.calls.Load() >= maxCallsOfOne {
		err = tooManyCalls(info.name)
	}
	reserved := false
	if err == nil && info.flow != nil {
		err = info.flow.reserveCall(&info)
		reserved = err == nil
	}
	if err == nil && info.name.Role != identity.Master && c.Admit != nil {
		err = c.Admit(call.FullMethodName, info.name)
	}
	if err != nil {
		// The connection is not read for a while, which slows down a caller that keeps
		// asking. Sleeping here would hold the lock of the connection.
		info.rest(restAfter(err, info.conns()))
		if reserved {
			info.flow.countCall(info.calls, -1)
		}
		c.tell(ctx, call.FullMethodName, err)
		return ctx, err
	}
	if info.flow != nil {
		ctx = context.WithValue(ctx, receivingKey{}, info.flow.begin(RequestBytes(call.FullMethodName, info.name.Role), info.calls))
	}
	return ctx, nil
}

func tooManyCalls(who identity.Name) error {
	return TooMuch(fmt.Sprintf("%s has %d calls under way on one connection", who.Words(), maxCallsOfOne), time.Second)
}

// reserveCall counts a call that is about to be let in, unless its connection or its user has
// too many.
func (f *inflow) reserveCall(info *authInfo) error {
	f.countCall(info.calls, 1)
	var err error
	switch {
	case info.calls.Load() > maxCallsOfOne:
		err = tooManyCalls(info.name)
	case f.user.calls.Load() > maxCallsOfUser:
		err = TooMuch(fmt.Sprintf("%s: its user has %d calls under way", info.name.Words(), maxCallsOfUser), time.Second)
	}
	if err != nil {
		f.countCall(info.calls, -1)
	}
	return err
}

// countCall adds n to the concurrent calls of the connection and of its user.
func (f *inflow) countCall(calls *atomic.Int32, n int32) {
	calls.Add(n)
	if f.user.calls.Add(int64(n)) == 0 && f.gone.Load() {
		f.crowd.forget(f.user)
	}
}
