package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster/plan"
	"borg/scheduler"
	"borg/scheduler/flags"
)

const abUsage = "ab CHECKPOINT --a hybrid --b best-fit"

func abCommand() *ucli.Command {
	words := scheduler.PolicyWords() + "; weights after it, as in hybrid,rack=512"
	return &ucli.Command{
		Name:      "ab",
		Usage:     "two policies of the scheduler on one cell",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: slices.Concat([]ucli.Flag{
			&ucli.StringFlag{Name: "a", Value: "hybrid", Usage: "one `POLICY`: " + words},
			&ucli.StringFlag{Name: "b", Value: "best-fit", Usage: "the other `POLICY`"},
			&ucli.IntFlag{Name: "trials", Value: 3, Usage: "`NUMBER` of trials of the compaction; 0: none"},
			&ucli.IntFlag{Name: "threads", Value: runtime.NumCPU(), Usage: "trials side by side"},
			pendingFlag(),
			&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "of the order in which the scheduler looks at machines"},
		}, reportFlags()),
		Action: compareTwo,
	}
}

// abSide is one policy in the JSON.
type abSide struct {
	Policy string `json:"policy"`
	// Compaction is nil when none was asked for, or the workload does not fit.
	Compaction *compactReport `json:"compaction,omitempty"`
	NotFit     string         `json:"doesNotFit,omitempty"`
	plan.Side
	// Seconds for one pack from nothing and going on from what runs.
	Seconds float64 `json:"seconds"`
}

func compareTwo(ctx *ucli.Context) error {
	if ctx.Int("trials") < 0 || ctx.Int("threads") < 1 {
		return cli.Errorf(cli.Usage, "want trials of 0 or more, and at least one thread")
	}
	var configs [2]scheduler.Config
	for i, name := range []string{"a", "b"} {
		policy, weights, _ := strings.Cut(ctx.String(name), ",")
		var list []string
		if weights != "" {
			list = strings.Split(weights, ",")
		}
		configs[i].Seed = ctx.Uint64("seed")
		if err := flags.SetScore(&configs[i], policy, list); err != nil {
			return err
		}
	}
	p, err := openCell(ctx, abUsage)
	if err != nil {
		return err
	}
	var sides [2]abSide
	for i, search := range configs {
		s := &sides[i]
		s.Policy = ctx.String([]string{"a", "b"}[i])
		began := time.Now()
		if s.Side, err = plan.Compare(p.Cell, search); err != nil {
			return modelError("try "+s.Policy, err)
		}
		s.Seconds = time.Since(began).Seconds()
		if ctx.Int("trials") == 0 {
			continue
		}
		s.Compaction, err = compact(ctx.Context, p.Cell, search, plan.Of{Pending: ctx.Int("pending")}, ctx.Int("trials"), ctx.Int("threads"), &probes{}, newProgressLine(ctx.App.ErrWriter))
		if err != nil {
			e := asError(err)
			if e == nil || e.Code != cli.CannotFit {
				return err
			}
			s.NotFit = e.What
		}
	}
	return report{
		value: sides,
		table: func(w io.Writer) error { return abTable(w, &sides[0], &sides[1]) },
		page:  func() *page { return abPage(p, &sides[0], &sides[1]) },
	}.write(ctx)
}

// abRows are the rows of the comparison.
func abRows(a, b *abSide) [][3]string {
	needed := func(s *abSide) string {
		switch {
		case s.Compaction != nil:
			return fmt.Sprintf("%s (%s to %s)", thousands(s.Compaction.Machines), thousands(s.Compaction.Least), thousands(s.Compaction.Most))
		case s.NotFit != "":
			return "does not fit"
		}
		return "-"
	}
	each := func(name string, of func(*abSide) string) [3]string { return [3]string{name, of(a), of(b)} }
	return [][3]string{
		each("machines needed", needed),
		each("pending, all packed from nothing", func(s *abSide) string { return thousands(s.Pending) }),
		each("of production", func(s *abSide) string { return thousands(s.ProdPending) }),
		each("stranded CPU and memory then", func(s *abSide) string { return fmt.Sprintf("%d %%, %d %%", s.StrandedCPUPercent, s.StrandedMemPercent) }),
		each("of those that wait now: placed", func(s *abSide) string { return thousands(s.Placed) }),
		each("tasks that gave way to them", func(s *abSide) string { return thousands(s.Preempted) }),
		each("of those: found no other place", func(s *abSide) string { return thousands(s.Displaced) }),
		each("waiting then", func(s *abSide) string { return thousands(s.Left) }),
		each("seconds, without the compaction", func(s *abSide) string { return fmt.Sprintf("%.2f", s.Seconds) }),
	}
}

func abTable(w io.Writer, a, b *abSide) error {
	c := newColumns(w)
	c.row("", strings.ToUpper(a.Policy), strings.ToUpper(b.Policy))
	for _, r := range abRows(a, b) {
		c.row(r[0], r[1], r[2])
	}
	return c.end()
}
