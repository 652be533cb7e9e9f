package cell

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// requestsOf is the part of the remembered requests that one user made. Beyond the user's
// budget the user's own oldest are forgotten: one who asks without end makes nobody else's
// retries too old to know.
type requestsOf struct {
	// Oldest first.
	queue []*request
	// Nil until a request was forgotten early.
	forgotten *requestMark
}

// requestMark is the time up to which requests of a user may have been forgotten early:
// requests made then or before are refused as TOO_OLD.
type requestMark struct {
	mark
	user string
	// By the clients' clocks.
	wallNs int64
	gone   bool
}

// forgottenOf is the wall time up to which requests of a user may have been forgotten.
func (q *requests) forgottenOf(user string) int64 {
	if of := q.of[user]; of != nil && of.forgotten != nil {
		return of.forgotten.wallNs
	}
	return 0
}

// add puts a request behind all others.
func (q *requests) add(r *request) {
	q.byID[r.id] = r
	q.queue = append(q.queue, r)
	of := q.share(r.user)
	of.queue = append(of.queue, r)
}

func (q *requests) share(user string) *requestsOf {
	of := q.of[user]
	if of == nil {
		of = new(requestsOf)
		q.of[user] = of
	}
	return of
}

// dropRequest forgets r, which must be the oldest request of its user.
func (c *Cell) dropRequest(r *request) {
	q := &c.requests
	delete(q.byID, r.id)
	r.gone = true
	c.dirty(r)
	of := q.of[r.user]
	of.queue[0] = nil
	of.queue = of.queue[1:]
	q.dropEmpty(r.user, of)
}

func (q *requests) dropEmpty(user string, of *requestsOf) {
	if len(of.queue) == 0 && of.forgotten == nil {
		delete(q.of, user)
	}
}

// largest is the user with the most requests, and their number.
func (q *requests) largest() (user string, most int64) {
	for u, of := range q.of {
		if n := int64(len(of.queue)); n > most || n == most && u < user {
			user, most = u, n
		}
	}
	return user, most
}

// thinRequests forgets the oldest requests of a user beyond that number.
func (c *Cell) thinRequests(user string, most int64) {
	q := &c.requests
	of := q.of[user]
	for int64(len(of.queue)) > most {
		r := of.queue[0]
		if of.forgotten == nil {
			of.forgotten = &requestMark{user: user}
			at, _ := slices.BinarySearchFunc(q.marks, user, compareRequestMark)
			q.marks = slices.Insert(q.marks, at, of.forgotten)
		}
		// Forgotten early, so the clock alone would not tell it from a new one.
		of.forgotten.wallNs = max(of.forgotten.wallNs, r.madeWallNs)
		c.dirty(of.forgotten)
		c.dropRequest(r)
	}
	// Those that are gone lie among those of others.
	if len(q.queue) > 2*len(q.byID)+64 {
		q.queue = slices.DeleteFunc(q.queue, func(r *request) bool { return r.gone })
	}
}

// expireRequestMarks drops marks that say no more than the clock.
func (c *Cell) expireRequestMarks() {
	q := &c.requests
	q.marks = slices.DeleteFunc(q.marks, func(m *requestMark) bool {
		if m.wallNs+requestMemoryNs >= c.clock.wallNs {
			return false
		}
		of := q.of[m.user]
		of.forgotten, m.gone = nil, true
		q.dropEmpty(m.user, of)
		c.dirty(m)
		return true
	})
}

func compareRequestMark(m *requestMark, user string) int { return strings.Compare(m.user, user) }

// check holds the invariants of remembered requests.
func (q *requests) check() error {
	live, byUser := 0, 0
	for _, r := range q.queue {
		if r.gone {
			continue
		}
		if live++; q.byID[r.id] != r {
			return fmt.Errorf("request %s is not the one of its id", r.id)
		}
		byUser++
	}
	marks := 0
	for user, of := range q.of {
		byUser -= len(of.queue)
		if of.forgotten != nil {
			marks++
		}
		if len(of.queue) == 0 && of.forgotten == nil ||
			!slices.IsSortedFunc(of.queue, func(a, b *request) int { return cmp.Compare(a.seq, b.seq) }) ||
			slices.ContainsFunc(of.queue, func(r *request) bool { return r.gone || r.user != user }) {
			return fmt.Errorf("the requests of %q are out of order", user)
		}
	}
	if live != len(q.byID) || live > q.most || byUser != 0 || marks != len(q.marks) {
		return fmt.Errorf("requests: %d by id, %d in order, %d too few or many by user, %d marks of %d", len(q.byID), live, byUser, len(q.marks), marks)
	}
	return nil
}

func (m *requestMark) appendKey(b []byte) []byte {
	return append(append(b, kindRequestMark), m.user...)
}
func (m *requestMark) exists() bool { return !m.gone }

func (m *requestMark) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.int(m.wallNs)
	return e.b
}

func (l *loader) requestMark(user string, d *decoder) error {
	m := &requestMark{user: user, wallNs: d.int()}
	if err := d.done(); err != nil {
		return err
	}
	q := &l.c.requests
	if user != "" && !validName(user) || m.wallNs <= 0 || m.wallNs > maxTimeNs || q.share(user).forgotten != nil {
		return errOdd
	}
	q.share(user).forgotten = m
	q.marks = append(q.marks, m)
	return nil
}
