//go:build mutants

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"borg/bench/figures"
	"borg/cli"
	"borg/fauxmaster/sim"
	"borg/mutant"
)

// A seed that takes longer than this on the wall has got stuck.
const seedTimeout = 5 * time.Minute

func mutantCommands() []*ucli.Command {
	return []*ucli.Command{{
		Name:  "mutants",
		Usage: "plant each known bug, one at a time, and see whether the simulator finds it",
		Flags: []ucli.Flag{
			&ucli.StringSliceFlag{Name: "only", Usage: "plant `NAME` only; may be given again"},
			&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "the first `SEED`"},
			&ucli.Uint64Flag{Name: "seeds", Value: 300, Usage: "try at most `N` seeds of each"},
			&ucli.Uint64Flag{Name: "clean", Value: 20, Usage: "then run `N` seeds of each aim with nothing planted"},
			&ucli.IntFlag{Name: "processes", Value: runtime.NumCPU(), Usage: "share the work among `N` processes"},
			&ucli.StringFlag{Name: "bench", Usage: "merge the figures into `FILE`"},
			&ucli.BoolFlag{Name: "list", Usage: "say what there is, and plant nothing"},
			&ucli.BoolFlag{Name: "trace", Usage: "print everything that happens in the first seed of the only one named"},
			&ucli.BoolFlag{Name: "child", Hidden: true},
			&ucli.StringFlag{Name: "aim", Hidden: true},
		},
		Action: mutants,
	}}
}

// trial is one mutant, or none, under one aim, seed after seed.
type trial struct {
	// Empty: nothing is planted.
	mutant mutant.Mutant
	aim    string
	seeds  uint64

	tried uint64
	// What the first seed that showed something said of it.
	found string
	seed  uint64
}

// seedResult is what a child says of a seed.
type seedResult struct {
	Seed      uint64
	Violation string
}

func mutants(ctx *ucli.Context) error {
	if ctx.NArg() > 0 || ctx.Uint64("seeds") == 0 || ctx.Int("processes") < 1 {
		return cli.Errorf(cli.Usage, "want names of mutants, seeds and processes").Hint("fauxmaster mutants --only ack-before-sync")
	}
	trials, err := chooseTrials(ctx)
	if err != nil {
		return err
	}
	switch {
	case ctx.Bool("list"):
		return listMutants(ctx.App.Writer, trials)
	case ctx.Bool("child"):
		return runChild(ctx, trials[0])
	case ctx.Bool("trace"):
		return traceMutant(ctx, trials[0])
	}
	began := time.Now()
	w := &work{ctx: ctx.Context, first: ctx.Uint64("seed"), progress: ctx.App.ErrWriter, of: len(trials)}
	err = w.run(trials, ctx.Int("processes"))
	survived := printTrials(ctx.App.Writer, trials, time.Since(began))
	if err != nil {
		return err
	}
	dirty, err := runClean(ctx, trials)
	if err != nil {
		return err
	}
	if file := ctx.String("bench"); file != "" && len(trials) == len(mutant.All) {
		if err := figures.Merge(file, mutantFigures(len(trials), survived)); err != nil {
			return cli.Errorf(cli.Failed, "write figures: %w", err)
		}
	}
	if survived+dirty > 0 {
		return cli.Errorf(cli.Failed, "%d mutants survived, %d seeds without one show a violation", survived, dirty)
	}
	return nil
}

// mutantFigures are those of a run of all mutants.
func mutantFigures(planted, survived int) []figures.Figure {
	return []figures.Figure{
		figures.New("sim.mutants", float64(planted)), figures.New("sim.mutants_killed", float64(planted-survived)),
		figures.New("sim.mutants_survived", float64(survived)),
	}
}

func chooseTrials(ctx *ucli.Context) ([]*trial, error) {
	seeds := ctx.Uint64("seeds")
	if aim := ctx.String("aim"); aim != "" {
		return []*trial{{aim: aim, seeds: seeds}}, nil
	}
	var trials []*trial
	for _, m := range mutant.All {
		if only := ctx.StringSlice("only"); len(only) == 0 || slices.Contains(only, string(m.Name)) {
			trials = append(trials, &trial{mutant: m, aim: m.Aim, seeds: seeds})
		}
	}
	for _, name := range ctx.StringSlice("only") {
		if _, ok := mutant.Find(mutant.Name(name)); !ok {
			return nil, cli.Errorf(cli.NotFound, "there is no mutant %q", name).Hint("fauxmaster mutants --list")
		}
	}
	if (ctx.Bool("child") || ctx.Bool("trace")) && len(trials) != 1 {
		return nil, cli.Errorf(cli.Usage, "want one mutant").Hint("fauxmaster mutants --only %s --trace", mutant.All[0].Name)
	}
	return trials, nil
}

func listMutants(out io.Writer, trials []*trial) error {
	for _, t := range trials {
		fmt.Fprintf(out, "%s (aim %s, %s)\n\t%s\n\t%s\n", t.mutant.Name, t.aim, t.mutant.Caught, t.mutant.Plants, t.mutant.Failure)
	}
	return nil
}

// runSeed makes one run with the mutant of the trial in.
func (t *trial) runSeed(seed uint64, trace io.Writer) (string, error) {
	aim, err := sim.FindAim(t.aim)
	if err != nil {
		return "", cli.Errorf(cli.NotFound, "%w", err)
	}
	mutant.Plant(t.mutant.Name)
	r := sim.Run(sim.Config{Seed: seed, DurationNs: aim.DurationNs, Aim: t.aim, Trace: trace})
	if r.Violation == nil {
		return "", nil
	}
	return r.Violation.Error(), nil
}

// runChild tries seeds until one shows something: one run at a time is all that
// a process can do.
func runChild(ctx *ucli.Context, t *trial) error {
	out := json.NewEncoder(ctx.App.Writer)
	for seed := ctx.Uint64("seed"); seed < ctx.Uint64("seed")+t.seeds && ctx.Err() == nil; seed++ {
		violation, err := t.runSeed(seed, nil)
		if err != nil {
			return err
		}
		if err := out.Encode(seedResult{seed, violation}); err != nil {
			return err
		}
		if violation != "" && t.mutant.Name != "" {
			return nil
		}
	}
	return nil
}

func traceMutant(ctx *ucli.Context, t *trial) error {
	out := bufio.NewWriter(ctx.App.Writer)
	defer out.Flush()
	violation, err := t.runSeed(ctx.Uint64("seed"), out)
	if err == nil && violation == "" {
		fmt.Fprintf(out, "seed %d shows nothing\n", ctx.Uint64("seed"))
	}
	return err
}

// work shares trials among processes.
type work struct {
	ctx      context.Context
	first    uint64
	progress io.Writer
	of       int

	mu sync.Mutex
	// Guarded by mu.
	ended int
}

func (w *work) run(trials []*trial, processes int) error {
	group, ctx := errgroup.WithContext(w.ctx)
	group.SetLimit(processes)
	for _, t := range trials {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.runTrial(ctx, t); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended++
			fmt.Fprintf(w.progress, "%d of %d: %s\n", w.ended, w.of, t.outcome())
			return nil
		})
	}
	return group.Wait()
}

// runTrial starts a child for as long as seeds are left: one ends with each
// violation, and some mutants end the whole process.
func (w *work) runTrial(ctx context.Context, t *trial) error {
	for t.tried < t.seeds {
		from := w.first + t.tried
		args := []string{"mutants", "--child", "--seed", fmt.Sprint(from), "--seeds", fmt.Sprint(t.seeds - t.tried)}
		if t.mutant.Name != "" {
			args = append(args, "--only", string(t.mutant.Name))
		} else {
			args = append(args, "--aim", t.aim)
		}
		died, err := w.runProcess(ctx, args, t)
		if err != nil {
			return err
		}
		if died != "" {
			t.take(seedResult{w.first + t.tried, died})
		}
		if t.found != "" && t.mutant.Name != "" {
			return nil
		}
	}
	return nil
}

// runProcess runs a child and takes in what it says. died says how it ended
// before it had said all; empty: it had.
func (w *work) runProcess(ctx context.Context, args []string, t *trial) (died string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, thisProgram, args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	var said strings.Builder
	cmd.Stderr = &said
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", cli.Errorf(cli.Failed, "run seeds: %w", err)
	}
	stuck := false
	watchdog := time.AfterFunc(seedTimeout, func() { stuck = true; cancel() })
	for d := json.NewDecoder(pipe); ; {
		var r seedResult
		if d.Decode(&r) != nil {
			break
		}
		watchdog.Reset(seedTimeout)
		t.take(r)
	}
	err = cmd.Wait()
	watchdog.Stop()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case w.ctx.Err() != nil:
		return "", w.ctx.Err()
	case stuck:
		return fmt.Sprintf("the seed does not end within %v", seedTimeout), nil
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return "panic: the process dies: " + strings.TrimPrefix(firstLine(said.String()), "panic: "), nil
	}
	return "", cli.Errorf(cli.Failed, "run seeds: %w: %s", err, firstLine(said.String()))
}

func (t *trial) take(r seedResult) {
	t.tried++
	if r.Violation != "" && t.found == "" {
		t.found, t.seed = r.Violation, r.Seed
	}
}

func (t *trial) outcome() string {
	name := string(t.mutant.Name)
	switch {
	case name == "" && t.found == "":
		return fmt.Sprintf("aim %s: nothing in %d seeds", t.aim, t.tried)
	case name == "":
		return fmt.Sprintf("aim %s: seed %d shows %s", t.aim, t.seed, firstLine(t.found))
	case t.found == "":
		return fmt.Sprintf("%s SURVIVED %d seeds", name, t.tried)
	}
	return fmt.Sprintf("%s is killed by seed %d, the %dth: %s", name, t.seed, t.tried, firstLine(t.found))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

var letter = regexp.MustCompile(`\b[SL][0-9]+:`)

// killer is the letter of the invariant that a violation names; "crash" when
// the program's own assertions ended it, "refusal" when a replica would not go
// on with what it found.
func killer(violation string) string {
	if l := letter.FindString(firstLine(violation)); l != "" {
		return strings.TrimSuffix(l, ":")
	}
	if strings.Contains(violation, "panic") {
		return "crash"
	}
	return "refusal"
}

// printTrials prints the table and tells how many survived.
func printTrials(out io.Writer, trials []*trial, took time.Duration) (survived int) {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "MUTANT\tFAILURE\tKILLED BY\tSEED\tTRIED\tSAID")
	crashes, begun := 0, 0
	for _, t := range trials {
		number, _, _ := strings.Cut(t.mutant.Failure, ":")
		if t.found == "" {
			by := "SURVIVED"
			if t.tried < t.seeds {
				by = "not ended"
			} else {
				survived++
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t\t%d\t\n", t.mutant.Name, number, by, t.tried)
			continue
		}
		begun++
		by := killer(t.found)
		if by == "crash" {
			crashes++
		}
		said := firstLine(t.found)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%s\n", t.mutant.Name, number, by, t.seed, t.tried, said[:min(len(said), 150)])
	}
	tw.Flush()
	fmt.Fprintf(out, "%d of %d mutants killed, %d of them by the program's own assertions (crash), in %.0f s\n", begun, len(trials), crashes, took.Seconds())
	return survived
}

// runClean runs the same aims with nothing planted, and tells how many seeds
// show a violation all the same.
func runClean(ctx *ucli.Context, of []*trial) (dirty int, err error) {
	n := ctx.Uint64("clean")
	if n == 0 {
		return 0, nil
	}
	var clean []*trial
	for _, t := range of {
		if !slices.ContainsFunc(clean, func(c *trial) bool { return c.aim == t.aim }) {
			clean = append(clean, &trial{aim: t.aim, seeds: n})
		}
	}
	w := &work{ctx: ctx.Context, first: ctx.Uint64("seed"), progress: ctx.App.ErrWriter, of: len(clean)}
	if err := w.run(clean, ctx.Int("processes")); err != nil {
		return 0, err
	}
	for _, t := range clean {
		if t.found != "" {
			dirty++
			fmt.Fprintln(ctx.App.Writer, t.outcome())
		}
	}
	fmt.Fprintf(ctx.App.Writer, "nothing planted: %d of %d aims show a violation in %d seeds each\n", dirty, len(clean), n)
	return dirty, nil
}
