package admission

import (
	"slices"

	"borg/mutant"
)

const (
	// Reads that wait for their turn: of all users, and of one.
	maxReading   = 1_024
	maxReadingOf = 128
	// ReadWaitNs is how long one waits at most.
	ReadWaitNs = maxWaitNs
	readBound  = "the turns of all who read much; docs/overload.md"
)

// Turns has few at a time do what keeps a processor busy for milliseconds, such as a page
// of a list: what raft waits for must find a processor, however many ask. Waiting calls
// have their turns user by user. W is who waits. It is not safe for concurrent use.
type Turns[W any] struct {
	replica uint64
	// How many at a time, how many of one user, and how many there are.
	places, share, taken int
	// Of each user who has a turn.
	takenOf map[string]int
	users   map[string]*inLine[W]
	// Users who wait, in the order of their turns.
	ring    []*inLine[W]
	waiting int
	stats   TurnStats
}

// TurnStats counts what was decided.
type TurnStats struct {
	// Since the start.
	Turns, Waited, Refused uint64
	Waiting, MaxWaiting    int
	// Those that have a turn, and how many may.
	Taken, Places int
}

// inLine are what waits for a user, one at least.
type inLine[W any] struct {
	name  string
	queue []*Turn[W]
}

// Turn is a read on its way to the cell.
type Turn[W any] struct {
	Who   W
	user  string
	state placeState
}

// Placed says whether it is its turn.
func (t *Turn[W]) Placed() bool { return t.state == placed }

// NewTurns has so many at a time, and at most share of them of one user.
func NewTurns[W any](replica uint64, places, share int) *Turns[W] {
	return &Turns[W]{replica: replica, places: places, share: share, takenOf: map[string]int{}, users: map[string]*inLine[W]{}}
}

func (x *Turns[W]) place(t *Turn[W]) {
	x.taken++
	x.takenOf[t.user]++
	x.stats.Turns++
	t.state = placed
}

// Enter asks for a turn. It has it, or waits, or is refused. A call that has it or waits must
// call Leave.
func (x *Turns[W]) Enter(user string, who W) (*Turn[W], *Refusal) {
	if mutant.Planted(mutant.OneLineForReads) {
		user = ""
	}
	t := &Turn[W]{Who: who, user: user}
	// Nobody waits while there is a place, but for a user who has the share of one.
	if x.taken < x.places && x.takenOf[user] < x.share || mutant.Planted(mutant.ReadsTogether) {
		x.place(t)
		return t, nil
	}
	u := x.users[user]
	if u == nil {
		u = &inLine[W]{name: user}
	}
	if x.waiting >= maxReading || len(u.queue) >= maxReadingOf {
		x.stats.Refused++
		return nil, refuse(user, ReadWaitNs/2, readBound, "has %d calls waiting for their turn at replica %d, and all users together %d", len(u.queue), x.replica, x.waiting)
	}
	x.stats.Waited++
	x.waiting++
	if u.queue = append(u.queue, t); len(u.queue) == 1 {
		x.users[user] = u
		x.ring = append(x.ring, u)
	}
	return t, nil
}

// Leave ends a turn, or the wait for it, and says whose turn it is then; nil: nobody's.
func (x *Turns[W]) Leave(t *Turn[W]) (next *Turn[W]) {
	defer func() { t.state = left }()
	switch t.state {
	case waits:
		u := x.users[t.user]
		i := slices.Index(u.queue, t)
		u.queue = slices.Delete(u.queue, i, i+1)
		x.waiting--
		if len(u.queue) == 0 {
			delete(x.users, u.name)
			at := slices.Index(x.ring, u)
			x.ring = slices.Delete(x.ring, at, at+1)
		}
	case placed:
		x.taken--
		if x.takenOf[t.user]--; x.takenOf[t.user] == 0 {
			delete(x.takenOf, t.user)
		}
		at := slices.IndexFunc(x.ring, func(u *inLine[W]) bool { return x.takenOf[u.name] < x.share })
		if at < 0 {
			return nil
		}
		u := x.ring[at]
		x.ring = slices.Delete(x.ring, at, at+1)
		next, u.queue = u.queue[0], u.queue[1:]
		x.waiting--
		if len(u.queue) > 0 {
			x.ring = append(x.ring, u)
		} else {
			delete(x.users, u.name)
		}
		x.place(next)
	}
	return next
}

// Late removes a read whose wait timed out and returns the refusal.
func (x *Turns[W]) Late(t *Turn[W]) *Refusal {
	x.Leave(t)
	x.stats.Refused++
	return refuse(t.user, ReadWaitNs/2, readBound, "waited %d ms at replica %d for its turn to read, with %d others", int64(ReadWaitNs/1e6), x.replica, x.waiting)
}

// Stats returns how it stands.
func (x *Turns[W]) Stats() TurnStats {
	s := x.stats
	s.Waiting, s.MaxWaiting = x.waiting, maxReading
	s.Taken, s.Places = x.taken, x.places
	return s
}
