package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cfg"
	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/plan"
	"borg/scheduler/reservation"
)

const experimentUsage = "experiment segregate CHECKPOINT"

// question is an experiment for people.
type question struct {
	// Usage says what is tried, Figure where in the paper, Paper what came of it
	// there.
	Usage, Figure, Paper string
	flags                []ucli.Flag
}

var questions = map[string]question{
	"segregate": {"production and the rest in cells of their own", "§5.2, Figure 5", "20 to 30 % more machines, median cell", nil},
	"split-by-user": {"large users in cells of their own", "§5.2, Figure 6", "2 to 16 times the cells, 20 to 150 % more machines", []ucli.Flag{
		&ucli.StringFlag{Name: "user-mem", Value: "10TiB", Usage: "a user is large whose tasks ask for so much `MEMORY`"},
	}},
	"subdivide": {"the jobs dealt to several cells", "§5.3, Figure 7", "significantly more machines, the more cells the more", []ucli.Flag{
		&ucli.StringFlag{Name: "cells", Value: "2,5,10", Usage: "`NUMBERS` of cells, with commas between them"},
		&ucli.Uint64Flag{Name: "deal", Value: 1, Usage: "`SEED` of the order in which jobs are dealt"},
	}},
	"bucket":         {"what production asks for rounded up to powers of two, from 0.5 cores and 1 GiB", "§5.4, Figure 9", "30 to 50 % more machines, median cell", nil},
	"no-reclamation": {"everything placed by its limits", "§5.5, Figure 10", "many more machines; about 20 % of the workload runs in reclaimed resources", nil},
	"estimator": {"reservations with other safety margins", "§5.5, Figure 12", "medium was deployed", []ucli.Flag{
		&ucli.StringFlag{Name: "made-with", Value: reservation.Medium.String(), Usage: "`SETTING` with which the reservations in the checkpoint were made: conservative, medium, aggressive"},
	}},
}

func experimentCommand() *ucli.Command {
	c := &ucli.Command{Name: "experiment", Usage: "what a choice costs in machines: the studies of the paper (§5)"}
	for _, name := range plan.Studies {
		q := questions[name]
		c.Subcommands = append(c.Subcommands, &ucli.Command{
			Name: name, Usage: fmt.Sprintf("%s (%s)", q.Usage, q.Figure), ArgsUsage: "CHECKPOINT|ARCHIVE",
			Flags:  slices.Concat(q.flags, trialFlags(), []ucli.Flag{pendingFlag()}, schedulerFlags(), reportFlags()),
			Action: func(ctx *ucli.Context) error { return experiment(ctx, name) },
		})
	}
	return c
}

// experimentReport is the JSON of an answer.
type experimentReport struct {
	Study  string `json:"study"`
	Figure string `json:"figure"`
	// Definition of the overhead.
	Definition string `json:"definition"`
	// Paper is what came of it there.
	Paper     string          `json:"paper"`
	Original  int             `json:"machinesOfTheCell"`
	Tasks     int             `json:"tasks"`
	Policy    string          `json:"policy"`
	OneCell   plan.Compacted  `json:"oneCell"`
	Overheads []plan.Overhead `json:"overheads"`
	Parts     []partReport    `json:"parts"`
	Notes     []string        `json:"notes,omitempty"`
	Seconds   float64         `json:"seconds"`
}

// partReport is one cell of a variant.
type partReport struct {
	Name   string `json:"name"`
	Tasks  int    `json:"tasks"`
	Clones int    `json:"clones"`
	plan.Compacted
}

const overheadDefinition = "machines that all cells of a variant need together, compacted, in percent more than the one cell needs as it is; 90th percentile of the trials"

func experiment(ctx *ucli.Context, name string) error {
	search, err := schedulerConfig(ctx)
	if err != nil {
		return err
	}
	if ctx.Int("trials") < 1 || ctx.Int("threads") < 1 {
		return cli.Errorf(cli.Usage, "want at least one trial and one thread")
	}
	setup, asked, err := experimentSetup(ctx, name)
	if err != nil {
		return err
	}
	if setup.Pending = ctx.Int("pending"); setup.Pending < 0 {
		return cli.Errorf(cli.Usage, "--pending %d: want 0 or more", setup.Pending)
	} else if setup.Pending > 0 {
		asked += fmt.Sprintf(", %d may be pending", setup.Pending)
	}
	p, err := openCell(ctx, strings.Replace(experimentUsage, "segregate", name, 1))
	if err != nil {
		return err
	}
	state, err := openProbes(ctx.String("state"), p.Cell, search, name+asked)
	if err != nil {
		return err
	}
	defer state.Close()
	began := time.Now()
	st, err := plan.NewStudy(p.Cell, search, name, setup)
	var not *plan.DoesNotFit
	switch {
	case errors.As(err, &not):
		return compactError(err)
	case err != nil:
		return cli.Errorf(cli.Failed, "%s: %w", name, err)
	}
	results, err := makeTrials(ctx.Context, st.Parts, ctx.Int("trials"), ctx.Int("threads"), state, newProgressLine(ctx.App.ErrWriter))
	if err != nil {
		return err
	}
	q := questions[name]
	r := &experimentReport{
		Study: name, Figure: q.Figure, Paper: q.Paper, Definition: overheadDefinition, Original: st.Parts[0].Original, Tasks: st.Parts[0].Tasks,
		Policy: search.Policy.String(), Notes: st.Notes, Seconds: time.Since(began).Seconds(),
	}
	r.OneCell, r.Overheads = st.Overheads(results)
	for i, part := range st.Parts {
		r.Parts = append(r.Parts, partReport{part.Name, part.Tasks, part.Clones, plan.Sum(results[i])})
	}
	return report{
		value: r,
		table: func(w io.Writer) error { return experimentTable(w, r) },
		page:  func() *page { return experimentPage(p, r) },
	}.write(ctx)
}

// experimentSetup reads the flags of a study; asked tells two setups of it apart.
func experimentSetup(ctx *ucli.Context, name string) (s plan.Setup, asked string, err error) {
	switch name {
	case "split-by-user":
		if s.UserMemBytes, err = cfg.ParseBytes(ctx.String("user-mem")); err != nil {
			return s, "", cli.Errorf(cli.Usage, "--user-mem: %w", err)
		}
		asked = fmt.Sprint(" ", s.UserMemBytes)
	case "subdivide":
		for text := range strings.SplitSeq(ctx.String("cells"), ",") {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || n < 2 {
				return s, "", cli.Errorf(cli.Usage, "--cells: %q is not a number of cells", text)
			}
			s.Cells = append(s.Cells, n)
		}
		s.Seed = ctx.Uint64("deal")
		asked = fmt.Sprint(" ", s.Cells, s.Seed)
	case "estimator":
		made, err := reservation.ParseSetting(ctx.String("made-with"))
		if err != nil {
			return s, "", cli.Errorf(cli.Usage, "--made-with: %w", err)
		}
		s.Made = made.String()
		for _, of := range []reservation.Setting{reservation.Conservative, reservation.Medium, reservation.Aggressive} {
			s.Margins = append(s.Margins, plan.Margin{Name: of.String(), Permille: of.Config().MarginPermille})
		}
		asked = " " + s.Made
	}
	return s, asked, nil
}

func experimentTable(w io.Writer, r *experimentReport) error {
	fmt.Fprintf(w, "%s: %s (%s)\n", r.Study, questions[r.Study].Usage, r.Figure)
	fmt.Fprintf(w, "The cell has %s and %s; as it is, %s of them would do (%s to %s), %s, policy %s.\n", numberOf(r.Original, "machine"), numberOf(r.Tasks, "task"),
		thousands(r.OneCell.Machines), thousands(r.OneCell.Least), thousands(r.OneCell.Most), numberOf(len(r.OneCell.All), "trial"), r.Policy)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "Note: %s.\n", cli.Visible(n))
	}
	fmt.Fprintln(w)
	c := newColumns(w)
	c.row("VARIANT", "CELLS", "MACHINES", "OVERHEAD", "TRIALS FROM", "TO")
	for _, o := range r.Overheads {
		c.row(o.Variant, o.Cells, thousands(o.Machines), percentWords(o.Percent), percentWords(o.Least), percentWords(o.Most))
	}
	if err := c.end(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	c = newColumns(w)
	c.row("PART", "TASKS", "MACHINES", "FROM", "TO", "STRANDED CPU, MEM", "RECLAIMED CPU, MEM")
	for _, p := range r.Parts {
		c.row(p.Name, thousands(p.Tasks), thousands(p.Machines), thousands(p.Least), thousands(p.Most),
			fmt.Sprintf("%d %%, %d %%", p.StrandedCPUPercent, p.StrandedMemPercent), fmt.Sprintf("%d %%, %d %%", p.ReclaimedCPUPercent, p.ReclaimedMemPercent))
	}
	if err := c.end(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nOverhead: %s.\nThe paper: %s.\n", r.Definition, r.Paper)
	return nil
}

func percentWords(v float64) string { return fmt.Sprintf("%+.1f %%", v) }

func experimentPage(of *fauxmaster.Picture, r *experimentReport) *page {
	worst := r.Overheads[0]
	for _, o := range r.Overheads {
		if o.Percent > worst.Percent {
			worst = o
		}
	}
	p := newPage(of, "Experiment: "+r.Study, fmt.Sprintf("Tried: %s. The most that it costs is %s machines: %s.", questions[r.Study].Usage, percentWords(worst.Percent), worst.Variant))
	p.number("machines, one cell", thousands(r.OneCell.Machines))
	for _, o := range r.Overheads {
		p.number(o.Variant, percentWords(o.Percent))
	}
	var curves []series
	var rows [][]string
	for _, o := range r.Overheads {
		s := series{Name: o.Variant}
		for _, v := range o.All {
			s.Points = append(s.Points, point{X: v})
		}
		curves = append(curves, s)
		rows = append(rows, []string{o.Variant, strconv.Itoa(o.Cells), thousands(o.Machines), percentWords(o.Percent), percentWords(o.Least), percentWords(o.Most)})
	}
	p.chart("Overhead, over the trials", "Overhead: "+r.Definition+". Each step is a trial; the line is the 90th percentile.", overheadChart("overhead over the trials", curves))
	p.table("Variants", "The paper: "+r.Paper+" ("+r.Figure+").", []string{"variant", "cells", "machines", "overhead", "trials from", "to"}, rows)
	rows = nil
	var names []string
	var counts []int
	for _, part := range r.Parts {
		names, counts = append(names, part.Name), append(counts, part.Machines)
		rows = append(rows, []string{part.Name, thousands(part.Tasks), thousands(part.Machines), thousands(part.Least), thousands(part.Most),
			fmt.Sprintf("%d %%", part.StrandedCPUPercent), fmt.Sprintf("%d %%", part.StrandedMemPercent)})
	}
	p.chart("Machines that each part needs", "", barChart("machines by part", names, counts, nil))
	p.table("Parts", strings.Join(r.Notes, ". "), []string{"part", "tasks", "machines", "from", "to", "stranded CPU", "stranded memory"}, rows)
	return p
}
