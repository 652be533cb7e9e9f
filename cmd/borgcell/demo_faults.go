package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// The job that is submitted while the elected master is dead.
	againJob = "again"
	// How long the tasks are watched after a follower was killed: longer than it
	// takes the masters to give up a machine that they do not reach.
	watchFor   = 12 * time.Second
	watchEvery = 200 * time.Millisecond
)

// againSource is the job file of againJob.
const againSource = `# Submitted while the elected master is dead.
job(
    name = "again",
    kind = "batch",
    tasks = 1,
    task = task(
        args = ["/bin/sh", "-c", "echo done by $BORG_TASK"],
        resources = resources(cpu = "20m", mem = "32MiB"),
    ),
)
`

// killElected kills the elected master, submits at once, and checks that the
// submit was taken once and that no task noticed.
func (d *demo) killElected(ctx context.Context) (string, error) {
	file := filepath.Join(d.layout.dir, againJob+".borg")
	if err := os.WriteFile(file, []byte(againSource), 0o644); err != nil {
		return "", err
	}
	elected, err := d.cell.Elected(ctx)
	if err != nil {
		return "", err
	}
	if err := d.cell.Kill(d.cell.masterName(elected)); err != nil {
		return "", err
	}
	killed := time.Now()
	out, err := d.mustBorgcfg(ctx, "up", file)
	if err != nil {
		return "", err
	}
	took := time.Since(killed)
	d.show(out)
	if _, err := d.cell.jobIs(ctx, againJob, "the new job has finished", finished); err != nil {
		return "", err
	}
	next, err := d.cell.Elected(ctx)
	if err != nil {
		return "", err
	}
	if next == elected {
		return "", expected("another master to be elected", "%d again", next)
	}
	if err := d.cell.unchanged(ctx, d.before, helloJob); err != nil {
		return "", err
	}
	if err := d.cell.StartMaster(ctx, elected); err != nil {
		return "", err
	}
	if err := d.cell.caughtUp(ctx, elected); err != nil {
		return "", err
	}
	return fmt.Sprintf("master %d was killed, %d is elected; the submit was taken %.1f s after the kill; processes still %s",
		elected, next, took.Seconds(), d.before.pids()), nil
}

// caughtUp waits until a replica has applied what the elected one had.
func (c *Cell) caughtUp(ctx context.Context, i int) error {
	var goal uint64
	err := until(ctx, "the elected master says what it has applied", func(ctx context.Context) error {
		elected, err := c.Elected(ctx)
		if err != nil {
			return err
		}
		state, err := c.Ask(ctx, elected)
		goal = state.GetAppliedIndex()
		return err
	})
	if err != nil {
		return err
	}
	return until(ctx, fmt.Sprintf("master %d has applied entry %d", i, goal), func(ctx context.Context) error {
		state, err := c.Ask(ctx, i)
		if err == nil && state.AppliedIndex < goal {
			err = fmt.Errorf("it is at %d", state.AppliedIndex)
		}
		return err
	})
}

// follower is a replica that is not elected.
func (c *Cell) follower(ctx context.Context) (int, error) {
	elected, err := c.Elected(ctx)
	if err != nil {
		return 0, err
	}
	return elected%c.Masters + 1, nil
}

// killFollower kills a master that is not elected and leaves it dead.
func (d *demo) killFollower(ctx context.Context) (string, error) {
	state, err := d.cell.client.GetCell(ctx)
	if err != nil {
		return "", err
	}
	if d.dead, err = d.cell.follower(ctx); err != nil {
		return "", err
	}
	if err := d.cell.Kill(d.cell.masterName(d.dead)); err != nil {
		return "", err
	}
	watch, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for watch.Err() == nil {
		if err := d.cell.unchanged(ctx, d.before, helloJob); err != nil {
			return "", err
		}
		select {
		case <-ticker.C:
		case <-watch.Done():
		}
	}
	if err := d.cell.quietSince(ctx, state.AppliedIndex); err != nil {
		return "", err
	}
	return fmt.Sprintf("master %d is dead; processes still %s", d.dead, d.before.pids()), nil
}

// quietSince checks that nothing befell a task or a machine after an index.
func (c *Cell) quietSince(ctx context.Context, index uint64) error {
	return c.client.Events(ctx, &borgrpc.EventsRequest{FromIndex: index + 1}, func(resp *borgrpc.EventsResponse) error {
		for _, e := range resp.Events {
			switch e.Kind {
			case borgpb.EventKind_EVENT_KIND_EVICT, borgpb.EventKind_EVENT_KIND_FAIL, borgpb.EventKind_EVENT_KIND_LOST,
				borgpb.EventKind_EVENT_KIND_RESTART, borgpb.EventKind_EVENT_KIND_MACHINE_DOWN:
				return expected("nothing to happen to tasks and machines", "%v of %s: %s", e.Kind, e.Object, e.Reason)
			}
		}
		return nil
	})
}

func (d *demo) startFollower(ctx context.Context) (string, error) {
	if err := d.cell.StartMaster(ctx, d.dead); err != nil {
		return "", err
	}
	return "", d.cell.caughtUp(ctx, d.dead)
}

// update changes the greeting and watches it roll through the service.
func (d *demo) update(ctx context.Context) (string, error) {
	least := d.cell.watchStarted(ctx, helloJob)
	out, err := d.mustBorgcfg(ctx, append(d.helloArgs("update", nextGreeting), "--wait")...)
	fewest, looks := least()
	if err != nil {
		return "", err
	}
	d.show(out)
	if fewest < 2 {
		return "", expected("at most one of 3 tasks to be down for the update", "%d of 3 running", fewest)
	}
	if _, err := d.cell.jobIs(ctx, helloJob, "all tasks run again", started); err != nil {
		return "", err
	}
	pages, err := d.pagesGreet(ctx, nextGreeting)
	if err != nil {
		return "", err
	}
	now, err := d.cell.snap(ctx, helloJob)
	if err != nil {
		return "", err
	}
	for name, was := range d.before {
		if is := now[name]; is.pid == was.pid || is.restarts != 0 {
			return "", expected(name+" to be started once, by the update", "process %d became %d with %d restarts", was.pid, is.pid, is.restarts)
		}
	}
	d.before = now
	return fmt.Sprintf("looked %d times: never fewer than %d of 3 tasks ran\n%s", looks, fewest, pages), nil
}

// watchStarted counts the tasks of a job that run, again and again until the
// function that it returns is called, which says the fewest that were seen.
func (c *Cell) watchStarted(ctx context.Context, job string) (stop func() (fewest uint32, looks int)) {
	ctx, cancel := context.WithCancel(ctx)
	fewest, looks := uint32(math.MaxUint32), 0
	var watcher sync.WaitGroup
	watcher.Go(func() {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		for ctx.Err() == nil {
			resp, err := c.client.GetJob(ctx, &borgrpc.GetJobRequest{User: c.user, Name: job})
			if err == nil {
				fewest, looks = min(fewest, resp.Job.Status.GetStarted()), looks+1
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	return func() (uint32, int) {
		cancel()
		watcher.Wait()
		return fewest, looks
	}
}

// killBorglet kills the borglet of a machine that runs a task; the supervisor
// starts the next one, which has to find the task again.
func (d *demo) killBorglet(ctx context.Context) (string, error) {
	machine := d.before[fmt.Sprintf("%s/%s/0", d.cell.user, helloJob)].machine
	k := d.cell.machineNumber(machine)
	holds, err := d.cell.Held(ctx, k)
	if err != nil {
		return "", err
	}
	if len(holds.pids) == 0 {
		return "", expected("a borglet that holds a task", "%s holds none", machine)
	}
	was, killed := d.cell.PID(machine), time.Now()
	if err := d.cell.Crash(machine); err != nil {
		return "", err
	}
	took, err := d.cell.Adopted(ctx, k, holds, 0, killed)
	if err != nil {
		return "", err
	}
	if err := d.cell.unchanged(ctx, d.before, helloJob); err != nil {
		return "", err
	}
	if _, err := d.pagesGreet(ctx, nextGreeting); err != nil {
		return "", err
	}
	return fmt.Sprintf("borglet %s: process %d became %d, which held its task %.1f s after the kill; tasks still %s",
		machine, was, d.cell.PID(machine), took.Seconds(), d.before.pids()), nil
}
