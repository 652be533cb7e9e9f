package cell

import (
	"math"
	"testing"
)

// TestOutOfSpan: a refusal of a span has its unit and both bounds, whatever a raw call names.
func TestOutOfSpan(t *testing.T) {
	for _, c := range []struct {
		ns, least, most int64
		want            string
	}{
		{90 * 24 * 3600 * second, 0, maxQuarantineNs, "90 d is not in 0 s to 30 d"},
		{-1, 0, maxQuarantineNs, "a time below zero is not in 0 s to 30 d"},
		{math.MinInt64, 0, maxQuarantineNs, "a time below zero is not in 0 s to 30 d"},
		{math.MaxInt64, 0, maxQuarantineNs, "9223372036 s is not in 0 s to 30 d"},
		{second / 2, second, maxVolumeKeepNs, "0.500 s is not in 1 s to " + spanWords(maxVolumeKeepNs)},
	} {
		if r := outOfSpan("for_ns", c.ns, c.least, c.most); r.Message != c.want || r.Field != "for_ns" {
			t.Errorf("%d ns in %d to %d is refused with %q of %s, want %q", c.ns, c.least, c.most, r.Message, r.Field, c.want)
		}
	}
}

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
