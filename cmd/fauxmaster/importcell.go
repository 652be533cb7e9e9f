package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/fauxmaster/workload"
	"borg/scheduler"
	"borg/scheduler/reservation"
)

func importCommand() *ucli.Command {
	out := &ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "the checkpoint `FILE` to make"}
	usage := &ucli.StringSliceFlag{Name: "usage", Usage: "`FILE` of what tasks used, in the columns of the sample of Google's trace of 2019, may be repeated: tasks that run reserve what a drawn task of their tier would"}
	setting := &ucli.StringFlag{Name: "reservations", Usage: "with --usage, how much is kept beyond what is used: conservative, medium, aggressive (default: medium)"}
	flags := func(more ...ucli.Flag) []ucli.Flag {
		return append([]ucli.Flag{out, cli.ForceFlag(), usage, setting}, more...)
	}
	return &ucli.Command{
		Name:  "import",
		Usage: "make a checkpoint of a cell that somebody else ran",
		Subcommands: []*ucli.Command{
			{
				Name: "google2011", Usage: "from Google's trace of 2011, at one moment, or from there on", ArgsUsage: "DIRECTORY",
				Flags:  flags(traceAtFlag("0, the beginning"), traceUntilFlag()),
				Action: importGoogle2011,
			},
			{
				Name: "google2019", Usage: "from tables like those of Google's trace of 2019, at one moment, or from there on", ArgsUsage: "DIRECTORY",
				Flags:  flags(traceAtFlag("0, the beginning; of tables that export wrote, their end"), traceUntilFlag()),
				Action: importGoogle2019,
			},
			{
				Name: "openb", Usage: "from the openb trace: all of its pods wait", ArgsUsage: "MACHINES PODS",
				Flags: flags(
					&ucli.Int64Flag{Name: "percent", Usage: "draw pods until they ask for so many `PERCENT` of the GPUs, as the published measurements do; 0: each pod once"},
					&ucli.Uint64Flag{Name: "seed", Value: 42, Usage: "of the draw"},
					&ucli.BoolFlag{DisableDefaultText: true, Name: "recorded", Usage: "pods come and go when they did: -o is the directory of an archive then, for simulate"}),
				Action: importOpenb,
			},
			{
				Name: "csv", Usage: "from two tables of one's own", ArgsUsage: "MACHINES TASKS",
				Flags: flags(), Action: importCSV,
			},
			{
				Name: "kubernetes", Usage: "from kubectl get nodes,pods,deployments,statefulsets,daemonsets,jobs,pdb,priorityclasses,pv,pvc -A -o json", ArgsUsage: "FILE...",
				Flags: flags(
					&ucli.StringFlag{Name: "rack-label", Usage: "`LABEL` of nodes that names the rack"},
					&ucli.StringFlag{Name: "power-label", Value: "topology.kubernetes.io/zone", Usage: "`LABEL` of nodes that names the power domain"}),
				Action: importKubernetes,
			},
			{
				Name: "nomad", Usage: "from the JSON of Nomad's API: nodes, allocations, jobs", ArgsUsage: "FILE...",
				Flags: flags(), Action: importNomad,
			},
		},
	}
}

func traceAtFlag(unsaid string) ucli.Flag {
	return &ucli.Int64Flag{Name: "at", DefaultText: unsaid, Usage: "`MICROSECONDS` of the trace"}
}

func traceUntilFlag() ucli.Flag {
	return &ucli.DurationFlag{Name: "until", Usage: "also what arrives and ends up to this `TIME` of the trace, such as 8h30m: -o is the directory of an archive then, for simulate"}
}

// momentUs is the moment of --at; without the flag the trace chooses.
func momentUs(ctx *ucli.Context) int64 {
	if !ctx.IsSet("at") {
		return trace.Unsaid
	}
	return max(ctx.Int64("at"), 0)
}

func importGoogle2011(ctx *ucli.Context) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want the directory that has machine_events and task_events").Hint("fauxmaster import google2011 DIRECTORY -o google.ckpt")
	}
	return importWith(ctx, "google2011", func() (*trace.Cell, error) {
		return trace.LoadGoogle2011(ctx.Args().First(), momentUs(ctx), ctx.Duration("until").Microseconds())
	})
}

func importGoogle2019(ctx *ucli.Context) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want the directory that has machine_events, collection_events and instance_events").Hint("fauxmaster import google2019 DIRECTORY -o google.ckpt")
	}
	return importWith(ctx, "google2019", func() (*trace.Cell, error) {
		return trace.LoadGoogle2019(ctx.Args().First(), momentUs(ctx), ctx.Duration("until").Microseconds())
	})
}

func importOpenb(ctx *ucli.Context) error {
	if ctx.NArg() != 2 {
		return cli.Errorf(cli.Usage, "want the list of machines and a list of pods").Hint("fauxmaster import openb machines.csv tasks.csv -o openb.ckpt")
	}
	return importWith(ctx, "openb", func() (*trace.Cell, error) {
		o, err := trace.LoadOpenb(ctx.Args().Get(0), ctx.Args().Get(1))
		if err != nil {
			return nil, err
		}
		if ctx.Bool("recorded") {
			return o.Recorded(), nil
		}
		pods := o.Pods
		if percent := ctx.Int64("percent"); percent > 0 {
			if pods, err = o.Inflate(ctx.Uint64("seed"), percent); err != nil {
				return nil, err
			}
		}
		c := o.Cell(pods)
		if n := len(o.Machines) - len(c.Machines); n > 0 {
			c.Notes = map[string]int{"machines without a GPU are left out, as in the published measurements": n}
		}
		return c, nil
	})
}

func importCSV(ctx *ucli.Context) error {
	if ctx.NArg() != 2 {
		return cli.Errorf(cli.Usage, "want a table of machines and one of tasks").Hint("fauxmaster import csv machines.csv tasks.csv -o cell.ckpt")
	}
	return importWith(ctx, "csv", func() (*trace.Cell, error) {
		return trace.LoadTables(ctx.Args().Get(0), ctx.Args().Get(1))
	})
}

const (
	// fromKubernetes and fromNomad are how to get the files that are read.
	fromKubernetes = "kubectl get nodes,pods,deployments,statefulsets,daemonsets,jobs,pdb,priorityclasses,pv,pvc -A -o json > cluster.json\nfauxmaster import kubernetes cluster.json -o cluster.ckpt"
	fromNomad      = "curl $NOMAD_ADDR/v1/nodes?resources=true > nodes.json\ncurl $NOMAD_ADDR/v1/allocations?resources=true > allocs.json\nfauxmaster import nomad nodes.json allocs.json -o cluster.ckpt"
)

func importKubernetes(ctx *ucli.Context) error {
	if ctx.NArg() == 0 {
		return cli.Errorf(cli.Usage, "want what kubectl wrote").Hint(fromKubernetes)
	}
	return importWith(ctx, "kubernetes", func() (*trace.Cell, error) {
		return trace.LoadKubernetes(trace.KubernetesLabels{Rack: ctx.String("rack-label"), Power: ctx.String("power-label")}, ctx.Args().Slice()...)
	})
}

func importNomad(ctx *ucli.Context) error {
	if ctx.NArg() == 0 {
		return cli.Errorf(cli.Usage, "want what Nomad's API said").
			Hint(fromNomad)
	}
	return importWith(ctx, "nomad", func() (*trace.Cell, error) { return trace.LoadNomad(ctx.Args().Slice()...) })
}

// importWith reads a cell, makes it and writes it down.
func importWith(ctx *ucli.Context, kind string, read func() (*trace.Cell, error)) error {
	out := ctx.String("output")
	if out == "" {
		return cli.Errorf(cli.Usage, "where is the checkpoint to go?").Hint("add -o FILE")
	}
	if err := cli.NewFile(out, ctx.Bool("force")); err != nil {
		return err
	}
	use, err := drawnUse(ctx)
	if err != nil {
		return err
	}
	from, err := read()
	var at *trace.Error
	var path *os.PathError
	switch {
	case errors.As(err, &at):
		return cli.Errorf(cli.Invalid, "%w", err)
	case errors.Is(err, trace.ErrNotJSON) && kind == "kubernetes":
		return cli.Errorf(cli.Invalid, "%w", err).Hint(fromKubernetes)
	case errors.Is(err, trace.ErrNotJSON):
		return cli.Errorf(cli.Invalid, "%w", err).Hint(fromNomad)
	case errors.As(err, &path) && errors.Is(err, os.ErrNotExist):
		return cli.Errorf(cli.NotFound, "there is no file %s", path.Path)
	case err != nil:
		return cli.Errorf(cli.Invalid, "import %s: %w", kind, err)
	}
	name := "imported-" + kind
	from.Use(use.draw)
	// Two imports are two cells, whatever they are of.
	wallNs := time.Now().UnixNano()
	c, made, err := plan.Make(fmt.Sprintf("%s-%d", name, wallNs), wallNs, from, use.reserved())
	if err != nil {
		return modelError("make the cell", err)
	}
	if from.Recorded() {
		return importArchive(ctx, out, name, c, from, made)
	}
	if err := writeCheckpoint(out, name, c); err != nil {
		return err
	}
	if err := madeTable(ctx.App.Writer, out, from.Moment, made); err != nil {
		return err
	}
	warnEmpty(ctx.App.ErrWriter, from, made)
	return nil
}

// warnEmpty warns of a cell of which nothing can be asked.
func warnEmpty(w io.Writer, from *trace.Cell, made *plan.Made) {
	what := ""
	switch tasks := made.Running + made.Pending; {
	case made.Machines == 0:
		what = fmt.Sprintf("the cell has no machines and %s", numberOf(tasks, "task"))
	case tasks == 0 && len(from.Arrivals) == 0:
		what = fmt.Sprintf("the cell has %s and no tasks", numberOf(made.Machines, "machine"))
	default:
		return
	}
	if from.Moment != "" {
		what += fmt.Sprintf(" (%s)\n  another moment of the trace: --at MICROSECONDS", from.Moment)
	}
	fmt.Fprintf(w, "warning: %s\n", what)
}

// importArchive writes the cell and what arrives at it.
func importArchive(ctx *ucli.Context, dir, name string, c *cell.Cell, from *trace.Cell, made *plan.Made) error {
	tasks := 0
	for i := range from.Arrivals {
		tasks += len(from.Arrivals[i].Histories)
	}
	refused, err := workload.Write(dir, name, c, from.Arrivals, from.LastNs)
	if err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	if err := madeTable(ctx.App.Writer, dir, from.Moment, made); err != nil {
		return err
	}
	t := newColumns(ctx.App.Writer)
	t.row("arrivals", fmt.Sprintf("%s in %v, of %s", numberOf(len(from.Arrivals), "op"), time.Duration(from.LastNs), numberOf(tasks, "task")))
	for _, words := range slices.Sorted(maps.Keys(refused)) {
		t.row("refused", fmt.Sprintf("%s: %s", thousands(refused[words]), words))
	}
	if err := t.end(); err != nil {
		return err
	}
	warnEmpty(ctx.App.ErrWriter, from, made)
	fmt.Fprintf(ctx.App.ErrWriter, "next: fauxmaster simulate %s\n", dir)
	return nil
}

// writeCheckpoint writes a cell into a file that is there as a whole or not at
// all.
func writeCheckpoint(path, name string, c *cell.Cell) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err == nil {
		err = workload.Stream(f, name, c)
		err = errors.Join(err, f.Close())
		if err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			os.Remove(f.Name())
		}
	}
	if err != nil {
		return cli.Errorf(cli.Failed, "write %s: %w", path, err)
	}
	return nil
}

func madeTable(w io.Writer, path, moment string, m *plan.Made) error {
	c := newColumns(w)
	c.row("checkpoint", path)
	if moment != "" {
		c.row("moment", moment)
	}
	c.row("machines", fmt.Sprintf("%s with %s", thousands(m.Machines), resourcesWords(m.Capacity)))
	c.row("jobs", thousands(m.Jobs))
	c.row("running", fmt.Sprintf("%s; asked for are %s%s", numberOf(m.Running, "task"), resourcesWords(m.Asked), shareWords(m.Asked, m.Capacity)))
	c.row("pending", fmt.Sprintf("%s; asked for are %s", numberOf(m.Pending, "task"), resourcesWords(m.Waiting)))
	if m.OvercommittedCPU+m.OvercommittedMem > 0 {
		c.row("overcommitted", fmt.Sprintf("%s by CPU, %s by memory: taken as they are", numberOf(m.OvercommittedCPU, "machine"), numberOf(m.OvercommittedMem, "machine")))
	}
	if m.Strangers > 0 {
		c.row("strangers", fmt.Sprintf("%s ran on machines that are not listed; put where most memory is free", numberOf(m.Strangers, "task")))
	}
	if m.Crowded > 0 {
		c.row("crowded", fmt.Sprintf("%s had more tasks in one failure domain than allowed; the limit was raised to what was there", numberOf(m.Crowded, "job")))
	}
	if m.Unsuited > 0 {
		c.row("unsuited", fmt.Sprintf("%s on machines that do not meet their constraints; they stay until they end or move", numberOf(m.Unsuited, "task")))
	}
	if m.Unknown > 0 {
		c.row("unknown", fmt.Sprintf("%s left out: nobody says what they asked for", numberOf(m.Unknown, "task")))
	}
	for _, kind := range []struct {
		word   string
		counts map[string]int
	}{{"not where it ran", m.Misplaced}, {"refused", m.Refused}, {"not mapped", m.Notes}} {
		for _, words := range slices.Sorted(maps.Keys(kind.counts)) {
			c.row(kind.word, fmt.Sprintf("%s: %s", thousands(kind.counts[words]), words))
		}
	}
	return c.end()
}

func shareWords(of, all cell.Resources) string {
	if all.CPUMilli == 0 || all.MemBytes == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f %% and %.1f %% of it)", 100*float64(of.CPUMilli)/float64(all.CPUMilli), 100*float64(of.MemBytes)/float64(all.MemBytes))
}

// reservationSeed is what uses are drawn with.
const reservationSeed = 2019

// drawn is what tasks use, drawn from the rows of their tier; nil: there are none.
type drawn struct {
	of      *trace.Usage2019
	setting reservation.Setting
}

// drawnUse reads the rows that --usage names.
func drawnUse(ctx *ucli.Context) (*drawn, error) {
	files := ctx.StringSlice("usage")
	if len(files) == 0 {
		return nil, nil
	}
	setting, err := reservation.ParseSetting(ctx.String("reservations"))
	if err != nil {
		return nil, cli.Errorf(cli.Usage, "--reservations: %w", err)
	}
	u, err := trace.LoadUsage2019(files...)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "%w", err)
	}
	for tier := range trace.NumTiers {
		if u.Len(tier) == 0 {
			return nil, cli.Errorf(cli.Invalid, "%s say nothing of tasks of tier %v", strings.Join(files, " and "), tier)
		}
	}
	return &drawn{u, setting}, nil
}

// draw gives a task that arrives, or tells what became of it, its use.
func (d *drawn) draw(user, name string, priority int32, index int) (cpuPermille, memPermille uint32) {
	if d == nil {
		return 0, 0
	}
	h := fnv.New64a()
	h.Write([]byte(user + "/" + name))
	use := d.row(priority, h.Sum64(), uint64(index))
	return perMille(use.CPUMean), perMille(use.MemPeak)
}

// perMille is a share of a limit, of which no more can be reserved.
func perMille(share uint32) uint32 {
	return max(uint32(min(uint64(share)*1000/trace.One, 1000)), 1)
}

func (d *drawn) row(priority int32, job, index uint64) trace.Use {
	tier := trace.TierOf(priority)
	r := rand.New(rand.NewPCG(reservationSeed^job, index))
	return d.of.At(tier, r.IntN(d.of.Len(tier)))
}

// reserved gives every task that runs the reservation that a task comes to that goes on
// using what was drawn.
func (d *drawn) reserved() scheduler.Reserved {
	if d == nil {
		return nil
	}
	told := make(map[cell.UID][]trace.History)
	return func(j *cell.Job, index uint32) cell.Resources {
		all, ok := told[j.UID()]
		if !ok {
			// An extension that is damaged was never made here.
			all, _ = trace.Histories(j.Spec())
			told[j.UID()] = all
		}
		res := j.Need(index).Resources
		if all != nil {
			return workload.Reserved(res, &all[index], d.setting)
		}
		use := d.row(j.Priority(), j.UID().Index<<32^uint64(j.UID().N), uint64(index))
		limit, with := reservation.Amounts{CPUMilli: res.CPUMilli, MemBytes: res.MemBytes}, d.setting.Config()
		t := reservation.Begin(0, limit)
		t.Use(100*with.HalfLifeNs, limit, reservation.Amounts{
			CPUMilli: min(of(use.CPUMean, res.CPUMilli), res.CPUMilli), MemBytes: min(of(use.MemPeak, res.MemBytes), res.MemBytes),
		}, false, with)
		res.CPUMilli, res.MemBytes = t.Reserved().CPUMilli, t.Reserved().MemBytes
		return res
	}
}

// of is a share of an amount, as trace gives it.
func of(share uint32, amount int64) int64 {
	return amount/trace.One*int64(share) + amount%trace.One*int64(share)/trace.One
}
