package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestLargeSavers: savers of one set share the reading of their spec, and hold at most the bytes that
// their user may hold.
func TestLargeSavers(t *testing.T) {
	const budget, allocs = 8 << 20, 200
	l := latestQuotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{
		User: "u", Amounts: []*borgpb.StateAmount{{Measure: measureBytes, Amount: budget}}}}})
	set := setSpec(allocs, 0, 1)
	set.Saver = &borgpb.Saver{Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 10}}}
	for range 10_000 {
		set.Saver.Task.Args = append(set.Saver.Task.Args, "xxxx")
	}
	l.do(asUser("u", submitSet(t, "place", set)))
	l.placeAllocs("place", "m1")
	before := l.c.StateUseOf("u")[measureBytes]
	_, events := l.apply(killSet("place"))
	refused := 0
	for _, e := range events {
		if e.Kind == borgpb.EventKind_EVENT_KIND_SAVE_GIVEN_UP {
			refused++
			if !strings.Contains(e.Reason, "user u may hold 8388608 bytes") {
				t.Fatalf("the event says %q", e.Reason)
			}
		}
	}
	one := l.c.savers[0].latest()
	if n, want := len(l.c.savers), int((budget-before)/one.bytesOf()); n != want || refused != allocs-n {
		t.Errorf("%d savers of %d bytes and %d refused, want %d and %d", n, one.bytesOf(), refused, want, allocs-want)
	}
	if one.weight <= maxReadingBytes {
		t.Fatalf("a spec of %d bytes is remembered in any case", one.weight)
	}
	for _, j := range l.c.savers {
		if j.latest().reading != one.reading {
			t.Fatal("the spec of a saver was read again")
		}
	}
	l.fine()
}
