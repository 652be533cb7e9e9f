package borglet

import (
	"context"
	"slices"
	"sync"
)

// Turn is whose work it is that waits for a slot.
type Turn struct {
	// Urgent work stops something. It goes before all else.
	Urgent bool
	// Priority of the task. Its band counts.
	Priority int32
	// User of the task. Users of one band take turns.
	User string
}

// The order in which work gets slots. Monitoring and production may take every slot; work below
// them leaves some free.
const (
	rankUrgent = iota
	rankMonitoring
	rankProduction
	rankMid
	rankBatch
	rankFree
	numRanks
)

func (t Turn) rank() int {
	switch {
	case t.Urgent:
		return rankUrgent
	case t.Priority >= 360:
		return rankMonitoring
	case t.Priority >= productionPriority:
		return rankProduction
	case t.Priority >= 116:
		return rankMid
	case t.Priority >= 100:
		return rankBatch
	}
	return rankFree
}

// Turns shares slots for work of a kind between bands and users. A higher band goes first; in one
// band the users take turns, each in order of arrival. Work below production never has all slots,
// so that production gets one at once however much of other work waits.
type Turns struct {
	// Slots in all, and those that work below production may have at once.
	slots, below int
	// Work below production gets no slot while higher work has one: they would slow each other
	// down.
	yields bool

	mu sync.Mutex
	// Slots in use, and those of them that work below production has. Guarded by mu.
	used, usedBelow int
	// What waits, by rank. Guarded by mu.
	lines [numRanks]userLines
}

// userLines is what waits of one rank. The first user is next.
type userLines struct {
	users []string
	of    map[string][]chan struct{}
}

// NewTurns returns slots of which work below production may have so many at once. Both are at
// least 1.
func NewTurns(slots, below int) *Turns { return &Turns{slots: slots, below: below} }

// Take waits for a slot, and returns what gives it back. The error is that of ctx.
func (x *Turns) Take(ctx context.Context, turn Turn) (giveBack func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rank := turn.rank()
	ready := make(chan struct{})
	x.mu.Lock()
	x.lines[rank].add(turn.User, ready)
	x.grant()
	x.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
		x.mu.Lock()
		defer x.mu.Unlock()
		if !x.lines[rank].remove(turn.User, ready) {
			// It was granted meanwhile.
			x.release(rank)
		}
		return nil, ctx.Err()
	}
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.release(rank)
	}, nil
}

// release frees a slot. The caller holds mu.
func (x *Turns) release(rank int) {
	x.used--
	if rank > rankProduction {
		x.usedBelow--
	}
	x.grant()
}

// grant gives free slots to what is next. The caller holds mu.
func (x *Turns) grant() {
	for rank := range x.lines {
		for x.lines[rank].any() && x.used < x.slots && (rank <= rankProduction || x.mayBelow()) {
			x.used++
			if rank > rankProduction {
				x.usedBelow++
			}
			close(x.lines[rank].next())
		}
	}
}

// mayBelow reports whether work below production may have one more slot. The caller holds mu.
func (x *Turns) mayBelow() bool {
	return x.usedBelow < x.below && !(x.yields && x.used > x.usedBelow)
}

func (l *userLines) any() bool { return len(l.users) > 0 }

func (l *userLines) add(user string, ready chan struct{}) {
	if l.of == nil {
		l.of = map[string][]chan struct{}{}
	}
	if len(l.of[user]) == 0 {
		l.users = append(l.users, user)
	}
	l.of[user] = append(l.of[user], ready)
}

// next takes out what is next, and puts its user behind the others.
func (l *userLines) next() chan struct{} {
	user := l.users[0]
	l.users = l.users[1:]
	ready := l.of[user][0]
	if l.of[user] = l.of[user][1:]; len(l.of[user]) == 0 {
		delete(l.of, user)
	} else {
		l.users = append(l.users, user)
	}
	return ready
}

// remove takes out what waits no longer, and reports whether it was there.
func (l *userLines) remove(user string, ready chan struct{}) bool {
	at := slices.Index(l.of[user], ready)
	if at < 0 {
		return false
	}
	if l.of[user] = slices.Delete(l.of[user], at, at+1); len(l.of[user]) == 0 {
		delete(l.of, user)
		l.users = slices.DeleteFunc(l.users, func(u string) bool { return u == user })
	}
	return true
}
