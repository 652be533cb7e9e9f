package door

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"borg/identity"
)

// received counts the bytes that this process has read from connections, by the role of the
// other end, without the overhead of TLS. Unix sockets do not count.
var received = map[identity.Role]*atomic.Int64{
	identity.User: {}, identity.Master: {}, identity.Scheduler: {}, identity.Borglet: {}, identity.Task: {}, identity.Join: {},
}

// Received returns the number of bytes that this process has read from peers of a role, on
// connections that either side has dialed.
func Received(role identity.Role) int64 { return received[role].Load() }

const (
	// restLimit bounds how long nothing is read from a connection. Keepalive would close it
	// after a longer silence, and a new connection costs more than a refused call.
	restLimit = 2500 * time.Millisecond
	// restingBytes bounds one read from a connection whose calls are being refused, so that
	// it rests again after a call or two.
	restingBytes = 256
	// restingFor is how long after a rest that bound holds.
	restingFor = time.Second
)

// readingConn counts the bytes read from a connection, and delays reads while the connection
// rests. It holds no lock meanwhile.
type readingConn struct {
	net.Conn
	bytes *atomic.Int64
	began time.Time
	// End of the rest in nanoseconds since began; 0 if it never rested.
	untilNs atomic.Int64
	close   func() error
	closed  chan struct{}
}

func reading(conn net.Conn, from identity.Name) *readingConn {
	c := &readingConn{Conn: conn, bytes: received[from.Role], began: time.Now(), closed: make(chan struct{})}
	c.close = sync.OnceValue(func() error {
		close(c.closed)
		return conn.Close()
	})
	return c
}

// rest makes the connection rest for d, or extends its rest by d. Only the goroutine that reads
// calls it.
func (c *readingConn) rest(d time.Duration) {
	now := time.Since(c.began)
	until := max(time.Duration(c.untilNs.Load()), now) + d
	c.untilNs.Store(int64(min(until, now+restLimit)))
}

// wait returns after d, or when the connection was closed.
func (c *readingConn) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-c.closed:
	}
}

// Read implements net.Conn.
func (c *readingConn) Read(b []byte) (int, error) {
	if until := time.Duration(c.untilNs.Load()); until != 0 {
		now := time.Since(c.began)
		c.wait(until - now)
		if now < until+restingFor && len(b) > restingBytes {
			b = b[:restingBytes]
		}
	}
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

// Close implements net.Conn.
func (c *readingConn) Close() error { return c.close() }
