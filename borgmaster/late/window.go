package late

const (
	// windowNs is how long a delay is remembered.
	windowNs = 10e9
	// leastNs is the shortest delay that is remembered.
	leastNs = 20e6
	// maxDelays bounds the delays that are remembered; the oldest is dropped.
	maxDelays = 16
)

// Window remembers the delays of the last ten seconds. The zero value is empty.
type Window struct {
	// Oldest first.
	delays []delay
}

type delay struct{ atNs, ns int64 }

// Add takes in a delay that ended now.
func (w *Window) Add(now, ns int64) {
	w.forget(now)
	if ns < leastNs {
		return
	}
	if w.delays = append(w.delays, delay{now, ns}); len(w.delays) > maxDelays {
		w.delays = w.delays[1:]
	}
}

// Ns returns the second longest delay of the window. A single one may be a
// machine that stood still for a moment, and says nothing of the next.
func (w *Window) Ns(now int64) int64 {
	w.forget(now)
	worst, second := int64(0), int64(0)
	for _, d := range w.delays {
		worst, second = max(worst, d.ns), max(second, min(worst, d.ns))
	}
	return second
}

func (w *Window) forget(now int64) {
	for len(w.delays) > 0 && now-w.delays[0].atNs > windowNs {
		w.delays = w.delays[1:]
	}
}
