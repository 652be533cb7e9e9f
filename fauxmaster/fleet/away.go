package fleet

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/status"
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
// go on; part 0: all are heard again.
func (f *Fleet) Vanish(part, of int) { f.reach.set(func() { f.reach.part, f.reach.of = part, of }) }

// Cut has no machine hear, or be heard by, that replica; 0: the cut is mended.
func (f *Fleet) Cut(replica uint64) { f.reach.set(func() { f.reach.replica = replica }) }

// calls notes which replica is at the other end of a connection.
func (r *reach) calls(k int, from net.Addr, replica uint64) {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callers[end{k, tcp.AddrPort()}] = replica
}

// hears waits until that replica is not cut off.
func (r *reach) hears(ctx context.Context, replica uint64) error {
	for {
		r.mu.Lock()
		cut, changed := r.replica != 0 && r.replica == replica, r.changed
		r.mu.Unlock()
		if !cut {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
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
	away := r.of > 0 && e.k%r.of < r.part
	return away || r.replica != 0 && r.callers[e] == r.replica, r.changed
}

// away says whether nothing is heard of machine k at all.
func (r *reach) away(k int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of > 0 && k%r.of < r.part
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
	w := &wire{Conn: conn, reach: r, end: end{k: k}, ended: make(chan struct{})}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		w.end.from = tcp.AddrPort()
	}
	return w
}

// through waits until something gets through, or the connection is closed.
func (w *wire) through() {
	for {
		silent, changed := w.reach.silent(w.end)
		if !silent {
			return
		}
		select {
		case <-changed:
		case <-w.ended:
			return
		}
	}
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err == nil {
		w.through()
	}
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	w.through()
	return w.Conn.Write(b)
}

func (w *wire) Close() error {
	w.once.Do(func() {
		close(w.ended)
		w.reach.forget(w.end)
	})
	return w.Conn.Close()
}
