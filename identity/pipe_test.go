package identity_test

import (
	"io"
	"net"
	"sync"
	"time"
)

// wire is one direction of a connection in memory. Unlike net.Pipe it takes
// what is written at once: both ends of a handshake that fails may be writing.
type wire struct {
	mu     sync.Mutex
	wake   sync.Cond
	data   []byte
	closed bool
}

func (w *wire) read(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.data) == 0 && !w.closed {
		w.wake.Wait()
	}
	if len(w.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, w.data)
	w.data = w.data[n:]
	return n, nil
}

func (w *wire) write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	w.data = append(w.data, b...)
	w.wake.Signal()
	return len(b), nil
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.wake.Broadcast()
}

// end is one end of a connection in memory.
type end struct{ in, out *wire }

func newWires() (a, b net.Conn) {
	x, y := &wire{}, &wire{}
	x.wake.L, y.wake.L = &x.mu, &y.mu
	return &end{x, y}, &end{y, x}
}

func (e *end) Read(b []byte) (int, error)       { return e.in.read(b) }
func (e *end) Write(b []byte) (int, error)      { return e.out.write(b) }
func (e *end) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (e *end) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }
func (e *end) Close() error                     { e.in.close(); e.out.close(); return nil }
