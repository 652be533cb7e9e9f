package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"borg/cli"
	"borg/fauxmaster/sim"
)

func simulateCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "simulate",
		Usage: "run a whole cell with faults, in virtual time, from a seed",
		Flags: []ucli.Flag{
			&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "the first `SEED`"},
			&ucli.Uint64Flag{Name: "seeds", Value: 1, Usage: "run `N` seeds, one after the other"},
			&ucli.DurationFlag{Name: "duration", Value: 10 * time.Second, Usage: "virtual length of the phase with faults"},
			&ucli.BoolFlag{Name: "trace", Usage: "print everything that happens"},
			&ucli.BoolFlag{Name: "twice", Usage: "run each seed twice and compare"},
			&ucli.IntFlag{Name: "processes", Value: runtime.NumCPU(), Usage: "share many seeds among `N` processes"},
			&ucli.BoolFlag{Name: "json", Usage: "print a line of JSON for each seed", Hidden: true},
		},
		Action: simulate,
	}
}

// simulated is what is printed of one seed.
type simulated struct {
	sim.Result
	Failed  string
	Differs bool
}

// tally sums up many seeds.
type tally struct {
	seeds, failed, differ            int
	events, entries                  uint64
	virtualNs                        int64
	acked, reads, started, elections int
	failover                         []int64
	marks                            map[string]int
}

func simulate(ctx *ucli.Context) error {
	first, n := ctx.Uint64("seed"), ctx.Uint64("seeds")
	if ctx.NArg() > 0 || n == 0 {
		return cli.Errorf(cli.Usage, "want a seed and how many").Hint("fauxmaster simulate --seed 1 --seeds 100 --duration 30s")
	}
	out := ctx.App.Writer
	t := tally{marks: map[string]int{}}
	began := time.Now()
	var err error
	if p := uint64(ctx.Int("processes")); n > 1 && p > 1 && !ctx.Bool("json") && !ctx.Bool("trace") {
		err = share(ctx, first, n, min(p, n), &t)
	} else {
		err = simulateHere(ctx, first, n, &t)
	}
	if err != nil || ctx.Bool("json") {
		return err
	}
	t.print(out, time.Since(began))
	if t.failed+t.differ > 0 {
		return cli.Errorf(cli.Failed, "%d of %d seeds show a violation, %d do not repeat", t.failed, t.seeds, t.differ)
	}
	return nil
}

// simulateHere runs seeds in this process, one after the other.
func simulateHere(ctx *ucli.Context, first, n uint64, t *tally) error {
	out := ctx.App.Writer
	for seed := first; seed < first+n && ctx.Err() == nil; seed++ {
		cfg := sim.Config{Seed: seed, DurationNs: int64(ctx.Duration("duration"))}
		if ctx.Bool("trace") {
			cfg.Trace = out
		}
		s := simulated{Result: sim.Run(cfg)}
		if ctx.Bool("twice") {
			cfg.Trace = nil
			again := sim.Run(cfg)
			s.Differs = again.Hash != s.Hash || again.Events != s.Events
		}
		if s.Violation != nil {
			s.Failed, s.Violation = s.Violation.Error(), nil
		}
		if ctx.Bool("json") {
			if err := json.NewEncoder(out).Encode(s); err != nil {
				return err
			}
			continue
		}
		t.take(out, s, cfg.DurationNs)
	}
	return nil
}

// share gives each process its part of the seeds: one run at a time is all that
// a process can do.
func share(ctx *ucli.Context, first, n, processes uint64, t *tally) error {
	self, err := os.Executable()
	if err != nil {
		return cli.Errorf(cli.Failed, "find this program: %w", err)
	}
	results := make(chan simulated)
	group, work := errgroup.WithContext(ctx.Context)
	for p := range processes {
		from, to := first+n*p/processes, first+n*(p+1)/processes
		cmd := exec.CommandContext(work, self, "simulate", "--json", "--seed", fmt.Sprint(from), "--seeds", fmt.Sprint(to-from),
			"--duration", ctx.Duration("duration").String(), fmt.Sprintf("--twice=%v", ctx.Bool("twice")))
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return cli.Errorf(cli.Failed, "run seeds: %w", err)
		}
		group.Go(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			for d := json.NewDecoder(pipe); ; {
				var s simulated
				if err := d.Decode(&s); err != nil {
					break
				}
				results <- s
			}
			return cmd.Wait()
		})
	}
	ended := make(chan error, 1)
	go func() {
		ended <- group.Wait()
		close(results)
	}()
	for s := range results {
		t.take(ctx.App.Writer, s, int64(ctx.Duration("duration")))
	}
	if err := <-ended; err != nil {
		return cli.Errorf(cli.Failed, "run seeds: %w", err)
	}
	return nil
}

func (t *tally) take(out io.Writer, s simulated, durationNs int64) {
	t.seeds++
	t.events += s.Events
	t.entries += s.Entries
	t.virtualNs += s.VirtualNs
	t.acked += s.Acknowledged
	t.reads += s.Reads
	t.started += s.Started
	t.elections += s.Elections
	t.failover = append(t.failover, s.FailoverNs...)
	for name, n := range s.Marks {
		t.marks[name] += n
	}
	if s.Differs {
		t.differ++
		fmt.Fprintf(out, "seed %d does not repeat\n", s.Seed)
	}
	if s.Failed != "" {
		t.failed++
		fmt.Fprintf(out, "seed %d: %s\n\tsee it with: %s\n", s.Seed, s.Failed, s.Command(durationNs))
	}
}

func (t *tally) print(out io.Writer, took time.Duration) {
	fmt.Fprintf(out, "%d seeds, %d violations, %d do not repeat; %.1f s virtual in %.1f s, %d events, %d log entries\n",
		t.seeds, t.failed, t.differ, float64(t.virtualNs)/1e9, took.Seconds(), t.events, t.entries)
	fmt.Fprintf(out, "%d mutations acknowledged, %d reads answered, %d processes started, %d elections\n", t.acked, t.reads, t.started, t.elections)
	if n := len(t.failover); n > 0 {
		slices.Sort(t.failover)
		at := func(permille int) float64 { return float64(t.failover[min(n*permille/1000, n-1)]) / 1e6 }
		fmt.Fprintf(out, "from the loss of a leader to the next acknowledged mutation, %d times: p50 %.0f ms, p99 %.0f ms, most %.0f ms\n",
			n, at(500), at(990), at(1000))
	}
	for _, name := range slices.Sorted(maps.Keys(t.marks)) {
		fmt.Fprintf(out, "  %8d  %s\n", t.marks[name], name)
	}
}
