package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/cfg"
	"borg/cli"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

const whatifUsage = "whatif CHECKPOINT --remove-machines rack=r1"

func whatifCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "whatif",
		Usage:     "what would happen to whom if machines went or came, jobs were submitted, the scheduler were another",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: slices.Concat([]ucli.Flag{
			&ucli.StringSliceFlag{Name: "remove-machines", Usage: "take away the machines with `ATTRIBUTE=VALUE`, such as rack=r1 or machine=m1*; may be repeated, as all of these"},
			&ucli.StringSliceFlag{Name: "drain", Usage: "drain the machines with `ATTRIBUTE=VALUE`"},
			&ucli.StringSliceFlag{Name: "add-machines", Usage: "add `N=SHAPE`: 10=m17 (as that machine), or 10=cpu=16,mem=64GiB,rack=r9"},
			&ucli.StringSliceFlag{Name: "set-attribute", Usage: "`ATTRIBUTE=VALUE:KEY=NEW`: of machines selected as above"},
			&ucli.StringSliceFlag{Name: "submit", Usage: "submit the objects of a job `FILE`"},
			&ucli.StringSliceFlag{Name: "set", Usage: "`NAME=VALUE` of a parameter of the job files, may be repeated"},
			&ucli.StringFlag{Name: "user", Value: "fauxmaster", Usage: "owner of jobs that name none"},
			&ucli.IntFlag{Name: "rows", Value: 40, Usage: "show so many tasks and jobs in the table; 0: all"},
		}, liveFlags(), reportFlags()),
		Action: whatif,
	}
}

func whatif(ctx *ucli.Context) error {
	p, err := openCell(ctx, whatifUsage)
	if err != nil {
		return err
	}
	ch, err := readChange(ctx, p.Cell)
	if err != nil {
		return err
	}
	search, err := restConfig(ctx)
	if err != nil {
		return err
	}
	e, err := plan.WhatIf(p.Cell, search, ch)
	if err != nil {
		return modelError("make the change", err)
	}
	return report{
		value: e,
		table: func(w io.Writer) error { return whatifTable(w, e, ctx.Int("rows")) },
		page:  func() *page { return whatifPage(p, e) },
	}.write(ctx)
}

// readChange makes ops of the flags, in the order of the flags' names above.
func readChange(ctx *ucli.Context, c *cell.Cell) (ch plan.Change, err error) {
	for _, f := range []struct {
		name string
		ops  func(string) ([]*borgpb.Op, error)
	}{
		{"remove-machines", func(text string) ([]*borgpb.Op, error) {
			ms, err := selectMachines(c, "--remove-machines", text)
			return plan.RemoveMachines(c, ms), err
		}},
		{"drain", func(text string) ([]*borgpb.Op, error) {
			ms, err := selectMachines(c, "--drain", text)
			return plan.DrainMachines(ms), err
		}},
		{"add-machines", func(text string) ([]*borgpb.Op, error) { return addMachines(c, text, len(ch.Ops)) }},
		{"set-attribute", func(text string) ([]*borgpb.Op, error) {
			which, what, _ := strings.Cut(text, ":")
			key, value, ok := strings.Cut(what, "=")
			if !ok || key == "" {
				return nil, cli.Errorf(cli.Usage, "--set-attribute %s: want ATTRIBUTE=VALUE:KEY=NEW, as in rack=r1:gen=8", text)
			}
			ms, err := selectMachines(c, "--set-attribute", which)
			return plan.SetAttribute(ms, key, value), err
		}},
	} {
		for _, text := range ctx.StringSlice(f.name) {
			ops, err := f.ops(text)
			if err != nil {
				return ch, err
			}
			ch.Ops = append(ch.Ops, ops...)
		}
	}
	objects, err := readObjects(ctx, ctx.StringSlice("submit"))
	if err != nil {
		return ch, err
	}
	// Jobs may run in the alloc sets.
	slices.SortStableFunc(objects, func(a, b *cfg.Object) int { return int(b.Kind) - int(a.Kind) })
	for _, o := range objects {
		ch.Ops = append(ch.Ops, plan.Submit(o.User, o.Name, o.Job, o.AllocSet))
	}
	if ctx.IsSet("policy") || ctx.IsSet("weight") {
		search, err := liveConfig(ctx)
		if err != nil {
			return ch, err
		}
		ch.Search = &search
	}
	if len(ch.Ops) == 0 && ch.Search == nil {
		return ch, cli.Errorf(cli.Usage, "there is nothing to try").Hint("fauxmaster %s", whatifUsage)
	}
	return ch, nil
}

func selectMachines(c *cell.Cell, flag, text string) ([]*cell.Machine, error) {
	s, err := plan.ParseSelector(text)
	if err != nil {
		return nil, cli.Errorf(cli.Usage, "%s: %w", flag, err)
	}
	ms := s.Select(c)
	if len(ms) == 0 {
		return nil, cli.Errorf(cli.NotFound, "%s: no machine has %s", flag, text).Hint("fauxmaster serve CHECKPOINT, then borgcfg machine list, shows what they have")
	}
	return ms, nil
}

// addMachines reads N=SHAPE.
func addMachines(c *cell.Cell, text string, made int) ([]*borgpb.Op, error) {
	bad := cli.Errorf(cli.Usage, "--add-machines %s: want N=MACHINE or N=cpu=16,mem=64GiB,KEY=VALUE,...", text)
	count, shape, ok := strings.Cut(text, "=")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 || n > 100_000 {
		return nil, bad
	}
	spec := &borgpb.MachineSpec{Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{}, PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast, Attributes: map[string]string{}}
	if m := c.Machine(shape); m != nil {
		spec = proto.CloneOf(c.MachineProto(m).GetSpec())
	} else if !strings.Contains(shape, "=") {
		return nil, cli.Errorf(cli.NotFound, "--add-machines %s: there is no machine %s to take as a shape", text, shape)
	} else {
		for part := range strings.SplitSeq(shape, ",") {
			key, value, ok := strings.Cut(part, "=")
			if !ok {
				return nil, bad
			}
			switch key {
			case "cpu":
				v, err := strconv.ParseFloat(value, 64)
				if err != nil || v < 0 || v > 1e6 {
					return nil, bad
				}
				spec.Capacity.CpuMilli = int64(v*1000 + 0.5)
			case "mem", "disk":
				v, err := cfg.ParseBytes(value)
				if err != nil {
					return nil, cli.Errorf(cli.Usage, "--add-machines %s: %s: %w", text, key, err)
				}
				if key == "mem" {
					spec.Capacity.MemBytes = v
				} else {
					spec.Capacity.DiskBytes = v
				}
			default:
				spec.Attributes[key] = value
			}
		}
	}
	// Names of machines that other flags add are taken.
	ops := plan.AddMachines(c, made+n, spec)
	return ops[made:], nil
}

// fateOrder is from the worst to the best.
var fateOrder = []plan.Fate{
	plan.Lost, plan.Displaced, plan.NewPending, plan.Ended, plan.Moved, plan.Restarted, plan.Placed, plan.NewPlaced,
}

func whatifTable(w io.Writer, e *plan.Effect, rows int) error {
	c := newColumns(w)
	c.row("", "NOW", "THEN")
	c.row("machines up", e.Before.Machines, e.After.Machines)
	c.row("tasks that run", e.Before.Running, e.After.Running)
	c.row("tasks that wait", e.Before.Pending, e.After.Pending)
	c.row("of production", e.Before.ProdPending, e.After.ProdPending)
	c.row("free", resourcesWords(e.Before.Free), resourcesWords(e.After.Free))
	if err := c.end(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s\n", whatifSentence(e))
	if words := restedWords(e.Rested); words != "" {
		fmt.Fprintln(w, words)
	}
	if len(e.Jobs) > 0 {
		fmt.Fprintln(w)
		c = newColumns(w)
		c.row("JOB WITH FEWER RUNNING TASKS", "PRIORITY", "TASKS", "RUNNING NOW", "THEN")
		for _, j := range cut(e.Jobs, rows) {
			c.row(j.Job, j.Priority, j.Tasks, j.Before, j.After)
		}
		if err := tail(c, w, len(e.Jobs), rows, "job"); err != nil {
			return err
		}
	}
	if err := heldTable(w, e.Held, rows); err != nil || len(e.Tasks) == 0 {
		return err
	}
	fmt.Fprintln(w)
	c = newColumns(w)
	c.row("TASK", "PRIORITY", "BECOMES", "FROM", "TO", "WHY")
	for _, t := range cut(worstFirst(e.Tasks), rows) {
		c.row(t.Task, t.Priority, t.Fate, t.From, t.To, t.Why)
	}
	return tail(c, w, len(e.Tasks), rows, "task")
}

// heldTable lists what stays on machines that drain.
func heldTable(w io.Writer, held []plan.HeldBack, rows int) error {
	if len(held) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	c := newColumns(w)
	c.row("STAYS ON DRAINING", "TASK OR VOLUME", "BECAUSE")
	for _, h := range cut(held, rows) {
		what := h.Task
		if h.Kept {
			what = h.Volume
		}
		c.row(h.Machine, what, h.Why)
	}
	return tail(c, w, len(held), rows, "row")
}

// heldSentence counts what stays on machines that drain; empty: nothing does.
func heldSentence(held []plan.HeldBack) string {
	byVolume, byOther, kept := 0, 0, 0
	for _, h := range held {
		switch {
		case h.Kept:
			kept++
		case h.Volume != "":
			byVolume++
		default:
			byOther++
		}
	}
	var parts []string
	if byOther > 0 {
		parts = append(parts, numberOf(byOther, "task")+" held back by budgets")
	}
	if byVolume > 0 {
		parts = append(parts, numberOf(byVolume, "task")+" held back by volumes")
	}
	if kept > 0 {
		parts = append(parts, numberOf(kept, "volume")+" kept")
	}
	if len(parts) == 0 {
		return ""
	}
	return " On machines that drain: " + strings.Join(parts, ", ") + "."
}

// worstFirst sorts tasks by what becomes of them, then by priority.
func worstFirst(tasks []plan.TaskChange) []plan.TaskChange {
	tasks = slices.Clone(tasks)
	slices.SortStableFunc(tasks, func(a, b plan.TaskChange) int {
		if n := slices.Index(fateOrder, a.Fate) - slices.Index(fateOrder, b.Fate); n != 0 {
			return n
		}
		return int(b.Priority - a.Priority)
	})
	return tasks
}

func whatifSentence(e *plan.Effect) string {
	if len(e.Tasks) == 0 {
		return "Nothing happens to any task." + heldSentence(e.Held)
	}
	var parts []string
	for _, f := range fateOrder {
		if n := e.Counts[f]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", thousands(n), f))
		}
	}
	text := fmt.Sprintf("Tasks: %s. %s in all", strings.Join(parts, ", "), numberOf(e.Evictions, "eviction"))
	if e.Moves > 0 {
		text += fmt.Sprintf(", %s of the rescheduler", numberOf(e.Moves, "move"))
	}
	return fmt.Sprintf("%s. %s run with less.", text, numberOf(len(e.Jobs), "job")) + heldSentence(e.Held)
}

// cut takes the first rows.
func cut[T any](all []T, rows int) []T {
	if rows > 0 && len(all) > rows {
		return all[:rows]
	}
	return all
}

// tail ends a table that may have been cut.
func tail(c columns, w io.Writer, n, rows int, noun string) error {
	if err := c.end(); err != nil {
		return err
	}
	if rows > 0 && n > rows {
		fmt.Fprintf(w, "and %s more; --rows 0 shows all\n", numberOf(n-rows, noun))
	}
	return nil
}

func failCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "fail",
		Usage:     "what the loss of each failure domain would cost, the worst first",
		ArgsUsage: "CHECKPOINT|ARCHIVE ATTRIBUTE=PATTERN...",
		Flags: slices.Concat([]ucli.Flag{
			&ucli.BoolFlag{Name: "worst", DisableDefaultText: true, Usage: "only the domain whose loss costs most, with the jobs that then have fewer running tasks"},
			&ucli.IntFlag{Name: "rows", Value: 40, Usage: "show so many domains in the table; 0: all"},
		}, liveFlags(), reportFlags()),
		Action: failDomains,
	}
}

func failDomains(ctx *ucli.Context) error {
	args := ctx.Args().Slice()
	if len(args) < 2 {
		return cli.Errorf(cli.Usage, "want one checkpoint file and what is to fail").Hint("fauxmaster fail CHECKPOINT 'rack=*' --worst")
	}
	var by []plan.Selector
	for _, text := range args[1:] {
		s, err := plan.ParseSelector(text)
		if err != nil {
			return cli.Errorf(cli.Usage, "%w", err)
		}
		by = append(by, s)
	}
	search, err := liveConfig(ctx)
	if err != nil {
		return err
	}
	p, err := openPath(args[0])
	if err != nil {
		return err
	}
	line := newProgressLine(ctx.App.ErrWriter)
	began := false
	all, err := plan.Fail(p.Cell, search, by, func(_, of int) error {
		if !began {
			line.begin(of, "failure domains")
			began = true
		}
		line.step("one at a time")
		return ctx.Err()
	})
	line.end()
	if ctx.Err() != nil {
		return cli.Errorf(cli.Interrupted, "interrupted")
	}
	if err != nil {
		return modelError("let them fail", err)
	}
	if len(all) == 0 {
		return cli.Errorf(cli.NotFound, "no machine has %s", strings.Join(args[1:], " or "))
	}
	if ctx.Bool("worst") {
		all = all[:1]
	}
	return report{
		value: all,
		table: func(w io.Writer) error { return failTable(w, all, ctx.Bool("worst"), ctx.Int("rows")) },
		page:  func() *page { return failPage(p, all) },
	}.write(ctx)
}

func failTable(w io.Writer, all []plan.Failure, worst bool, rows int) error {
	if worst {
		fmt.Fprintf(w, "Of the domains asked about, the loss of %s costs most:\n\n", all[0].Domain)
	}
	c := newColumns(w)
	c.row("IF LOST", "MACHINES", "TASKS THERE", "THEN WAIT", "OF PRODUCTION", "JOBS WITH NO TASK", "OTHERS EVICTED", "MOVED")
	for _, f := range cut(all, rows) {
		c.row(f.Domain, f.Machines, f.Displaced, f.Pending, f.ProdPending, f.JobsDown, f.Evictions, f.Moves)
	}
	if err := tail(c, w, len(all), rows, "domain"); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nMOVED: moves that the rescheduler makes then; they are no evictions.")
	if !worst || len(all[0].Jobs) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	c = newColumns(w)
	c.row("JOB WITH FEWER RUNNING TASKS", "PRIORITY", "TASKS", "RUNNING NOW", "THEN")
	for _, j := range cut(all[0].Jobs, rows) {
		c.row(j.Job, j.Priority, j.Tasks, j.Before, j.After)
	}
	return tail(c, w, len(all[0].Jobs), rows, "job")
}

// fateCounts are the counts by fate, for a chart.
func fateCounts(e *plan.Effect) (names []string, counts []int) {
	for _, f := range fateOrder {
		if n := e.Counts[f]; n > 0 {
			names, counts = append(names, string(f)), append(counts, n)
		}
	}
	return names, counts
}
