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
	if n := len(l.c.requests.queue); n != 5 {
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
