package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// Bound on stopping all tasks in order, beyond their own grace.
	downWait    = 20 * time.Second
	killsAtOnce = 32
	// Bound on the sweep at the end.
	sweepAllWait = time.Minute
)

// DownAll kills all jobs and alloc sets of the cell and returns when no copy
// of a task is left on a machine.
func (c *Cell) DownAll(ctx context.Context) error {
	if err := c.beBelieved(ctx); err != nil {
		return err
	}
	graceNs, err := c.killJobs(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, downWait+time.Duration(graceNs))
	defer cancel()
	return until(ctx, "all tasks have stopped", func(ctx context.Context) error {
		copies, err := c.copies(ctx)
		if err == nil && copies > 0 {
			return fmt.Errorf("%d copies of tasks are still on machines", copies)
		}
		return err
	})
}

// killJobs kills all jobs and alloc sets and returns the longest grace that one
// of the tasks may take.
func (c *Cell) killJobs(ctx context.Context) (maxGraceNs int64, err error) {
	jobs, err := c.client.ListJobs(ctx, &borgrpc.ListJobsRequest{})
	if err != nil {
		return 0, err
	}
	const command = "borgcell: stop"
	// Kills under way at once share entries of the log.
	kills, killCtx := errgroup.WithContext(ctx)
	kills.SetLimit(killsAtOnce)
	for _, j := range jobs.Jobs {
		maxGraceNs = max(maxGraceNs, j.Spec.GetTask().GetGraceNs())
		kills.Go(func() error {
			op := &borgpb.Op{Command: command, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: j.Meta.User, Name: j.Meta.Name}}}
			if _, err := c.client.Mutate(killCtx, op); err != nil {
				return fmt.Errorf("kill job %s/%s: %w", j.Meta.User, j.Meta.Name, err)
			}
			return nil
		})
	}
	if err := kills.Wait(); err != nil {
		return 0, err
	}
	sets, err := c.client.ListAllocs(ctx, &borgrpc.ListAllocsRequest{})
	if err != nil {
		return 0, err
	}
	for _, s := range sets.AllocSets {
		if s.Status.GetState() == borgpb.State_STATE_DEAD {
			continue
		}
		op := &borgpb.Op{Command: command, Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: s.Meta.User, Name: s.Meta.Name}}}
		if _, err := c.client.Mutate(ctx, op); err != nil {
			return 0, fmt.Errorf("kill alloc set %s/%s: %w", s.Meta.User, s.Meta.Name, err)
		}
	}
	return maxGraceNs, nil
}

// copies counts the copies of tasks that machines which are up still hold.
func (c *Cell) copies(ctx context.Context) (int, error) {
	resp, err := c.client.ListMachines(ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return 0, err
	}
	copies := 0
	for _, m := range resp.Machines {
		if m.Status.GetState() == borgpb.MachineState_MACHINE_STATE_UP {
			copies += int(m.Status.GetTasks())
		}
	}
	return copies, nil
}

// Stop ends all processes, removes what is left of them, and checks that
// nothing is. A ctx that is done makes it quick, not incomplete. Tasks that
// DownAll did not stop are killed.
func (c *Cell) Stop(ctx context.Context) error {
	// Borglets first: a master that sees a borglet go does nothing in the time
	// that this takes, while a borglet without masters would be a worry in its
	// log.
	machines := c.processesOf(c.machineName, maxMachines)
	if c.Fake != nil {
		for part := range c.fakeParts() {
			if p := c.sup.get(fakePartName(part)); p != nil {
				machines = append(machines, p)
			}
		}
	}
	killed := c.sup.stopAll(ctx, machines, stopGrace)
	killed = append(killed, c.sup.stopAll(ctx, c.processesOf(c.masterName, masterPageOffset), stopGrace)...)
	if len(killed) > 0 && ctx.Err() == nil {
		c.log.Warn("processes did not stop in time and were killed", "processes", strings.Join(killed, " "))
	}
	c.sup.close()
	sweepCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepAllWait)
	defer cancel()
	err := c.sweep(sweepCtx)
	left, lookErr := c.leftovers()
	err = errors.Join(err, lookErr)
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left on this machine:\n  %s", strings.Join(left, "\n  ")))
	}
	err = errors.Join(err, c.clearRunDir())
	c.unlock()
	return err
}

// clearRunDir removes the run-time directory, and the one for all cells of the
// machine when this was the last.
func (c *Cell) clearRunDir() error {
	if err := os.RemoveAll(c.RunDir); err != nil {
		return fmt.Errorf("remove run-time directory: %w", err)
	}
	if parent := filepath.Dir(c.RunDir); filepath.Base(parent) == runDirName {
		_ = os.Remove(parent)
	}
	return nil
}
