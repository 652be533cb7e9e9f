package scheduler_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestSwitchesChangeNoChoice packs the same workload with each technique off
// that is there for speed alone, and wants the same batches.
func TestSwitchesChangeNoChoice(t *testing.T) {
	for _, enough := range []int{8, 1 << 20} {
		base := scheduler.Config{Seed: 3, Enough: enough, BatchCount: 200}
		want := batches(t, base)
		for name, change := range map[string]func(*scheduler.Config){
			"score cache": func(c *scheduler.Config) { c.NoScoreCache = true },
			"classes":     func(c *scheduler.Config) { c.NoClasses = true },
		} {
			cfg := base
			change(&cfg)
			got := batches(t, cfg)
			if len(got) != len(want) {
				t.Errorf("enough %d, without %s: %d batches, with it %d", enough, name, len(got), len(want))
			}
			for i := range min(len(got), len(want)) {
				if !proto.Equal(got[i], want[i]) {
					t.Errorf("enough %d: batch %d is another one without %s: %s", enough, i, name, firstDifference(got[i], want[i]))
					break
				}
			}
		}
	}
}

// batches packs a small workload and returns what was decided.
func batches(t *testing.T, cfg scheduler.Config) (all []*borgpb.Assign) {
	t.Helper()
	c := loaded(t, workload{seed: 5, machines: 200, tasks: 3500, fillPercent: 95})
	s, err := scheduler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{cell: c, copy: c, s: s, wallNs: c.WallNs(), timeNs: c.TimeNs()}
	for {
		b := s.Pass(c)
		if err := scheduler.CheckArrays(s, c); err != nil {
			t.Fatal(err)
		}
		if b.ID == 0 {
			if !b.More {
				return all
			}
			continue
		}
		b.Assign.ConfigHash = 0
		all = append(all, proto.CloneOf(b.Assign))
		r, events := w.apply(assign(b.Assign))
		s.Observe(c, events)
		if refused := s.Settle(c, b.ID, r); refused.Count > 0 {
			t.Fatalf("refused: %v", refused.First)
		}
	}
}

func firstDifference(got, want *borgpb.Assign) string {
	for i := range min(len(got.Assignments), len(want.Assignments)) {
		if g, w := got.Assignments[i], want.Assignments[i]; !proto.Equal(g, w) {
			return fmt.Sprintf("assignment %d is %v, want %v", i, g, w)
		}
	}
	return fmt.Sprintf("%d assignments, want %d", len(got.Assignments), len(want.Assignments))
}
