package tell

import (
	"testing"

	"borg/proto/borgpb"
)

// TestHappened: how a process ended and what is said of it are told once each.
func TestHappened(t *testing.T) {
	for _, c := range []struct {
		exit         *borgpb.Exit
		reason, want string
	}{
		{nil, "", ""},
		{nil, "machine m1 is down", ": machine m1 is down"},
		{&borgpb.Exit{Code: 3}, "", ", exit 3"},
		{&borgpb.Exit{Code: 3}, "starts again 10s after that", ", exit 3: starts again 10s after that"},
		{&borgpb.Exit{Signal: 9, Reason: "over its memory"}, "over its memory", ", signal 9 (KILL): over its memory"},
		{&borgpb.Exit{Error: "no such file"}, "no such file; starts again 10s after that", ", no such file; starts again 10s after that"},
	} {
		e := &borgpb.Event{Kind: borgpb.EventKind_EVENT_KIND_RESTART, Object: "u/j/0", Exit: c.exit, Reason: c.reason}
		if got, want := Happened(e), "restart          u/j/0"+c.want; got != want {
			t.Errorf("%v, %q:\n%s\nwant\n%s", c.exit, c.reason, got, want)
		}
	}
}

// TestAuditTellsDropsAndCounts: a drop names whose records it was and from when to when; a
// counted refusal how many there were.
func TestAuditTellsDropsAndCounts(t *testing.T) {
	user := borgpb.Role_ROLE_USER
	for _, c := range []struct {
		r    *borgpb.AuditRecord
		want string
	}{
		{&borgpb.AuditRecord{Role: user, Who: "mallory", WallNs: 1e9, LastWallNs: 3e9, Drop: &borgpb.AuditDrop{Records: 7, Times: 7}},
			"1970-01-01T00:00:01.000Z  -          (7 entries of mallory from 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:03.000Z were dropped: more was kept of this caller than its share)"},
		{&borgpb.AuditRecord{Role: user, Who: "mallory", WallNs: 1e9, LastWallNs: 3e9, Replica: 2, Drop: &borgpb.AuditDrop{Records: 7, Times: 90}},
			"1970-01-01T00:00:01.000Z  replica 2  (7 entries of mallory from 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:03.000Z were dropped, which stood for 90: more was kept of this caller than its share)"},
		{&borgpb.AuditRecord{Role: user, Who: "bob", Verb: "kill-job", Object: "a/j", WallNs: 1e9, LastWallNs: 3e9, Index: 5, Count: 3, Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, Message: "no"}},
			"1970-01-01T00:00:01.000Z  5          bob          kill-job a/j REFUSED 3 times until 1970-01-01T00:00:03.000Z permission: no"},
		{&borgpb.AuditRecord{Role: user, Who: "bob", Verb: "kill-job", Object: "a/j", WallNs: 1e9, LastWallNs: 1e9, Index: 5, Count: 1, Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, Message: "no"}},
			"1970-01-01T00:00:01.000Z  5          bob          kill-job a/j REFUSED permission: no"},
	} {
		if got := Audit(c.r); got != c.want {
			t.Errorf("told is\n%s\nwant\n%s", got, c.want)
		}
	}
}
