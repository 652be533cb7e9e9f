package fleet

import (
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// reach says which bytes get through between the machines and who calls them. What
// does not waits, in both directions, and goes on when it may: as on a network whose
// switch is dead, and comes back.
type reach struct {
	mu sync.Mutex
	// Closed, and replaced, whenever something below has changed.
	changed chan struct{}
	// Of machines k with k % of < part nothing is heard; of is 0: of all something.
	part, of int
	// Of this replica nothing is heard by any machine; 0: of each.
	replica uint64
	// Which replica has polled on a connection, which says by itself only that it is of
	// a master.
	callers map[end]uint64
	// Where connections to all machines come in; nil: nobody listens, or not on a socket.
	listener syscall.RawConn
}

// end names a connection: the same port of a master may lead to several machines.
type end struct {
	k    int
	from netip.AddrPort
}

func newReach() *reach {
	return &reach{changed: make(chan struct{}), callers: map[end]uint64{}}
}

func (r *reach) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Vanish has nothing more be heard of part of every so many machines, and their tasks
// go on; part 0: all are heard again. With an error the machines have vanished, and take
// connections over which nothing is heard.
func (f *Fleet) Vanish(part, of int) (err error) {
	f.reach.set(func() {
		f.reach.part, f.reach.of = part, of
		if f.reach.listener != nil {
			err = filter(f.reach.listener, part, of)
		}
	})
	return err
}

// Cut has no machine hear, or be heard by, that replica; 0: the cut is mended.
func (f *Fleet) Cut(replica uint64) { f.reach.set(func() { f.reach.replica = replica }) }

// endOf names the connection from an address to machine k.
func endOf(k int, from net.Addr) end {
	e := end{k: k}
	if tcp, ok := from.(*net.TCPAddr); ok {
		e.from = tcp.AddrPort()
	}
	return e
}

// calls notes which replica is at the other end of a connection.
func (r *reach) calls(e end, replica uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callers[e] = replica
}

func (r *reach) forget(e end) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.callers, e)
}

// silent says whether nothing gets through a connection, and when to ask again.
func (r *reach) silent(e end) (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone(e.k) || r.replica != 0 && r.callers[e] == r.replica, r.changed
}

// away says whether nothing is heard of machine k at all.
func (r *reach) away(k int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone(k)
}

// listens notes where connections come in.
func (r *reach) listens(l net.Listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener, _ = rawOf(l)
}

// gone is away for who holds mu.
func (r *reach) gone(k int) bool { return r.of > 0 && k%r.of < r.part }

// through waits until something gets through a connection, and reports whether that was
// before it was over.
func (r *reach) through(e end, over <-chan struct{}) bool {
	for {
		silent, changed := r.silent(e)
		if !silent {
			return true
		}
		select {
		case <-changed:
		case <-over:
			return false
		}
	}
}

// wire is a connection to a machine.
type wire struct {
	net.Conn
	reach *reach
	end   end
	once  sync.Once
	ended chan struct{}
}

func (r *reach) wire(conn net.Conn, k int) net.Conn {
	return &wire{Conn: conn, reach: r, end: endOf(k, conn.RemoteAddr()), ended: make(chan struct{})}
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err == nil {
		w.reach.through(w.end, w.ended)
	}
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	w.reach.through(w.end, w.ended)
	return w.Conn.Write(b)
}

func (w *wire) Close() error {
	w.once.Do(func() {
		close(w.ended)
		w.reach.forget(w.end)
	})
	return w.Conn.Close()
}
