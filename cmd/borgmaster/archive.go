package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/replica"
	"borg/checkpoint"
	"borg/cli"
)

// archiveFlags say what of the past a replica keeps.
func archiveFlags() []ucli.Flag {
	r := checkpoint.DefaultRetention()
	return []ucli.Flag{
		&ucli.BoolFlag{Name: "no-archive", Usage: "keep neither checkpoints nor the change log"},
		&ucli.DurationFlag{Name: "checkpoint-every", Value: r.Every, Usage: "make a checkpoint so often; `TIME` 0: not by time"},
		&ucli.Uint64Flag{Name: "checkpoint-entries", Value: r.EveryEntries, Usage: "make a checkpoint after `N` entries of the log; 0: not by their number"},
		&ucli.DurationFlag{Name: "keep-all", Value: r.All, Usage: "keep every checkpoint for this `TIME`"},
		&ucli.DurationFlag{Name: "keep-hourly", Value: r.Hourly, Usage: "keep one checkpoint of each hour for this `TIME`"},
		&ucli.DurationFlag{Name: "keep-daily", Value: r.Daily, Usage: "keep one checkpoint of each day for this `TIME`"},
		&ucli.DurationFlag{Name: "keep-log", Value: r.Log, Usage: "keep the change log for this `TIME`"},
		&ucli.Uint64Flag{Name: "archive-mib", Value: uint64(r.MaxBytes >> 20), Usage: "keep at most `N` MiB of the past; what is oldest goes first"},
		&ucli.StringSliceFlag{Name: "push", Usage: "copy each checkpoint to `PLACE` as it is made: a directory, or s3://BUCKET/PREFIX; may be repeated"},
	}
}

// archiveConfig reads them; nil: nothing is kept.
func archiveConfig(ctx *ucli.Context, cell string) (*replica.ArchiveConfig, error) {
	push := ctx.StringSlice("push")
	if ctx.Bool("no-archive") {
		if len(push) > 0 {
			return nil, cli.Errorf(cli.Usage, "--no-archive makes no checkpoints, so --push has nothing to copy")
		}
		return nil, nil
	}
	const maxMiB = 1 << 30
	mib := ctx.Uint64("archive-mib")
	if mib == 0 || mib > maxMiB {
		return nil, cli.Errorf(cli.Usage, "--archive-mib %d: want 1 to %d; to keep nothing: --no-archive", mib, maxMiB)
	}
	config := &replica.ArchiveConfig{Retention: checkpoint.Retention{
		Every: ctx.Duration("checkpoint-every"), EveryEntries: ctx.Uint64("checkpoint-entries"),
		All: ctx.Duration("keep-all"), Hourly: ctx.Duration("keep-hourly"), Daily: ctx.Duration("keep-daily"),
		Log: ctx.Duration("keep-log"), MaxBytes: int64(mib) << 20,
	}}
	if err := config.Retention.Validate(); err != nil {
		return nil, cli.Errorf(cli.Usage, "%w", err)
	}
	if every := config.Retention.Every; every > 0 && every < time.Second {
		return nil, cli.Errorf(cli.Usage, "--checkpoint-every %s: want 1s or more, or 0", every)
	}
	for _, place := range push {
		to, err := destination(place, cell)
		if err != nil {
			return nil, err
		}
		config.Push = append(config.Push, to)
	}
	return config, nil
}

// destination is a place as --push names it.
func destination(place, cell string) (checkpoint.Destination, error) {
	scheme, _, isURL := strings.Cut(place, "://")
	switch {
	case place == "":
		return nil, cli.Errorf(cli.Usage, "--push: want a directory or s3://BUCKET/PREFIX")
	case !isURL:
		return checkpoint.Directory{Path: filepath.Join(place, cell)}, nil
	case scheme != "s3":
		return nil, cli.Errorf(cli.Usage, "--push %q: want a directory or s3://BUCKET/PREFIX", place)
	}
	u, err := url.Parse(place)
	if err != nil || u.Host == "" {
		return nil, cli.Errorf(cli.Usage, "--push %q: want s3://BUCKET/PREFIX", place)
	}
	return newBucket(u, cell)
}

// archiveAt opens the archive of a directory: that itself, or one in the
// directory of a replica.
func archiveAt(ctx *ucli.Context, verb string) (*checkpoint.Archive, string, error) {
	if ctx.NArg() != 1 {
		return nil, "", cli.Errorf(cli.Usage, "want one directory").Hint("borgmaster checkpoint %s DIRECTORY", verb)
	}
	dir := ctx.Args().First()
	if _, err := checkpoint.ReadIdentity(nil, dir); !errors.Is(err, checkpoint.ErrNotInitialised) {
		dir = filepath.Join(dir, checkpoint.ArchiveDir)
	}
	a, err := checkpoint.OpenArchive(nil, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", cli.Errorf(cli.NotFound, "there is no directory %s", dir)
	}
	if err != nil {
		return nil, "", cli.Errorf(cli.Failed, "%s: %w", verb, err)
	}
	return a, dir, nil
}

// listArchive says what an archive has, and what is missing in it.
func listArchive(ctx *ucli.Context) error {
	a, dir, err := archiveAt(ctx, "list")
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(ctx.App.Writer, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "FILE\tFROM\tTO\tWALL TIME\tBYTES")
	for _, k := range a.Checkpoints() {
		h := k.Header
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%d\n", k.Name, h.GetIndex(), h.GetIndex(), wallText(h.GetWallTimeNs()), k.Bytes)
	}
	segments := a.Segments()
	for i, s := range segments {
		last := ""
		if i+1 < len(segments) && segments[i+1].Header.GetEpoch() == s.Header.GetEpoch() {
			last = fmt.Sprint(segments[i+1].Header.GetPreviousIndex())
		} else if info, err := inspect(a, s); err == nil && info.Entries > 0 {
			last = fmt.Sprint(info.Last)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\n", s.Name, s.Header.GetFirstIndex(), last, wallText(s.Header.GetWallTimeNs()), s.Bytes)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range segments {
		if h := s.Header; h.GetGap() != "" {
			gap := checkpoint.GapError{Epoch: h.GetEpoch(), From: h.GetPreviousIndex() + 1, To: h.GetFirstIndex() - 1, Why: h.GetGap()}
			fmt.Fprintf(ctx.App.Writer, "%s\n", cli.Visible(gap.Error()))
		}
	}
	for _, d := range a.Damaged() {
		fmt.Fprintf(ctx.App.ErrWriter, "borgmaster: %s: %v\n", filepath.Join(dir, d.Name), d.Err)
	}
	if len(a.Damaged()) > 0 {
		return cli.Errorf(cli.Invalid, "%d files of %s cannot be used", len(a.Damaged()), dir)
	}
	return nil
}

func wallText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }

func inspect(a *checkpoint.Archive, s checkpoint.Segment) (info *checkpoint.SegmentInfo, err error) {
	f, err := a.OpenSegment(s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return checkpoint.InspectSegment(f)
}

// verifyArchive reads every byte of an archive.
func verifyArchive(ctx *ucli.Context) error {
	a, dir, err := archiveAt(ctx, "verify")
	if err != nil {
		return err
	}
	bad := 0
	tell := func(name string, err error) {
		if err != nil {
			bad++
			fmt.Fprintf(ctx.App.ErrWriter, "borgmaster: %s: %v\n", filepath.Join(dir, name), err)
			return
		}
		fmt.Fprintf(ctx.App.Writer, "%s: ok\n", filepath.Join(dir, name))
	}
	for _, d := range a.Damaged() {
		tell(d.Name, d.Err)
	}
	for _, k := range a.Checkpoints() {
		f, err := a.OpenCheckpoint(k)
		if err == nil {
			err = errors.Join(checkpoint.Verify(f), f.Close())
		}
		tell(k.Name, err)
	}
	for _, s := range a.Stretches(0) {
		entries := 0
		var err error
		last := s.First - 1
		for e, broken := range a.Entries(s.Epoch, s.First-1) {
			if broken != nil {
				err = broken
				break
			}
			entries, last = entries+1, e.Index
		}
		// The next stretch begins after a gap that is told in the log.
		var gap *checkpoint.GapError
		if errors.As(err, &gap) && gap.Why != "" {
			fmt.Fprintf(ctx.App.Writer, "%s\n", cli.Visible(gap.Error()))
			err = nil
		}
		tell(fmt.Sprintf("change log, epoch %d, entries %d to %d", s.Epoch, s.First, last), err)
	}
	if bad > 0 {
		return cli.Errorf(cli.Invalid, "verify %s: %d of its parts are damaged or missing", dir, bad)
	}
	return nil
}

// inspectSegment is for files that are no checkpoint; not is what that error was.
func inspectSegment(ctx *ucli.Context, f *os.File, not error) error {
	info, err := segmentOf(f, not)
	if err != nil {
		return err
	}
	h := info.Header
	state := "ended in order"
	if !info.Sealed {
		state = "being written, or ended by a crash"
	}
	printRows(ctx, [][2]string{
		{"cell", h.GetCellName()},
		{"cell id", h.GetCellId()},
		{"epoch", fmt.Sprint(h.GetEpoch())},
		{"from index", fmt.Sprint(h.GetFirstIndex())},
		{"to index", fmt.Sprint(info.Last)},
		{"begun", wallText(h.GetWallTimeNs())},
		{"after", fmt.Sprint(h.GetPreviousIndex())},
		{"gap", cli.Visible(h.GetGap())},
		{"state", state},
		{"entries", fmt.Sprintf("%d, %d bytes", info.Entries, info.EntryBytes)},
		{"file", fmt.Sprintf("%d bytes, format %d; %d bytes at its end are no whole frame", info.FileBytes, h.GetFileFormat(), info.TornBytes)},
	})
	return nil
}

func verifySegment(ctx *ucli.Context, f *os.File, not error) error {
	info, err := segmentOf(f, not)
	if err == nil && !info.Sealed {
		fmt.Fprintf(ctx.App.ErrWriter, "borgmaster: %s was not ended in order: it is being written, or a crash ended it after entry %d; only its whole archive tells: borgmaster checkpoint verify DIRECTORY\n", f.Name(), info.Last)
	}
	return err
}

func segmentOf(f *os.File, not error) (*checkpoint.SegmentInfo, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	info, err := checkpoint.InspectSegment(f)
	if errors.Is(err, checkpoint.ErrNotSegment) {
		return nil, not
	}
	return info, err
}
