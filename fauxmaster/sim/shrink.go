package sim

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Size is how many faults and clients a run has, if none is left out.
func Size(cfg Config) (faults, clients int, err error) {
	cfg.fill()
	w := &World{cfg: cfg, now: second, swarm: drawSwarm(stream(cfg.Seed, "swarm"))}
	if err := shape(cfg.Aim, &w.swarm); err != nil {
		return 0, 0, err
	}
	w.planFaults()
	return len(w.faults), cfg.Clients, nil
}

// Others are the numbers from 0 to n-1 that are not in some: what is left when
// some are left out, and the other way round.
func Others(n int, some []int) []int {
	others := []int{}
	for i := range n {
		if !slices.Contains(some, i) {
			others = append(others, i)
		}
	}
	return others
}

var (
	violationTime   = regexp.MustCompile(`^at [0-9.]+ s: `)
	violationLetter = regexp.MustCompile(`^(?:[SL][0-9]+|[^0-9:]*)`)
)

// Letter is by what a violation is known: "S4", or how its text begins where it
// has no letter. Two runs with the same letter show the same, we take it.
func Letter(violation string) string {
	s := violationTime.ReplaceAllString(violation, "")
	return strings.TrimSpace(violationLetter.FindString(s))
}

// Shrinking bounds a search for a smaller run.
type Shrinking struct {
	// At most so many runs; 150.
	Runs int
	// At most so long; 3 minutes.
	Time time.Duration
	// Progress, if not nil, hears of each run.
	Progress func(runs int, smallest Config)
}

// Shrunk is the smallest run found that still shows the violation.
type Shrunk struct {
	Config Config
	Result Result
	Runs   int
	// Why it may not be the smallest; empty: it is, by leaving out one thing at a
	// time.
	Cut string
}

// shrinker looks for a smaller run.
type shrinker struct {
	Shrinking
	ctx    context.Context
	run    func(Config) Result
	letter string
	until  time.Time
	best   Shrunk
}

// Shrink leaves out of a run that shows a violation first faults, then clients,
// then time, as long as it still shows a violation of the same letter.
func Shrink(ctx context.Context, cfg Config, s Shrinking) (Shrunk, error) {
	return shrink(ctx, cfg, s, Run)
}

func shrink(ctx context.Context, cfg Config, bounds Shrinking, run func(Config) Result) (Shrunk, error) {
	cfg.fill()
	cfg.Trace = nil
	s := &shrinker{Shrinking: bounds, ctx: ctx, run: run}
	if s.Runs == 0 {
		s.Runs = 150
	}
	if s.Time == 0 {
		s.Time = 3 * time.Minute
	}
	s.until = time.Now().Add(s.Time)
	planned, _, err := Size(cfg)
	if err != nil {
		return Shrunk{}, err
	}
	r := run(cfg)
	if r.Violation == nil {
		return Shrunk{}, fmt.Errorf("seed %d shows no violation when it runs again: it does not repeat", cfg.Seed)
	}
	s.letter = Letter(r.Violation.Error())
	// What had not come when it failed is of no use to it.
	cfg.Without = append(slices.Clone(cfg.Without), Others(planned, Others(len(r.Faults), nil))...)
	s.best = Shrunk{Config: cfg, Result: r, Runs: 1}

	s.minimize(Others(planned, cfg.Without), func(c *Config, kept []int) { c.Without = Others(planned, kept) })
	s.minimize(Others(cfg.Clients, cfg.WithoutClients), func(c *Config, kept []int) { c.WithoutClients = Others(cfg.Clients, kept) })
	s.shorten()
	return s.best, nil
}

// try makes a run, and keeps it as the best if it shows the same.
func (s *shrinker) try(change func(*Config)) bool {
	switch {
	case s.best.Cut != "":
		return false
	case s.ctx.Err() != nil:
		s.best.Cut = "interrupted"
		return false
	case s.best.Runs >= s.Runs:
		s.best.Cut = fmt.Sprintf("stopped after %d runs", s.Runs)
		return false
	case time.Now().After(s.until):
		s.best.Cut = fmt.Sprintf("stopped after %v", s.Time)
		return false
	}
	cfg := s.best.Config
	change(&cfg)
	r := s.run(cfg)
	s.best.Runs++
	same := r.Violation != nil && Letter(r.Violation.Error()) == s.letter
	if same {
		s.best.Config, s.best.Result = cfg, r
	}
	if s.Progress != nil {
		s.Progress(s.best.Runs, s.best.Config)
	}
	return same
}

// minimize is delta debugging: it leaves out halves of what is kept, then
// smaller parts, until nothing can be left out by itself.
func (s *shrinker) minimize(kept []int, apply func(*Config, []int)) {
	if len(kept) == 0 {
		return
	}
	if s.try(func(c *Config) { apply(c, nil) }) {
		return
	}
	for parts := 2; len(kept) > 1; {
		size := (len(kept) + parts - 1) / parts
		smaller := false
		for at := 0; at < len(kept); at += size {
			rest := append(slices.Clone(kept[:at]), kept[min(at+size, len(kept)):]...)
			if s.try(func(c *Config) { apply(c, rest) }) {
				kept, smaller = rest, true
				break
			}
		}
		switch {
		case smaller:
			parts = max(parts-1, 2)
		case size == 1:
			return
		default:
			parts = min(2*parts, len(kept))
		}
	}
}

// shorten halves the first phase, down to a second.
func (s *shrinker) shorten() {
	for s.best.Config.DurationNs > second {
		ns := max(s.best.Config.DurationNs/2/second, 1) * second
		if !s.try(func(c *Config) { c.DurationNs = ns }) {
			return
		}
	}
}
