package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/bench/figures"
	"borg/cli"
	"borg/fauxmaster/sim"
)

func sweepFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.BoolFlag{Name: "disk-sweep", Usage: "of one seed, let one disk fail at each write of the run, in a run of its own, in each role and way"},
		&ucli.IntFlag{Name: "every", Value: 1, Usage: "with --disk-sweep: at every `N`th write only"},
		&ucli.StringSliceFlag{Name: "role", Usage: "with --disk-sweep: only of this `ROLE`: " + strings.Join(sim.DiskRoles, ", ") + "; may be repeated"},
		&ucli.StringSliceFlag{Name: "kind", Usage: "with --disk-sweep: only in this `WAY`: " + strings.Join(sim.DiskKinds, ", ") + "; may be repeated"},
		&ucli.IntFlag{Name: "write", Usage: "with --disk-sweep: at write `N` only"},
	}
}

// sweep is what of all failures of a disk is to come.
type sweep struct {
	roles, kinds []string
	every, write int
	// Of the run in which nothing fails, by role.
	writes map[string]int
	// By role and kind.
	counts map[[2]string]*sweepCount
}

type sweepCount struct{ runs, failed, away int }

func newSweep(ctx *ucli.Context) (*sweep, error) {
	s := &sweep{roles: ctx.StringSlice("role"), kinds: ctx.StringSlice("kind"), every: ctx.Int("every"), write: ctx.Int("write"), counts: map[[2]string]*sweepCount{}}
	for _, flag := range []struct {
		name  string
		given *[]string
		all   []string
	}{{"role", &s.roles, sim.DiskRoles}, {"kind", &s.kinds, sim.DiskKinds}} {
		for _, x := range *flag.given {
			if !slices.Contains(flag.all, x) {
				return nil, cli.Errorf(cli.Usage, "--%s %q: want one of %s", flag.name, x, strings.Join(flag.all, ", "))
			}
		}
		if len(*flag.given) == 0 {
			*flag.given = flag.all
		}
	}
	if s.every < 1 || s.write < 0 {
		return nil, cli.Errorf(cli.Usage, "--every and --write: want numbers from 1")
	}
	return s, nil
}

// makeSweep makes this a sweep and not a run of seeds.
func (s *simulation) makeSweep(ctx *ucli.Context) (err error) {
	if ctx.IsSet("aim") || ctx.IsSet("only-faults") || ctx.IsSet("only-clients") || s.n > 1 {
		return cli.Errorf(cli.Usage, "--disk-sweep is of one seed and has its own faults: leave out --aim, --seeds, --only-faults and --only-clients")
	}
	if !ctx.IsSet("duration") {
		s.cfg.DurationNs = int64(30 * time.Second)
	}
	s.cfg.Aim = sim.SweepAim
	s.sweep, err = newSweep(ctx)
	return err
}

// items are the numbers of all failures that are to come, those of early writes first.
func (s *sweep) items() (items []uint64) {
	most := 0
	for _, n := range s.writes {
		most = max(most, n)
	}
	for write := 1; write <= most; write++ {
		if s.write == 0 && (write-1)%s.every != 0 || s.write != 0 && write != s.write {
			continue
		}
		for _, role := range s.roles {
			for _, kind := range s.kinds {
				if write <= s.writes[role] {
					items = append(items, sim.DiskFault{Role: role, Kind: kind, Write: write}.Item())
				}
			}
		}
	}
	return items
}

// take counts a run, and says at once what is wrong with it.
func (s *sweep) take(of *simulation, r simulated) {
	d := sim.DiskFaultOf(r.Seed)
	n := s.counts[[2]string{d.Role, d.Kind}]
	if n == nil {
		n = &sweepCount{}
		s.counts[[2]string{d.Role, d.Kind}] = n
	}
	n.runs++
	if len(r.Faults) == 0 {
		n.away++
	}
	if r.Failed != "" {
		n.failed++
		of.line.clear()
		fmt.Fprintf(of.out, "%v: %s\n\tsee it with: %s\n", d, r.Failed, sweepCommand(of.cfg, d))
	}
}

func sweepCommand(c sim.Config, d sim.DiskFault) string {
	return fmt.Sprintf("bin/fauxmaster faults --disk-sweep --seed %d --duration %v --role %s --kind %s --write %d --trace", c.Seed, time.Duration(c.DurationNs), d.Role, d.Kind, d.Write)
}

// runSweep makes the run in which nothing fails, which counts the writes, and then one
// for each failure.
func (s *simulation) runSweep(ctx *ucli.Context) error {
	base := runSeedHere(s.cfg)
	if base.Failed != "" {
		return cli.Errorf(cli.Failed, "with no disk that fails: %s", base.Failed)
	}
	s.sweep.writes = base.Writes
	items := s.sweep.items()
	for _, role := range sim.DiskRoles {
		fmt.Fprintf(s.out, "writes of a %s: %d\n", role, base.Writes[role])
	}
	if len(items) == 0 {
		return cli.Errorf(cli.Usage, "no such write comes")
	}
	if ctx.Bool("trace") {
		if len(items) > 1 {
			return cli.Errorf(cli.Usage, "--trace prints one run, and this is %d", len(items)).Hint("name one --role, one --kind and a --write")
		}
		cfg, d := s.cfg, sim.DiskFaultOf(items[0])
		cfg.Disk, cfg.Trace = &d, s.out
		if r := runSeedHere(cfg); r.Failed != "" {
			return cli.Errorf(cli.Failed, "%v: %s", d, r.Failed)
		}
		return nil
	}
	begun, err := openState(ctx.String("state"), s.cfg)
	if err != nil {
		return err
	}
	defer begun.Close()
	var todo []uint64
	for _, item := range items {
		if r, ok := begun.results[item]; ok {
			s.sweep.take(s, r)
		} else {
			todo = append(todo, item)
		}
	}
	if done := len(items) - len(todo); done > 0 {
		fmt.Fprintf(s.out, "%d of %d runs are in %s already\n", done, len(items), begun.path)
	}
	s.line.begin(len(todo), "runs")
	if len(todo) > 0 {
		err = s.share(todo, 1, func(r simulated) error {
			if err := begun.add(r); err != nil {
				return err
			}
			s.sweep.take(s, r)
			s.line.step("")
			return nil
		})
	}
	s.line.end()
	failed, runs, werr := s.sweep.print(s)
	switch {
	case s.ctx.Err() != nil:
		return cli.Errorf(cli.Interrupted, "interrupted after %d of %d runs", runs, len(items)).Hint("with --state FILE the same command goes on where it was")
	case err != nil || werr != nil:
		return cli.Errorf(cli.Failed, "run the sweep: %w", errors.Join(err, werr))
	}
	if file := ctx.String("bench"); file != "" && s.sweep.everywhere() {
		if err := figures.Merge(file, sweepFigures(runs, failed, s.sweep.every)); err != nil {
			return cli.Errorf(cli.Failed, "write figures into %s: %w", file, err)
		}
	}
	if failed > 0 {
		return cli.Errorf(cli.Failed, "of %d runs %d show a violation", runs, failed)
	}
	return nil
}

// everywhere: it is of each role and way, and not of one write.
func (s *sweep) everywhere() bool {
	return s.write == 0 && len(s.roles) == len(sim.DiskRoles) && len(s.kinds) == len(sim.DiskKinds)
}

// sweepFigures are those of a sweep of every so many writes, of 1 for all.
func sweepFigures(runs, failed, every int) []figures.Figure {
	return []figures.Figure{
		figures.New("sim.disk_sweep.runs", float64(runs)), figures.New("sim.disk_sweep.violations", float64(failed)),
		figures.New("sim.disk_sweep.every_writes", float64(every)),
	}
}

func (s *sweep) print(of *simulation) (failed, runs int, err error) {
	w := tabwriter.NewWriter(of.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROLE\tDISK\tRUNS\tVIOLATIONS\tDID NOT COME")
	for _, role := range s.roles {
		for _, kind := range s.kinds {
			if n := s.counts[[2]string{role, kind}]; n != nil {
				failed, runs = failed+n.failed, runs+n.runs
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\n", role, kind, n.runs, n.failed, n.away)
			}
		}
	}
	return failed, runs, w.Flush()
}
