package entrance

import (
	"container/list"
	"sync"
	"time"
)

// restFactor is the length of the rest after a crowded guest's turn, relative to the turn. During
// the rest no crowded guest gets that turn. So crowded guests compute for at most an eighth of the
// time of all turns; and since they go first after each rest, they get that eighth.
const restFactor = 7

// A turn counts for this long at least in the rest after it, and at most in all. A guest costs more
// than its turn: its connection is accepted, read and closed. A step of a handshake computes for
// less than a millisecond; one that takes longer has waited for a processor, and the rest after it
// should not be seven times as long as that wait.
const (
	leastTaken = 250 * time.Microsecond
	mostTaken  = 5 * time.Millisecond
)

// maxFresh bounds the guests of a crowded place that join its queue between two of its turns. With
// more, the one that has waited longest is dropped: only the newest gets the next turn.
const maxFresh = 8

// Processor time that handshakes may use without success, before their guests count as crowded.
var (
	// For an address from which a member of the cell has connected before: enough for about a
	// hundred handshakes that start together.
	knownGrant = grant{spent: 32 * time.Millisecond, part: 64}
	// For all other addresses together.
	strangersGrant = grant{spent: 64 * time.Millisecond, part: 16}
	// For successful handshakes of a user and its tasks: about a hundred a second.
	userGrant = grant{spent: 200 * time.Millisecond, part: 16}
)

const (
	// maxKnownHosts is how many addresses are remembered from which a member of the cell has
	// connected.
	maxKnownHosts = 16384
	// maxKnownUsers is how many users are remembered that have connected.
	maxKnownUsers = 16384
)

// class is what is known of a guest before anything of its handshake has been computed.
type class int

const (
	// No member of the cell has connected from its address.
	stranger class = iota
	// A member of the cell has connected from its address.
	known
	// It has shown a pass from an earlier connection.
	vouched
)

// Turns bounds how many handshakes of a process compute at the same time, and shares that time.
//
// A guest is crowded if the account that pays for it, of its address or of all strangers, has
// used more time without success than its grant. What counts is time and not the number of
// connections: a flood harms by what it makes others compute.
type Turns struct {
	mu sync.Mutex
	// Number of turns.
	all int
	// Turns that are not taken. Guarded by mu, like all below.
	free int
	// No crowded guest gets a turn before this time.
	rested time.Time
	// A timer is set for that time.
	armed bool
	// Accounts of known addresses, of users, and of all strangers together.
	hosts, users *ledger
	strangers    account
	// Queues of waiting guests; none is empty.
	waiting map[place]*queue
	// The same queues in the order of their turns, as *queue: calm and crowd of known and vouched
	// guests, by what they were when last put in line; strange of strangers.
	calm, crowd, strange list.List
	// A stranger had the last turn.
	strangerWas bool
	// The next stranger to get a turn is the newest one, not the one that waited longest.
	newest bool
}

// place is the key of a queue: guests of one address, or vouched guests of one user.
type place struct {
	host  string
	class class
}

// queue is the guests of one place that wait for a turn, newest first.
type queue struct {
	at place
	// Guests that have answered a message of this end, and the others.
	answered, others list.List
	// Number of guests that joined others since the place had a turn.
	fresh int
	// In one of the lists of Turns.
	in    *list.List
	place *list.Element
}

// NewTurns returns Turns that let n guests compute at the same time.
func NewTurns(n int) *Turns {
	return &Turns{all: n, free: n, hosts: newLedger(maxKnownHosts), users: newLedger(maxKnownUsers), waiting: map[place]*queue{}}
}

// take waits for a turn. It reports false if the guest was dropped meanwhile.
// A guest that has answered goes before others of its place.
func (t *Turns) take(g *Guest, answered bool) bool {
	t.mu.Lock()
	if g.dropped {
		t.mu.Unlock()
		return false
	}
	now := time.Now()
	first := g.pays == nil
	if first {
		t.know(g, now)
	}
	q := t.waiting[g.at]
	full := first && t.crowds(g, now, maxFresh) && q.others.Len() > 0
	if q == nil {
		q = &queue{at: g.at}
		t.waiting[g.at] = q
	}
	g.queued = &q.others
	if answered {
		g.queued = &q.answered
	} else {
		q.fresh++
	}
	g.inQueue = g.queued.PushFront(g)
	if full {
		t.dismiss(q)
	}
	if q.in == nil {
		t.line(q, now)
	}
	t.pass(now)
	t.mu.Unlock()
	return <-g.wake
}

// Full reports whether a new guest of an address would not get its place's next turn if it shows no
// pass: the place is crowded, and a guest that came since its last turn waits already.
func (t *Turns) Full(host string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := Guest{host: host}
	now := time.Now()
	t.know(&g, now)
	return t.crowds(&g, now, 1)
}

// crowds reports whether a new guest's place is crowded and so many have joined its queue since its
// last turn. The caller holds mu.
func (t *Turns) crowds(g *Guest, now time.Time, fresh int) bool {
	q := t.waiting[g.at]
	return q != nil && q.fresh >= fresh && g.pays.over(now, g.grant)
}

// know determines the account that pays for a guest. The caller holds mu.
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

// line moves a queue to the end of the list it belongs to. The queue is not empty; the caller
// holds mu.
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

// give returns a turn that took a time, and charges it.
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
		t.rested = t.rested.Add(restFactor * max(took, leastTaken) / time.Duration(t.all))
	}
	t.free++
	t.pass(now)
}

// welcome records that a handshake ended with a member of the cell: its address is known from
// now on, and the account that paid gets its time back. The user is charged instead, unless user
// is empty; if the user's account is over its grant, the first account is not paid back.
func (t *Turns) welcome(g *Guest, user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hosts.keep(g.host)
	if g.pays == nil || g.at.class == vouched && user == g.user {
		// That user's account was charged from the beginning.
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

// pass gives free turns to waiting guests. The caller holds mu.
func (t *Turns) pass(now time.Time) {
	for t.free > 0 {
		q, crowded := t.next(now)
		if q == nil {
			t.arm(now)
			return
		}
		g := q.next()
		g.crowded = crowded
		q.fresh = 0
		if t.unqueue(g); t.waiting[q.at] == q {
			t.line(q, now)
		}
		t.free--
		g.wake <- true
	}
}

// next returns the queue whose turn it is, or nil, and whether it gets the turn as a crowded one.
// Strangers, as one group, alternate with the known queues of the same kind. The caller holds mu.
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

// sort moves queues at the front of calm or crowd to the other list if their accounts have
// changed. The caller holds mu.
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

// stranger returns the address of strangers whose turn it is: alternately the one that has waited
// longest and the newest. The first is fair while few addresses flood. In a flood from thousands
// of addresses an honest one would wait too long, and the newest has just arrived. strange is
// not empty; the caller holds mu.
func (t *Turns) stranger() *list.Element {
	if t.newest {
		return t.strange.Back()
	}
	return t.strange.Front()
}

// arm sets a timer for the end of the rest if guests wait for it. The caller holds mu.
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

// next returns the guest of the queue that gets its next turn.
func (q *queue) next() *Guest {
	e := q.answered.Front()
	if e == nil {
		e = q.others.Front()
	}
	return e.Value.(*Guest)
}

// drop ends the wait of a guest for a turn, and each later wait.
func (t *Turns) drop(g *Guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g.dropped = true
	if g.inQueue != nil {
		t.unqueue(g)
		g.wake <- false
	}
}

// dismiss drops the guest of a queue that has waited longest without an answer. The queue has
// such a guest; the caller holds mu.
func (t *Turns) dismiss(q *queue) {
	g := q.others.Back().Value.(*Guest)
	g.dropped = true
	t.unqueue(g)
	g.wake <- false
	dropped.Add(1)
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

// Free returns the number of turns that are not taken.
func (t *Turns) Free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}
