package linkshard

import (
	"fmt"
	"slices"
	"testing"
)

// TestAShareThatMovesGoesFirst has another replica die while polls of ours begin late:
// its machines are polled before any of ours, and the pace of ours does not suffer from
// how long those have waited.
func TestAShareThatMovesGoesFirst(t *testing.T) {
	core := NewCore(CoreConfig{Replica: 1, MaxInFlight: 4, HandshakesPerS: 1e6})
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

// TestWhoIsLeftIsTold has a machine go to another replica while a poll of it is under way: it
// is left when that has ended, and once.
func TestWhoIsLeftIsTold(t *testing.T) {
	var left []string
	s := New(Config{Core: CoreConfig{Replica: 1}, NowNs: func() int64 { return 1 }, Left: func(machine string) { left = append(left, machine) }})
	l := &loop{Shard: s, ctx: t.Context(), station: NewStation(s.cfg), lines: map[string]*line{}}
	core := l.station.core
	core.Step(1, LogContact{OK: true})
	core.Step(1, MachinesAre{Names: []string{"m1", "m2"}})
	core.Step(1, LiveSet{Term: 1, Version: 1, Live: []uint64{1}})
	// The first one in line is asked.
	asked := core.Step(10e9, Tick{}).Polls
	if len(asked) == 0 {
		t.Fatal("nobody is polled")
	}
	for _, name := range []string{"m1", "m2"} {
		l.lines[name] = newLine(t.Context())
	}
	core.Step(10e9, LiveSet{Term: 1, Version: 2, Live: []uint64{2}})
	l.moved()
	for _, name := range asked {
		if slices.Contains(left, name) {
			t.Errorf("%s is left while it is being polled", name)
		}
		core.Step(10e9, Answered{Machine: name, Reached: true})
		l.hangUp(name)
		l.hangUp(name)
	}
	if slices.Sort(left); !slices.Equal(left, []string{"m1", "m2"}) {
		t.Errorf("left are %v, want m1 and m2, each once", left)
	}
}
