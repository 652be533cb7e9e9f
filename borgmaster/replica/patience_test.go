package replica

import "testing"

// TestPatience: elections that follow each other closely stretch the timeout, and calm
// takes that back.
func TestPatience(t *testing.T) {
	p := patience{}
	p.saw(7)
	pass := func(ticks int) (ofRaft int) {
		for range ticks {
			if p.tick(0, false) {
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

// TestPatienceOfWhoIsLate: one tick that comes late is nothing, with the second the
// timeout is as long as that deserves, and five seconds later it is as ever.
func TestPatienceOfWhoIsLate(t *testing.T) {
	for _, test := range []struct {
		late []uint64
		want int
	}{
		{nil, 200},
		{[]uint64{2, 2, 2}, 200},
		{[]uint64{50}, 200},
		{[]uint64{50, 4}, 50},
		{[]uint64{5, 3, 5}, 40},
		{[]uint64{50, 90, 50}, 25},
		// Of many the latest count.
		{[]uint64{40, 40, 4, 4, 4, 4, 4, 4, 4, 4, 4}, 50},
	} {
		p := patience{}
		for _, by := range test.late {
			p.tick(by, false)
		}
		p.held = 0
		for _, want := range []int{test.want, 200} {
			got := 0
			for range 200 {
				if p.tick(0, false) {
					got++
				}
			}
			if got != want {
				t.Errorf("ticks late by %v: then %d of 200 are raft's, want %d", test.late, got, want)
			}
			for range patientTicks {
				p.tick(0, false)
			}
			p.held = 0
		}
	}
}

// TestPatienceOfWhoLeads: he has half of the ticks at most, and a quarter at least.
func TestPatienceOfWhoLeads(t *testing.T) {
	p := patience{}
	for _, test := range []struct{ late, want uint64 }{{0, 2}, {2, 2}, {3, 3}, {50, 4}} {
		p.tick(test.late, true)
		p.tick(test.late, true)
		if got := p.factor(true); got != test.want {
			t.Errorf("late by %d: a timeout is %d times as long, want %d", test.late, got, test.want)
		}
	}
}
