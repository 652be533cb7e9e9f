package scheduler_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"borg/borgmaster/cell"
	"borg/scheduler"
)

// TestThreadsChangeNoChoice packs random cells with one thread, two and eight, and
// wants the same batches, and the same count of what was looked at.
func TestThreadsChangeNoChoice(t *testing.T) {
	defer scheduler.ShareAlways()()
	rapid.Check(t, func(rt *rapid.T) {
		enough := rapid.SampledFrom([]int{3, 1 << 20}).Draw(rt, "enough")
		seed := rapid.Uint64().Draw(rt, "seed")
		wl := workload{
			seed: seed, machines: rapid.IntRange(1, 150).Draw(rt, "machines"), fillPercent: rapid.IntRange(50, 120).Draw(rt, "fill"),
		}
		wl.tasks = wl.machines * rapid.IntRange(1, 6).Draw(rt, "tasks a machine")
		c := loaded(t, wl)
		want, looked := decided(t, again(t, c), scheduler.Config{Seed: seed, Enough: enough})
		for _, threads := range []int{2, 8} {
			got, n := decided(t, again(t, c), scheduler.Config{Seed: seed, Enough: enough, Threads: threads})
			if got != want || n != looked {
				rt.Fatalf("with %d threads %s and %+v, with one %s and %+v", threads, got, n, want, looked)
			}
		}
	})
}

// decided packs a cell and returns a digest of the batches.
func decided(t *testing.T, c *cell.Cell, cfg scheduler.Config) (digest string, stats scheduler.Stats) {
	t.Helper()
	s, err := scheduler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{cell: c, copy: c, s: s, wallNs: c.WallNs(), timeNs: c.TimeNs()}
	sum := uint64(0)
	for range 10_000 {
		b := s.Pass(c)
		if b.ID == 0 {
			if !b.More {
				return fmt.Sprintf("%x", sum), s.Stats()
			}
			continue
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(b.Assign)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range data {
			sum = (sum ^ uint64(x)) * 1099511628211
		}
		r, events := w.apply(assign(b.Assign))
		s.Observe(c, events)
		s.Settle(c, b.ID, r)
	}
	t.Fatal("passes go on and on")
	return "", scheduler.Stats{}
}
