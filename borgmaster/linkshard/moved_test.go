package linkshard

import (
	"fmt"
	"testing"
)

// TestAShareThatMovesGoesFirst has another replica die while polls of ours begin late:
// its machines are polled before any of ours, and the pace of ours does not suffer from
// how long those have waited.
func TestAShareThatMovesGoesFirst(t *testing.T) {
	core := NewCore(CoreConfig{Replica: 1, MaxInFlight: 4})
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("m%03d", i))
	}
	now := int64(0)
	out := core.Step(now, LogContact{OK: true}).Polls
	step := func(event Event) { out = append(out, core.Step(now, event).Polls...) }
	step(MachinesAre{Names: names})
	step(LiveSet{Term: 1, Version: 1, Live: []uint64{1, 2}})
	ours := map[string]bool{}
	for now = 0; now < 1e9; now += 1e6 {
		step(Tick{})
		for len(out) > 0 {
			machine := out[0]
			out = out[1:]
			ours[machine] = true
			step(Answered{Machine: machine, Reached: true})
		}
	}
	if len(ours) != core.Share() || core.Share() == 0 || core.Share() == len(names) {
		t.Fatalf("%d machines were polled of a share of %d of %d", len(ours), core.Share(), len(names))
	}
	// All of ours are due, and four of them out.
	now += 10e9
	step(Tick{})
	step(LiveSet{Term: 1, Version: 2, Live: []uint64{1}})
	wait := out
	out = nil
	for _, machine := range wait {
		now += 1e6
		step(Answered{Machine: machine, Reached: true})
	}
	for moved := 0; moved < len(names)-len(ours); moved++ {
		if len(out) == 0 {
			t.Fatalf("nothing is polled after %d machines that have moved", moved)
		}
		machine := out[0]
		out = out[1:]
		if ours[machine] {
			t.Fatalf("%s, which was ours all the while, is polled after %d of %d machines that have moved", machine, moved, len(names)-len(ours))
		}
		now += 1e6
		step(Answered{Machine: machine, Reached: true})
	}
	if lag := core.LagNs(); lag > 11e9 {
		t.Errorf("polls are said to begin %d s late", int64(lag/1e9))
	}
}
