package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// TestRequestsAreBounded wants ids that were forgotten early, because there are
// too many, to be refused as too old, and never done a second time.
func TestRequestsAreBounded(t *testing.T) {
	l := newTestLog(t)
	l.c.requests.most = 5
	send := func(i int) *borgpb.Result {
		op := submitJob(t, fmt.Sprintf("j%d", i), service(1, 100, 1, 1))
		op.RequestId, op.RequestWallNs = fmt.Sprintf("id-%d", i), l.wallNs+int64(i)
		res, _ := l.apply(op)
		return res[0]
	}
	for i := range 12 {
		if r := send(i); r.Refusal != nil {
			t.Fatalf("request %d: %v", i, r.Refusal)
		}
	}
	if n := len(l.c.requests.byID); n != 5 {
		t.Errorf("%d requests are remembered, want 5", n)
	}
	for i := range 12 {
		r := send(i)
		if i < 7 && r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD {
			t.Errorf("request %d again: %v, want TOO_OLD", i, r)
		}
		if i >= 7 && !r.Repeated {
			t.Errorf("request %d again: %v, want it repeated", i, r)
		}
	}
	if err := l.c.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestRequestsOfMany: where many users have few requests each, none loses more than half of them
// at once.
func TestRequestsOfMany(t *testing.T) {
	l := budgetLog(t)
	const users, each, most = 200, 6, 1000
	l.c.requests.most = most
	left := make(map[string]int)
	for n := range each {
		for u := range users {
			user := fmt.Sprint("u", u)
			op := submitBy(t, user, fmt.Sprint("j", n), service(1, 100, 1, 1))
			op.RequestId, op.RequestWallNs = fmt.Sprintf("%s-%d", user, n), l.wallNs
			l.apply(op)
			if len(l.c.requests.byID) > most {
				t.Fatalf("%d requests are remembered, want at most %d", len(l.c.requests.byID), most)
			}
		}
	}
	for _, r := range l.c.requests.byID {
		left[r.user]++
	}
	for u := range users {
		if n := left[fmt.Sprint("u", u)]; n < each/4 {
			t.Errorf("of user %d %d requests are remembered, want %d or more", u, n, each/4)
		}
	}
	if err := l.c.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestRequestsOfUser: one who makes more requests than the budget says makes the oldest of
// them too old to know, and nobody else's.
func TestRequestsOfUser(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("u", measureRequests, 3))
	send := func(user string, i int) *borgpb.Result {
		op := submitBy(t, user, fmt.Sprintf("j%d", i), service(1, 100, 1, 1))
		op.RequestId, op.RequestWallNs = fmt.Sprintf("%s-%d", user, i), l.wallNs+int64(i)
		res, _ := l.apply(op)
		return res[0]
	}
	first := l.wallNs
	for i := range 8 {
		for _, user := range []string{"u", "v"} {
			if r := send(user, i); r.Refusal != nil {
				t.Fatalf("request %d of %s: %v", i, user, r.Refusal)
			}
		}
		l.c = reload(t, l.c)
		l.fine()
	}
	if n := l.c.StateUseOf("u")[measureRequests]; n != 3 {
		t.Errorf("u has %d requests that are remembered, want 3", n)
	}
	for i := range 8 {
		if r := send("v", i); !r.Repeated {
			t.Errorf("request %d of v again: %v, want it repeated", i, r)
		}
		r := send("u", i)
		if i < 5 && r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD || i >= 5 && !r.Repeated {
			t.Errorf("request %d of u again: %v", i, r)
		}
	}
	// When the clock says as much, the mark goes.
	for l.wallNs < first+2*requestMemoryNs {
		l.wallNs, l.cellNs = l.wallNs+30*second, l.cellNs+30*second
		l.do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	}
	if len(l.c.requests.marks) != 0 || len(l.c.requests.of) != 0 {
		t.Errorf("%d marks and %d users are left", len(l.c.requests.marks), len(l.c.requests.of))
	}
	l.fine()
}
