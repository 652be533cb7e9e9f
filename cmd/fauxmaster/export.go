package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/export"
)

const exportUsage = "export CHECKPOINT|ARCHIVE --format csv|parquet|google2019 -o DIR"

// formatGoogle2019 writes the event tables alone, as JSON.
const formatGoogle2019 = "google2019"

func exportCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "export",
		Usage:     "write tables of machines, jobs, tasks and, of an archive, events",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "format", Value: string(export.CSV), Usage: "`FORMAT`: csv, parquet, or google2019 (the event tables of Google's trace of 2019, as JSON)"},
			&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`DIRECTORY` for the tables; made if it is not there"},
			cli.ForceFlag(),
			atFlag("of an archive up to which events are told (default: its end)"),
		},
		Action: exportCell,
	}
}

func exportCell(ctx *ucli.Context) error {
	dir, format := ctx.String("output"), export.Format(ctx.String("format"))
	switch {
	case ctx.NArg() != 1:
		return cli.Errorf(cli.Usage, "want one checkpoint or archive").Hint("fauxmaster %s", exportUsage)
	case dir == "":
		return cli.Errorf(cli.Usage, "where are the tables to go?").Hint("add -o DIRECTORY")
	case format != export.CSV && format != export.Parquet && format != formatGoogle2019:
		return cli.Errorf(cli.Usage, "there is no format %q", format).Hint("use --format csv, parquet or google2019")
	}
	to, err := momentOf(ctx)
	if err != nil {
		return err
	}
	path := ctx.Args().First()
	info, err := os.Stat(path)
	if err != nil {
		return pastError(path, err)
	}
	if err := cli.NewFiles(dir, "*."+string(eventFormat(format)), ctx.Bool("force")); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cli.Errorf(cli.Failed, "make the directory: %w", err)
	}
	n := make(export.Counts)
	if info.IsDir() {
		err = exportPast(path, to, format, dir, n)
	} else {
		err = exportPicture(path, to, format, dir, n)
	}
	if err != nil {
		return err
	}
	c := newColumns(ctx.App.Writer)
	c.row("TABLE", "ROWS")
	for _, name := range slices.Sorted(maps.Keys(n)) {
		c.row(filepath.Join(dir, name+"."+string(eventFormat(format))), thousands(n[name]))
	}
	return c.end()
}

// eventFormat is that of the event tables.
func eventFormat(f export.Format) export.Format {
	if f == formatGoogle2019 {
		return export.JSON
	}
	return f
}

// exportPicture writes what one checkpoint says: as events, only that all of it is
// there.
func exportPicture(path string, at fauxmaster.Moment, f export.Format, dir string, n export.Counts) error {
	p, err := fauxmaster.OpenAt(path, at)
	if err != nil {
		return pastError(path, err)
	}
	if f != formatGoogle2019 {
		return exportError(export.State(p.Cell, f, dir, n))
	}
	e, err := export.NewEvents(p.Cell, p.Header.GetCellName(), export.JSON, dir, n)
	if err != nil {
		return exportError(err)
	}
	return exportError(e.Close())
}

// exportPast writes the events of an archive, and the cell at their end.
func exportPast(path string, to fauxmaster.Moment, f export.Format, dir string, n export.Counts) error {
	past, err := fauxmaster.OpenPast(path)
	if err != nil {
		return pastError(path, err)
	}
	t, err := past.At(past.First())
	if err != nil {
		return pastError(path, err)
	}
	defer t.Close()
	e, err := export.NewEvents(t.Cell, past.CellName(), eventFormat(f), dir, n)
	if err != nil {
		return exportError(err)
	}
	err = t.Until(to, func(s *fauxmaster.Step) error { return e.Add(t.Cell, s.Events) })
	if cerr := e.Close(); err == nil && cerr != nil {
		return exportError(cerr)
	}
	if err != nil {
		return pastError(path, err)
	}
	if f == formatGoogle2019 {
		return nil
	}
	return exportError(export.State(t.Cell, f, dir, n))
}

func exportError(err error) error {
	if err == nil {
		return nil
	}
	return cli.Errorf(cli.Failed, "write the tables: %w", err)
}
