package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// The job files of the demo and the jobs in them.
const (
	helloFile     = "hello.borg"
	helloJob      = "hello"
	wordcountFile = "wordcount.borg"
	wordcountJob  = "wordcount"
	pinnedFile    = "pinned.borg"
	pinnedJob     = "pinned"
	firstGreeting = "hello"
	nextGreeting  = "good-evening"
)

func (d *demo) preflight(ctx context.Context) (string, error) {
	findings := diagnose(gather(ctx, d.layout))
	var b strings.Builder
	tellFindings(&b, findings, weaker)
	if worst(findings) == broken {
		return b.String(), expected("a machine that can run a cell", "what is broken above; all that was looked at: borgcell doctor")
	}
	return b.String(), nil
}

func (d *demo) start(ctx context.Context, open func(context.Context) error) (string, error) {
	if err := open(ctx); err != nil {
		return "", err
	}
	if err := d.cell.Start(ctx); err != nil {
		return "", err
	}
	elected, err := d.cell.Elected(ctx)
	if err != nil {
		return "", err
	}
	runtimes, err := d.cell.runtimes(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d masters, of which %d is elected; %d machines (%s)\nto ask it yourself: export BORG_CELL=%s\nto look at it: %s",
		d.layout.Masters, elected, d.layout.Machines, runtimes, d.layout.cellFile(), d.layout.pages()), nil
}

// runtimes names how the machines run tasks, and says aloud when that is
// without isolation.
func (c *Cell) runtimes(ctx context.Context) (string, error) {
	resp, err := c.client.ListMachines(ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return "", err
	}
	for _, m := range resp.Machines {
		if m.Spec.GetAttributes()["runtime"] != "container" {
			return "tasks are plain processes: no isolation, no limits", nil
		}
	}
	return "tasks are containers", nil
}

// file is the path of a job file, and the arguments that it needs here.
func (d *demo) file(name string, sets ...string) []string {
	args := []string{filepath.Join(d.examples, name)}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	return args
}

func (d *demo) helloArgs(verb, greeting string) []string {
	return append([]string{verb}, d.file(helloFile, "bin="+d.layout.binDir, "greeting="+greeting)...)
}

func (d *demo) upHello(ctx context.Context) (string, error) {
	out, err := d.mustBorgcfg(ctx, d.helloArgs("up", firstGreeting)...)
	if err != nil {
		return "", err
	}
	d.show(out)
	return d.serviceRuns(ctx)
}

func (d *demo) upBoth(ctx context.Context) (string, error) {
	for _, args := range [][]string{
		d.helloArgs("up", firstGreeting),
		append([]string{"up"}, d.file(wordcountFile)...),
	} {
		out, err := d.mustBorgcfg(ctx, args...)
		if err != nil {
			return "", err
		}
		d.show(out)
	}
	return "", nil
}

func (d *demo) serviceRuns(ctx context.Context) (string, error) {
	if _, err := d.cell.jobIs(ctx, helloJob, "the service runs", started); err != nil {
		return "", err
	}
	var err error
	if d.before, err = d.cell.snap(ctx, helloJob); err != nil {
		return "", err
	}
	if len(d.before) != 3 {
		return "", expected("3 running tasks", "%d", len(d.before))
	}
	machines := make(map[string]bool)
	for _, c := range d.before {
		machines[c.machine] = true
	}
	if want := min(3, d.layout.Machines); len(machines) != want {
		return "", expected(fmt.Sprintf("3 tasks spread over %d machines", want), "%d machines", len(machines))
	}
	return fmt.Sprintf("%d tasks on %d machines, processes %s", len(d.before), len(machines), d.before.pids()), nil
}

// pages fetches the page of each task and checks that it is that task's.
func (d *demo) pages(ctx context.Context) (string, error) {
	return d.pagesGreet(ctx, firstGreeting)
}

func (d *demo) pagesGreet(ctx context.Context, greeting string) (string, error) {
	tasks, err := d.cell.tasks(ctx, helloJob)
	if err != nil {
		return "", err
	}
	var pages []string
	for _, t := range tasks {
		want := greeting + " from " + taskName(t)
		var page string
		// A process runs a moment before it listens.
		err := until(ctx, taskName(t)+" serves", func(ctx context.Context) (err error) {
			page, err = fetch(ctx, t)
			return err
		})
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(page, want+" ") {
			return "", expected(fmt.Sprintf("a page that begins with %q", want), "%q", page)
		}
		pages = append(pages, fmt.Sprintf("port %d: %s", t.Status.Ports[0], page))
	}
	return strings.Join(pages, "\n"), nil
}

func (d *demo) batchFinished(ctx context.Context) (string, error) {
	job, err := d.cell.jobIs(ctx, wordcountJob, "the batch job has finished", finished)
	if err != nil {
		return "", err
	}
	if job.Status.State != borgpb.State_STATE_DEAD {
		return "", expected("a job that is dead, because it has finished", "%v", job.Status.State)
	}
	return fmt.Sprintf("%d tasks ended with 0", job.Status.Finished), nil
}

func (d *demo) status(ctx context.Context) (string, error) {
	out, err := d.mustBorgcfg(ctx, "status")
	if err != nil {
		return "", err
	}
	d.show(out)
	if !strings.Contains(out, helloJob) {
		return "", expected("the job "+helloJob+" in the status", "%q", out)
	}
	return "", nil
}

func (d *demo) statusAndLogs(ctx context.Context) (string, error) {
	if _, err := d.status(ctx); err != nil {
		return "", err
	}
	out, err := d.mustBorgcfg(ctx, "status", helloJob)
	if err != nil {
		return "", err
	}
	d.show(out)
	out, err = d.mustBorgcfg(ctx, "logs", helloJob+"/0")
	if err != nil {
		return "", err
	}
	d.show(out)
	if want := fmt.Sprintf("%s/%s/0", d.cell.user, helloJob); !strings.Contains(out, want) || !strings.Contains(out, "serving on port") {
		return "", expected("the log to say that "+want+" serves", "%q", out)
	}
	out, err = d.mustBorgcfg(ctx, "logs", wordcountJob+"/0")
	if err != nil {
		return "", err
	}
	d.show(out)
	if !strings.ContainsAny(out, "0123456789") {
		return "", expected("a number of words in the log", "%q", out)
	}
	return "", nil
}

// whyPinned submits a job that fits nowhere and checks that the reasons given
// account for every machine.
func (d *demo) whyPinned(ctx context.Context) (string, error) {
	out, code, err := d.borgcfg(ctx, append([]string{"up"}, d.file(pinnedFile)...)...)
	if err != nil {
		return "", err
	}
	if code != cli.OK && code != cli.CannotFit {
		return "", expected(fmt.Sprintf("up to exit with %d or %d (accepted, but cannot fit)", cli.OK, cli.CannotFit), "%d", code)
	}
	d.show(out)
	var why borgrpc.WhyResponse
	err = until(ctx, "the scheduler can say why", func(ctx context.Context) error {
		resp, err := d.cell.client.Why(ctx, &borgrpc.WhyRequest{User: d.cell.user, Name: pinnedJob})
		if err != nil {
			return err
		}
		if resp.Machines == 0 {
			return fmt.Errorf("no reasons yet: %s", resp.Summary)
		}
		why = borgrpc.WhyResponse{Machines: resp.Machines, Reasons: resp.Reasons}
		return nil
	})
	if err != nil {
		return "", err
	}
	out, err = d.mustBorgcfg(ctx, "why", pinnedJob+"/0")
	if err != nil {
		return "", err
	}
	d.show(out)
	counted := uint32(0)
	for _, r := range why.Reasons {
		counted += r.Machines
	}
	if want := uint32(d.layout.Machines); counted != want || why.Machines != want {
		b, _ := json.Marshal(why.Reasons)
		return "", expected(fmt.Sprintf("reasons that account for %d machines", want), "%s", b)
	}
	if _, err := d.mustBorgcfg(ctx, "down", pinnedJob); err != nil {
		return "", err
	}
	return fmt.Sprintf("the reasons account for all %d machines", counted), nil
}

// down ends all jobs and checks that their processes are gone.
func (d *demo) down(ctx context.Context) (string, error) {
	jobs, err := d.cell.client.ListJobs(ctx, &borgrpc.ListJobsRequest{User: d.cell.user})
	if err != nil {
		return "", err
	}
	var names []string
	for _, j := range jobs.Jobs {
		names = append(names, j.Meta.Name)
	}
	before, err := d.cell.snap(ctx, names...)
	if err != nil {
		return "", err
	}
	args := append([]string{"down"}, names...)
	out, err := d.mustBorgcfg(ctx, args...)
	if err != nil {
		return "", err
	}
	d.show(out)
	err = until(ctx, "no machine holds a task", func(ctx context.Context) error {
		copies, err := d.cell.copies(ctx)
		if err == nil && copies > 0 {
			err = fmt.Errorf("%d copies are left", copies)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	for name, c := range before {
		if ticks, alive, err := readStat(int(c.pid)); err == nil && alive && ticks == c.startTicks {
			return "", expected(name+" to be gone", "process %d still runs", c.pid)
		}
	}
	return "", nil
}
