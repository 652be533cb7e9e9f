package entrance

import (
	"container/list"
	"sync"
	"time"
)

const (
	// crowdedHost is how many guests of an address make it crowded: more than honest clients
	// have under way at the same time, but for a moment.
	crowdedHost = 64
	// restFactor is how many times as long as a turn of a guest of a crowded address took
	// nobody else of such an address has one. So a flood has a quarter of the turns' time, and the
	// rest of the processor is others'.
	restFactor = 3
)

// Turns are the handshakes of a process that may compute at the same time.
type Turns struct {
	mu sync.Mutex
	// Turns that nobody has. Guarded by mu, like all below.
	free int
	// Turns that rest, which guests of calm addresses may have.
	resting int
	// How many guests of calm addresses wait.
	calm int
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
	switch {
	case t.free > 0:
		t.free--
		t.mu.Unlock()
		return true
	case t.resting > 0 && !g.crowded:
		t.resting--
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
	if !g.crowded {
		t.calm++
	}
	t.mu.Unlock()
	return <-g.wake
}

// give ends a turn that took so long. The next address has it. After a guest of a crowded
// address that is one that is calm, or the turn rests.
func (t *Turns) give(took time.Duration, crowded bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if crowded && t.calm == 0 && t.order.Len() > 0 {
		t.resting++
		time.AfterFunc(restFactor*took, t.rested)
		return
	}
	t.pass(crowded)
}

// rested ends the rest of a turn. Which one it was does not matter.
func (t *Turns) rested() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.resting > 0 {
		t.resting--
		t.pass(false)
	}
}

// pass gives a turn to the next address; if one with a calm guest is wanted, to that.
// The caller holds mu.
func (t *Turns) pass(calm bool) {
	next := t.order.Front()
	if next == nil {
		t.free++
		return
	}
	if calm && t.calm > 0 {
		// A calm guest may stand behind a crowded one of its address; then nobody is found.
		for e := next; e != nil; e = e.Next() {
			if !e.Value.(*queue).next().crowded {
				next = e
				break
			}
		}
	}
	g := next.Value.(*queue).next()
	t.order.MoveToBack(next)
	t.unqueue(g)
	g.wake <- true
}

// next is the guest of an address that has its next turn.
func (q *queue) next() *Guest {
	e := q.answered.Front()
	if e == nil {
		e = q.others.Front()
	}
	return e.Value.(*Guest)
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
	if !g.crowded {
		t.calm--
	}
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
