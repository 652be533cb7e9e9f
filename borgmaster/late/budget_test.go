package late

import "testing"

// TestBudget: rounds keep their period while they fit into their budget, and else take
// just that share of the time.
func TestBudget(t *testing.T) {
	const ms = 1_000_000
	for _, x := range []struct {
		budget             Budget
		period, took, want int64
	}{
		{10, 1000 * ms, 0, 1000 * ms},
		{10, 1000 * ms, 100 * ms, 900 * ms},
		{10, 1000 * ms, 200 * ms, 1800 * ms},
		{25, 500 * ms, 500 * ms, 1500 * ms},
		{100, 500 * ms, 700 * ms, 0},
	} {
		if got := x.budget.WaitNs(x.period, x.took); got != x.want {
			t.Errorf("%d %% of rounds of %d ms that take %d ms: wait %d ms, want %d", x.budget, x.period/ms, x.took/ms, got/ms, x.want/ms)
		}
	}
}
