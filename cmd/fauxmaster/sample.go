package main

import (
	"fmt"
	"io"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster/plan"
)

const sampleUsage = "sample CHECKPOINT --machines N -o FILE"

func sampleCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "sample",
		Usage:     "make a checkpoint of a smaller cell of the same mix",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "the checkpoint `FILE` to make"},
			cli.ForceFlag(),
			&ucli.IntFlag{Name: "machines", Usage: "`NUMBER` of machines"},
			&ucli.Float64Flag{Name: "fraction", Usage: "`PART` of the machines, as 0.1"},
			&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "of the draw"},
		},
		Action: sampleCell,
	}
}

func sampleCell(ctx *ucli.Context) error {
	out, fraction := ctx.String("output"), ctx.Float64("fraction")
	switch {
	case out == "":
		return cli.Errorf(cli.Usage, "where is the checkpoint to go?").Hint("add -o FILE")
	case ctx.IsSet("machines") == ctx.IsSet("fraction"):
		return cli.Errorf(cli.Usage, "how large is the sample to be?").Hint("give either --machines N or --fraction F")
	case ctx.IsSet("fraction") && (fraction <= 0 || fraction > 1):
		return cli.Errorf(cli.Usage, "--fraction %v: want more than 0 and at most 1", fraction)
	}
	if err := cli.NewFile(out, ctx.Bool("force")); err != nil {
		return err
	}
	p, err := openCell(ctx, sampleUsage)
	if err != nil {
		return err
	}
	n := ctx.Int("machines")
	if ctx.IsSet("fraction") {
		n = max(int(fraction*float64(p.Cell.NumMachines())+0.5), 1)
	}
	c, s, err := plan.Sample(p.Cell, n, ctx.Uint64("seed"))
	if err != nil {
		return cli.Errorf(cli.Failed, "draw a sample: %w", err)
	}
	if err := writeCheckpoint(out, p.Header.GetCellName()+"-sample", c); err != nil {
		return err
	}
	return sampleTable(ctx.App.Writer, out, s)
}

func sampleTable(w io.Writer, out string, s *plan.Sampled) error {
	if err := madeTable(w, out, "", s.Made); err != nil {
		return err
	}
	fmt.Fprintf(w, "%.1f %% of the tasks that run, %.1f %% of those that wait, %s of %s jobs\n\n", s.RunningPercent, s.PendingPercent, thousands(s.Jobs), thousands(s.OfJobs))
	c := newColumns(w)
	c.row("MACHINES", "OF", "SHAPE")
	shown := cut(s.Strata, 20)
	for _, t := range shown {
		c.row(thousands(t.Machines), thousands(t.Of), t.Shape)
	}
	if err := c.end(); err != nil {
		return err
	}
	if n := len(s.Strata) - len(shown); n > 0 {
		fmt.Fprintf(w, "and %s more\n", numberOf(n, "shape"))
	}
	return nil
}
