package duty

import "testing"

// TestDownsInAMinute: of machines that vanish at once, the first of which are down after
// 6 s, a tenth are called down in a minute. What was not called down in those 6 s is not
// made up for, but a rack is called down at once.
func TestDownsInAMinute(t *testing.T) {
	for _, x := range []struct {
		machines int
		want     [3]int
	}{
		{100_000, [3]int{9_333, 10_000, 10_000}},
		{10_000, [3]int{933, 1_000, 1_000}},
		{1_000, [3]int{110, 100, 100}},
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
