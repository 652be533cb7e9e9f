package main

import (
	"testing"
	"time"
)

// TestMemoryLimit: a small cell has the room of a small cell however much a flood makes be in use, a large one as much as
// it uses, and every one a fifth of what is in use.
func TestMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	for _, x := range []struct {
		name                        string
		live, overhead, rest, extra uint64
		want                        uint64
	}{
		{"a small cell at rest", 20, 10, 20, 0, 94},
		{"a small cell in a flood", 150, 30, 20, 0, 220},
		{"a small cell that has an election", 20, 10, 20, 64, 158},
		{"a cell of some size in a rush", 120, 20, 100, 0, 340},
		{"a large cell", 2048, 100, 2048, 0, 4196},
		{"a cell that has become large at once", 2000, 100, 20, 0, 2500},
	} {
		u := usage{live: x.live * mib, overhead: x.overhead * mib}
		if got := memoryLimit(u, x.rest*mib, x.extra*mib); got != x.want*mib {
			t.Errorf("%s may take %d MiB, want %d", x.name, got/mib, x.want)
		}
	}
}

// TestRestFollowsSlowly: what a flood makes be in use is no rest until it has lasted, and what is freed is at once.
func TestRestFollowsSlowly(t *testing.T) {
	rest := uint64(100)
	if rest = nextRest(rest, 1_300, restTime/12); rest != 200 {
		t.Errorf("after a twelfth of the time the rest is %d, want 200", rest)
	}
	if got := nextRest(rest, 1_300, time.Hour); got != 1_300 {
		t.Errorf("after an hour the rest is %d, want 1300", got)
	}
	if got := nextRest(rest, 50, time.Millisecond); got != 50 {
		t.Errorf("what is freed is not at rest: %d, want 50", got)
	}
}

// TestMeterReads: the runtime tells all that the limit follows from.
func TestMeterReads(t *testing.T) {
	u, ok := newMeter().read()
	if !ok || u.heap == 0 || u.overhead == 0 || u.allocated == 0 {
		t.Errorf("the runtime tells %+v (%v)", u, ok)
	}
}
