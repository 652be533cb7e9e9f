package admission

import (
	"strings"
	"testing"
)

// TestLogBytes: the bytes of one user's changes are bounded by what comes back each second, and
// neither the user's small changes nor others' are.
func TestLogBytes(t *testing.T) {
	c := New[int](Config{Replica: 2})
	now := 5 * ms
	const op = 1<<20 + FreeLogBytes
	for range MaxLogBytes >> 20 {
		if r := c.LogBytes(now, "alice", op); r != nil {
			t.Fatal(r)
		}
	}
	r := c.LogBytes(now, "alice", op)
	if r == nil || r.RetryNs != 1_000*ms || !strings.Contains(r.Error(), `"alice" asks replica 2 for a change of 1025 KiB`) {
		t.Fatalf("above the budget: %v", r)
	}
	if r := c.LogBytes(now, "alice", FreeLogBytes); r != nil {
		t.Errorf("a small one: %v", r)
	}
	if r := c.Begin(now, "alice", 10); r != nil {
		t.Errorf("a small change: %v", r)
	}
	if r := c.LogBytes(now, "bob", op); r != nil {
		t.Errorf("somebody else's: %v", r)
	}
	if r := c.LogBytes(now+r.RetryNs, "alice", op); r != nil {
		t.Errorf("when it was told to come back: %v", r)
	}
	c.NotLogged("alice", op)
	if r := c.LogBytes(now+r.RetryNs, "alice", op); r != nil {
		t.Errorf("after one was given back: %v", r)
	}
	// There is no op that never goes.
	if r := c.LogBytes(now+60_000*ms, "alice", 100*MaxLogBytes); r != nil {
		t.Errorf("one larger than the budget: %v", r)
	}
}

// TestReadTime: a user who reads without end waits for four fifths of the time.
func TestReadTime(t *testing.T) {
	c := New[int](Config{Replica: 2, ReadPlaces: 3})
	now := 5 * ms
	if wait := c.ReadsIn(now, "alice"); wait != 0 {
		t.Fatalf("a stranger waits %d ns", wait)
	}
	c.HasRead(now, "alice", 3*MaxReadNs)
	if wait := c.ReadsIn(now, "alice"); wait != 0 {
		t.Errorf("with the budget just used up the user waits %d ns", wait)
	}
	c.HasRead(now, "alice", 30*ms)
	if wait := c.ReadsIn(now, "alice"); wait != 50*ms {
		t.Errorf("for 30 ms of reading with 3 turns at a time the user waits %d ns", wait)
	}
	if wait := c.ReadsIn(now, "bob"); wait != 0 {
		t.Errorf("somebody else waits %d ns", wait)
	}
	if r := c.ReadsTooMuch("alice", 50*ms); r.RetryNs < minRetryNs || !strings.Contains(r.Error(), `user "alice" has had replica 2 read`) {
		t.Errorf("it is refused so: %v", r)
	}
}

// TestTurnsOfOneUser: a user has no more than a share of the turns, also when no other user asks,
// and calls that wait for that share keep no other user waiting.
func TestTurnsOfOneUser(t *testing.T) {
	x := NewTurns[string](2, 3, 2)
	ask := func(user string) *Turn[string] {
		turn, r := x.Enter(user, user)
		if r != nil {
			t.Fatal(r)
		}
		return turn
	}
	a, b, third := ask("alice"), ask("alice"), ask("alice")
	if !a.Placed() || !b.Placed() || third.Placed() {
		t.Fatalf("of three of one user have turns: %v %v %v", a.Placed(), b.Placed(), third.Placed())
	}
	other := ask("bob")
	if !other.Placed() {
		t.Fatal("somebody else waits")
	}
	if next := x.Leave(other); next != nil {
		t.Fatalf("%s has more than a share", next.Who)
	}
	if next := x.Leave(a); next != third || !third.Placed() {
		t.Fatal("the third has no turn when the first ends")
	}
	if x.Leave(b) != nil || x.Leave(third) != nil {
		t.Error("somebody has a turn who did not ask")
	}
	if s := x.Stats(); s.Taken != 0 || s.Turns != 4 || s.Waiting != 0 {
		t.Errorf("it stands %+v", s)
	}
}
