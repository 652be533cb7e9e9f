package entrance

import (
	"container/list"
	"sync"
)

// Turns are the handshakes of a process that may compute at the same time.
type Turns struct {
	mu sync.Mutex
	// Turns that nobody has. Guarded by mu, like all below.
	free int
	// Those who wait, by address.
	waiting map[string]*queue
	// The same queues in the order in which they have their turns; of *queue.
	order list.List
}

// queue is the guests of one address that wait for a turn, the last one that came
// first.
type queue struct {
	host string
	// Guests that have answered what this end has sent, and all others.
	answered, others list.List
	// In Turns.order.
	place *list.Element
}

// NewTurns returns so many turns.
func NewTurns(n int) *Turns { return &Turns{free: n, waiting: map[string]*queue{}} }

// take waits for a turn, and reports false when the guest was dropped meanwhile. A guest
// that has answered goes before others of its address.
func (t *Turns) take(g *Guest, answered bool) bool {
	t.mu.Lock()
	if g.dropped {
		t.mu.Unlock()
		return false
	}
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return true
	}
	q := t.waiting[g.host]
	if q == nil {
		q = &queue{host: g.host}
		t.waiting[g.host] = q
		q.place = t.order.PushBack(q)
	}
	g.queued = &q.others
	if answered {
		g.queued = &q.answered
	}
	g.inQueue = g.queued.PushFront(g)
	t.mu.Unlock()
	return <-g.wake
}

// give ends a turn. The next address has it.
func (t *Turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.order.Front()
	if first == nil {
		t.free++
		return
	}
	q := first.Value.(*queue)
	t.order.MoveToBack(first)
	next := q.answered.Front()
	if next == nil {
		next = q.others.Front()
	}
	g := next.Value.(*Guest)
	t.unqueue(g)
	g.wake <- true
}

// drop ends the wait of a guest for a turn, and of each wait to come.
func (t *Turns) drop(g *Guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g.dropped = true
	if g.inQueue != nil {
		t.unqueue(g)
		g.wake <- false
	}
}

// unqueue takes a guest out of its queue. The caller holds mu.
func (t *Turns) unqueue(g *Guest) {
	g.queued.Remove(g.inQueue)
	g.inQueue, g.queued = nil, nil
	if q := t.waiting[g.host]; q.answered.Len()+q.others.Len() == 0 {
		delete(t.waiting, g.host)
		t.order.Remove(q.place)
	}
}

// Free returns how many turns nobody has.
func (t *Turns) Free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}
