package borgmaster

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"borg/identity"
	"borg/proto/door"
)

const (
	// maxConns bounds the connections that a replica keeps: its share of the
	// machines of a very large cell, as many for which it is next, and the other
	// replicas.
	maxConns = 65_536
	// A connection that nobody used for so long is closed: its machine has left, or is
	// polled by another replica now. A replica that had no share for a minute has those of
	// before when it has one again.
	connIdleNs = 150e9
	// Idle ones are looked for so often.
	connSweepNs = 30e9
	// So many connections to borglets are being made at once, at most, of those that
	// were begun within slowDial. A handshake is work for both ends: with hundreds at
	// once on a busy machine none is done in time, and all are begun again.
	maxDialing = 8
	// What takes longer waits for the other end, and for nothing here.
	slowDial = 100 * time.Millisecond
	// A connection to a borglet may take so long: a poll that cannot wait for it is
	// missed, and the next one finds it made.
	borgletConnect = 4 * time.Second
)

// borgletPause is between tries that a connection to a borglet makes by itself, which it
// does for ever once one has failed. Polls begin one at once, and are rarer when many
// machines are silent: a rack that is away must not cost a handshake a second for each.
var borgletPause = backoff.Config{BaseDelay: time.Second, Multiplier: 2, Jitter: 0.2, MaxDelay: 2 * time.Minute}

var errTooManyConns = errors.New("too many connections are open")

// conns keeps one connection to each peer that this replica calls again and
// again. Calls on it are short; for long streams there are streamConns.
type conns struct {
	who   *identity.Source
	nowNs func() int64
	// Holds one for each connection that is being made.
	dialing chan struct{}

	mu sync.Mutex
	// Guarded by mu. Nil when closed.
	byPeer map[peerAt]*pooled
	// Until when the certificate of each machine counts, as it showed it last. Guarded by
	// mu; of machines in byPeer.
	seen map[string]seenCertificate
	// Guarded by mu.
	sweptNs int64
}

// peerAt is somebody at an address. Whoever else answers there is not talked to.
type peerAt struct {
	want identity.Name
	addr string
}

type pooled struct {
	conn   *grpc.ClientConn
	usedNs int64
}

func newConns(who *identity.Source, nowNs func() int64) *conns {
	return &conns{who: who, nowNs: nowNs, dialing: make(chan struct{}, maxDialing), byPeer: map[peerAt]*pooled{}, seen: map[string]seenCertificate{}}
}

// to returns the connection to a peer at addr, which is made when first used.
func (c *conns) to(want identity.Name, addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPeer == nil {
		return nil, errors.New("this replica is stopping")
	}
	now := c.nowNs()
	c.sweep(now)
	to := peerAt{want, addr}
	if p := c.byPeer[to]; p != nil {
		p.usedNs = now
		return p.conn, nil
	}
	if len(c.byPeer) >= maxConns {
		return nil, errTooManyConns
	}
	conn, err := c.dial(want, addr)
	if err != nil {
		return nil, err
	}
	c.byPeer[to] = &pooled{conn: conn, usedNs: now}
	return conn, nil
}

// connect waits its turn to make a connection that is not there, and a moment until
// it is. That is bounded: nobody has a turn for longer than slowDial.
func (c *conns) connect(conn *grpc.ClientConn) {
	if conn.GetState() == connectivity.Ready {
		return
	}
	c.dialing <- struct{}{}
	defer func() { <-c.dialing }()
	ctx, cancel := context.WithTimeout(context.Background(), slowDial)
	defer cancel()
	for tries := 0; ; tries++ {
		state := conn.GetState()
		if state == connectivity.Ready || state == connectivity.Shutdown || state == connectivity.TransientFailure && tries > 0 {
			return
		}
		begin(conn, state)
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// begin has a connection in a state made now if it is not being made.
func begin(conn *grpc.ClientConn, state connectivity.State) {
	switch state {
	case connectivity.TransientFailure:
		conn.ResetConnectBackoff()
	case connectivity.Idle:
		conn.Connect()
	}
}

// inTurn is to, with a connection for which it has waited as connect does.
func (c *conns) inTurn(want identity.Name, addr string) (*grpc.ClientConn, error) {
	conn, err := c.to(want, addr)
	if err == nil {
		c.connect(conn)
	}
	return conn, err
}

// outOfTurn is to, with a connection that is being made at once. It is for the few machines
// that are tried out of doubt: behind the polls of thousands that are away they would wait
// for seconds, and so would what runs on them for another place.
func (c *conns) outOfTurn(want identity.Name, addr string) (*grpc.ClientConn, error) {
	conn, err := c.to(want, addr)
	if err == nil {
		begin(conn, conn.GetState())
	}
	return conn, err
}

// standBy begins to make a connection that is not there, if nobody waits for another one,
// and keeps one that is.
func (c *conns) standBy(want identity.Name, addr string) bool {
	conn, err := c.to(want, addr)
	if err != nil || len(c.dialing) > 0 || conn.GetState() != connectivity.Idle {
		return false
	}
	conn.Connect()
	return true
}

// ready reports whether there is a connection to a peer at addr.
func (c *conns) ready(want identity.Name, addr string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.byPeer[peerAt{want, addr}]
	return p != nil && p.conn.GetState() == connectivity.Ready
}

// named is the name of somebody of this replica's cell.
func (c *conns) named(role identity.Role, id string) identity.Name {
	return identity.Name{Cell: c.who.Name().Cell, Role: role, ID: id}
}

// dial makes a connection that the caller closes.
func (c *conns) dial(want identity.Name, addr string) (*grpc.ClientConn, error) {
	params, alive := quickReconnect, door.KeepAlive
	if want.Role == identity.Borglet {
		params.MinConnectTimeout, params.Backoff = borgletConnect, borgletPause
		// Nothing is heard over one that stands by, thousands of which there are.
		alive.PermitWithoutStream = false
	}
	return door.Dial(addr, c.who, want, grpc.WithConnectParams(params), grpc.WithKeepaliveParams(alive))
}

// sweep closes what was not used for long. The caller holds mu.
func (c *conns) sweep(now int64) {
	if now-c.sweptNs < connSweepNs {
		return
	}
	c.sweptNs = now
	for to, p := range c.byPeer {
		if now-p.usedNs > connIdleNs {
			p.conn.Close()
			delete(c.byPeer, to)
		}
	}
	c.forget()
}

func (c *conns) close() {
	c.mu.Lock()
	all := c.byPeer
	c.byPeer = nil
	c.mu.Unlock()
	for _, p := range all {
		p.conn.Close()
	}
}
