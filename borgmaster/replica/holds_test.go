package replica

import (
	"math"
	"testing"
)

// A follower that is sent a checkpoint keeps the log until it can go on by it; one
// that takes none is made the next after longer and longer.
func TestHolds(t *testing.T) {
	var h Holds
	if got := h.From(math.MaxUint64, 0); got != math.MaxUint64 {
		t.Errorf("nobody holds %d", got)
	}
	h.Sending(2, 100)
	h.Sending(3, 90)
	if got := h.From(math.MaxUint64, 1e15); got != 90 {
		t.Errorf("held from %d, want 90", got)
	}
	if pause := h.Ended(3, true, 1000); pause != 0 {
		t.Errorf("a pause of %d after one that was taken", pause)
	}
	if got := h.From(math.MaxUint64, 1000+holdForNs); got != 90 {
		t.Errorf("held from %d just after it was taken, want 90", got)
	}
	if got := h.From(math.MaxUint64, 1001+holdForNs); got != 100 {
		t.Errorf("held from %d long after it was taken, want 100", got)
	}
	last := int64(0)
	for n := range 40 {
		h.Sending(2, 100)
		pause := h.Ended(2, false, 0)
		if pause < againFirstNs || pause < last || pause > againMaxNs {
			t.Errorf("pause %d is %d ns, after %d", n, pause, last)
		}
		last = pause
	}
	if last != againMaxNs {
		t.Errorf("the longest pause is %d ns, want %d", last, againMaxNs)
	}
	if got := h.From(math.MaxUint64, 0); got != math.MaxUint64 {
		t.Errorf("what failed holds %d", got)
	}
	h.Sending(2, 100)
	h.Ended(2, true, 0)
	if pause := h.Ended(2, false, 0); pause != againFirstNs {
		t.Errorf("a pause of %d ns after one that was taken, want %d", pause, againFirstNs)
	}
}
