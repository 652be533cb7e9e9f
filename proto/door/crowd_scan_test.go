package door

import (
	"fmt"
	"testing"
)

// TestAClosingConnectionIsLookedForOnce: while the connection with most is being closed and still holds it, what comes on
// others makes the door look at that one, and not at all connections each time.
func TestAClosingConnectionIsLookedForOnce(t *testing.T) {
	const conns, most = 1000, 100
	c := newCrowd()
	var users []*presentUser
	for n := range conns {
		u := newPresentUser(fmt.Sprint("user", n%10))
		if n >= 10 {
			u = users[n%10]
		} else {
			c.users[u.key] = u
			users = append(users, u)
		}
		f := newInflow(c, u)
		f.hangUp = func() {}
		f.held.Store(1)
		u.flows[f] = true
		if n == 1 {
			f.held.Store(2 * conns)
		}
	}
	looked := 0
	holds := func(f *inflow) int64 { looked++; return f.held.Load() }
	const sum, ofUser = conns - 1 + 2*conns, conns/10 - 1 + 2*conns
	c.hangUpLargest(nil, holds, sum, conns)
	if len(c.leaving) != 1 || c.leaving[0].held.Load() != 2*conns {
		t.Fatalf("%d connections are closed, want the largest", len(c.leaving))
	}
	looked = 0
	for range 100 {
		c.hangUpLargest(nil, holds, sum, conns)
		c.hangUpLargest(users[1], holds, ofUser, most)
	}
	if len(c.leaving) != 1 || looked > 2*100 {
		t.Errorf("%d connections are closed, and 200 frames made the door look at %d", len(c.leaving), looked)
	}
	// Another user has too much meanwhile: that is seen.
	c.hangUpLargest(users[2], holds, conns/10, conns/10-1)
	if len(c.leaving) != 2 || c.leaving[1].user != users[2] {
		t.Errorf("%d connections are closed, want one of another user too", len(c.leaving))
	}
	// What was given back is not remembered.
	for _, f := range c.leaving {
		f.held.Store(0)
	}
	c.hangUpLargest(nil, holds, 1, conns)
	if len(c.leaving) != 0 {
		t.Errorf("%d are remembered that hold nothing", len(c.leaving))
	}
}
