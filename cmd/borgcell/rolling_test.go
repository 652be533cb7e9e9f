package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// rollTasks are the tasks of each job, of which an update takes down one at a time.
const rollTasks = 3

// TestManyUpdatesAndAFailOver has every twentieth of many live jobs in a rolling update
// when the elected master dies. Every update ends well: each task of those jobs was
// restarted once, never more than one of a job at a time, and no task of another job was
// touched.
func TestManyUpdatesAndAFailOver(t *testing.T) {
	alongside(t)
	jobs, machines := size(1_000, 10_000), size(60, 400)
	c := fakeCell(t, 5, machines, fleet.Life{StartDelay: 20 * time.Millisecond})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	name := func(i int) string { return fmt.Sprintf("job%05d", i) }
	err := atOnce(t, jobs, func(ctx context.Context, i int) error {
		_, err := c.submit(ctx, name(i), rolledSpec("1"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := func(s fleet.Status) bool { return s.Running == jobs*rollTasks }
	if err := c.fakeIs(inMinutes(t), "all tasks run", all); err != nil {
		t.Fatal(err)
	}
	before := c.settled(t, jobs)

	var rolling []string
	for i := 0; i < jobs; i += 20 {
		rolling = append(rolling, name(i))
	}
	began := time.Now()
	looks := c.watchUpdates(t, rolling)
	err = atOnce(t, len(rolling), func(ctx context.Context, i int) error {
		_, err := c.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{
			User: c.user, Name: rolling[i], Spec: encodeSpec(t, rolledSpec("2")),
		}}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// In the middle: some tasks have a second attempt, and not all.
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	undone := c.updatesLeft(t, rolling)
	if err := c.Crash(c.masterName(elected)); err != nil {
		t.Fatal(err)
	}
	err = until(inMinutes(t), "all updates are done", func(ctx context.Context) error {
		if left := c.updatesLeft(t, rolling); left > 0 {
			return fmt.Errorf("%d of %d are not", left, len(rolling))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	seen := looks()
	if undone == 0 {
		t.Error("all updates were done before the elected master was killed")
	}
	after := c.settled(t, jobs)
	touched := 0
	for _, task := range slices.Sorted(maps.Keys(before)) {
		was, is := before[task], after[task]
		if updated := slices.Contains(rolling, was.job); updated && is.attempt != was.attempt+1 {
			t.Errorf("%s of a job that was updated was attempt %d and is attempt %d", task, was.attempt, is.attempt)
		} else if !updated && is != was {
			touched++
			t.Errorf("%s of a job that was not updated was %+v and is %+v", task, was, is)
		}
	}
	t.Logf("%d live jobs with %d tasks on %d machines, %d of them updated task by task in %v, with the elected master killed while %d updates rolled: %d tasks of other jobs touched, %d looks at the updated ones",
		jobs, len(before), machines, len(rolling), took.Round(100*time.Millisecond), undone, touched, seen)
}

// rolledSpec is a job that is updated one task at a time, each watched for a while.
func rolledSpec(version string) *borgpb.JobSpec {
	spec := sized(rollTasks, 1<<20)
	spec.Task.Env = map[string]string{"VERSION": version}
	spec.Task.GraceNs = int64(100 * time.Millisecond)
	spec.Update = &borgpb.UpdatePolicy{BatchSize: 1, WatchNs: int64(300 * time.Millisecond)}
	return spec
}

// inMinutes bounds a wait for what is much to do.
func inMinutes(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// atOnce does something n times, some at a time.
func atOnce(t *testing.T, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(inMinutes(t))
	g.SetLimit(64)
	for i := range n {
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// rolled is one task as it is.
type rolled struct {
	job, machine string
	attempt      uint64
	restarts     uint32
}

// settled waits until the cell knows of all tasks that they run, and returns them.
func (c *Cell) settled(t *testing.T, jobs int) map[string]rolled {
	t.Helper()
	var all map[string]rolled
	err := until(inMinutes(t), "the cell knows that all tasks run", func(ctx context.Context) error {
		resp, err := c.client.ListAllTasks(ctx, &borgrpc.ListTasksRequest{User: c.user}, 0)
		if err != nil {
			return err
		}
		all = map[string]rolled{}
		for _, x := range resp.Tasks {
			if x.Status.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				all[taskName(x)] = rolled{x.Meta.GetName(), x.Status.Machine, x.Status.Attempt, x.Status.Restarts}
			}
		}
		if len(all) != jobs*rollTasks {
			return fmt.Errorf("%d of %d run", len(all), jobs*rollTasks)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// updatesLeft counts the jobs whose update is not done.
func (c *Cell) updatesLeft(t *testing.T, names []string) int {
	t.Helper()
	var left atomic.Int64
	err := atOnce(t, len(names), func(ctx context.Context, i int) error {
		resp, err := c.client.GetJob(ctx, &borgrpc.GetJobRequest{User: c.user, Name: names[i]})
		switch state := resp.GetUpdate().GetStatus().GetState(); {
		case err != nil:
			return err
		case state == borgpb.UpdateState_UPDATE_STATE_FAILED || state == borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK:
			return &finalError{fmt.Errorf("the update of %s: %v", names[i], resp.Update.Status)}
		case state != borgpb.UpdateState_UPDATE_STATE_DONE:
			left.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return int(left.Load())
}

// watchUpdates looks at jobs again and again: never is more than one task of any of
// them down. stop ends it and says how often it looked.
func (c *Cell) watchUpdates(t *testing.T, names []string) (stop func() int) {
	var looking sync.WaitGroup
	ended, looks := make(chan struct{}), 0
	looking.Go(func() {
		for {
			for _, name := range names {
				select {
				case <-ended:
					return
				case <-t.Context().Done():
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				resp, err := c.client.GetJob(ctx, &borgrpc.GetJobRequest{User: c.user, Name: name})
				cancel()
				if err != nil {
					t.Errorf("look at %s: %v", name, err)
					return
				}
				looks++
				if n := resp.Job.Status.GetStarted(); n < rollTasks-1 {
					t.Errorf("of %s %d of %d tasks run at index %d", name, n, rollTasks, resp.Index)
				}
			}
		}
	})
	return func() int {
		close(ended)
		looking.Wait()
		return looks
	}
}
