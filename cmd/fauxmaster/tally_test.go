package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"borg/fauxmaster/sim"
)

// TestTallyJudges: silence counts only of seeds that did enough, and of
// stretches of seeds that came to every rare state.
func TestTallyJudges(t *testing.T) {
	every := map[string]int{}
	for _, name := range sim.RequiredMarks() {
		every[name] = 1
	}
	busy := sim.Result{Acknowledged: 500, Started: 100, Elections: 4}
	tallyOf := func(whole bool, seeds uint64, change func(*simulated)) *tally {
		tally := newTally(11, whole)
		for i := range seeds {
			s := simulated{Result: busy}
			s.Seed = 11 + i
			if i%manySeeds == 7 {
				s.Marks = every
			}
			change(&s)
			tally.take(s)
		}
		return tally
	}
	rare := sim.RequiredMarks()[0]
	for _, c := range []struct {
		name   string
		whole  bool
		seeds  uint64
		change func(*simulated)
		want   string
	}{
		{"all is well", true, 2 * manySeeds, func(*simulated) {}, ""},
		{"the second stretch lacks a mark", true, 2*manySeeds + 5, func(s *simulated) {
			if s.Seed == 11+manySeeds+7 {
				s.Marks = map[string]int{}
				for name := range every {
					if name != rare {
						s.Marks[name] = 1
					}
				}
			}
		}, fmt.Sprintf("seeds 311 to 610 never came to: %s", rare)},
		{"few seeds need no mark", true, 5, func(*simulated) {}, ""},
		{"an idle seed", true, 20, func(s *simulated) {
			if s.Seed == 13 {
				s.Started, s.Elections = 99, 3
			}
		}, "seed 13: 99 tasks started, want 100\nseed 13: 2 changes of the elected replica, want 3"},
		{"a short run may be idle", false, 20, func(s *simulated) { s.Started = 0 }, ""},
	} {
		tally := tallyOf(c.whole, c.seeds, c.change)
		err := tally.verdict()
		var out bytes.Buffer
		tally.print(&out, c.seeds)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(out.String(), c.want+"\n")) {
			t.Errorf("%s: %v, want %q of\n%s", c.name, err, c.want, out.String())
		}
	}
}
