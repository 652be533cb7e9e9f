package cell

import (
	"fmt"
	"slices"
	"strings"
)

// requestsOf is the part of the remembered requests that one user made. Beyond the user's
// budget the user's own oldest are forgotten: one who asks without end makes nobody else's
// retries too old to know.
type requestsOf struct {
	user string
	// The ends of a list that is linked by request.next; nil if it is empty.
	oldest, newest *request
	count          int64
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
	if len(q.marks) == 0 {
		return 0
	}
	if of := q.of[user]; of != nil && of.forgotten != nil {
		return of.forgotten.wallNs
	}
	return 0
}

// add puts a request behind all others, and those of its user.
func (q *requests) add(r *request, of *requestsOf) {
	q.byID[r.id] = r
	q.queue = append(q.queue, r)
	if r.user = of.user; of.newest == nil {
		of.oldest = r
	} else {
		of.newest.next = r
	}
	of.newest = r
	of.count++
}

// share returns the part of a user, which is new if the user has none.
func (q *requests) share(user string) *requestsOf {
	of := q.of[user]
	if of == nil {
		of = &requestsOf{user: user}
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
	if of.oldest = r.next; of.oldest == nil {
		of.newest = nil
	}
	r.next = nil
	of.count--
	q.dropEmpty(of)
}

func (q *requests) dropEmpty(of *requestsOf) {
	if of.count == 0 && of.forgotten == nil {
		delete(q.of, of.user)
	}
}

// largest returns the part of the user with the most requests.
func (q *requests) largest() (most *requestsOf) {
	for _, of := range q.of {
		if most == nil || of.count > most.count || of.count == most.count && of.user < most.user {
			most = of
		}
	}
	return most
}

// thinRequests forgets the oldest requests of a user beyond that number.
func (c *Cell) thinRequests(of *requestsOf, most int64) {
	q := &c.requests
	for of.count > most {
		r := of.oldest
		if of.forgotten == nil {
			of.forgotten = &requestMark{user: of.user}
			at, _ := slices.BinarySearchFunc(q.marks, of.user, compareRequestMark)
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
		q.dropEmpty(of)
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
		byUser -= int(of.count)
		if of.forgotten != nil {
			marks++
		}
		if !of.isInOrder() || of.user != user || of.count == 0 && of.forgotten == nil {
			return fmt.Errorf("the requests of %q are out of order", user)
		}
	}
	if live != len(q.byID) || live > q.most || byUser != 0 || marks != len(q.marks) {
		return fmt.Errorf("requests: %d by id, %d in order, %d too few or many by user, %d marks of %d", len(q.byID), live, byUser, len(q.marks), marks)
	}
	return nil
}

// isInOrder reports whether the list has count requests of the user, oldest first.
func (of *requestsOf) isInOrder() bool {
	var last *request
	n := int64(0)
	for r := of.oldest; r != nil; r = r.next {
		if r.gone || r.user != of.user || last != nil && last.seq >= r.seq {
			return false
		}
		last = r
		n++
	}
	return n == of.count && last == of.newest
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
