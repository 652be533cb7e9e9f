package entrance

import (
	"container/list"
	"time"
)

// account is the processor time that handshakes of an address, of a user or of all strangers have
// used without success. It decays with time.
type account struct {
	spent time.Duration
	// The time for which spent is computed.
	at time.Time
}

// grant is how much an account may have spent, and its decay: in a time t, t/part is forgotten.
// An account holds at most twice the grant, so that a flood is forgotten soon after its end.
type grant struct {
	spent time.Duration
	part  int
}

// look applies the decay up to now.
func (a *account) look(now time.Time, g grant) {
	if past := now.Sub(a.at); past > 0 {
		a.spent = max(a.spent-past/time.Duration(g.part), 0)
	}
	a.at = now
}

// over reports whether more than the grant was spent.
func (a *account) over(now time.Time, g grant) bool {
	a.look(now, g)
	return a.spent > g.spent
}

// charge adds time to what was spent; a negative time is paid back.
func (a *account) charge(now time.Time, g grant, took time.Duration) {
	a.look(now, g)
	a.spent = min(max(a.spent+took, 0), 2*g.spent)
}

// ledger holds accounts by name, and drops the one kept longest ago when it has too many.
type ledger struct {
	most int
	of   map[string]*list.Element
	// Of *entry, the one kept last at the front.
	order list.List
}

type entry struct {
	name    string
	account account
}

func newLedger(most int) *ledger { return &ledger{most: most, of: map[string]*list.Element{}} }

// find returns the account of a name, or nil.
func (l *ledger) find(name string) *account {
	if e := l.of[name]; e != nil {
		return &e.Value.(*entry).account
	}
	return nil
}

// keep returns the account of a name, and makes it if there is none.
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
