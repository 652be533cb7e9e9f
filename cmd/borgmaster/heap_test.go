package main

import "testing"

// TestHeapRoom: a small heap may grow by a fixed amount, a large one as the runtime has
// it, and none without bound.
func TestHeapRoom(t *testing.T) {
	for _, x := range []struct {
		live uint64
		want int
	}{
		{0, mostHeapPercent},
		{1 << 20, mostHeapPercent},
		{16 << 20, 800},
		{64 << 20, 200},
		{heapRoom, heapPercent},
		{2 << 30, heapPercent},
	} {
		if got := gcPercent(x.live); got != x.want {
			t.Errorf("of a heap of %d MiB %d per cent, want %d", x.live>>20, got, x.want)
		}
	}
}
