package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// The job that is submitted while the elected master is dead.
	againJob = "again"
	// How long the tasks are watched after a follower was killed.
	watchFor = 3 * time.Second
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
	elected, err := c.Elected(ctx)
	if err != nil {
		return err
	}
	goal, err := c.Ask(ctx, elected)
	if err != nil {
		return err
	}
	return until(ctx, fmt.Sprintf("master %d has applied entry %d", i, goal.AppliedIndex), func(ctx context.Context) error {
		state, err := c.Ask(ctx, i)
		if err == nil && state.AppliedIndex < goal.AppliedIndex {
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
	ticker := time.NewTicker(watchFor / 10)
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
	out, err := d.mustBorgcfg(ctx, append(d.helloArgs("update", nextGreeting), "--wait")...)
	if err != nil {
		return "", err
	}
	d.show(out)
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
	return pages, nil
}

// killBorglet kills the borglet of a machine that runs a task; the supervisor
// starts the next one, which has to find the task again.
func (d *demo) killBorglet(ctx context.Context) (string, error) {
	task := fmt.Sprintf("%s/%s/0", d.cell.user, helloJob)
	machine := d.before[task].machine
	was := d.cell.PID(machine)
	if err := d.cell.Crash(machine); err != nil {
		return "", err
	}
	err := until(ctx, "another borglet of "+machine+" tells of its tasks", func(ctx context.Context) error {
		if pid := d.cell.PID(machine); pid == 0 || pid == was {
			return fmt.Errorf("process %d is gone and no other has started", was)
		}
		// Only a borglet that has adopted the task can read its log.
		var log strings.Builder
		err := d.cell.client.Logs(ctx, &borgrpc.LogsRequest{User: d.cell.user, Name: helloJob}, func(resp *borgrpc.LogsResponse) error {
			log.Write(resp.Data)
			return nil
		})
		if err == nil && !strings.Contains(log.String(), task) {
			err = fmt.Errorf("the log of %s is %q", task, log.String())
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if err := d.cell.unchanged(ctx, d.before, helloJob); err != nil {
		return "", err
	}
	if _, err := d.pagesGreet(ctx, nextGreeting); err != nil {
		return "", err
	}
	return fmt.Sprintf("borglet %s: process %d became %d; tasks still %s", machine, was, d.cell.PID(machine), d.before.pids()), nil
}
