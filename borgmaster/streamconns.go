package borgmaster

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"borg/identity"
)

const (
	// streamConnIdle is how long a connection for a caller's streams to a machine is kept after the
	// last of them. A handshake is milliseconds of processor at both ends, and whoever execs or
	// reads logs in a loop would have them pay it each time.
	streamConnIdle = 10 * time.Second
	// maxStreamConns bounds the connections that are kept. Beyond it each stream has its own.
	maxStreamConns = 1024
)

// streamConns are the connections over which callers' streams to machines go. Streams of different
// callers share none: one that is not read holds up the others of its connection.
type streamConns struct {
	mu sync.Mutex
	// Guarded by mu. Nil when closed.
	kept map[streamConnKey]*streamConn
}

// streamConnKey is a caller, and the borglet of a machine.
type streamConnKey struct {
	caller        identity.Name
	machine, addr string
}

type streamConn struct {
	conn *grpc.ClientConn
	// Streams that use it, and a timer that closes it while there are none. Guarded by
	// streamConns.mu.
	streams int
	idle    *time.Timer
}

func newStreamConns() *streamConns { return &streamConns{kept: map[streamConnKey]*streamConn{}} }

// to returns a connection of a caller to the borglet of a machine, which dial makes if none is kept. The
// caller calls leave when its stream has ended.
func (s *streamConns) to(key streamConnKey, dial func() (*grpc.ClientConn, error)) (conn *grpc.ClientConn, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kept[key]
	// One that failed tries again later and later, and fails each call until then.
	if c == nil || c.conn.GetState() == connectivity.TransientFailure {
		if conn, err = dial(); err != nil {
			return nil, nil, err
		}
		if s.kept == nil || len(s.kept) >= maxStreamConns && c == nil {
			return conn, func() { conn.Close() }, nil
		}
		s.drop(key, c)
		c = &streamConn{conn: conn}
		s.kept[key] = c
	}
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	c.streams++
	return c.conn, sync.OnceFunc(func() { s.left(key, c) }), nil
}

// left is called when a stream has ended.
func (s *streamConns) left(key streamConnKey, c *streamConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.streams--; c.streams > 0 {
		return
	}
	if s.kept[key] != c || c.conn.GetState() != connectivity.Ready {
		s.drop(key, c)
		return
	}
	s.rest(key, c)
}

// rest closes a connection that no stream uses, after a while. The caller holds mu.
func (s *streamConns) rest(key streamConnKey, c *streamConn) {
	c.idle = time.AfterFunc(streamConnIdle, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.streams == 0 {
			s.drop(key, c)
		}
	})
}

// drop forgets a connection, and closes it unless streams use it: the last of them does. The caller
// holds mu.
func (s *streamConns) drop(key streamConnKey, c *streamConn) {
	if c == nil {
		return
	}
	if s.kept[key] == c {
		delete(s.kept, key)
	}
	if c.streams == 0 {
		c.conn.Close()
	}
}

// close closes those that no stream uses, and keeps none from now on.
func (s *streamConns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.kept {
		s.drop(key, c)
	}
	s.kept = nil
}
