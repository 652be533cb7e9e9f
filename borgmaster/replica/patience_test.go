package replica

import "testing"

// TestPatience: elections that follow each other closely stretch the timeout, and calm
// takes that back.
func TestPatience(t *testing.T) {
	p := patience{}
	p.saw(7)
	pass := func(ticks int) (ofRaft int) {
		for range ticks {
			if p.tick() {
				ofRaft++
			}
		}
		return ofRaft
	}
	for _, step := range []struct {
		elections, ticks int
		want             int
	}{
		{0, 100, 100},
		{1, 10, 10}, {1, 10, 10},
		// The third within a second: twice as long, then longer.
		{1, 40, 20}, {1, 40, 10}, {1, 80, 10}, {20, 160, 20},
		// From there it takes 15 s until a timeout is as long as ever.
		{0, 90, 11}, {0, 250, 63}, {0, 250, 125}, {0, 500, 500},
		// One who was away for many terms has seen one election.
		{1, 10, 10},
	} {
		for i := range step.elections {
			if i++; step.elections == 1 {
				i = 50
			}
			p.saw(p.term + uint64(i))
		}
		if got := pass(step.ticks); got != step.want {
			t.Errorf("after %d elections more: %d ticks of raft in %d, want %d; %d are left", step.elections, got, step.ticks, step.want, p.ticks)
		}
	}
}
