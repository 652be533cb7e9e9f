package scheduler

import (
	"slices"
	"testing"
)

// TestParts wants the smallest parts of devices kept in order, in whatever order
// they come.
func TestParts(t *testing.T) {
	all := []uint16{900, 10, 500, 20, 700, 30, 600, 40, 800, 50, 10}
	want := [8]uint16{10, 10, 20, 30, 40, 50, 500, 600}
	for range len(all) {
		all = append(all[1:], all[0])
		var s single
		for _, part := range all {
			s.note(part)
		}
		if s.parts != want {
			t.Errorf("of %v: %v, want %v", all, s.parts, want)
		}
	}
	var s single
	s.note(300)
	s.note(200)
	if !slices.Equal(s.parts[:3], []uint16{200, 300, 0}) {
		t.Errorf("of 300 and 200: %v", s.parts)
	}
	for _, c := range []struct{ milli, rest int64 }{{100, 100}, {200, 0}, {250, 50}, {301, 699}} {
		if got := s.rest(&deviceNeed{milli: c.milli}); got != c.rest {
			t.Errorf("%d thousandths leave %d of their device, want %d", c.milli, got, c.rest)
		}
	}
}
