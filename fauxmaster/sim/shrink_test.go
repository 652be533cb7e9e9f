package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestShrink plants a violation into real runs: a run fails once faults 1 and 3
// have both come while client 2 was there. Of all the rest nothing stays.
func TestShrink(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cell dozens of times: make e2e")
	}
	planted := func(cfg Config) Result {
		r := Run(cfg)
		came := func(i int) bool { return i < len(r.Faults) && !strings.HasSuffix(r.Faults[i], "left out") }
		if came(1) && came(3) && !slices.Contains(cfg.WithoutClients, 2) {
			r.Violation = errors.New("at 1.234000 s: S4: planted")
		}
		return r
	}
	cfg := Config{Seed: 6, DurationNs: 8 * second, Machines: 3, Clients: 4}
	planned, clients, err := Size(cfg)
	if err != nil || planned < 6 {
		t.Fatalf("%d faults in seed %d: %v", planned, cfg.Seed, err)
	}
	var told int
	s, err := shrink(context.Background(), cfg, Shrinking{Progress: func(runs int, _ Config) { told = runs }}, planted)
	if err != nil || s.Cut != "" {
		t.Fatalf("%v, cut short: %q", err, s.Cut)
	}
	if kept := Others(planned, s.Config.Without); !slices.Equal(kept, []int{1, 3}) {
		t.Errorf("faults %v are left, want 1 and 3", kept)
	}
	if kept := Others(clients, s.Config.WithoutClients); !slices.Equal(kept, []int{2}) {
		t.Errorf("clients %v are left, want 2", kept)
	}
	if s.Config.DurationNs >= cfg.DurationNs || told != s.Runs {
		t.Errorf("it lasts %d ns of %d after %d runs, of which %d were told", s.Config.DurationNs, cfg.DurationNs, s.Runs, told)
	}
	t.Logf("%d faults became 2 in %d runs", planned, s.Runs)
	if again := planted(s.Config); again.Violation == nil || again.Hash != s.Result.Hash {
		t.Errorf("what is left does not repeat: %v", again.Violation)
	}
}

// A search that may not go on says so, and keeps what it has.
func TestShrinkIsBounded(t *testing.T) {
	always := func(cfg Config) Result {
		return Result{Violation: errors.New("at 9 s: L3: planted"), Faults: make([]string, 5)}
	}
	s, err := shrink(context.Background(), Config{Seed: 6}, Shrinking{Runs: 2}, always)
	if err != nil || s.Runs != 2 || !strings.Contains(s.Cut, "2 runs") {
		t.Errorf("%v: %d runs, cut %q", err, s.Runs, s.Cut)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if s, err := shrink(ctx, Config{Seed: 6}, Shrinking{}, always); err != nil || s.Cut != "interrupted" || s.Result.Violation == nil {
		t.Errorf("%v: cut %q with %v", err, s.Cut, s.Result.Violation)
	}
	never := func(Config) Result { return Result{} }
	if _, err := shrink(context.Background(), Config{Seed: 6}, Shrinking{}, never); err == nil {
		t.Error("a run that shows nothing was shrunk")
	}
}

func TestLetter(t *testing.T) {
	for text, want := range map[string]string{
		"at 1.500000 s: S4: c01-00007 is done a second time at index 9": "S4",
		"at 12.1 s: the cell at index 25: room":                         "the cell at index",
		"at 12.1 s: replica 3 cannot open its disk: gone":               "replica",
		"at 0.1 s: panic: runtime error":                                "panic",
	} {
		if got := Letter(text); got != want {
			t.Errorf("Letter(%q) = %q, want %q", text, got, want)
		}
	}
}
