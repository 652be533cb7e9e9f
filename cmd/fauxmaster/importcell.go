package main

import (
	"errors"
	"fmt"
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
	"borg/checkpoint"
	"borg/cli"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
	"borg/scheduler/reservation"
)

func importCommand() *ucli.Command {
	out := &ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "the checkpoint `FILE` to make"}
	usage := &ucli.StringSliceFlag{Name: "usage", Usage: "`FILE` of what tasks used, in the columns of the sample of Google's trace of 2019, may be repeated: tasks that run reserve what a drawn task of their tier would"}
	setting := &ucli.StringFlag{Name: "reservations", Usage: "with --usage, how much is kept beyond what is used: conservative, medium, aggressive (default: medium)"}
	flags := func(more ...ucli.Flag) []ucli.Flag { return append([]ucli.Flag{out, usage, setting}, more...) }
	return &ucli.Command{
		Name:  "import",
		Usage: "make a checkpoint of a cell that somebody else ran",
		Subcommands: []*ucli.Command{
			{
				Name: "google2011", Usage: "from Google's trace of 2011, at one moment", ArgsUsage: "DIRECTORY",
				Flags:  flags(&ucli.Int64Flag{Name: "at", Usage: "`MICROSECONDS` of the trace; 0 is its beginning"}),
				Action: importGoogle2011,
			},
			{
				Name: "openb", Usage: "from the openb trace: all of its pods wait", ArgsUsage: "MACHINES PODS",
				Flags: flags(
					&ucli.Int64Flag{Name: "percent", Usage: "draw pods until they ask for so many `PERCENT` of the GPUs, as the published measurements do; 0: each pod once"},
					&ucli.Uint64Flag{Name: "seed", Value: 42, Usage: "of the draw"}),
				Action: importOpenb,
			},
			{
				Name: "csv", Usage: "from two tables of one's own", ArgsUsage: "MACHINES TASKS",
				Flags: flags(), Action: importCSV,
			},
			{
				Name: "kubernetes", Usage: "from kubectl get nodes,pods,poddisruptionbudgets,priorityclasses -A -o json", ArgsUsage: "FILE...",
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

func importGoogle2011(ctx *ucli.Context) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want the directory that has machine_events and task_events").Hint("fauxmaster import google2011 DIRECTORY -o google.ckpt")
	}
	return importWith(ctx, "google2011", func() (*trace.Cell, error) {
		return trace.LoadGoogle2011(ctx.Args().First(), ctx.Int64("at"))
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
		pods := o.Pods
		if percent := ctx.Int64("percent"); percent > 0 {
			pods = o.Inflate(ctx.Uint64("seed"), percent)
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

func importKubernetes(ctx *ucli.Context) error {
	if ctx.NArg() == 0 {
		return cli.Errorf(cli.Usage, "want what kubectl wrote").
			Hint("kubectl get nodes,pods,poddisruptionbudgets,priorityclasses -A -o json > cluster.json\nfauxmaster import kubernetes cluster.json -o cluster.ckpt")
	}
	return importWith(ctx, "kubernetes", func() (*trace.Cell, error) {
		return trace.LoadKubernetes(trace.KubernetesLabels{Rack: ctx.String("rack-label"), Power: ctx.String("power-label")}, ctx.Args().Slice()...)
	})
}

func importNomad(ctx *ucli.Context) error {
	if ctx.NArg() == 0 {
		return cli.Errorf(cli.Usage, "want what Nomad's API said").
			Hint("curl $NOMAD_ADDR/v1/nodes?resources=true > nodes.json\ncurl $NOMAD_ADDR/v1/allocations?resources=true > allocs.json\nfauxmaster import nomad nodes.json allocs.json -o cluster.ckpt")
	}
	return importWith(ctx, "nomad", func() (*trace.Cell, error) { return trace.LoadNomad(ctx.Args().Slice()...) })
}

// importWith reads a cell, makes it and writes it down.
func importWith(ctx *ucli.Context, kind string, read func() (*trace.Cell, error)) error {
	out := ctx.String("output")
	if out == "" {
		return cli.Errorf(cli.Usage, "where is the checkpoint to go?").Hint("add -o FILE")
	}
	reserved, err := drawnReservations(ctx)
	if err != nil {
		return err
	}
	from, err := read()
	var at *trace.Error
	switch {
	case errors.As(err, &at):
		return cli.Errorf(cli.Invalid, "%w", err)
	case errors.Is(err, os.ErrNotExist):
		return cli.Errorf(cli.NotFound, "%w", err)
	case err != nil:
		return cli.Errorf(cli.Invalid, "import %s: %w", kind, err)
	}
	name := "imported-" + kind
	// Two imports are two cells, whatever they are of.
	wallNs := time.Now().UnixNano()
	c, made, err := plan.Make(fmt.Sprintf("%s-%d", name, wallNs), wallNs, from, reserved)
	if err != nil {
		return modelError("make the cell", err)
	}
	if err := writeCheckpoint(out, name, c); err != nil {
		return err
	}
	return madeTable(ctx.App.Writer, out, made)
}

// writeCheckpoint writes a cell into a file that is there as a whole or not at
// all.
func writeCheckpoint(path, name string, c *cell.Cell) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err == nil {
		err = streamCheckpoint(f, name, c)
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

func streamCheckpoint(to io.Writer, name string, c *cell.Cell) error {
	d := c.Digest()
	w, err := checkpoint.NewWriter(to, &borgpb.CheckpointHeader{
		CellFormat: c.Format(), CellName: name, CellId: c.ID(), Epoch: c.Epoch(), Index: c.Index(), Term: c.Term(),
		CellTimeNs: c.TimeNs(), WallTimeNs: c.WallNs(), Digest: d[:], Voters: []uint64{1},
	})
	if err != nil {
		return err
	}
	for k, v := range c.Records() {
		if err := w.Add(k, v); err != nil {
			return err
		}
	}
	return w.Close()
}

func madeTable(w io.Writer, path string, m *plan.Made) error {
	c := newColumns(w)
	c.row("checkpoint", path)
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

// drawnReservations gives every task a use drawn from the rows of its tier, and
// the reservation that a task comes to that goes on using that much. Nil: there
// are no rows.
func drawnReservations(ctx *ucli.Context) (scheduler.Reserved, error) {
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
	with := setting.Config()
	return func(j *cell.Job, index uint32) cell.Resources {
		res := j.Need(index).Resources
		tier := trace.TierOf(j.Priority())
		r := rand.New(rand.NewPCG(reservationSeed^j.UID().Index<<32^uint64(j.UID().N), uint64(index)))
		use := u.At(tier, r.IntN(u.Len(tier)))
		limit := reservation.Amounts{CPUMilli: res.CPUMilli, MemBytes: res.MemBytes}
		t := reservation.Begin(0, limit)
		t.Use(100*with.HalfLifeNs, limit, reservation.Amounts{
			CPUMilli: min(of(use.CPUMean, res.CPUMilli), res.CPUMilli), MemBytes: min(of(use.MemPeak, res.MemBytes), res.MemBytes),
		}, false, with)
		res.CPUMilli, res.MemBytes = t.Reserved().CPUMilli, t.Reserved().MemBytes
		return res
	}, nil
}

// of is a share of an amount, as trace gives it.
func of(share uint32, amount int64) int64 {
	return amount/trace.One*int64(share) + amount%trace.One*int64(share)/trace.One
}
