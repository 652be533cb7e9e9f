package cell

import "testing"

// TestSpanWords: one way to write a span of time, whatever it is.
func TestSpanWords(t *testing.T) {
	for _, c := range []struct {
		ns   int64
		want string
	}{
		{0, "0.000 s"}, {second, "1 s"}, {1500 * second / 1000, "1.500 s"}, {90 * second, "90 s"}, {600*second - 1, "10 min"},
		{3661 * second, "3661 s"}, {7200 * second, "2 h"}, {maxGraceNs, "1 d"}, {maxLostNs, "7 d"}, {-3600 * second, "1 h"},
	} {
		if got := spanWords(c.ns); got != c.want {
			t.Errorf("%d ns is written %q, want %q", c.ns, got, c.want)
		}
	}
	if got := stepWords(-90 * second); got != "90 s behind" {
		t.Errorf("a clock that is late is %q", got)
	}
}
