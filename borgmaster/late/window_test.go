package late

import "testing"

// TestWindow: the second longest delay counts, until both are old.
func TestWindow(t *testing.T) {
	var w Window
	for _, step := range []struct{ at, delay, want int64 }{
		{1e9, 5e9, 0},
		{2e9, 10e6, 0},
		{3e9, 300e6, 300e6},
		{4e9, 700e6, 700e6},
		{12e9, 0, 300e6},
		{15e9, 0, 0},
	} {
		w.Add(step.at, step.delay)
		if got := w.Ns(step.at); got != step.want {
			t.Errorf("after a delay of %d ns at %d ns: %d ns, want %d", step.delay, step.at, got, step.want)
		}
	}
	for i := range int64(100) {
		w.Add(20e9+i, 100e6)
	}
	if len(w.delays) > maxDelays {
		t.Errorf("%d delays are remembered, want at most %d", len(w.delays), maxDelays)
	}
}
