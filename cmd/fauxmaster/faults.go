package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster/sim"
)

func faultsCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "faults",
		Usage: "run whole cells with faults, in virtual time, from seeds",
		Flags: append([]ucli.Flag{
			&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "the first `SEED`"},
			&ucli.Uint64Flag{Name: "seeds", Value: 1, Usage: "run `N` seeds"},
			&ucli.DurationFlag{Name: "duration", Value: 10 * time.Second, Usage: "virtual length of the phase with faults"},
			&ucli.StringFlag{Name: "aim", Usage: "bend the faults towards `NAME`"},
			&ucli.StringFlag{Name: "only-faults", Usage: "of the seed's faults only these `NUMBERS`, such as 3,17, or none"},
			&ucli.StringFlag{Name: "only-clients", Usage: "of the clients only these `NUMBERS`, or none"},
			&ucli.BoolFlag{Name: "trace", Usage: "print everything that happens"},
			&ucli.IntFlag{Name: "replay", Usage: "then run `N` of the seeds again, with one processor and with two, and compare"},
			&ucli.BoolFlag{Name: "no-shrink", Usage: "do not make a failing seed smaller"},
			&ucli.StringFlag{Name: "state", Usage: "keep what each seed came to in `FILE`; the same command goes on where it was"},
			&ucli.StringFlag{Name: "bench", Usage: "merge the figures into `FILE`"},
			&ucli.IntFlag{Name: "processes", Value: runtime.NumCPU(), Usage: "share the seeds among `N` processes"},
			&ucli.BoolFlag{Name: "worker", Usage: "run the seeds that standard input names, a line of JSON for each", Hidden: true},
		}, sweepFlags()...),
		Action: faults,
	}
}

// simulated is what a seed came to.
type simulated struct {
	sim.Result
	// The violation in words; empty: none.
	Failed string
	// What it took.
	CPUNs, WallNs int64
}

// runSeedHere makes one run in this process.
func runSeedHere(cfg sim.Config) simulated {
	cpuNs, began := cpuTimeNs(), time.Now()
	s := simulated{Result: sim.Run(cfg)}
	s.CPUNs, s.WallNs = cpuTimeNs()-cpuNs, int64(time.Since(began))
	if s.Violation != nil {
		s.Failed, s.Violation = s.Violation.Error(), nil
	}
	return s
}

// cpuTimeNs is the processor time of this process.
func cpuTimeNs() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// simulation is one run of the command.
type simulation struct {
	ctx         context.Context
	out, errOut io.Writer
	cfg         sim.Config
	first, n    uint64
	processes   int
	tally       *tally
	line        *progressLine
	// Nil: seeds are run.
	sweep *sweep
}

func faults(ctx *ucli.Context) error {
	s, err := newSimulation(ctx)
	if err != nil {
		return err
	}
	switch {
	case ctx.Bool("worker"):
		return s.work(os.Stdin)
	case s.sweep != nil:
		return s.runSweep(ctx)
	}
	begun, err := openState(ctx.String("state"), s.cfg)
	if err != nil {
		return err
	}
	defer begun.Close()
	var todo []uint64
	for seed := s.first; seed < s.first+s.n; seed++ {
		if r, ok := begun.results[seed]; ok {
			s.take(r)
		} else {
			todo = append(todo, seed)
		}
	}
	if done := s.n - uint64(len(todo)); done > 0 {
		fmt.Fprintf(s.out, "%d of %d seeds are in %s already\n", done, s.n, begun.path)
	}
	s.line.begin(len(todo), "seeds")
	err = s.run(todo, ctx.Bool("trace"), func(r simulated) error {
		if err := begun.add(r); err != nil {
			return err
		}
		s.take(r)
		s.line.step(fmt.Sprintf("%d violations", len(s.tally.failed)))
		return nil
	})
	s.line.end()
	if err == nil && s.ctx.Err() == nil {
		err = s.replay(ctx.Int("replay"))
	}
	if err != nil && s.ctx.Err() == nil {
		return cli.Errorf(cli.Failed, "run seeds: %w", err)
	}
	if !ctx.Bool("no-shrink") {
		s.shrink()
	}
	s.tally.print(s.out, s.n)
	if s.ctx.Err() != nil {
		e := cli.Errorf(cli.Interrupted, "interrupted after %d of %d seeds", s.tally.seeds, s.n)
		if begun.path != "" {
			return e.Hint("the same command goes on where it was")
		}
		return e.Hint("with --state FILE the same command would go on where it was")
	}
	if file := ctx.String("bench"); file != "" {
		if err := s.tally.bench(file); err != nil {
			return cli.Errorf(cli.Failed, "write figures into %s: %w", file, err)
		}
	}
	return s.tally.verdict()
}

func newSimulation(ctx *ucli.Context) (*simulation, error) {
	s := &simulation{
		ctx: ctx.Context, out: ctx.App.Writer, errOut: ctx.App.ErrWriter, first: ctx.Uint64("seed"), n: ctx.Uint64("seeds"),
		processes: ctx.Int("processes"), line: newProgressLine(ctx.App.ErrWriter),
	}
	s.cfg = sim.Config{Seed: s.first, DurationNs: int64(ctx.Duration("duration")), Aim: ctx.String("aim")}
	s.tally = newTally(s.first, s.n > 1 && s.cfg.DurationNs >= wholeRunNs)
	if ctx.NArg() > 0 {
		return nil, cli.Errorf(cli.Usage, "it takes no cell and no arguments, and %q is too much: it makes cells of its own", ctx.Args().First()).
			Hint("fauxmaster faults --seed 1 --seeds 100 --duration 30s")
	}
	if s.n == 0 || s.processes < 1 || s.cfg.DurationNs <= 0 {
		return nil, cli.Errorf(cli.Usage, "want seeds, processes and a duration above zero").
			Hint("fauxmaster faults --seed 1 --seeds 100 --duration 30s")
	}
	if (ctx.IsSet("only-faults") || ctx.IsSet("only-clients")) && s.n > 1 {
		return nil, cli.Errorf(cli.Usage, "the numbers of faults and clients are those of one seed, and %d are asked for", s.n).
			Hint("fauxmaster faults --seed %d --only-faults 3,17", s.first)
	}
	if ctx.Bool("disk-sweep") {
		return s, s.makeSweep(ctx)
	}
	for _, flag := range []string{"every", "role", "kind", "write"} {
		if ctx.IsSet(flag) {
			return nil, cli.Errorf(cli.Usage, "--%s belongs to --disk-sweep", flag)
		}
	}
	faults, clients, err := sim.Size(s.cfg)
	if err != nil {
		return nil, cli.Errorf(cli.Usage, "%w", err)
	}
	if s.cfg.Without, err = allBut(ctx, "only-faults", faults); err != nil {
		return nil, err
	}
	s.cfg.WithoutClients, err = allBut(ctx, "only-clients", clients)
	return s, err
}

// allBut reads the numbers that a flag keeps and returns the others below n; no
// flag keeps all.
func allBut(ctx *ucli.Context, flag string, n int) ([]int, error) {
	if !ctx.IsSet(flag) {
		return nil, nil
	}
	var kept []int
	for part := range strings.SplitSeq(ctx.String(flag), ",") {
		if part == "none" {
			continue
		}
		i, err := strconv.Atoi(part)
		if err != nil || i < 0 || i >= n {
			return nil, cli.Errorf(cli.Usage, "--%s: %q is not one of 0 to %d", flag, part, n-1).Hint("separate them by commas, or say none")
		}
		kept = append(kept, i)
	}
	return sim.Others(n, kept), nil
}

// run runs seeds, in other processes if there are several: one run at a time is
// all that a process can do.
func (s *simulation) run(seeds []uint64, trace bool, take func(simulated) error) error {
	if len(seeds) > 1 && !trace {
		return s.share(seeds, 1, take)
	}
	for _, seed := range seeds {
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		cfg := s.cfg
		cfg.Seed = seed
		if trace {
			cfg.Trace = s.out
		}
		if err := take(runSeedHere(cfg)); err != nil {
			return err
		}
	}
	return nil
}

// take counts a seed, and says at once what is wrong with it.
func (s *simulation) take(r simulated) {
	s.tally.take(r)
	if r.Failed != "" {
		s.line.clear()
		cfg := s.cfg
		cfg.Seed = r.Seed
		fmt.Fprintf(s.out, "seed %d: %s\n\tsee it with: %s\n", r.Seed, r.Failed, command(cfg))
	}
}

// replay runs n of the seeds twice more, in other processes, with one processor
// and with two: each must come to the same.
func (s *simulation) replay(n int) error {
	all := slices.Sorted(maps.Keys(s.tally.prints))
	if n = min(n, len(all)); n <= 0 {
		return nil
	}
	var seeds []uint64
	for i := range n {
		seeds = append(seeds, all[i*len(all)/n])
	}
	s.line.begin(2*n, "replays")
	defer s.line.end()
	for _, processors := range []int{1, 2} {
		err := s.share(seeds, processors, func(r simulated) error {
			s.tally.replays++
			if was, is := s.tally.prints[r.Seed], (fingerprint{r.Hash, r.Events}); was != is {
				s.tally.differ++
				s.line.clear()
				fmt.Fprintf(s.out, "seed %d does not repeat: hash %x after %d events, then %x after %d with %d processors\n",
					r.Seed, was.hash, was.events, is.hash, is.events, processors)
			}
			s.line.step(fmt.Sprintf("%d differences", s.tally.differ))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mostShrunk bounds the failing seeds that are made smaller: more of them say
// little more.
const mostShrunk = 3

// shrink makes the first failing seeds smaller.
func (s *simulation) shrink() {
	for _, seed := range s.tally.failed[:min(mostShrunk, len(s.tally.failed))] {
		if s.ctx.Err() != nil {
			return
		}
		cfg := s.cfg
		cfg.Seed = seed
		faults, clients, err := sim.Size(cfg)
		if err != nil {
			return
		}
		small, err := sim.Shrink(s.ctx, cfg, sim.Shrinking{Progress: func(runs int, c sim.Config) {
			s.line.say(fmt.Sprintf("seed %d is made smaller: run %d, %d faults, %d clients", seed, runs, faults-len(c.Without), clients-len(c.WithoutClients)))
		}})
		s.line.end()
		if err != nil {
			fmt.Fprintf(s.out, "%v\n", err)
			continue
		}
		s.tellSmaller(small, faults, clients)
	}
}

func (s *simulation) tellSmaller(small sim.Shrunk, faults, clients int) {
	c := small.Config
	kept := sim.Others(faults, c.Without)
	fmt.Fprintf(s.out, "seed %d made smaller in %d runs: %d of %d faults, %d of %d clients, %v\n", c.Seed, small.Runs,
		len(kept), faults, clients-len(c.WithoutClients), clients, time.Duration(c.DurationNs))
	if small.Cut != "" {
		fmt.Fprintf(s.out, "\t%s: it may become smaller yet\n", small.Cut)
	}
	for _, i := range kept {
		if i < len(small.Result.Faults) {
			fmt.Fprintf(s.out, "\tfault %d at %s\n", i, small.Result.Faults[i])
		}
	}
	fmt.Fprintf(s.out, "\t%v\n\tsee it with: %s\n", small.Result.Violation, command(c))
}

// command shows a run again.
func command(c sim.Config) string {
	var b strings.Builder
	fmt.Fprintf(&b, "bin/fauxmaster faults --seed %d --duration %v", c.Seed, time.Duration(c.DurationNs))
	if c.Aim != "" {
		fmt.Fprintf(&b, " --aim %s", c.Aim)
	}
	faults, clients, err := sim.Size(c)
	if err == nil && len(c.Without) > 0 {
		fmt.Fprintf(&b, " --only-faults %s", numbers(sim.Others(faults, c.Without)))
	}
	if err == nil && len(c.WithoutClients) > 0 {
		fmt.Fprintf(&b, " --only-clients %s", numbers(sim.Others(clients, c.WithoutClients)))
	}
	b.WriteString(" --trace")
	return b.String()
}

func numbers(all []int) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ","), "[]")
}
