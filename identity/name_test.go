package identity_test

import (
	"strings"
	"testing"

	"borg/identity"
)

func TestNames(t *testing.T) {
	for _, good := range []string{
		"spiffe://c/user/alice", "spiffe://cell-1/master/5", "spiffe://c/scheduler/1", "spiffe://c/borglet/m12",
		"spiffe://c/task/alice/web/0", "spiffe://c/join/user/alice", "spiffe://c/join/borglet/m1",
	} {
		n, err := identity.ParseName(good)
		if err != nil || n.String() != good {
			t.Errorf("ParseName(%q) = %v, %v, want the same again", good, n, err)
		}
	}
	for _, bad := range []string{
		"", "spiffe://", "spiffe://c", "spiffe://c/user", "spiffe://c/user/", "https://c/user/alice", "SPIFFE://c/user/alice",
		"spiffe://C/user/alice", "spiffe://c/User/alice", "spiffe://c/user/Alice", "spiffe://c/user/alice/", "spiffe://c//user/alice",
		"spiffe://c/user/a/b", "spiffe://c/user/..", "spiffe://c/user/a.b", "spiffe://c/user/%61", "spiffe://c/user/a\x00", "spiffe://c/user/a\n",
		"spiffe://c/user/-a", "spiffe://c/user/a-", "spiffe://c:80/user/a", "spiffe://u@c/user/a", "spiffe://c/user/a?b", "spiffe://c/user/a#b",
		"spiffe://c/master/0", "spiffe://c/master/01", "spiffe://c/master/-1", "spiffe://c/master/+1", "spiffe://c/master/18446744073709551616",
		"spiffe://c/root/a", "spiffe://c/task/alice/web", "spiffe://c/task/alice/web/x", "spiffe://c/task/alice/web/00",
		"spiffe://c/join/m1", "spiffe://c/join/master/1", "spiffe://c/join/task/a", "spiffe://c/user/" + strings.Repeat("a", 64), "spiffe://c/user/é",
	} {
		if n, err := identity.ParseName(bad); err == nil {
			t.Errorf("ParseName(%q) = %v, want an error", bad, n)
		}
	}
}

func TestWhoIsMeant(t *testing.T) {
	m3 := identity.Name{Cell: "c", Role: identity.Master, ID: "3"}
	for _, tt := range []struct {
		want identity.Name
		is   bool
	}{
		{m3, true},
		{identity.Name{Cell: "c", Role: identity.Master}, true},
		{identity.Name{Cell: "c", Role: identity.Master, ID: "2"}, false},
		{identity.Name{Cell: "d", Role: identity.Master}, false},
		{identity.Name{Cell: "c", Role: identity.Borglet}, false},
	} {
		if got := m3.Is(tt.want); got != tt.is {
			t.Errorf("%v.Is(%v) = %v, want %v", m3, tt.want, got, tt.is)
		}
	}
	b := identity.Name{Cell: "c", Role: identity.Borglet, ID: "m1"}
	if b.ToJoin().Becomes() != b || b.Becomes() != (identity.Name{}) || m3.Replica() != 3 || b.Replica() != 0 {
		t.Errorf("%v joins as %v, which becomes %v", b, b.ToJoin(), b.ToJoin().Becomes())
	}
}

// FuzzParseName holds that a name is read in its one spelling alone, and that
// nothing odd is in what was read.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{"spiffe://c/user/alice", "spiffe://c/task/a/b/0", "spiffe://c/join/borglet/m", "spiffe://c/user/%2e%2e", "spiffe://c/master/1\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := identity.ParseName(s)
		if err != nil {
			return
		}
		if n.String() != s || n.Check() != nil {
			t.Fatalf("ParseName(%q) = %v", s, n)
		}
		if i := strings.IndexFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-/:", r)
		}); i >= 0 || strings.Contains(s, "..") {
			t.Fatalf("ParseName(%q) let byte %d through", s, i)
		}
	})
}
