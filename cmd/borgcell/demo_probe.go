package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// The task that looks around, and one beside it that it must not see.
	probeJob     = "probe"
	neighbourJob = "neighbour"
	probeProgram = "probe"
	// Where the task has the programs: at their own path it would have all
	// directories above them too.
	probeDir = "/probe"
)

// probed has the probe run as a task beside another one, and compares what it tells
// with the table of what a task with that network may see and do.
func (c *Cell) probed(ctx context.Context, network borgpb.Network) ([]checkedFact, error) {
	attributes, err := c.attributes(ctx)
	if err != nil {
		return nil, err
	}
	table, err := profileOf(attributes, network)
	if err != nil {
		return nil, err
	}
	if err := c.submitOwn(ctx, neighbourJob, borgpb.JobKind_JOB_KIND_SERVICE, borgpb.Network_NETWORK_UNSPECIFIED, "", []string{"sleep", "1000000"}); err != nil {
		return nil, err
	}
	if _, err := c.jobIs(ctx, neighbourJob, "the task beside the probe runs", started); err != nil {
		return nil, err
	}
	args, err := c.probeArgs(ctx)
	if err != nil {
		return nil, err
	}
	// One of the machine's that is no file, and that answers to everybody.
	socket, err := net.Listen("unix", "@"+c.CellID)
	if err != nil {
		return nil, fmt.Errorf("listen for the probe: %w", err)
	}
	defer socket.Close()
	if err := c.submitOwn(ctx, probeJob, borgpb.JobKind_JOB_KIND_BATCH, network, c.binDir, append(args, "--socket", c.CellID)); err != nil {
		return nil, err
	}
	job, err := c.jobIs(ctx, probeJob, "the probe has ended", func(j *borgpb.Job) bool { return j.Status.GetDead() == j.Spec.GetTasks() })
	if err != nil {
		return nil, err
	}
	told, err := c.said(ctx, probeJob)
	if err != nil {
		return nil, err
	}
	if !finished(job) {
		return nil, expected("the probe to end with 0", "%s\n%s", job.Status, told)
	}
	facts, err := parseFacts(told)
	if err != nil {
		return nil, err
	}
	return compareFacts(table, facts), nil
}

// attributes are those of the cell's machines, which are one machine.
func (c *Cell) attributes(ctx context.Context) (map[string]string, error) {
	resp, err := c.client.ListMachines(ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return nil, err
	}
	if len(resp.Machines) == 0 {
		return nil, expected("a machine in the cell", "none")
	}
	return resp.Machines[0].Spec.GetAttributes(), nil
}

// submitOwn submits a job of one task, with a directory of the machine at probeDir
// if one is given.
func (c *Cell) submitOwn(ctx context.Context, name string, kind borgpb.JobKind, network borgpb.Network, mounted string, args []string) error {
	spec := &borgpb.JobSpec{
		Kind: kind, Tasks: 1, Priority: 200,
		Task: &borgpb.TaskSpec{
			Args: args, GraceNs: int64(time.Second), Network: network,
			Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 64 << 20},
		},
	}
	if mounted != "" {
		spec.Task.Mounts = []*borgpb.Mount{{Source: mounted, Path: probeDir}}
	}
	_, err := c.submit(ctx, name, spec)
	return err
}

// probeArgs is the probe's command line: what of this machine, and of the task beside
// it, it must not reach.
func (c *Cell) probeArgs(ctx context.Context) ([]string, error) {
	tasks, err := c.tasks(ctx, neighbourJob)
	if err != nil {
		return nil, err
	}
	if len(tasks) != 1 {
		return nil, expected("one task of "+neighbourJob, "%d", len(tasks))
	}
	other := tasks[0]
	k := c.machineNumber(other.Status.GetMachine())
	if k == 0 {
		return nil, expected(neighbourJob+" on a machine of the cell", "%q", other.Status.GetMachine())
	}
	copyName := fmt.Sprintf("%s.%d.%d", other.Meta.GetUid(), other.Index, other.Status.GetAttempt())
	hidden := map[string]string{
		"agent-directory":         c.borgletDir(k),
		"agent-run-directory":     c.runOf(c.machineName(k)),
		"another-tasks-directory": filepath.Join(c.borgletDir(k), "tasks", copyName),
		"another-tasks-papers":    filepath.Join(c.papersOf(k), copyName),
		"authority":               c.authorityFile(),
		"cell-directory":          c.dir,
		"root-home":               "/root",
	}
	args := []string{filepath.Join(probeDir, probeProgram), "--agent", c.borgletAddr(k), "--pid", strconv.FormatInt(other.Status.GetPid(), 10)}
	for name, path := range hidden {
		// What is not there hides nothing.
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("the probe is to look for %s: %w", name, err)
		}
		args = append(args, "--hidden", name+"="+path)
	}
	kinds, err := os.ReadDir("/proc/self/ns")
	if err != nil {
		return nil, fmt.Errorf("list the machine's name spaces: %w", err)
	}
	for _, kind := range kinds {
		link, err := os.Readlink("/proc/self/ns/" + kind.Name())
		if err != nil {
			return nil, fmt.Errorf("list the machine's name spaces: %w", err)
		}
		args = append(args, "--ns", kind.Name()+"="+link)
	}
	devices, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the machine's network devices: %w", err)
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return append(args, "--devices", strings.Join(names, " ")), nil
}

// papersOf is where the papers of the copies on machine k lie.
func (c *Cell) papersOf(k int) string { return borglet.PapersDir(c.runOf(c.machineName(k))) }

// said is what the first task of a job of ours has written.
func (c *Cell) said(ctx context.Context, job string) (string, error) {
	var text bytes.Buffer
	err := c.client.Logs(ctx, &borgrpc.LogsRequest{User: c.user, Name: job}, func(r *borgrpc.LogsResponse) error {
		text.Write(r.GetData())
		return nil
	})
	return text.String(), err
}

// probe is the step of the demo.
func (d *demo) probe(ctx context.Context) (string, error) {
	runtimes, err := d.cell.runtimes(ctx)
	if err != nil {
		return "", err
	}
	if strings.Contains(runtimes, "plain processes") {
		return "", expected("tasks that are containers, for the probe to look around in", "%s; see: borgcell doctor", runtimes)
	}
	all, err := d.cell.probed(ctx, borgpb.Network_NETWORK_UNSPECIFIED)
	if err != nil {
		return "", err
	}
	var told strings.Builder
	tellFacts(&told, all)
	d.show(told.String())
	differ := differing(all)
	if len(differ) == 0 {
		attributes, err := d.cell.attributes(ctx)
		where := ""
		if attributes["userns"] == "none" {
			where = " where tasks have no user ids of their own (userns=none)"
		}
		return fmt.Sprintf("%d facts are as they should be%s", len(all), where), err
	}
	names := make([]string, len(differ))
	for i, f := range differ {
		names[i] = f.name
	}
	slices.Sort(names)
	return "", expected(fmt.Sprintf("%d facts as in the table", len(all)), "%d of them differ: %s", len(differ), strings.Join(names, ", "))
}
