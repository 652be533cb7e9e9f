package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/plan"
)

const etaUsage = "eta CHECKPOINT USER/JOB/INDEX"

func etaCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "eta",
		Usage:     "when a task that waits will have a place: the queue run forward",
		ArgsUsage: "CHECKPOINT|ARCHIVE USER/JOB/INDEX",
		Flags: slices.Concat([]ucli.Flag{
			&ucli.StringSliceFlag{Name: "runs", Usage: "`USER/JOB=DURATION`: tasks of this batch job run so long, as in bob/crunch=2h; may be repeated"},
			&ucli.DurationFlag{Name: "horizon", Value: 30 * 24 * time.Hour, Usage: "look ahead for so `LONG`"},
		}, liveFlags(), reportFlags()),
		Action: etaOf,
	}
}

func etaOf(ctx *ucli.Context) error {
	if ctx.NArg() != 2 {
		return cli.Errorf(cli.Usage, "want a checkpoint and a task").Hint("fauxmaster %s", etaUsage)
	}
	q, err := etaQuestion(ctx)
	if err != nil {
		return err
	}
	search, err := liveConfig(ctx)
	if err != nil {
		return err
	}
	p, err := openPath(ctx.Args().First())
	if err != nil {
		return err
	}
	a, err := plan.Eta(p.Cell, search, q)
	var none *plan.NoTask
	switch {
	case errors.As(err, &none):
		return cli.Errorf(cli.NotFound, "%w", err)
	case err != nil:
		return modelError("run the queue forward", err)
	}
	return report{
		value: a,
		table: func(w io.Writer) error { return etaTable(w, ctx.Args().First(), a) },
		page:  func() *page { return etaPage(p, a) },
	}.write(ctx)
}

func etaQuestion(ctx *ucli.Context) (q plan.EtaQuestion, err error) {
	id, err := cell.ParseTaskID(ctx.Args().Get(1))
	if err != nil {
		return q, cli.Errorf(cli.Usage, "%w", err)
	}
	q = plan.EtaQuestion{Job: id.Job, Index: id.Index, RunsNs: make(map[cell.JobKey]int64), HorizonNs: int64(ctx.Duration("horizon"))}
	for _, text := range ctx.StringSlice("runs") {
		name, long, _ := strings.Cut(text, "=")
		key, err := cell.ParseJobKey(name)
		if err != nil {
			return q, cli.Errorf(cli.Usage, "--runs %s: %w", text, err)
		}
		d, err := cli.ParseDuration(long)
		if err != nil || d <= 0 {
			return q, cli.Errorf(cli.Usage, "--runs %s: want a duration after the name, as in bob/crunch=2h", text)
		}
		q.RunsNs[key] = int64(d)
	}
	return q, nil
}

func etaSentence(a *plan.EtaAnswer) string {
	after := time.Duration(a.AfterNs).Round(time.Second)
	switch {
	case a.Placed && after == 0:
		return fmt.Sprintf("%s has a place, or gets one at once, on %s.", a.Task, a.Machine)
	case a.Placed:
		return fmt.Sprintf("%s gets a place in about %v, on %s, when %s ended.", a.Task, after, a.Machine, numberOf(a.Ended, "task"))
	}
	return fmt.Sprintf("%s gets no place without a change.", a.Task)
}

// assumptions are what the answer rests on.
func assumptions(a *plan.EtaAnswer) (all []string) {
	all = append(all, fmt.Sprintf("of %s that run, the end of %s is known; all others go on for ever", numberOf(a.Running, "task"), thousands(a.Known)))
	for _, r := range cut(a.Runs, 10) {
		from := "as you say"
		if r.From > 0 {
			from = fmt.Sprintf("the median of %s that finished", numberOf(r.From, "task"))
		}
		all = append(all, fmt.Sprintf("tasks of %s run for %v, %s", r.Job, time.Duration(r.Ns).Round(time.Second), from))
	}
	if n := len(a.Runs) - 10; n > 0 {
		all = append(all, fmt.Sprintf("and so for %s more", numberOf(n, "job")))
	}
	return append(all, "nobody submits, kills or updates; no machine breaks or comes back")
}

func etaTable(w io.Writer, path string, a *plan.EtaAnswer) error {
	fmt.Fprintln(w, cli.Visible(etaSentence(a)))
	if a.Why != "" {
		fmt.Fprintf(w, "After %v: %s\n", time.Duration(a.AfterNs).Round(time.Second), cli.Visible(a.Why))
		for _, k := range a.Changes {
			fmt.Fprintf(w, "  would help: %s\n", cli.Visible(k))
		}
		fmt.Fprintf(w, "More: fauxmaster why %s %s\n", cli.Visible(path), cli.Visible(a.Task))
	}
	fmt.Fprintln(w, "\nTaken as given:")
	for _, s := range assumptions(a) {
		fmt.Fprintf(w, "  %s\n", cli.Visible(s))
	}
	return nil
}

func etaPage(of *fauxmaster.Picture, a *plan.EtaAnswer) *page {
	p := newPage(of, "When will it run", etaSentence(a))
	var rows [][]string
	for _, s := range assumptions(a) {
		rows = append(rows, []string{s})
	}
	p.table("Taken as given", "", []string{""}, rows)
	if a.Why != "" {
		rows = [][]string{{"why not", a.Why}}
		for _, k := range a.Changes {
			rows = append(rows, []string{"would help", k})
		}
		p.table("Without a change", "", []string{"", ""}, rows)
	}
	p.rooms(of)
	return p
}
