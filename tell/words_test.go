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
