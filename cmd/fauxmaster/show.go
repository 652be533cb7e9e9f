package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster"
	"borg/proto/borgpb"
)

func showCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "show",
		Usage:     "check a checkpoint, or an archive at a moment, and say what is in the cell",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table or json"},
			atFlag("of an archive (default: its end)"),
		},
		Action: showCheckpoint,
	}
}

func showCheckpoint(ctx *ucli.Context) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want one checkpoint file or archive").Hint("fauxmaster show CHECKPOINT|ARCHIVE")
	}
	var show func(io.Writer, *fauxmaster.Picture) error
	switch format := ctx.String("output"); format {
	case "table":
		show = showTable
	case "json":
		show = showJSON
	default:
		return cli.Errorf(cli.Usage, "there is no output format %q", format).Hint("use -o table or -o json")
	}
	at, err := momentOf(ctx)
	if err != nil {
		return err
	}
	path := ctx.Args().First()
	p, err := fauxmaster.OpenAt(path, at)
	if err != nil {
		return pastError(path, err)
	}
	return show(ctx.App.Writer, p)
}

// counts says how much there is in a cell. Its JSON is part of the output.
type counts struct {
	Jobs      int    `json:"jobs"`
	LiveJobs  int    `json:"liveJobs"`
	Tasks     uint64 `json:"tasks"`
	Pending   uint64 `json:"pendingTasks"`
	Running   uint64 `json:"runningTasks"`
	Dead      uint64 `json:"deadTasks"`
	AllocSets int    `json:"allocSets"`
	Machines  int    `json:"machines"`
	Up        int    `json:"machinesUp"`
}

func count(c *cell.Cell) counts {
	n := counts{Jobs: c.NumJobs(), Machines: c.NumMachines()}
	for j := range c.Jobs() {
		pending, running, dead := j.Counts()
		n.Tasks += uint64(j.NumTasks())
		n.Pending += uint64(pending)
		n.Running += uint64(running)
		n.Dead += uint64(dead)
		if j.State() != borgpb.State_STATE_DEAD {
			n.LiveJobs++
		}
	}
	for range c.AllocSets() {
		n.AllocSets++
	}
	for m := range c.Machines() {
		if m.State() == borgpb.MachineState_MACHINE_STATE_UP {
			n.Up++
		}
	}
	return n
}

func showTable(w io.Writer, p *fauxmaster.Picture) error {
	h, n := p.Header, count(p.Cell)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range [][2]string{
		{"cell", fmt.Sprintf("%s (%s), epoch %d", h.GetCellName(), h.GetCellId(), h.GetEpoch())},
		{"position", fmt.Sprintf("index %d, term %d", h.GetIndex(), h.GetTerm())},
		{"wall time", wall(h.GetWallTimeNs())},
		{"cell time", time.Duration(h.GetCellTimeNs()).String()},
		{"formats", fmt.Sprintf("cell %d, file %d", h.GetCellFormat(), h.GetFileFormat())},
		{"digest", hex.EncodeToString(h.GetDigest()) + ", as computed from the records"},
		{"checks", "every byte, the digest, every invariant of the cell: ok"},
		{"replicas", fmt.Sprintf("%v vote, %v learn", h.GetVoters(), h.GetLearners())},
		{"jobs", fmt.Sprintf("%d, %d of them not dead", n.Jobs, n.LiveJobs)},
		{"tasks", fmt.Sprintf("%d: %d pending, %d running, %d dead", n.Tasks, n.Pending, n.Running, n.Dead)},
		{"alloc sets", fmt.Sprint(n.AllocSets)},
		{"machines", fmt.Sprintf("%d, %d up", n.Machines, n.Up)},
	} {
		fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	if err := t.Flush(); err != nil || n.Jobs == 0 {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "JOB\tSTATE\tKIND\tPRIORITY\tTASKS\tPENDING\tRUNNING\tDEAD\tSUBMITTED")
	for j := range p.Cell.Jobs() {
		job := p.Cell.JobProto(j)
		st := job.GetStatus()
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", j.Key(), word(st.GetState().String(), "STATE_"),
			word(j.Kind().String(), "JOB_KIND_"), j.Priority(), j.NumTasks(), st.GetPending(), st.GetRunning(), st.GetDead(), wall(st.GetSubmittedWallNs()))
	}
	return t.Flush()
}

func wall(ns int64) string {
	if ns == 0 {
		return "-"
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339)
}

// word makes "STATE_RUNNING" the word for people.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func showJSON(w io.Writer, p *fauxmaster.Picture) error {
	out := struct {
		Header json.RawMessage   `json:"header"`
		Counts counts            `json:"counts"`
		Jobs   []json.RawMessage `json:"jobs"`
	}{Counts: count(p.Cell), Jobs: []json.RawMessage{}}
	var err error
	if out.Header, err = protojson.Marshal(p.Header); err != nil {
		return fmt.Errorf("encode the header: %w", err)
	}
	for j := range p.Cell.Jobs() {
		job, err := protojson.Marshal(p.Cell.JobProto(j))
		if err != nil {
			return fmt.Errorf("encode job %s: %w", j.Key(), err)
		}
		out.Jobs = append(out.Jobs, job)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
