package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/cell"
	"borg/cfg"
	"borg/cli"
	"borg/fauxmaster"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
	"borg/scheduler"
	"borg/scheduler/flags"
)

// openCell opens a checkpoint, or an archive at its end, to ask it something.
func openCell(ctx *ucli.Context, usage string) (*fauxmaster.Picture, error) {
	if ctx.NArg() != 1 {
		return nil, cli.Errorf(cli.Usage, "want one checkpoint file or archive").Hint("fauxmaster %s", usage)
	}
	return openPath(ctx.Args().First())
}

func openPath(path string) (*fauxmaster.Picture, error) {
	p, err := fauxmaster.OpenAt(path, fauxmaster.Moment{})
	if err != nil {
		return nil, pastError(path, err)
	}
	return p, nil
}

// schedulerFlags say how the scheduler searches. The defaults are those of a live cell.
func schedulerFlags() []ucli.Flag {
	return append(flags.Scoring(), &ucli.Uint64Flag{Name: "seed", Usage: "of the order in which the scheduler looks at machines (default: 0, as in a live cell)"})
}

// schedulerConfig reads schedulerFlags.
func schedulerConfig(ctx *ucli.Context) (scheduler.Config, error) {
	c := scheduler.Config{Seed: ctx.Uint64("seed")}
	err := flags.Score(ctx, &c)
	return c, err
}

// liveFlags are schedulerFlags and those of the rescheduler, for questions about a cell
// that goes on as it is.
func liveFlags() []ucli.Flag { return append(schedulerFlags(), flags.Rescheduling()...) }

// liveConfig reads liveFlags.
func liveConfig(ctx *ucli.Context) (scheduler.Config, error) {
	c, err := schedulerConfig(ctx)
	if err == nil {
		err = flags.Reschedule(ctx, &c)
	}
	return c, err
}

// restConfig is liveConfig without --policy and --weight, which a change brings.
func restConfig(ctx *ucli.Context) (scheduler.Config, error) {
	c := scheduler.Config{Seed: ctx.Uint64("seed")}
	return c, flags.Reschedule(ctx, &c)
}

// jobFlags name job files.
func jobFlags(usage string) []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringSliceFlag{Name: "job", Usage: usage},
		&ucli.StringSliceFlag{Name: "set", Usage: "`NAME=VALUE` of a parameter of the job files, may be repeated"},
		&ucli.StringFlag{Name: "user", Value: "fauxmaster", Usage: "owner of jobs that name none"},
	}
}

// readObjects evaluates job files.
func readObjects(ctx *ucli.Context, paths []string) (all []*cfg.Object, err error) {
	params := make(map[string]string)
	for _, text := range ctx.StringSlice("set") {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, cli.Errorf(cli.Usage, "--set %s: want NAME=VALUE", text)
		}
		params[name] = value
	}
	for _, path := range paths {
		f, err := cfg.Evaluate(path, cfg.Options{Params: params, User: ctx.String("user")})
		if err != nil {
			return nil, cli.Errorf(cli.Invalid, "%w", err)
		}
		for _, o := range f.Objects {
			if fault := o.Lacks(); fault != nil {
				return nil, cli.Errorf(cli.Invalid, "%w", fault)
			}
		}
		all = append(all, f.Objects...)
	}
	return all, nil
}

// reportFlags say how an answer is written.
func reportFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table or json"},
		&ucli.StringFlag{Name: "html", Usage: "write a page with charts into `FILE` too"},
	}
}

// report is an answer in its three forms.
type report struct {
	// value is the JSON.
	value any
	table func(w io.Writer) error
	page  func() *page
}

func (r report) write(ctx *ucli.Context) error {
	if path := ctx.String("html"); path != "" {
		if err := r.page().write(path); err != nil {
			return err
		}
	}
	switch format := ctx.String("output"); format {
	case "table":
		return r.table(ctx.App.Writer)
	case "json":
		e := json.NewEncoder(ctx.App.Writer)
		e.SetIndent("", "  ")
		return e.Encode(r.value)
	default:
		return cli.Errorf(cli.Usage, "there is no output format %q", format).Hint("use -o table or -o json")
	}
}

// columns aligns rows of text; what comes from files is made visible.
type columns struct {
	t *tabwriter.Writer
}

func newColumns(w io.Writer) columns { return columns{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

func (c columns) row(values ...any) {
	for i, v := range values {
		end := "\t"
		if i == len(values)-1 {
			end = "\n"
		}
		text := cli.Visible(fmt.Sprint(v))
		if text == "" {
			text = "-"
		}
		fmt.Fprint(c.t, text, end)
	}
}

func (c columns) end() error { return c.t.Flush() }

// cpuWords is an amount of CPU: "0.5", "2".
func cpuWords(milli int64) string {
	s := strconv.FormatFloat(float64(milli)/1000, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// bytesWords is an amount of bytes to about three digits: "64 MiB".
func bytesWords(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	s := strconv.FormatFloat(v, 'f', 1, 64)
	if v >= 100 || i == 0 {
		s = strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(s, ".0") + " " + units[i]
}

// resourcesWords is CPU and memory for people.
func resourcesWords(r cell.Resources) string {
	return cpuWords(r.CPUMilli) + " cpu, " + bytesWords(r.MemBytes)
}

// numberOf is a count with its noun: "1 task", "12,477 machines".
func numberOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// asError is the error for people in err; nil: there is none.
func asError(err error) *cli.Error {
	var e *cli.Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// modelError makes an error of the model one for people.
func modelError(what string, err error) error {
	var refused *plan.Refused
	if errors.As(err, &refused) {
		code := cli.Refused
		if refused.Why.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND {
			code = cli.NotFound
		}
		e := cli.Errorf(code, "%s: %w", what, err)
		switch refused.Why.GetKind() {
		case borgpb.RefusalKind_REFUSAL_KIND_QUOTA, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION:
			return e.Hint("this is a picture of a cell, which borgcfg does not change; to ask as a user who has what is wanted: --user USER")
		}
		return e
	}
	return cli.Errorf(cli.Failed, "%s: %w", what, err)
}
