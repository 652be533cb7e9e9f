package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/plan"
)

const defragUsage = "defrag CHECKPOINT --max-moves N"

func defragCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "defrag",
		Usage:     "a plan of moves after which more of what is free can be used",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: slices.Concat([]ucli.Flag{
			&ucli.IntFlag{Name: "max-moves", Value: 20, Usage: "move at most `N` tasks"},
			&ucli.StringFlag{Name: "aim", Value: plan.AimMachines + "," + plan.AimFragments, Usage: "what to gain, `AIMS` in order with commas between them: " +
				plan.AimMachines + " (whole machines are emptied), " + plan.AimFragments + " (as the scheduler's --reschedule defragment)"},
		}, schedulerFlags(), reportFlags()),
		Action: defragCell,
	}
}

func defragCell(ctx *ucli.Context) error {
	search, err := schedulerConfig(ctx)
	if err != nil {
		return err
	}
	if n := ctx.Int("max-moves"); n < 1 || n > 100_000 {
		return cli.Errorf(cli.Usage, "--max-moves %d: want 1 to 100,000", n)
	}
	aims := strings.Split(ctx.String("aim"), ",")
	for _, aim := range aims {
		if aim != plan.AimMachines && aim != plan.AimFragments {
			return cli.Errorf(cli.Usage, "--aim %s: want some of %s, %s with commas between them", ctx.String("aim"), plan.AimMachines, plan.AimFragments)
		}
	}
	p, err := openCell(ctx, defragUsage)
	if err != nil {
		return err
	}
	d, err := plan.Defrag(p.Cell, search, ctx.Int("max-moves"), aims)
	if err != nil {
		return modelError("plan moves", err)
	}
	return report{
		value: d,
		table: func(w io.Writer) error { return defragTable(w, d) },
		page:  func() *page { return defragPage(p, d) },
	}.write(ctx)
}

func defragSentence(d *plan.Defragged) string {
	if len(d.Moves) == 0 {
		return "No move was found that would gain anything."
	}
	return fmt.Sprintf("%s would empty %s.", numberOf(len(d.Moves), "move"), numberOf(len(d.Freed), "machine"))
}

// defragRows compare before and after.
func defragRows(d *plan.Defragged) (rows [][3]string) {
	a, b := d.Before, d.After
	rows = append(rows, [3]string{"empty machines", thousands(a.Empty), thousands(b.Empty)})
	for i, l := range a.Largest {
		words := func(s plan.Scaled) string {
			return fmt.Sprintf("%s cpu, %s", cpuWords(s.CPUMilli), bytesWords(s.MemBytes))
		}
		rows = append(rows, [3]string{fmt.Sprintf("largest task that fits %s", numberOf(l.Copies, "time")), words(l), words(b.Largest[i])})
	}
	percent := func(v float64) string { return fmt.Sprintf("%.2f %%", v) }
	return append(rows,
		[3]string{"stranded CPU", percent(a.StrandedCPUPercent), percent(b.StrandedCPUPercent)},
		[3]string{"stranded memory", percent(a.StrandedMemPercent), percent(b.StrandedMemPercent)},
		[3]string{"free CPU and memory apart", percent(a.UnevenPercent), percent(b.UnevenPercent)})
}

func defragTable(w io.Writer, d *plan.Defragged) error {
	fmt.Fprintln(w, defragSentence(d))
	if d.Untried > 0 {
		fmt.Fprintf(w, "%s more were not tried: the last ones before them could not be emptied, and these have as much to move or more.\n", numberOf(d.Untried, "machine"))
	}
	if d.Waiting > 0 {
		fmt.Fprintf(w, "Before that, %s that waited would be placed without any move.\n", numberOf(d.Waiting, "task"))
	}
	if d.Placed > 0 {
		fmt.Fprintf(w, "After it, %s that waited would have a place.\n", numberOf(d.Placed, "task"))
	}
	fmt.Fprintln(w)
	c := newColumns(w)
	c.row("", "BEFORE", "AFTER")
	for _, r := range defragRows(d) {
		c.row(r[0], r[1], r[2])
	}
	if err := c.end(); err != nil || len(d.Moves) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nThe moves, in this order; each was proved to have its place, and to keep to its job's disruption budget, once those before it are done and run:\n")
	c = newColumns(w)
	c.row("", "TASK", "FROM", "TO", "FOR")
	for i, m := range d.Moves {
		c.row(strconv.Itoa(i+1), m.Task, m.From, m.To, m.Aim)
	}
	if err := c.end(); err != nil || len(d.Freed) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nEmptied: %s\n", cli.Visible(strings.Join(d.Freed, " ")))
	return nil
}

func defragPage(of *fauxmaster.Picture, d *plan.Defragged) *page {
	p := newPage(of, "A plan of moves", defragSentence(d))
	p.number("moves", thousands(len(d.Moves)))
	p.number("machines emptied", thousands(len(d.Freed)))
	p.number("empty machines", fmt.Sprintf("%s → %s", thousands(d.Before.Empty), thousands(d.After.Empty)))
	var rows [][]string
	for _, r := range defragRows(d) {
		rows = append(rows, r[:])
	}
	p.table("Before and after", "By limits, of the mix of CPU and memory that the cell has.", []string{"", "before", "after"}, rows)
	const words = "A machine at an edge (shaded) has run out of one and strands what is left of the other. By limits, as production is placed."
	p.chart("What is free on each machine, before", words, scatterChart("free CPU against free memory, before", pointsOf(d.Before.Rooms())))
	p.chart("What is free on each machine, after", "", scatterChart("free CPU against free memory, after", pointsOf(d.After.Rooms())))
	rows = nil
	for i, m := range d.Moves {
		rows = append(rows, []string{strconv.Itoa(i + 1), m.Task, m.From, m.To, m.Aim})
	}
	p.table("The moves", "In this order; each was proved to have its place, and to keep to its job's disruption budget, once those before it are done and run.", []string{"", "task", "from", "to", "for"}, rows)
	return p
}
