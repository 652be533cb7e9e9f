package cell

import (
	"testing"

	"borg/proto/borgpb"
)

// Walk makes so many random ops, and calls each after every entry.
func Walk(t *testing.T, seed uint64, ops int, each func(c *Cell)) {
	w := &walk{
		seed: seed, other: New("test-cell", 1), store: make(map[string]string),
		tasks: make(map[taskOf]borgpb.State), ended: make(map[CopyID]bool), placedIn: make(map[CopyID]string),
		edges: make(map[string]int), refusals: make(map[borgpb.RefusalKind]int), each: each,
	}
	w.testLog = newTestLog(t)
	w.r = newRand(seed)
	for w.ops < ops {
		w.step()
	}
}
