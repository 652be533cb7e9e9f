package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/trace"
	"borg/fauxmaster/workload"
	"borg/scheduler/reservation"
)

func simulateCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "simulate",
		Usage:     "run a workload through a cell in virtual time: jobs arrive, run and end",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags:     workloadFlags(),
		Action:    simulate,
	}
}

func workloadFlags() []ucli.Flag {
	flags := []ucli.Flag{
		atFlag("of an archive to begin at (default: the first checkpoint)"),
		&ucli.DurationFlag{Name: "until", Usage: "end after so much virtual `TIME` (default: the end of the recording, or a day)"},
		&ucli.DurationFlag{Name: "every", Value: 5 * time.Minute, Usage: "virtual `TIME` between two samples"},
		&ucli.DurationFlag{Name: "pace", Value: time.Second, Usage: "virtual `TIME` between two rounds of the scheduler"},
		&ucli.BoolFlag{DisableDefaultText: true, Name: "without-unplaced", Usage: "leave out the jobs that never had a machine where they were recorded"},
		&ucli.StringFlag{Name: "reservations", Usage: "how much is kept beyond what tasks use: conservative, medium, aggressive (default: medium)"},
		&ucli.StringFlag{Name: "synthetic", Usage: "make up what arrives: `NAME=VALUE,...` of " + workload.SyntheticWords()},
	}
	flags = append(flags, schedulerFlags()...)
	return append(flags, reportFlags()...)
}

// simulate runs what a checkpoint or an archive tells, or what is made up.
func simulate(ctx *ucli.Context) error {
	path := ctx.Args().First()
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want one checkpoint or archive").Hint("fauxmaster simulate DIRECTORY --until 8h30m")
	}
	for _, flag := range []string{"until", "every", "pace"} {
		if d := ctx.Duration(flag); ctx.IsSet(flag) && d <= 0 {
			return cli.Errorf(cli.Usage, "--%s %v: want a time above zero", flag, d)
		}
	}
	search, err := schedulerConfig(ctx)
	if err != nil {
		return err
	}
	setting, err := reservation.ParseSetting(ctx.String("reservations"))
	if err != nil {
		return cli.Errorf(cli.Usage, "--reservations: %w", err)
	}
	w, of, err := openWorkload(ctx, path)
	if err != nil {
		return err
	}
	cfg := workload.Config{
		Search: search, UntilNs: int64(ctx.Duration("until")), EveryNs: int64(ctx.Duration("every")), PaceNs: int64(ctx.Duration("pace")),
		WithoutUnplaced: ctx.Bool("without-unplaced"), Reservations: setting,
	}
	if cfg.UntilNs == 0 {
		if cfg.UntilNs = w.LastNs; w.LastNs == 0 {
			cfg.UntilNs = int64(24 * time.Hour)
		}
	}
	if text := ctx.String("synthetic"); text != "" {
		s, err := workload.ParseSynthetic(text)
		if err != nil {
			return cli.Errorf(cli.Usage, "--synthetic: %w", err)
		}
		if err := s.AddTo(w, ctx.Uint64("seed"), cfg.UntilNs); err != nil {
			return cli.Errorf(cli.Failed, "make up what arrives: %w", err)
		}
	}
	if err := cfg.Validate(); err != nil {
		return cli.Errorf(cli.Usage, "%w", err)
	}
	if w.LastNs == 0 && ctx.String("synthetic") == "" {
		fmt.Fprintln(ctx.App.ErrWriter, "nothing arrives: a checkpoint holds one moment; make arrivals up with --synthetic default, or simulate an archive")
	}
	line := newProgressLine(ctx.App.ErrWriter)
	cfg.Progress = simulationProgress(ctx.App.ErrWriter, line, cfg.UntilNs)
	r, err := workload.Run(ctx.Context, w, cfg)
	line.end()
	if err != nil {
		return cli.Errorf(cli.Failed, "simulate: %w", err)
	}
	r.Interrupted = r.UntilNs < cfg.UntilNs
	err = report{
		value: r,
		table: func(w io.Writer) error { return workloadTable(w, r) },
		page:  func() *page { return workloadPage(of, r) },
	}.write(ctx)
	if err == nil && r.Interrupted {
		return cli.Errorf(cli.Interrupted, "interrupted at %v of %v; the report is of the time until then", time.Duration(r.UntilNs), time.Duration(cfg.UntilNs))
	}
	return err
}

// simulationProgress tells how far it is: on a terminal twice a second, elsewhere a line
// every half minute.
func simulationProgress(w io.Writer, line *progressLine, untilNs int64) func(nowNs int64) {
	began := time.Now()
	told, every := began, 30*time.Second
	if line.terminal {
		every = time.Second / 2
	}
	return func(nowNs int64) {
		if time.Since(told) < every {
			return
		}
		told = time.Now()
		rate := float64(nowNs) / float64(time.Since(began))
		text := fmt.Sprintf("%s of %s, %.0f times as fast as outside, %v to go", clockWords(nowNs), clockWords(untilNs),
			rate, time.Duration(float64(untilNs-nowNs)/rate).Round(time.Second))
		if line.terminal {
			line.say(text)
		} else {
			fmt.Fprintln(w, text)
		}
	}
}

// openWorkload reads a checkpoint, or an archive from --at on.
func openWorkload(ctx *ucli.Context, path string) (*workload.Workload, *fauxmaster.Picture, error) {
	m, err := momentOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		past, err := fauxmaster.OpenPast(path)
		if err != nil {
			return nil, nil, pastError(path, err)
		}
		w, err := workload.Recorded(past, m)
		if err != nil {
			return nil, nil, pastError(path, err)
		}
		of, err := fauxmaster.OpenAt(path, past.First())
		return w, of, pastError(path, err)
	}
	of, err := fauxmaster.OpenAt(path, m)
	if err != nil {
		return nil, nil, pastError(path, err)
	}
	w, err := workload.Of(of.Cell)
	if err != nil {
		return nil, nil, cli.Errorf(cli.Invalid, "%s: %w", path, err)
	}
	return w, of, nil
}

// bandNames are those of Bands, in the order in which they are shown.
var bandNames = []trace.Tier{trace.Monitoring, trace.Production, trace.Mid, trace.Batch, trace.Free}

// workloadTable prints the samples. Of samples in a row that differ in their time alone it
// prints the first and the last.
func workloadTable(w io.Writer, r *workload.Report) error {
	c := newColumns(w)
	c.row("TIME", "PENDING", "RUNNING", "EVICTED", "PLACED", "SUBMITTED", "FINISHED", "CPU LIMITS", "CPU RESERVED", "MEM LIMITS", "MEM RESERVED", "RECORDED PENDING", "RUNNING", "EVICTED")
	for i := 0; i < len(r.Samples); {
		first := sampleRow(r, i)
		last := i
		for last+1 < len(r.Samples) && slices.Equal(sampleRow(r, last+1)[1:], first[1:]) {
			last++
		}
		c.row(first...)
		if between := last - i - 1; between > 0 {
			c.row(fmt.Sprintf("(%s alike)", numberOf(between, "row")))
		}
		if last > i {
			c.row(sampleRow(r, last)...)
		}
		i = last + 1
	}
	if err := c.end(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	c = newColumns(w)
	for _, row := range workloadRows(r) {
		c.row(row[0], row[1])
	}
	return c.end()
}

// sampleRow is the row of a sample: its time, and what was seen then.
func sampleRow(r *workload.Report, i int) []any {
	s := r.Samples[i]
	row := []any{
		clockWords(s.AtNs), thousands(s.Pending.Sum()), thousands(s.Running.Sum()), thousands(s.Evicted.Sum()), thousands(s.Placed), thousands(s.Submitted), thousands(s.Finished),
		percentOf(s.LimitCPU), percentOf(s.ReservedCPU), percentOf(s.LimitMem), percentOf(s.ReservedMem), "", "", "",
	}
	if i < len(r.Recorded) {
		o := &r.Recorded[i]
		row[11], row[12], row[13] = thousands(o.Pending.Sum()), thousands(o.Running.Sum()), thousands(o.Evicted.Sum())
	}
	return row
}

// workloadRows sum a simulation up.
func workloadRows(r *workload.Report) (rows [][]string) {
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name, fmt.Sprintf(format, args...)})
	}
	add("simulated", "%v in %.1f s, %.0f times as fast as outside", time.Duration(r.UntilNs), r.Seconds, float64(r.UntilNs)/1e9/max(r.Seconds, 1e-9))
	add("policy", "%s", r.Policy)
	add("submitted", "%s; placed %s, finished %s, failed %s", numberOf(r.Submitted, "task"), thousands(r.Placed), thousands(r.Finished), thousands(r.Failed))
	for _, tier := range bandNames {
		if n := r.Evicted[tier]; n > 0 {
			add("evicted", "%s of %v", numberOf(n, "task"), tier)
		}
	}
	add("passes", "%s in %.1f s, the longest %.3f s; %s", thousands(r.Passes), r.PassSeconds, r.LongestPass, entriesWords(r.Entries))
	for _, words := range slices.Sorted(maps.Keys(r.ConflictKinds)) {
		add("places refused", "%s: %s", thousands(r.ConflictKinds[words]), words)
	}
	if g := r.Gap; g != nil {
		add("mean gap to the recording", "pending %.1f of %.1f, running %.1f of %.1f, evictions %.1f of %.1f in %v",
			g.Pending, g.MeanPending, g.Running, g.MeanRunning, g.Evicted, g.MeanEvicted, time.Duration(r.EveryNs))
	}
	if g := r.Gap; g != nil {
		add("pending at the end", "%s here, %s in the recording", thousands(g.EndPending), thousands(g.RecordedEndPending))
		add("evictions in all", "%s here, %s in the recording", thousands(g.AllEvicted), thousands(g.RecordedAllEvicted))
	}
	for _, words := range r.LeavesOut {
		add("the model leaves out", "%s", words)
	}
	if r.Unplaced > 0 {
		add("never placed there", "%s: the recording does not say why (without them: --without-unplaced)", numberOf(r.Unplaced, "task"))
	}
	if r.LeftOut > 0 {
		add("left out", "%s that never had a machine in the recording", numberOf(r.LeftOut, "task"))
	}
	for _, words := range slices.Sorted(maps.Keys(r.Refused)) {
		add("refused", "%s: %s", thousands(r.Refused[words]), words)
	}
	return rows
}

func entriesWords(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return thousands(n) + " entries"
}

func percentOf(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// clockWords is a virtual time as hours and minutes.
func clockWords(ns int64) string {
	d := time.Duration(ns)
	return fmt.Sprintf("%d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
}

// workloadPage shows a simulation.
func workloadPage(of *fauxmaster.Picture, r *workload.Report) *page {
	p := newPage(of, "A workload, simulated", fmt.Sprintf("%s of virtual time in %.0f s: %s arrived, %s found a place, %s were evicted.",
		clockWords(r.UntilNs), r.Seconds, numberOf(r.Submitted, "task"), thousands(r.Placed), thousands(r.Evicted.Sum())))
	last := r.Samples[len(r.Samples)-1]
	p.number("pending at the end", thousands(last.Pending.Sum()))
	p.number("running at the end", thousands(last.Running.Sum()))
	p.number("evicted", thousands(r.Evicted.Sum()))
	p.number("times as fast", fmt.Sprintf("%.0f", float64(r.UntilNs)/1e9/max(r.Seconds, 1e-9)))
	of3 := func(title, words string, here func(*workload.Sample) int, there func(*workload.Curve) int) {
		all := []series{{Name: "simulated"}}
		for i := range r.Samples {
			s := &r.Samples[i]
			all[0].Points = append(all[0].Points, timePoint(s.AtNs, float64(here(s)), "simulated"))
		}
		if len(r.Recorded) > 0 {
			all = append(all, series{Name: "recorded"})
			for i := range r.Recorded {
				c := &r.Recorded[i]
				all[1].Points = append(all[1].Points, timePoint(c.AtNs, float64(there(c)), "recorded"))
			}
		}
		p.chart(title, words, timeChart(title, "tasks", all, nil))
	}
	of3("Pending", "Tasks that wait for a machine.", func(s *workload.Sample) int { return s.Pending.Sum() }, func(c *workload.Curve) int { return c.Pending.Sum() })
	of3("Running", "Tasks that have a machine.", func(s *workload.Sample) int { return s.Running.Sum() }, func(c *workload.Curve) int { return c.Running.Sum() })
	of3("Evicted", fmt.Sprintf("Tasks that lost their machine, in %v each.", time.Duration(r.EveryNs)),
		func(s *workload.Sample) int { return s.Evicted.Sum() }, func(c *workload.Curve) int { return c.Evicted.Sum() })
	share := func(title string, limit, reserved func(*workload.Sample) float64) {
		all := []series{{Name: "limits"}, {Name: "reserved"}}
		for i := range r.Samples {
			s := &r.Samples[i]
			all[0].Points = append(all[0].Points, timePoint(s.AtNs, 100*limit(s), "limits"))
			all[1].Points = append(all[1].Points, timePoint(s.AtNs, 100*reserved(s), "reserved"))
		}
		p.chart(title, "What runs, as a share of the machines that are up.", timeChart(title, "%", all, func(v float64) string { return fmt.Sprintf("%.0f", v) }))
	}
	share("CPU", func(s *workload.Sample) float64 { return s.LimitCPU }, func(s *workload.Sample) float64 { return s.ReservedCPU })
	share("Memory", func(s *workload.Sample) float64 { return s.LimitMem }, func(s *workload.Sample) float64 { return s.ReservedMem })
	p.table("In figures", "", []string{"", ""}, workloadRows(r))
	p.table("By band", "At the end; evicted over all of the time.", []string{"band", "pending", "running", "evicted"}, bandRows(r))
	return p
}

func bandRows(r *workload.Report) (rows [][]string) {
	last := r.Samples[len(r.Samples)-1]
	for _, tier := range bandNames {
		rows = append(rows, []string{tier.String(), thousands(last.Pending[tier]), thousands(last.Running[tier]), thousands(r.Evicted[tier])})
	}
	return rows
}

// timePoint is a point of a timeChart.
func timePoint(ns int64, v float64, name string) point {
	return point{X: float64(ns) / 3600e9, Y: v, Words: fmt.Sprintf("%s at %s: %.6g", name, clockWords(ns), v)}
}
