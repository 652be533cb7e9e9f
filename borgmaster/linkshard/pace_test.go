package linkshard

import (
	"fmt"
	"testing"
)

// TestTheIntervalGivesWay: while timers fire late machines at rest are polled less often,
// up to eight times; what is touched is not. The interval is what it was once they are in
// time, and until the last machine was polled by the longer one that is said.
func TestTheIntervalGivesWay(t *testing.T) {
	c := newSilentCell(200, func(string) bool { return true })
	rest := c.core.cfg.PeriodNs
	beats := func(lateNs, untilNs int64) {
		for c.now < untilNs {
			c.step(Beat{LateNs: lateNs})
			c.run(c.now + BeatNs)
		}
	}
	beats(5e6, 20e9)
	if ns := c.core.PeriodNs(c.now); ns != rest {
		t.Fatalf("the interval is %d ms with timers in time, want %d", ns/1e6, rest/1e6)
	}
	beats(100e6, 60e9)
	if ns, want := c.core.PeriodNs(c.now), mostStretch*rest+2*100e6; ns != want {
		t.Fatalf("the interval is %d ms with timers 100 ms late, want %d", ns/1e6, want/1e6)
	}
	if n := c.perS(58); n > 200*2/mostStretch {
		t.Errorf("%d polls a second of 200 machines at rest", n)
	}
	if ns := c.core.TimeoutNs(c.now); ns != int64(PollTimeout)+lateFactor*100e6 {
		t.Errorf("a poll may take %d ms", ns/1e6)
	}
	c.step(Touched{"m7"})
	if len(c.out) != 1 || c.out[0].machine != "m7" {
		t.Errorf("%v is polled when m7 is touched", c.out)
	}
	beats(0, 60e9+mostStretch*rest)
	if ns := c.core.PeriodNs(c.now); ns != mostStretch*rest {
		t.Errorf("an interval of %d ms is said before the machines were polled by the longer one, want %d", ns/1e6, mostStretch*rest/1e6)
	}
	beats(0, 200e9)
	if ns := c.core.PeriodNs(c.now); ns != rest {
		t.Errorf("the interval is %d ms with timers in time again, want %d", ns/1e6, rest/1e6)
	}
}

// TestHandshakesHaveABudget: a share that moved here is polled as handshakes are allowed,
// but for machines to which connections stand by, and neither keeps machines from their polls
// that are connected.
func TestHandshakesHaveABudget(t *testing.T) {
	core := NewCore(CoreConfig{Replica: 1, HandshakesPerS: 100})
	now, total := int64(0), 2000
	var names, standing []string
	for i := range total {
		names = append(names, fmt.Sprintf("m%04d", i))
	}
	connected, polls := map[string]bool{}, map[string]int{}
	var shakes []int64
	step := func(e Event) {
		for out := core.Step(now, e).Polls; len(out) > 0; out = out[1:] {
			if !connected[out[0]] {
				connected[out[0]] = true
				shakes = append(shakes, now)
			}
			polls[out[0]]++
			out = append(out, core.Step(now, Answered{Machine: out[0], Reached: true}).Polls...)
		}
	}
	run := func(ns int64) {
		for end := now + ns; now < end; now += 1e6 {
			step(Tick{})
		}
	}
	step(LogContact{OK: true})
	step(MachinesAre{Names: names})
	step(LiveSet{Term: 1, Version: 1, Live: []uint64{1, 2}})
	run(20e9)
	for i, name := range names {
		if !connected[name] && i%2 == 0 {
			standing = append(standing, name)
			connected[name] = true
		}
	}
	movedNs, before := now, len(shakes)
	// What stood by once is gone since.
	step(Connected{Machines: names})
	step(Connected{Machines: standing})
	step(LiveSet{Term: 1, Version: 2, Live: []uint64{1}})
	run(1e9)
	for _, name := range standing {
		if polls[name] == 0 {
			t.Fatalf("%s was not polled within a second, and there was a connection", name)
		}
	}
	if n := len(shakes) - before; n < 100 || n > 100+handshakeBurst+1 {
		t.Errorf("%d handshakes within a second of the move, want about 100", n)
	}
	run(20e9)
	if len(connected) != total {
		t.Errorf("%d of %d machines were polled", len(connected), total)
	}
	for i := range shakes {
		if j := i + handshakeBurst + 100; j+1 < len(shakes) && shakes[j+1]-shakes[i] < 1e9 {
			t.Fatalf("more than %d handshakes within a second from %d ms on", handshakeBurst+100, (shakes[i]-movedNs)/1e6)
		}
	}
}
