package door

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"borg/identity"
)

// received are the bytes that this process has read from connections, without what TLS adds,
// by the role of who is on the other end. Sockets of this machine do not count.
var received = map[identity.Role]*atomic.Int64{
	identity.User: {}, identity.Master: {}, identity.Scheduler: {}, identity.Borglet: {}, identity.Task: {}, identity.Join: {},
}

// Received is how many bytes this process has read from those of a role so far, whoever of
// both has dialled.
func Received(role identity.Role) int64 { return received[role].Load() }

const (
	// restLimit bounds how long nothing is read from a connection: who is heard of for
	// longer is hung up on, and a new connection costs more than what he asks for.
	restLimit = 2500 * time.Millisecond
	// While calls on a connection are refused so little is read at once: a call or two, after
	// which it rests.
	restingBytes = 256
	// So long after the last one.
	restingFor = time.Second
)

// readingConn counts what is read from a connection, and reads nothing for a while from one
// that rests. Nothing is locked meanwhile.
type readingConn struct {
	net.Conn
	bytes *atomic.Int64
	began time.Time
	// Until when it rests, in nanoseconds since it began; 0: it never did.
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

// rest lets it rest for so long, or for so much longer. Only the goroutine that reads calls it.
func (c *readingConn) rest(d time.Duration) {
	now := time.Since(c.began)
	until := max(time.Duration(c.untilNs.Load()), now) + d
	c.untilNs.Store(int64(min(until, now+restLimit)))
}

// Read implements net.Conn.
func (c *readingConn) Read(b []byte) (int, error) {
	if until := time.Duration(c.untilNs.Load()); until != 0 {
		now := time.Since(c.began)
		if until > now {
			over := time.NewTimer(until - now)
			select {
			case <-over.C:
			case <-c.closed:
				over.Stop()
			}
		}
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
