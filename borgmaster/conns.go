package borgmaster

import (
	"errors"
	"sync"

	"google.golang.org/grpc"

	"borg/proto/borgpb"
	"borg/proto/door"
)

const (
	// maxConns bounds the connections that a replica keeps: its share of the
	// machines of a very large cell, and the other replicas.
	maxConns = 65_536
	// A connection that nobody used for so long is closed: its machine has left,
	// or is polled by another replica now.
	connIdleNs = 600e9
	// Idle ones are looked for so often.
	connSweepNs = 60e9
)

var errTooManyConns = errors.New("too many connections are open")

// conns keeps one connection to each address that this replica calls again and
// again. Calls on it are short; whoever streams for long dials for himself.
type conns struct {
	who   *borgpb.Principal
	nowNs func() int64

	mu sync.Mutex
	// Guarded by mu. Nil when closed.
	byAddr map[string]*pooled
	// Guarded by mu.
	sweptNs int64
}

type pooled struct {
	conn   *grpc.ClientConn
	usedNs int64
}

func newConns(who *borgpb.Principal, nowNs func() int64) *conns {
	return &conns{who: who, nowNs: nowNs, byAddr: map[string]*pooled{}}
}

// to returns the connection to addr, which is made when first used.
func (c *conns) to(addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byAddr == nil {
		return nil, errors.New("this replica is stopping")
	}
	now := c.nowNs()
	if p := c.byAddr[addr]; p != nil {
		p.usedNs = now
		return p.conn, nil
	}
	c.sweep(now)
	if len(c.byAddr) >= maxConns {
		return nil, errTooManyConns
	}
	conn, err := c.dial(addr)
	if err != nil {
		return nil, err
	}
	c.byAddr[addr] = &pooled{conn: conn, usedNs: now}
	return conn, nil
}

// dial makes a connection that the caller closes.
func (c *conns) dial(addr string) (*grpc.ClientConn, error) {
	return door.Dial(addr, c.who, grpc.WithConnectParams(quickReconnect))
}

// sweep closes what was not used for long. The caller holds mu.
func (c *conns) sweep(now int64) {
	if now-c.sweptNs < connSweepNs {
		return
	}
	c.sweptNs = now
	for addr, p := range c.byAddr {
		if now-p.usedNs > connIdleNs {
			p.conn.Close()
			delete(c.byAddr, addr)
		}
	}
}

func (c *conns) close() {
	c.mu.Lock()
	all := c.byAddr
	c.byAddr = nil
	c.mu.Unlock()
	for _, p := range all {
		p.conn.Close()
	}
}
