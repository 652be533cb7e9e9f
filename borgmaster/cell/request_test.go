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

// TestFloodOfRequestsForgetsItsOwn has one user make more requests than are remembered,
// with a clock as far ahead as is believed. Those of others are still answered from
// memory, new ones of others are not taken for old, and a cell that is read again knows
// as much.
func TestFloodOfRequestsForgetsItsOwn(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: formatRequestShares}}})
	l.c.requests.most = 200
	send := func(user string, i int, aheadNs int64) *borgpb.Result {
		op := submitJob(t, fmt.Sprintf("j%d", i), service(1, 100, 1, 1))
		op.GetSubmitJob().User = user
		op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER}
		op.RequestId, op.RequestWallNs = fmt.Sprintf("%s-%d", user, i), l.wallNs+aheadNs
		res, _ := l.apply(op)
		return res[0]
	}
	for i := range 5 {
		if r := send("bob", i, 0); r.Repeated {
			t.Fatalf("bob's request %d: %v", i, r)
		}
	}
	for i := range 2_000 {
		send("mallory", i, requestMemoryNs)
	}
	if n := len(l.c.requests.byID); n > 200 || len(l.c.requests.queue) > 2*n+1 {
		t.Errorf("%d requests are remembered, and %d are in order", n, len(l.c.requests.queue))
	}
	read := reload(t, l.c)
	if got, want := read.Digest(), l.c.Digest(); got != want {
		t.Errorf("read again, the cell has the digest %x, want %x", got, want)
	}
	if read.requests.forgottenOf["mallory"] == 0 || len(read.requests.byUser["bob"]) != 5 {
		t.Errorf("read again, it is forgotten of users: %v", read.requests.forgottenOf)
	}
	for i := range 5 {
		if r := send("bob", i, 0); !r.Repeated {
			t.Errorf("bob's request %d again: %v, want it repeated", i, r)
		}
	}
	if r := send("bob", 5, 0); r.Refusal.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD {
		t.Errorf("a new request of bob's: %v", r)
	}
	if r := send("mallory", 0, 0); r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD {
		t.Errorf("a request of mallory's that was forgotten early: %v", r)
	}
	if err := l.c.Check(); err != nil {
		t.Fatal(err)
	}
}
