package admission

import (
	"strings"
	"testing"
)

// TestWork: one user's large changes are bounded by what comes back each second, and neither
// his small ones nor those of others are.
func TestWork(t *testing.T) {
	c := New[int](Config{Replica: 2})
	now := 5 * ms
	fits := func(user string, work int) {
		t.Helper()
		if r := c.Work(now, user, work); r != nil {
			t.Fatalf("%s, %d: %v", user, work, r)
		}
	}
	// tooMuch wants a refusal until so many ms later, and no refusal then.
	tooMuch := func(user string, work int, waitMs int64) {
		t.Helper()
		r := c.Work(now, user, work)
		if r == nil || r.RetryNs != waitMs*ms || !strings.Contains(r.Error(), `"alice" asks replica 2`) {
			t.Fatalf("%s, %d: %v", user, work, r)
		}
		now += r.RetryNs
		fits(user, work)
	}
	fits("alice", MaxWork/2+FreeWork)
	fits("alice", MaxWork/2+FreeWork)
	tooMuch("alice", workPerS+FreeWork, 1_000)
	tooMuch("alice", 2*workPerS+FreeWork, 2_000)
	for range 100_000 {
		fits("alice", FreeWork)
	}
	if r := c.Begin(now, "alice", 10); r != nil {
		t.Fatalf("a small change: %v", r)
	}
	fits("bob", MaxWork+FreeWork)

	// More than the whole budget counts as all of it: there is no op that never goes.
	now += 60_000 * ms
	fits("alice", 100*MaxWork)
	if r := c.Work(now, "alice", 100*MaxWork); r == nil || r.RetryNs != maxRetryNs {
		t.Errorf("at once again: %v", r)
	}
	now += int64(MaxWork/workPerS) * 1_000 * ms
	fits("alice", 100*MaxWork)

	// What was not done after all is given back.
	c.NotWorked("alice", 100*MaxWork)
	fits("alice", MaxWork+FreeWork)

	c.End("alice", true)
	if c.sweep(now + 1_000*ms); c.users["alice"] == nil {
		t.Error("a user is forgotten whose budget is not full")
	}
	if c.sweep(now + 60_000*ms); len(c.users) != 0 {
		t.Errorf("%d users are remembered who have their whole budget", len(c.users))
	}
}

// TestWorkHeedless: a user who keeps asking for large changes before the time that was told has
// all changes refused by their heads. A user who waits as told has not, and others have not.
func TestWorkHeedless(t *testing.T) {
	c := New[int](Config{})
	now := ms
	for range 2_000 {
		if r := c.Work(now, "alice", MaxWork/2); r != nil {
			now += r.RetryNs
		}
		if r := c.Closed(now, "alice"); r != nil {
			t.Fatalf("a user who waits as told: %v", r)
		}
		c.Begin(now, "alice", 10)
		c.End("alice", true)
	}
	c.Work(now, "dave", MaxWork+FreeWork)
	for n := range heedlessCalls + 1 {
		if r := c.Closed(now, "dave"); r != nil {
			t.Fatalf("after %d: %v", n, r)
		}
		c.Begin(now, "dave", 10)
		c.End("dave", true)
		c.Work(now, "dave", MaxWork)
	}
	if r := c.Closed(now, "dave"); r == nil {
		t.Error("a user who never waits is not refused by the heads of its calls")
	}
	elsewhere := Elsewhere("carol", "too much", 2_000*ms)
	for range heedlessCalls + 1 {
		if r := c.Closed(now, "carol"); r != nil {
			t.Fatal(r)
		}
		c.RefusedWork(now, "carol", elsewhere)
	}
	if r := c.Closed(now, "carol"); r == nil || r.Error() != "too much" {
		t.Errorf("one who is refused by another replica: %v", r)
	}
	if c.Away(now, "carol") == nil {
		t.Error("her questions about changes are heard")
	}
	for _, r := range []*Refusal{c.Closed(now, "bob"), c.Away(now, "bob"), c.Away(now, "alice")} {
		if r != nil {
			t.Error(r)
		}
	}
}
