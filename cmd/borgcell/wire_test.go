package main

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// One read from a connection, and how many wait to be written on the other
	// side: what a slow link holds back in bytes.
	wireChunkBytes = 32 << 10
	wireQueue      = 64
	// How often a slow link carries something.
	dripEvery = 20 * time.Millisecond
	// Processes listen so many ports above the address that others know.
	behindOffset = 20
	// The end that is not a process of the cell: whoever asks from outside.
	outside = "outside"
)

// link is one direction between two processes of a cell, by name. A process
// that another started (the scheduler of a master) counts as that one.
type link struct{ from, to string }

// fault is what a link does to the bytes on it; the zero fault does nothing.
// Bytes of a connection go over two links, one each way, whoever dialled.
type fault struct {
	// Bytes, and ends of connections, wait; new connections are taken and
	// nothing comes of them.
	hold bool
	// Bytes vanish, so that the connection is of no use any more: it is reset
	// when the fault ends. New connections as with hold.
	lose bool
	// The receiver is told that the sender has ended; the rest as with lose.
	shut bool
	// Each piece takes so long, and up to jitter more. Order is kept.
	delay, jitter time.Duration
	// The chance that a piece resets its connection instead.
	reset float64
	// Zero: as fast as it goes.
	bytesPerS int
}

func (f fault) breaks() bool { return f.lose || f.shut }
func (f fault) blocks() bool { return f.hold || f.lose || f.shut }

// wire lies between the processes of a cell: it listens at every address that
// others know, and carries what comes to where the process listens itself.
type wire struct {
	// nameOf tells who has the socket with which a connection was dialled.
	nameOf func(dialler *net.TCPAddr, door *net.TCPAddr) string

	mu     sync.Mutex
	faults map[link]fault // guarded by mu
	// Closed and replaced at each change of faults. Guarded by mu.
	changed chan struct{}
	// Who was seen to dial whom. Guarded by mu.
	seen map[link]int

	closed    chan struct{}
	listeners []net.Listener
	// Every goroutine of the wire.
	work sync.WaitGroup
}

func newWire() *wire {
	return &wire{faults: map[link]fault{}, changed: make(chan struct{}), seen: map[link]int{}, closed: make(chan struct{})}
}

// between puts the wire between the processes of a cell that does not run yet.
func (w *wire) between(t *testing.T, c *Cell) {
	t.Helper()
	w.nameOf = (&census{c: c}).whoDialled
	c.behind = func(addr string) string {
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		return net.JoinHostPort(host, strconv.Itoa(n+behindOffset))
	}
	for i := 1; i <= c.Masters; i++ {
		w.door(t, c.masterName(i), c.masterAddr(i), c.behind(c.masterAddr(i)))
	}
	for k := 1; k <= c.Machines; k++ {
		w.door(t, c.machineName(k), c.borgletAddr(k), c.behind(c.borgletAddr(k)))
	}
}

// door listens at an address in the name of a process.
func (w *wire) door(t *testing.T, name, addr, behind string) {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	w.listeners = append(w.listeners, listener)
	w.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { w.carry(name, behind, conn.(*net.TCPConn)) })
		}
	})
}

// close ends all connections and waits for everything.
func (w *wire) close() {
	close(w.closed)
	for _, l := range w.listeners {
		l.Close()
	}
	w.work.Wait()
}

// set gives a link a fault in place of the one that it had.
func (w *wire) set(l link, f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[l] = f
	w.tell()
}

// heal takes all faults away.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.faults)
	w.tell()
}

// tell wakes whoever waits for a change. Call with mu held.
func (w *wire) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *wire) fault(l link) (fault, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults[l], w.changed
}

// diallers says who was seen to dial whom, and how often.
func (w *wire) diallers() map[link]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.seen)
}

// carry carries one connection to its end.
func (w *wire) carry(to, behind string, in *net.TCPConn) {
	out := link{from: w.nameOf(in.RemoteAddr().(*net.TCPAddr), in.LocalAddr().(*net.TCPAddr)), to: to}
	back := link{from: out.to, to: out.from}
	w.mu.Lock()
	w.seen[out]++
	w.mu.Unlock()
	for _, l := range []link{out, back} {
		for f, changed := w.fault(l); f.blocks(); f, changed = w.fault(l) {
			select {
			case <-changed:
			case <-w.closed:
				in.Close()
				return
			}
		}
	}
	conn, err := net.Dial("tcp", behind)
	if err != nil {
		reset(in)
		return
	}
	c := &carried{w: w, ends: [2]*net.TCPConn{in, conn.(*net.TCPConn)}, done: make(chan struct{})}
	var pumps sync.WaitGroup
	pumps.Go(func() { c.pump(out, c.ends[0], c.ends[1]) })
	pumps.Go(func() { c.pump(back, c.ends[1], c.ends[0]) })
	pumps.Go(func() {
		select {
		case <-w.closed:
			c.reset()
		case <-c.done:
		}
	})
	pumps.Wait()
}

// reset closes a connection so that the other end sees an error and no end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}

// carried is a connection on the wire.
type carried struct {
	w    *wire
	ends [2]*net.TCPConn

	mu sync.Mutex
	// Directions that have ended. Guarded by mu.
	ended int
	once  sync.Once
	done  chan struct{}
}

// reset ends the connection with an error on both sides.
func (c *carried) reset() {
	c.once.Do(func() {
		close(c.done)
		reset(c.ends[0])
		reset(c.ends[1])
	})
}

// end notes that one direction has ended in order; the second one closes the
// connection.
func (c *carried) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended++; c.ended == 2 {
		c.once.Do(func() {
			close(c.done)
			c.ends[0].Close()
			c.ends[1].Close()
		})
	}
}

// piece is bytes on their way; none at all: the sender has ended.
type piece struct {
	bytes []byte
	due   time.Time
}

// pump carries one direction.
func (c *carried) pump(l link, from, to *net.TCPConn) {
	queue := make(chan piece, wireQueue)
	var reader sync.WaitGroup
	reader.Go(func() { c.read(l, from, queue) })
	c.write(l, to, queue)
	reader.Wait()
}

func (c *carried) read(l link, from *net.TCPConn, queue chan<- piece) {
	var last time.Time
	for {
		buf := make([]byte, wireChunkBytes)
		n, err := from.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			c.reset()
			return
		}
		f, _ := c.w.fault(l)
		due := time.Now().Add(f.delay)
		if f.jitter > 0 {
			due = due.Add(rand.N(f.jitter))
		}
		if due.Before(last) {
			due = last
		}
		last = due
		select {
		case queue <- piece{bytes: buf[:n], due: due}:
		case <-c.done:
			return
		}
		if err != nil {
			return
		}
	}
}

func (c *carried) write(l link, to *net.TCPConn, queue <-chan piece) {
	// broken: bytes were lost, so that nothing may follow them.
	broken := false
	for {
		f, changed := c.w.fault(l)
		if broken && !f.breaks() {
			c.reset()
		}
		if f.shut && !broken {
			_ = to.CloseWrite()
			broken = true
		}
		var next <-chan piece
		if !f.hold {
			next = queue
		}
		select {
		case p := <-next:
			switch {
			case f.breaks():
				broken = true
			case !c.write1(l, to, p):
				return
			}
		case <-changed:
		case <-c.done:
			return
		}
	}
}

// write1 writes one piece, as slowly as the link is, and says whether the
// direction goes on.
func (c *carried) write1(l link, to *net.TCPConn, p piece) bool {
	if !c.sleep(time.Until(p.due)) {
		return false
	}
	if len(p.bytes) == 0 {
		_ = to.CloseWrite()
		c.end()
		return false
	}
	for len(p.bytes) > 0 {
		f, changed := c.w.fault(l)
		if f.hold {
			select {
			case <-changed:
			case <-c.done:
				return false
			}
			continue
		}
		if f.reset > 0 && rand.Float64() < f.reset || f.breaks() {
			c.reset()
			return false
		}
		n := len(p.bytes)
		if f.bytesPerS > 0 {
			n = min(n, max(1, f.bytesPerS*int(dripEvery)/int(time.Second)))
		}
		if _, err := to.Write(p.bytes[:n]); err != nil {
			c.reset()
			return false
		}
		if p.bytes = p.bytes[n:]; f.bytesPerS > 0 && !c.sleep(dripEvery) {
			return false
		}
	}
	return true
}

// sleep waits and says whether the connection is still there.
func (c *carried) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}
