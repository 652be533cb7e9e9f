package duty

import (
	"fmt"
	"testing"
)

// TestDownsInAMinute: of machines that vanish at once, the first of which are down after
// 6 s, a tenth are called down in a minute. What was not called down in those 6 s is not
// made up for, but of few machines a rack is called down at once.
func TestDownsInAMinute(t *testing.T) {
	for _, x := range []struct {
		machines int
		want     [3]int
	}{
		{100_000, [3]int{9_333, 10_000, 10_000}},
		{10_000, [3]int{933, 1_000, 1_000}},
		{1_000, [3]int{100, 100, 100}},
		{200, [3]int{20, 20, 20}},
		{10, [3]int{1, 1, 1}},
	} {
		var b downBudget
		var got [3]int
		const stepNs = 10e6
		for now := int64(silentForDownNs); now < 180e9; now += stepNs {
			for b.take(now, x.machines, DefaultBounds.DownsPerMinutePercent) {
				got[now/60e9]++
			}
		}
		for minute, n := range got {
			if n < x.want[minute]-2 || n > x.want[minute]+2 {
				t.Errorf("of %d machines %d were called down in minute %d, want %d", x.machines, n, minute+1, x.want[minute])
			}
		}
	}
}

// TestDownsGoOnInTheNextTerm: what masters before have called down in the last minute counts.
func TestDownsGoOnInTheNextTerm(t *testing.T) {
	const machines, perMinute = 200, 20
	now := int64(100e9)
	var seen []MachineSeen
	for i := range machines {
		seen = append(seen, MachineSeen{Name: fmt.Sprint("m-", i), Up: i >= 30, DownForNs: 90e9})
	}
	for i := range 15 {
		seen[i].DownForNs = int64(i+1) * 2e9
	}
	d := New(Bounds{})
	d.Step(now, Elected{Term: 2, Self: 1, Members: []uint64{1, 2, 3}, Machines: seen})
	take := func() (n int) {
		for d.downs.take(now, machines, DefaultBounds.DownsPerMinutePercent) {
			n++
		}
		return n
	}
	if got := take(); got != perMinute-15 {
		t.Errorf("%d more may be called down, want %d", got, perMinute-15)
	}
	// The oldest of the 15 is older than a minute then.
	if now += 31e9; take() != 1 {
		t.Error("none or many may be called down when one is a minute ago")
	}
}
