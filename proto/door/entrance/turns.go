package entrance

import (
	"container/list"
	"sync"
	"time"
)

// restFactor is how many times as long as a turn of a guest of the crowd took no guest of the crowd has
// this turn again. So the crowd computes for a quarter of the time of all turns at most, and whenever it has
// rested it goes first, so it has that quarter if it wants it.
const restFactor = 3

// mostTaken is what a turn counts for at most. Each step of a handshake computes for less than a millisecond; one that takes so
// long has waited for a processor, and who has the next turn should not wait for that three times again.
const mostTaken = 5 * time.Millisecond

// What may be spent on handshakes that come to nothing.
var (
	// For an address from which somebody who is known has come: so much at once, such as for a hundred that begin
	// together, and a 64th of the time.
	knownGrant = grant{spent: 32 * time.Millisecond, part: 64}
	// For all addresses together from which nobody has come yet.
	strangersGrant = grant{spent: 64 * time.Millisecond, part: 16}
	// For a user and its tasks, on handshakes that came to something: about a hundred a second.
	userGrant = grant{spent: 200 * time.Millisecond, part: 16}
)

const (
	// maxKnownHosts is how many addresses are remembered from which somebody has come who is known.
	maxKnownHosts = 16384
	// maxKnownUsers is how many users are remembered who came.
	maxKnownUsers = 16384
)

// class is how a guest is believed before anything of its handshake was computed.
type class int

const (
	// Nobody has come from its address yet.
	stranger class = iota
	// Somebody who is known has come from its address.
	known
	// It has shown that it was here before.
	vouched
)

// Turns are the handshakes of a process that may compute at the same time.
//
// A guest is of the crowd when more was spent for those whom it may belong to than they may spend: for its
// address, or for all strangers. To be counted costs nothing, so nobody can be told by the number of its
// connections; what it lets others compute for nothing is what a flood is.
type Turns struct {
	mu sync.Mutex
	// How many there are.
	all int
	// Turns that nobody has. Guarded by mu, like all below.
	free int
	// No guest of the crowd has a turn before.
	rested time.Time
	// Something looks at that time.
	armed bool
	// Spent by guests of addresses, and by users, that are known, and by all strangers.
	hosts, users *ledger
	strangers    account
	// Those who wait.
	waiting map[place]*queue
	// The same queues in the order in which they have their turns; of *queue. In calm are those that were not of the
	// crowd when they came to wait or had a turn; strangers are for themselves.
	calm, crowd, strange list.List
	// A stranger had the last turn; the next stranger that has one is the one that came last.
	strangerWas, newest bool
}

// place is where a guest waits.
type place struct {
	host  string
	class class
}

// queue is the guests of one place that wait for a turn, the last one that came
// first.
type queue struct {
	at place
	// Guests that have answered what this end has sent, and all others.
	answered, others list.List
	// In one of the lists of Turns.
	in    *list.List
	place *list.Element
}

// NewTurns returns so many turns.
func NewTurns(n int) *Turns {
	return &Turns{all: n, free: n, hosts: newLedger(maxKnownHosts), users: newLedger(maxKnownUsers), waiting: map[place]*queue{}}
}

// take waits for a turn, and reports false when the guest was dropped meanwhile. A guest
// that has answered goes before others of its place.
func (t *Turns) take(g *Guest, answered bool) bool {
	t.mu.Lock()
	if g.dropped {
		t.mu.Unlock()
		return false
	}
	now := time.Now()
	if g.pays == nil {
		t.know(g, now)
	}
	q := t.waiting[g.at]
	if q == nil {
		q = &queue{at: g.at}
		t.waiting[g.at] = q
	}
	g.queued = &q.others
	if answered {
		g.queued = &q.answered
	}
	g.inQueue = g.queued.PushFront(g)
	if q.in == nil {
		t.line(q, now)
	}
	t.pass(now)
	t.mu.Unlock()
	return <-g.wake
}

// know finds out who pays for a guest. The caller holds mu.
func (t *Turns) know(g *Guest, now time.Time) {
	g.at = place{host: g.host}
	g.pays, g.grant = &t.strangers, strangersGrant
	if of := t.hosts.find(g.host); of != nil {
		g.at.class, g.pays, g.grant = known, of, knownGrant
	}
	if !g.vouched {
		return
	}
	of := new(account)
	if g.user != "" {
		of = t.users.keep(g.user)
	}
	if !of.over(now, userGrant) {
		g.at = place{host: g.user, class: vouched}
		g.pays, g.grant = of, userGrant
	}
}

// line puts a queue, in which somebody waits, at the end of the list where it belongs. The caller holds mu.
func (t *Turns) line(q *queue, now time.Time) {
	in := &t.calm
	if q.at.class == stranger {
		in = &t.strange
	} else if g := q.next(); g.pays.over(now, g.grant) {
		in = &t.crowd
	}
	if q.in != nil {
		q.in.Remove(q.place)
	}
	q.in, q.place = in, in.PushBack(q)
}

// give ends a turn that took so long.
func (t *Turns) give(g *Guest, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	took = min(took, mostTaken)
	g.spent += took
	g.pays.charge(now, g.grant, took)
	if g.crowded {
		if t.rested.Before(now) {
			t.rested = now
		}
		t.rested = t.rested.Add(restFactor * took / time.Duration(t.all))
	}
	t.free++
	t.pass(now)
}

// welcome pays a guest back what was spent for it, as somebody who is known has come. A user pays for it
// now, and one that has come too often leaves it to the address. The address is known from now on.
func (t *Turns) welcome(g *Guest, user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hosts.keep(g.host)
	if g.pays == nil || g.at.class == vouched && user == g.user {
		// It has paid.
		return
	}
	now := time.Now()
	if user != "" {
		of := t.users.keep(user)
		if of.charge(now, userGrant, g.spent); of.over(now, userGrant) {
			return
		}
	}
	g.pays.charge(now, g.grant, -g.spent)
	g.spent = 0
}

// pass gives free turns to those who wait. The caller holds mu.
func (t *Turns) pass(now time.Time) {
	for t.free > 0 {
		q, crowded := t.next(now)
		if q == nil {
			t.arm(now)
			return
		}
		g := q.next()
		g.crowded = crowded
		if t.unqueue(g); t.waiting[q.at] == q {
			t.line(q, now)
		}
		t.free--
		g.wake <- true
	}
}

// next is whose turn it is, or nil, and whether it has it as one of the crowd. The caller holds mu.
func (t *Turns) next(now time.Time) (q *queue, crowded bool) {
	t.sort(now)
	calm, crowd := t.calm.Front(), t.crowd.Front()
	flood := t.strangers.over(now, strangersGrant)
	if t.strange.Len() > 0 && flood && (crowd == nil || !t.strangerWas) {
		crowd = t.stranger()
	} else if t.strange.Len() > 0 && !flood && (calm == nil || !t.strangerWas) {
		calm = t.stranger()
	}
	next := calm
	if crowd != nil && !now.Before(t.rested) {
		next, crowded = crowd, true
	}
	if next == nil {
		return nil, false
	}
	q = next.Value.(*queue)
	if t.strangerWas = q.at.class == stranger; t.strangerWas {
		t.newest = !t.newest
	}
	return q, crowded
}

// sort puts those queues where they belong that are at the front of a list and whose accounts have changed. The
// caller holds mu.
func (t *Turns) sort(now time.Time) {
	for e := t.calm.Front(); e != nil; e = t.calm.Front() {
		of := e.Value.(*queue)
		if g := of.next(); !g.pays.over(now, g.grant) {
			break
		}
		t.line(of, now)
	}
	for e := t.crowd.Front(); e != nil; e = t.crowd.Front() {
		of := e.Value.(*queue)
		if g := of.next(); g.pays.over(now, g.grant) {
			break
		}
		t.line(of, now)
	}
}

// stranger is the address of strangers whose turn it is: the one that has waited longest, and by turns with it the one that
// came last. One address that floods is one of few, so the first is fair; of a flood from thousands of addresses the first
// one has waited too long to be honest. There is one; the caller holds mu.
func (t *Turns) stranger() *list.Element {
	if t.newest {
		return t.strange.Back()
	}
	return t.strange.Front()
}

// arm has turns passed on when the crowd has rested, if somebody of it waits. The caller holds mu.
func (t *Turns) arm(now time.Time) {
	if t.armed || len(t.waiting) == 0 {
		return
	}
	t.armed = true
	time.AfterFunc(t.rested.Sub(now), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.armed = false
		t.pass(time.Now())
	})
}

// next is the guest of a place that has its next turn.
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
	if q := t.waiting[g.at]; q.answered.Len()+q.others.Len() == 0 {
		delete(t.waiting, g.at)
		q.in.Remove(q.place)
	}
}

// Free returns how many turns nobody has.
func (t *Turns) Free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}
