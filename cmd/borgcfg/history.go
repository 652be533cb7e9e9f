package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/fauxmaster/export"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/tell"
)

// maxHistoryLast is the most that a master keeps in memory for one answer.
const maxHistoryLast = 100_000

// historyFlags are those of events that are read from the masters' files.
var historyFlags = []string{"since", "until", "task", "user", "kind", "usage"}

func eventsCommand(con *console) *ucli.Command {
	c := command(con, "events", "tell what happened", "", 0, 0, events, outputFlag(),
		&ucli.BoolFlag{DisableDefaultText: true, Name: "follow", Aliases: []string{"f"}, Usage: "go on as things happen"},
		&ucli.StringFlag{Name: "since", Usage: "from `TIME` on, of what the masters keep for weeks: 2h, 30d, or 2026-11-21T22:00:00Z"},
		&ucli.StringFlag{Name: "until", Usage: "before `TIME`"},
		&ucli.StringFlag{Name: "job", Usage: "only of this `JOB` and its tasks"},
		&ucli.StringFlag{Name: "task", Usage: "only of this `TASK`: JOB/INDEX"},
		&ucli.StringFlag{Name: "user", Usage: "only of what is this `USER`'s, or what he asked for"},
		&ucli.StringFlag{Name: "machine", Usage: "only of this `MACHINE`"},
		&ucli.StringSliceFlag{Name: "kind", Usage: "only this `KIND`, such as submit, schedule, evict, machine_down; may be repeated"},
		&ucli.BoolFlag{DisableDefaultText: true, Name: "usage", Usage: "then, what tasks used, in windows of five minutes"},
		&ucli.Uint64Flag{Name: "last", Usage: "at most `N` of the newest (default: 50; all with -o json, --since or --until)"})
	c.Subcommands = []*ucli.Command{
		command(con, "export", "write what happened as tables, in the schema of Google's trace of 2019", "DIRECTORY", 1, 1, eventsExport,
			&ucli.StringFlag{Name: "since", Usage: "from `TIME` on: 2h, 30d, or 2026-11-21T22:00:00Z (default: all that is kept)"},
			&ucli.StringFlag{Name: "until", Usage: "before `TIME`"},
			&ucli.StringFlag{Name: "format", Value: string(export.Parquet), Usage: "`FORMAT` of the files: parquet, json or csv"}, cli.ForceFlag()),
	}
	return c
}

// usesHistory says whether something was asked for that is only in the files.
func usesHistory(s *session) bool { return slices.ContainsFunc(historyFlags, s.flag.IsSet) }

// historyRequest reads the flags.
func (s *session) historyRequest() (req *borgrpc.HistoryRequest, err error) {
	req = &borgrpc.HistoryRequest{User: s.flag.String("user"), Machine: s.flag.String("machine"), Usage: s.flag.Bool("usage")}
	if req.SinceWallNs, err = s.moment("since"); err != nil {
		return nil, err
	}
	if req.UntilWallNs, err = s.moment("until"); err != nil {
		return nil, err
	}
	if job := s.flag.String("job"); job != "" {
		n, err := s.job(job)
		if err != nil {
			return nil, err
		}
		req.Job = n.String()
	}
	if text := s.flag.String("task"); text != "" {
		i := strings.LastIndexByte(text, '/')
		if i < 0 {
			return nil, cli.Errorf(cli.Usage, "--task %q is not a task", text).Hint("a task is JOB/INDEX or USER/JOB/INDEX")
		}
		n, err := s.job(text[:i])
		if err != nil {
			return nil, err
		}
		req.Task = n.String() + text[i:]
	}
	for _, kind := range s.flag.StringSlice("kind") {
		n, ok := borgpb.EventKind_value["EVENT_KIND_"+strings.ToUpper(strings.ReplaceAll(kind, "-", "_"))]
		if !ok || n == 0 {
			e := cli.Errorf(cli.Usage, "--kind %q: there are no such events", kind)
			if near := cli.Nearest(kind, eventKinds()); near != "" {
				return nil, e.Hint("did you mean --kind %s?", near)
			}
			return nil, e.Hint("kinds are %s", strings.Join(eventKinds(), ", "))
		}
		req.Kinds = append(req.Kinds, borgpb.EventKind(n))
	}
	if last := s.flag.Uint64("last"); s.flag.IsSet("last") {
		if last > maxHistoryLast {
			return nil, cli.Errorf(cli.Usage, "--last %d: at most %d", last, maxHistoryLast).Hint("ask for a time instead: --since 2h")
		}
		req.Last = uint32(last)
	} else if !s.out.machine() && req.SinceWallNs == 0 && req.UntilWallNs == 0 {
		req.Last = eventsShown
	}
	return req, nil
}

func eventKinds() (words []string) {
	for n := range borgpb.EventKind_name {
		if n != 0 {
			words = append(words, tell.Word(borgpb.EventKind(n)))
		}
	}
	slices.Sort(words)
	return words
}

// history tells what the masters keep for weeks.
func history(s *session) error {
	if s.flag.Bool("follow") {
		return cli.Errorf(cli.Usage, "--follow goes with --job and --machine alone").Hint("leave out --%s", strings.Join(historyFlags, ", --"))
	}
	req, err := s.historyRequest()
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	if err := s.tellUnknown(s.flag.String("job"), req.Machine); err != nil {
		return err
	}
	if err := s.tellUnknownTask(s.flag.String("task")); err != nil {
		return err
	}
	if err := s.tellUnknownUser(req.User); err != nil {
		return err
	}
	all, shown := new(borgrpc.HistoryResponse), 0
	var events, usage []string
	err = m.History(s.ctx, req, func(resp *borgrpc.HistoryResponse) error {
		s.tellMissing(resp)
		if s.out.machine() {
			shown += len(resp.Entries) + len(resp.Usage)
			all.Entries, all.Usage = append(all.Entries, resp.Entries...), append(all.Usage, resp.Usage...)
			all.Gaps, all.Silent = append(all.Gaps, resp.Gaps...), append(all.Silent, resp.Silent...)
			all.Dropped = append(all.Dropped, resp.Dropped...)
			return nil
		}
		for _, e := range resp.Entries {
			events = append(events, entryLines(e)...)
		}
		for _, u := range resp.Usage {
			usage = append(usage, tell.Usage(u))
		}
		if most := int(req.Last); most > 0 {
			// An entry of the log has several events: the newest lines are what is asked for.
			events, usage = events[max(0, len(events)-most):], usage[max(0, len(usage)-most):]
			return nil
		}
		shown += len(events) + len(usage)
		err := s.printLines(events, usage)
		events, usage = nil, nil
		return err
	})
	if err == nil && !s.out.machine() {
		shown += len(events) + len(usage)
		err = s.printLines(events, usage)
	}
	switch {
	case err != nil:
		return err
	case s.out.machine():
		if err := s.out.one(all); err != nil {
			return err
		}
		return s.tellNoted(shown)
	case shown == 0:
		s.progress("nothing of that is kept")
	}
	s.tellCut(!s.flag.IsSet("last") && req.Last == eventsShown, shown, eventsShown)
	return s.tellNoted(shown)
}

// tellMissing says what no master that answered knows.
func (s *session) tellMissing(resp *borgrpc.HistoryResponse) {
	for _, silent := range resp.Silent {
		s.progress("replica %d did not answer: %s; what it alone keeps is not shown", silent.Replica, cli.Visible(silent.Why))
	}
	for _, g := range resp.Gaps {
		s.progress("log entries %d to %d are not known: %s", g.From, g.To, cli.Visible(g.Why))
	}
	for _, d := range resp.Dropped {
		s.progress("%s", tell.Dropped(d))
	}
}

func (s *session) printLines(events, usage []string) error {
	for _, line := range slices.Concat(events, usage) {
		if _, err := fmt.Fprintln(s.stdout, line); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
	}
	return nil
}

// entryLines are the events of an entry, with who asked for them and why; what had no
// events is told as the audit does.
func entryLines(e *borgpb.JournalEntry) (lines []string) {
	for _, r := range e.Asked {
		if len(e.Events) == 0 {
			lines = append(lines, tell.Audit(r))
		}
	}
	for _, ev := range e.Events {
		lines = append(lines, tell.Event(ev)+howAsked(ev, e.Asked))
	}
	return lines
}

// howAsked is by which command an event was asked for, and why; empty: nobody did, or it
// is not shown to whoever looks.
func howAsked(ev *borgpb.Event, asked []*borgpb.AuditRecord) (words string) {
	i := slices.IndexFunc(asked, func(r *borgpb.AuditRecord) bool {
		return r.Object != "" && (ev.Object == r.Object || strings.HasPrefix(ev.Object, r.Object+"/"))
	})
	if i < 0 {
		return ""
	}
	if r := asked[i]; r.Command != "" {
		words = "; by: " + cli.Visible(r.Command)
	}
	if r := asked[i]; r.Reason != "" && r.Reason != ev.Reason {
		words += "; because: " + cli.Visible(r.Reason)
	}
	return words
}

// eventsExport writes the tables.
func eventsExport(s *session) error {
	format := export.Format(s.flag.String("format"))
	if format != export.Parquet && format != export.JSON && format != export.CSV {
		return cli.Errorf(cli.Usage, "there is no format %q", format).Hint("use --format parquet, json or csv")
	}
	if err := cli.NewFiles(s.args[0], "*."+string(format), s.flag.Bool("force")); err != nil {
		return err
	}
	req, err := s.historyRequest()
	if err != nil {
		return err
	}
	req.Usage, req.Facts, req.Last = true, true, 0
	m, err := s.master()
	if err != nil {
		return err
	}
	dir := s.args[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cli.Errorf(cli.Failed, "make the directory: %w", err)
	}
	about, err := s.pastAbout(m, req)
	if err != nil {
		return err
	}
	n := make(export.Counts)
	past, err := export.NewPast(about, format, dir, n)
	if err != nil {
		return cli.Errorf(cli.Failed, "write the tables: %w", err)
	}
	err = m.History(s.ctx, req, func(resp *borgrpc.HistoryResponse) error {
		s.tellMissing(resp)
		return writePast(past, resp)
	})
	if cerr := past.Close(); err == nil && cerr != nil {
		err = cli.Errorf(cli.Failed, "write the tables: %w", cerr)
	}
	if err != nil {
		return err
	}
	if past.Unknown > 0 {
		s.progress("%d rows are left out: they are of jobs that are not described in what is kept", past.Unknown)
	}
	for _, name := range slices.Sorted(maps.Keys(n)) {
		if _, err := fmt.Fprintf(s.stdout, "%-60s %12d rows\n", filepath.Join(dir, name+"."+string(format)), n[name]); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
	}
	return nil
}

func writePast(past *export.Past, resp *borgrpc.HistoryResponse) error {
	for _, f := range resp.Picture {
		if err := past.Picture(f); err != nil {
			return cli.Errorf(cli.Failed, "write the tables: %w", err)
		}
	}
	for _, e := range resp.Entries {
		if err := past.Add(e); err != nil {
			return cli.Errorf(cli.Failed, "write the tables: %w", err)
		}
	}
	for _, u := range resp.Usage {
		if err := past.Use(u); err != nil {
			return cli.Errorf(cli.Failed, "write the tables: %w", err)
		}
	}
	return nil
}

// pastAbout finds the largest machine, by which all amounts are shares, and the
// beginning of the window: --since, or the beginning of what is kept if that is later.
func (s *session) pastAbout(m *client.Client, req *borgrpc.HistoryRequest) (export.PastAbout, error) {
	var about export.PastAbout
	var first int64
	larger := func(f *borgpb.ObjectFacts) {
		about.LargestCPUMilli = max(about.LargestCPUMilli, f.GetCapacity().GetCpuMilli())
		about.LargestMemBytes = max(about.LargestMemBytes, f.GetCapacity().GetMemBytes())
	}
	look := &borgrpc.HistoryRequest{SinceWallNs: req.SinceWallNs, UntilWallNs: req.UntilWallNs, Facts: true}
	err := m.History(s.ctx, look, func(resp *borgrpc.HistoryResponse) error {
		for _, f := range resp.Picture {
			larger(f)
		}
		for _, e := range resp.Entries {
			if first == 0 {
				first = e.WallNs
			}
			for _, f := range e.Facts {
				larger(f)
			}
		}
		return nil
	})
	if err != nil {
		return about, err
	}
	// Nothing is known of the time between --since and the beginning of the journal.
	about.FirstWallNs = max(req.SinceWallNs, first)
	cell, err := m.GetCell(s.ctx)
	about.Cell = cell.GetCellName()
	return about, err
}
