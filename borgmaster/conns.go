package borgmaster

import (
	"errors"
	"sync"

	"google.golang.org/grpc"

	"borg/proto/borgpb"
	"borg/proto/door"
)

// maxConns bounds the connections that a replica keeps: its share of the
// machines of a very large cell, and the other replicas.
const maxConns = 65_536

var errTooManyConns = errors.New("too many connections are open")

// conns keeps one connection to each address that this replica talks to.
type conns struct {
	who *borgpb.Principal

	mu sync.Mutex
	// Guarded by mu. Nil when closed.
	byAddr map[string]*grpc.ClientConn
}

func newConns(who *borgpb.Principal) *conns {
	return &conns{who: who, byAddr: map[string]*grpc.ClientConn{}}
}

// to returns the connection to addr, which is made when first used.
func (c *conns) to(addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byAddr == nil {
		return nil, errors.New("this replica is stopping")
	}
	if conn := c.byAddr[addr]; conn != nil {
		return conn, nil
	}
	if len(c.byAddr) >= maxConns {
		return nil, errTooManyConns
	}
	conn, err := door.Dial(addr, c.who, grpc.WithConnectParams(quickReconnect))
	if err != nil {
		return nil, err
	}
	c.byAddr[addr] = conn
	return conn, nil
}

// forget closes the connection to addr, if there is one.
func (c *conns) forget(addr string) {
	c.mu.Lock()
	conn := c.byAddr[addr]
	delete(c.byAddr, addr)
	c.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

func (c *conns) close() {
	c.mu.Lock()
	all := c.byAddr
	c.byAddr = nil
	c.mu.Unlock()
	for _, conn := range all {
		conn.Close()
	}
}
