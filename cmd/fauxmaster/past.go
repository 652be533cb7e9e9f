package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster"
	"borg/proto/borgrpc"
	"borg/scheduler"
	"borg/scheduler/flags"
	"borg/tell"
)

// atFlag says which moment is meant.
func atFlag(what string) ucli.Flag {
	return &ucli.StringFlag{Name: "at", Usage: "`MOMENT` " + what + ": an index, EPOCH:INDEX, or a time such as 2026-11-21T22:00:00Z"}
}

func stepCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "step",
		Usage:     "tell what the next entries of the log were, who asked, why, and what they changed",
		ArgsUsage: "ARCHIVE",
		Flags: []ucli.Flag{
			atFlag("to begin after (default: the first checkpoint)"),
			&ucli.UintFlag{Name: "count", Aliases: []string{"n"}, Value: 1, Usage: "`NUMBER` of entries"},
		},
		Action: step,
	}
}

func untilCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "until",
		Usage:     "go on to an index, a time, or until something comes to be so, and tell of the entry that did it",
		ArgsUsage: "ARCHIVE INDEX|TIME|task=USER/JOB/INDEX state=STATE|job=USER/JOB state=STATE|machine=NAME state=STATE",
		Flags: []ucli.Flag{
			atFlag("to begin after (default: the first checkpoint)"),
			&ucli.BoolFlag{DisableDefaultText: true, Name: "all", Usage: "tell of every entry on the way"},
		},
		Action: until,
	}
}

func replayCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "replay",
		Usage:     "apply the whole change log again and compare digests with those that the masters wrote",
		ArgsUsage: "ARCHIVE",
		Flags: append([]ucli.Flag{
			&ucli.BoolFlag{DisableDefaultText: true, Name: "verify", Usage: "compare digests (it does nothing else, so it may be left out)"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "decisions", Usage: "make the scheduler's decisions again too, and compare them bit for bit; the flags below must be those of the master then"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "all", Usage: "list every comparison, not only those that failed or could not be made"},
		}, flags.All()...),
		Action: replay,
	}
}

func whyCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "why",
		Aliases:   []string{"explain"},
		Usage:     "say why a task or an alloc waited at a moment, or for what its place was chosen",
		ArgsUsage: "CHECKPOINT|ARCHIVE USER/JOB/INDEX",
		Flags:     append([]ucli.Flag{atFlag("of an archive (default: the last one)")}, flags.All()...),
		Action:    why,
	}
}

// momentOf reads --at.
func momentOf(ctx *ucli.Context) (fauxmaster.Moment, error) {
	m, err := fauxmaster.ParseMoment(ctx.String("at"))
	if err != nil {
		return m, cli.Errorf(cli.Usage, "--at: %w", err)
	}
	return m, nil
}

// pastError gives what can go wrong with the past an exit code.
func pastError(path string, err error) error {
	var damaged *fauxmaster.DamagedError
	var reach *fauxmaster.OutOfReachError
	var noTask *fauxmaster.NoTaskError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return cli.Errorf(cli.NotFound, "there is no file or directory %s", path)
	case errors.Is(err, syscall.ENOTDIR):
		return cli.Errorf(cli.Usage, "%s is one checkpoint, and this takes an archive, which is a directory with a change log", path)
	case errors.As(err, &reach):
		e := cli.Errorf(cli.NotFound, "%w", err)
		if at, err := os.Stat(path); err == nil && !at.IsDir() {
			return e.Hint("leave --at out")
		}
		return e.Hint("what there is: borgmaster checkpoint list %s", path)
	case errors.As(err, &noTask):
		return cli.Errorf(cli.NotFound, "%w", err)
	case errors.As(err, &damaged):
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	return cli.Errorf(cli.Failed, "%w", err)
}

// openTape opens an archive at --at, or at its first checkpoint.
func openTape(ctx *ucli.Context, path string) (*fauxmaster.Tape, error) {
	past, err := fauxmaster.OpenPast(path)
	if err != nil {
		return nil, pastError(path, err)
	}
	m, err := momentOf(ctx)
	if err != nil {
		return nil, err
	}
	if m == (fauxmaster.Moment{}) {
		m = past.First()
	}
	t, err := past.At(m)
	return t, pastError(path, err)
}

func step(ctx *ucli.Context) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want one archive").Hint("fauxmaster step ARCHIVE --at INDEX")
	}
	path, w := ctx.Args().First(), ctx.App.Writer
	t, err := openTape(ctx, path)
	if err != nil {
		return err
	}
	defer t.Close()
	for range ctx.Uint("count") {
		s, err := t.Step()
		if errors.Is(err, io.EOF) {
			fmt.Fprintf(ctx.App.ErrWriter, "the change log ends at index %d\n", t.Cell.Index())
			return nil
		}
		if err != nil {
			return pastError(path, err)
		}
		printStep(w, s)
	}
	fmt.Fprintf(ctx.App.ErrWriter, "go on: fauxmaster step %s --at %d:%d\n", path, t.Cell.Epoch(), t.Cell.Index())
	return nil
}

func printStep(w io.Writer, s *fauxmaster.Step) {
	for _, line := range s.Lines() {
		fmt.Fprintln(w, line)
	}
}

func until(ctx *ucli.Context) error {
	if ctx.NArg() < 2 {
		return cli.Errorf(cli.Usage, "want an archive, and until when").Hint("fauxmaster until ARCHIVE task=alice/web/3 state=dead")
	}
	path, words := ctx.Args().First(), ctx.Args().Tail()
	reached, err := target(words)
	if err != nil {
		return err
	}
	t, err := openTape(ctx, path)
	if err != nil {
		return err
	}
	defer t.Close()
	if reached(t.Cell, nil) {
		fmt.Fprintf(ctx.App.ErrWriter, "so it is at index %d already\n", t.Cell.Index())
		return nil
	}
	for {
		s, err := t.Step()
		if errors.Is(err, io.EOF) {
			return cli.Errorf(cli.NotFound, "the change log ends at index %d, and it has not come to that", t.Cell.Index())
		}
		if err != nil {
			return pastError(path, err)
		}
		done := reached(t.Cell, s)
		if done || ctx.Bool("all") {
			printStep(ctx.App.Writer, s)
		}
		if done {
			fmt.Fprintf(ctx.App.ErrWriter, "go on: fauxmaster step %s --at %d:%d\n", path, t.Cell.Epoch(), t.Cell.Index())
			return nil
		}
		if err := ctx.Context.Err(); err != nil {
			return err
		}
	}
}

// target tells whether a cell has come to an index, a time or a condition.
func target(words []string) (func(*cell.Cell, *fauxmaster.Step) bool, error) {
	if len(words) == 1 {
		if m, err := fauxmaster.ParseMoment(words[0]); err == nil {
			return func(c *cell.Cell, s *fauxmaster.Step) bool {
				if m.Wall.IsZero() {
					return c.Index() >= m.Index
				}
				return s != nil && s.Entry.Entry.GetWallTimeNs() >= m.Wall.UnixNano()
			}, nil
		}
	}
	condition, err := fauxmaster.ParseCondition(words)
	if err != nil {
		return nil, cli.Errorf(cli.Usage, "%w", err)
	}
	return func(c *cell.Cell, _ *fauxmaster.Step) bool { return condition.Holds(c) }, nil
}

func replay(ctx *ucli.Context) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want one archive").Hint("fauxmaster replay --verify ARCHIVE")
	}
	path := ctx.Args().First()
	past, err := fauxmaster.OpenPast(path)
	if err != nil {
		return pastError(path, err)
	}
	var with fauxmaster.Replay
	if ctx.Bool("decisions") {
		search, err := flags.Config(ctx)
		if err != nil {
			return err
		}
		with.Decide = &search
	}
	began := time.Now()
	r, err := past.Verify(with)
	if err != nil {
		return pastError(path, err)
	}
	return printReport(ctx, path, r, time.Since(began))
}

func printReport(ctx *ucli.Context, path string, r *fauxmaster.Report, took time.Duration) error {
	w := ctx.App.Writer
	var t tell.Table
	t.Head("EPOCH", "INDEX", "COMPARED WITH", "OUTCOME")
	rows := 0
	for _, c := range r.Checks {
		outcome := tell.Cell{Text: "the same", Style: tell.Good}
		switch {
		case c.Differs != "":
			outcome = tell.Cell{Text: "DIFFERS: " + c.Differs, Style: tell.Bad}
		case c.Skipped != "":
			outcome = tell.Cell{Text: "not compared: " + c.Skipped, Style: tell.Waiting}
		case !ctx.Bool("all"):
			continue
		}
		rows++
		t.Add(c.Epoch, c.Index, c.With, outcome)
	}
	if rows > 0 {
		if err := t.Write(w, false, ""); err != nil {
			return err
		}
	}
	for _, gap := range r.Gaps {
		fmt.Fprintf(w, "not replayed: %s\n", gap)
	}
	made, differ := r.Compared()
	fmt.Fprintf(w, "%d entries applied again in %v; %d digests compared, %d differ\n", r.Entries, took.Round(time.Millisecond), made, differ)
	d := r.Decisions
	if ctx.Bool("decisions") {
		fmt.Fprintf(w, "%d batches of decisions made again, %d differ; %d not made again\n", d.Same+d.Differ, d.Differ, d.Skipped)
		for _, text := range []string{d.Difference, d.Why} {
			if text != "" {
				fmt.Fprintf(w, "  first: %s\n", text)
			}
		}
	}
	switch {
	case differ > 0 || d.Differ > 0:
		return cli.Errorf(cli.Failed, "what is replayed from %s is not what the masters had", path)
	case made == 0 && r.Entries > 0:
		return cli.Errorf(cli.Failed, "%s holds no digest to compare with", path).Hint("elected masters log one now and then, and each checkpoint has one")
	}
	return nil
}

func why(ctx *ucli.Context) error {
	if ctx.NArg() != 2 {
		return cli.Errorf(cli.Usage, "want a checkpoint or an archive, and a task").Hint("fauxmaster why ARCHIVE alice/web/3 --at INDEX")
	}
	path := ctx.Args().First()
	id, err := cell.ParseTaskID(ctx.Args().Get(1))
	if err != nil {
		return cli.Errorf(cli.Usage, "%w", err)
	}
	m, err := momentOf(ctx)
	if err != nil {
		return err
	}
	search, err := flags.Config(ctx)
	if err != nil {
		return err
	}
	resp, at, err := explain(path, id, m, search)
	if err != nil {
		return err
	}
	fmt.Fprintf(ctx.App.ErrWriter, "cell %s, %s\n", at.Header.GetCellName(), at.AsOf())
	return tell.Why(ctx.App.Writer, false, id.String(), resp)
}

// explain asks a file, or an archive at a moment.
func explain(path string, id cell.TaskID, m fauxmaster.Moment, search scheduler.Config) (resp *borgrpc.WhyResponse, at *fauxmaster.Picture, err error) {
	if info, serr := os.Stat(path); serr == nil && info.IsDir() {
		past, err := fauxmaster.OpenPast(path)
		if err != nil {
			return nil, nil, pastError(path, err)
		}
		resp, at, err = past.Explain(id, m, search)
		return resp, at, pastError(path, err)
	}
	if at, err = fauxmaster.OpenAt(path, m); err != nil {
		return nil, nil, pastError(path, err)
	}
	resp, err = fauxmaster.Explain(at.Cell, id, search)
	return resp, at, pastError(path, err)
}
