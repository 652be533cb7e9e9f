package entrance

import (
	"container/list"
	"time"
)

// account is the time that handshakes have computed for somebody and that came to nothing so far. It
// is forgotten by and by.
type account struct {
	spent time.Duration
	// When spent was right.
	at time.Time
}

// grant is what an account may have spent, and which part of the time that goes by is forgotten. At most twice as
// much is noted, so that a flood is forgotten soon after its end.
type grant struct {
	spent time.Duration
	part  int
}

// look has what was spent forgotten up to now.
func (a *account) look(now time.Time, g grant) {
	if past := now.Sub(a.at); past > 0 {
		a.spent = max(a.spent-past/time.Duration(g.part), 0)
	}
	a.at = now
}

// over says that more was spent than may be.
func (a *account) over(now time.Time, g grant) bool {
	a.look(now, g)
	return a.spent > g.spent
}

// charge notes what was spent; less than nothing is paid back.
func (a *account) charge(now time.Time, g grant, took time.Duration) {
	a.look(now, g)
	a.spent = min(max(a.spent+took, 0), 2*g.spent)
}

// ledger keeps the accounts of those of whom something was heard last, so many at most.
type ledger struct {
	most int
	of   map[string]*list.Element
	// Of *entry; those of whom something was heard last are at the front.
	order list.List
}

type entry struct {
	name    string
	account account
}

func newLedger(most int) *ledger { return &ledger{most: most, of: map[string]*list.Element{}} }

// find returns the account of somebody, or nil.
func (l *ledger) find(name string) *account {
	if e := l.of[name]; e != nil {
		return &e.Value.(*entry).account
	}
	return nil
}

// keep returns the account of somebody, and forgets in its favor whom it heard of longest ago.
func (l *ledger) keep(name string) *account {
	if e := l.of[name]; e != nil {
		l.order.MoveToFront(e)
		return &e.Value.(*entry).account
	}
	if len(l.of) >= l.most {
		last := l.order.Back()
		delete(l.of, last.Value.(*entry).name)
		l.order.Remove(last)
	}
	e := l.order.PushFront(&entry{name: name})
	l.of[name] = e
	return &e.Value.(*entry).account
}
