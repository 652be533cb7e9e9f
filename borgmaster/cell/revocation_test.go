package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// TestRevocationsGiveWay: revocations fill the cell's list of users, and then give way to new
// users once every certificate that they are about has expired. Capabilities never do.
func TestRevocationsGiveWay(t *testing.T) {
	if testing.Short() {
		t.Skip("fills the list of users")
	}
	l := raised(t, BuildFormat)
	grant := func(user string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: user, Capability: string(NoEstimation)}}}
	}
	revoke := func(user string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: user, CertificatesWallNs: max(l.c.clock.wallNs, 1)}}}
	}
	l.do(grant("kept"))
	for n := len(l.c.users.list); n < maxUsers; {
		var ops []*borgpb.Op
		for ; n < maxUsers && len(ops) < MaxOpsInEntry; n++ {
			ops = append(ops, revoke(fmt.Sprint("u", n)))
		}
		l.apply(ops...)
	}
	if got := len(l.c.users.list); got != maxUsers {
		t.Fatalf("%d users, want %d", got, maxUsers)
	}
	for _, op := range []*borgpb.Op{grant("late"), revoke("late")} {
		if r := l.refusalOf(op); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
			t.Errorf("one user more: %v, want a refusal by the limit", r)
		}
	}
	l.cellNs, l.wallNs = l.cellNs+revocationNs/2, l.wallNs+revocationNs/2
	if r := l.refusalOf(grant("late")); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
		t.Errorf("one user more while revocations count: %v", r)
	}
	l.cellNs, l.wallNs = l.cellNs+revocationNs, l.wallNs+revocationNs
	l.do(grant("late"))
	if len(l.c.users.list) != 2 || l.c.User("kept") == nil || l.c.User("late") == nil {
		t.Errorf("%d users are left, want those with capabilities", len(l.c.users.list))
	}
	l.fine()
}
