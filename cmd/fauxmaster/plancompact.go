package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster/plan"
	"borg/scheduler"
)

const compactUsage = "compact CHECKPOINT [--state FILE]"

func compactCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "compact",
		Usage:     "onto how few machines a cell's workload fits (paper §5.1)",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags:     slices.Concat(trialFlags(), []ucli.Flag{pendingFlag()}, schedulerFlags(), reportFlags()),
		Action:    compactCell,
	}
}

func pendingFlag() ucli.Flag {
	return &ucli.IntFlag{Name: "pending", Usage: "`NUMBER` of tasks that may find no place, besides the 0.2 % of picky ones that the paper allows"}
}

// trialFlags say how the trials of compactions are made.
func trialFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.IntFlag{Name: "trials", Value: plan.Trials, Usage: "`NUMBER` of orders in which machines are taken away"},
		&ucli.IntFlag{Name: "threads", Value: runtime.NumCPU(), Usage: "trials side by side"},
		&ucli.StringFlag{Name: "state", Usage: "keep what each probe came to in `FILE`; the same command goes on where it was"},
	}
}

// compactReport is the JSON of an answer.
type compactReport struct {
	Original int `json:"machinesOfTheCell"`
	Away     int `json:"machinesDown,omitempty"`
	Clones   int `json:"clones"`
	Tasks    int `json:"tasks"`
	Dropped  int `json:"tasksTiedToOneMachine"`
	// Nowhere names the jobs of NowhereTasks tasks that no machine could hold.
	Nowhere      []string `json:"fitNoMachine,omitempty"`
	NowhereTasks int      `json:"tasksThatFitNoMachine,omitempty"`
	Softened     []string `json:"jobsWithSoftenedConstraints,omitempty"`
	Daemons      []string `json:"daemonJobs,omitempty"`
	Policy       string   `json:"policy"`
	plan.Compacted
	// Percent of the cell's machines that are up.
	Percent float64 `json:"percentOfTheCell"`
	Seconds float64 `json:"seconds"`
}

func compactCell(ctx *ucli.Context) error {
	search, err := schedulerConfig(ctx)
	if err != nil {
		return err
	}
	if ctx.Int("trials") < 1 || ctx.Int("threads") < 1 {
		return cli.Errorf(cli.Usage, "want at least one trial and one thread")
	}
	of, kind := plan.Of{Pending: ctx.Int("pending")}, ""
	switch {
	case of.Pending < 0:
		return cli.Errorf(cli.Usage, "--pending %d: want 0 or more", of.Pending)
	case of.Pending > 0:
		kind = fmt.Sprintf("%d may be pending", of.Pending)
	}
	p, err := openCell(ctx, compactUsage)
	if err != nil {
		return err
	}
	state, err := openProbes(ctx.String("state"), p.Cell, search, kind)
	if err != nil {
		return err
	}
	defer state.Close()
	r, err := compact(ctx.Context, p.Cell, search, of, ctx.Int("trials"), ctx.Int("threads"), state, newProgressLine(ctx.App.ErrWriter))
	if err != nil {
		return err
	}
	return report{
		value: r,
		table: func(w io.Writer) error { return compactTable(w, r) },
		page:  func() *page { return compactPage(p, r) },
	}.write(ctx)
}

// compact makes the trials of a cell as it is.
func compact(ctx context.Context, c *cell.Cell, search scheduler.Config, of plan.Of, trials, threads int, state *probes, line *progressLine) (*compactReport, error) {
	began := time.Now()
	k, err := plan.NewCompaction(c, search, of)
	if err != nil {
		return nil, compactError(err)
	}
	results, err := makeTrials(ctx, []plan.Part{{Compaction: k}}, trials, threads, state, line)
	if err != nil {
		return nil, err
	}
	r := &compactReport{
		Original: k.Original, Away: k.Away, Clones: k.Clones, Tasks: k.Tasks, Dropped: k.Dropped, Nowhere: k.Nowhere, NowhereTasks: k.NowhereTasks, Softened: k.Softened, Daemons: k.Daemons,
		Policy: search.Policy.String(), Compacted: plan.Sum(results[0]), Seconds: time.Since(began).Seconds(),
	}
	r.Percent = 100 * float64(r.Machines) / float64(max(k.Original-k.Away, 1))
	return r, nil
}

// makeTrials makes the trials of each part, several side by side.
func makeTrials(ctx context.Context, parts []plan.Part, trials, threads int, state *probes, line *progressLine) ([][]plan.Probe, error) {
	packs := 0
	results := make([][]plan.Probe, len(parts))
	for i, part := range parts {
		packs += trials * part.ProbesPerTrial()
		results[i] = make([]plan.Probe, trials)
	}
	line.begin(packs, "packs")
	group, under := errgroup.WithContext(ctx)
	group.SetLimit(threads)
	var mu sync.Mutex
	done := 0
	for n := range len(parts) * trials {
		part, i := parts[n/trials], n%trials
		// One trial.
		group.Go(func() error {
			made := func(p plan.Probe) error {
				mu.Lock()
				defer mu.Unlock()
				p.Part = part.Name
				if err := state.add(p); err != nil {
					return err
				}
				line.step(fmt.Sprintf("%d of %d trials done", done, len(parts)*trials))
				return under.Err()
			}
			if under.Err() != nil {
				return under.Err()
			}
			best, err := part.Trial(i, func(machines int) (plan.Probe, bool) { return state.known(part.Name, i, machines) }, made)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			results[n/trials][i] = best
			done++
			return nil
		})
	}
	err := group.Wait()
	line.end()
	if ctx.Err() != nil {
		e := cli.Errorf(cli.Interrupted, "interrupted after %d of %d trials", done, len(parts)*trials)
		if state.path != "" {
			return nil, e.Hint("the same command goes on where it was")
		}
		return nil, e.Hint("with --state FILE the same command would go on where it was")
	}
	if err != nil {
		return nil, compactError(err)
	}
	return results, nil
}

func compactError(err error) error {
	var not *plan.DoesNotFit
	if errors.As(err, &not) {
		return cli.Errorf(cli.CannotFit, "compact the cell: %w", err).Hint("to let so many wait: --pending %d", not.Packed.Pending)
	}
	return modelError("compact the cell", err)
}

func compactTable(w io.Writer, r *compactReport) error {
	c := newColumns(w)
	c.row("machines needed", fmt.Sprintf("%s, %.1f %% of the cell (the %dth percentile of %s; from %s to %s)",
		thousands(r.Machines), r.Percent, 90, numberOf(len(r.All), "trial"), thousands(r.Least), thousands(r.Most)))
	c.row("policy", r.Policy)
	c.row("the cell", numberOf(r.Original, "machine"))
	if r.Away > 0 {
		c.row("down", fmt.Sprintf("%s, left out", numberOf(r.Away, "machine")))
	}
	if r.Clones > 1 {
		c.row("cloned", fmt.Sprintf("%d times, as the workload does not fit onto fewer", r.Clones))
	}
	c.row("workload", numberOf(r.Tasks, "task"))
	if r.Dropped > 0 {
		c.row("left out", fmt.Sprintf("%s tied to one machine", numberOf(r.Dropped, "task")))
	}
	if len(r.Nowhere) > 0 {
		c.row("left out", fmt.Sprintf("%s, as no machine could hold them even if it were empty: %s", numberOf(r.NowhereTasks, "task"), strings.Join(cut(r.Nowhere, 5), ", ")))
	}
	if len(r.Softened) > 0 {
		c.row("softened", fmt.Sprintf("%s with more tasks than half of the machines: %s", numberOf(len(r.Softened), "job"), strings.Join(cut(r.Softened, 5), ", ")))
	}
	if len(r.Daemons) > 0 {
		c.row("daemons", fmt.Sprintf("%s with a task on each machine that it matches, of which nothing is packed: %s", numberOf(len(r.Daemons), "job"), strings.Join(cut(r.Daemons, 5), ", ")))
	}
	c.row("stranded then", fmt.Sprintf("%d %% of the CPU, %d %% of the memory", r.StrandedCPUPercent, r.StrandedMemPercent))
	if r.ReclaimedCPUPercent+r.ReclaimedMemPercent > 0 {
		c.row("reclaimed then", fmt.Sprintf("%d %% of the CPU and %d %% of the memory that runs there, by limits", r.ReclaimedCPUPercent, r.ReclaimedMemPercent))
	}
	if b := r.Below; b != nil && b.Pending > 0 {
		c.row("stopped by", fmt.Sprintf("on %s %s no place, the largest %s", numberOf(b.Machines, "machine"), findWords(b.Pending), b.Waits))
	}
	c.row("trials", strings.Trim(fmt.Sprint(r.All), "[]"))
	c.row("took", time.Duration(r.Seconds*float64(time.Second)).Round(10*time.Millisecond))
	return c.end()
}

// probesHeader is the first line of a state file: what its probes were made of.
type probesHeader struct {
	Format int    `json:"format"`
	Build  string `json:"build"`
	// Digest of the cell, hash of the scheduler's configuration.
	Digest string `json:"digest"`
	Search uint64 `json:"search"`
	// Of an experiment, its name and what it was asked with.
	Study string `json:"study,omitempty"`
}

// probes keeps what each pack came to in a file: a header, then a line of JSON for
// each. Without a file nothing is kept.
type probes struct {
	path string
	file *os.File
	// made are all that are known; only known and openProbes read it, nobody writes
	// once trials run.
	made map[probeKey]plan.Probe
}

// probeKey tells probes apart.
type probeKey struct {
	part            string
	trial, machines int
}

// probesFormat is that of the file. In 2 probes name their part and say what is
// reclaimed.
const probesFormat = 2

func openProbes(path string, c *cell.Cell, search scheduler.Config, study string) (*probes, error) {
	s := &probes{path: path, made: make(map[probeKey]plan.Probe)}
	if path == "" {
		return s, nil
	}
	digest := c.Digest()
	want := probesHeader{Format: probesFormat, Build: cli.Build(), Digest: hex.EncodeToString(digest[:]), Search: search.Hash(), Study: study}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Errorf(cli.Failed, "go on with %s: %w", path, err)
	}
	// A line that was cut short is made again.
	whole := bytes.LastIndexByte(data, '\n') + 1
	for i, line := range bytes.Split(bytes.TrimSuffix(data[:whole], []byte("\n")), []byte("\n")) {
		if whole == 0 {
			break
		}
		var h probesHeader
		var p plan.Probe
		switch {
		case i == 0 && (json.Unmarshal(line, &h) != nil || h.Format != want.Format):
			return nil, cli.Errorf(cli.Invalid, "%s is not a file of probes of this command", path).Hint("give another one")
		case i == 0 && h != want:
			return nil, cli.Errorf(cli.Conflict, "%s has probes of another cell, scheduler, build or question", path).Hint("give another file, or delete it")
		case i == 0:
		case json.Unmarshal(line, &p) != nil:
			return nil, cli.Errorf(cli.Invalid, "line %d of %s cannot be read", i+1, path).Hint("delete the file, or give another one")
		default:
			s.made[probeKey{p.Part, p.Trial, p.Machines}] = p
		}
	}
	if s.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err == nil {
		if err = s.file.Truncate(int64(whole)); err == nil {
			_, err = s.file.Seek(int64(whole), io.SeekStart)
		}
		if err == nil && whole == 0 {
			err = json.NewEncoder(s.file).Encode(want)
		}
	}
	if err != nil {
		s.Close()
		return nil, cli.Errorf(cli.Failed, "keep probes in %s: %w", path, err)
	}
	return s, nil
}

func (s *probes) known(part string, trial, machines int) (plan.Probe, bool) {
	p, ok := s.made[probeKey{part, trial, machines}]
	return p, ok
}

func (s *probes) add(p plan.Probe) error {
	if s.file == nil {
		return nil
	}
	return json.NewEncoder(s.file).Encode(p)
}

// Close closes the file.
func (s *probes) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

func findWords(tasks int) string {
	if tasks == 1 {
		return "1 task finds"
	}
	return thousands(tasks) + " tasks find"
}
