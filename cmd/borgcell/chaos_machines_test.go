package main

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"borg/proto/borgpb"
)

// on counts the tasks of a job that run on a machine.
func (c *Cell) on(ctx context.Context, job, machine string) (running int, err error) {
	tasks, err := c.tasks(ctx, job)
	for _, task := range tasks {
		s := task.Status
		if s.Machine == machine && s.AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			running++
		}
	}
	return running, err
}

// alive counts the processes of a snapshot that still run.
func (s snapshot) alive() (n int) {
	for _, was := range s {
		if ticks, alive, err := readStat(int(was.pid)); err == nil && alive && ticks == was.startTicks {
			n++
		}
	}
	return n
}

// The tasks of a machine that is silent for too long run elsewhere too; its own
// go on until it answers again, and are stopped then, as there are others in
// their place. A dead follower in the middle of it changes nothing.
func TestSilentMachine(t *testing.T) {
	if size(0, 1) == 0 {
		t.Skip("waits until a machine is taken for down; set BORG_CHAOS=full")
	}
	const tasks = 6
	c := chaosCell(t, 3, 2)
	before := c.run(t, "web", sleepers(tasks))
	silent, other := c.machineName(1), c.machineName(2)
	there, err := c.on(shortly(t), "web", silent)
	if err != nil || there == 0 || there == tasks {
		t.Fatalf("%d of %d tasks are on machine %s, %v: want some on each", there, tasks, silent, err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Logf("%d tasks on %s, whose borglet gets %v", there, silent, sig)
		if sig == syscall.SIGKILL {
			err = c.Kill(silent)
		} else {
			err = syscall.Kill(c.PID(silent), sig)
		}
		if err != nil {
			t.Fatal(err)
		}
		follower, err := c.follower(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Kill(c.masterName(follower)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "all tasks run on the other machine", func() string {
			n, err := c.on(t.Context(), "web", other)
			if err != nil || n < tasks {
				return fmt.Sprintf("%d of %d, %v", n, tasks, err)
			}
			return ""
		})
		if n := before.alive(); n != tasks {
			t.Errorf("%d of the %d first processes run while the machine is silent: somebody ended some", n, tasks)
		}
		if err := c.StartMaster(t.Context(), follower); err != nil {
			t.Fatal(err)
		}
		if sig == syscall.SIGKILL {
			err = c.StartBorglet(t.Context(), 1)
		} else {
			err = syscall.Kill(c.PID(silent), syscall.SIGCONT)
		}
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the machine is up and its copies are stopped", func() string {
			if err := c.ready(t.Context()); err != nil {
				return err.Error()
			}
			if n := before.alive(); n != tasks-there {
				return fmt.Sprintf("%d of the first processes run, want %d", n, tasks-there)
			}
			return ""
		})
		// The next silence is held against a job that has met both machines.
		if err := c.DownAll(shortly(t)); err != nil {
			t.Fatal(err)
		}
		before = c.run(t, "web", sleepers(tasks))
		if there, err = c.on(shortly(t), "web", silent); err != nil || there == 0 {
			t.Fatalf("%d of %d tasks are on machine %s after it came back, %v", there, tasks, silent, err)
		}
	}
}

// The machine of the elected master dies: master, borglet and tasks at one moment. Who
// is elected next has never polled it, and notices as soon as anybody would: its tasks
// run elsewhere, and the others' are not touched.
func TestMachineOfTheElectedMaster(t *testing.T) {
	alongside(t)
	const tasks = 9
	c := chaosCell(t, 3, 3)
	var gaps []time.Duration
	for round := range size(1, 5) {
		job := fmt.Sprint("web-", round)
		before := c.run(t, job, sleepers(tasks))
		elected, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		dead := c.machineName(elected)
		lost := 0
		for _, copy := range before {
			if copy.machine == dead {
				lost++
			}
		}
		if lost == 0 || lost == tasks {
			t.Fatalf("%d of %d tasks are on machine %s: want some on each", lost, tasks, dead)
		}
		began := time.Now()
		for _, name := range []string{c.masterName(elected), dead} {
			if err := c.Kill(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, copy := range before {
			if copy.machine == dead {
				if err := syscall.Kill(int(copy.pid), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		waitFor(t, "all tasks run on the other machines", func() string {
			now, err := c.tasks(t.Context(), job)
			n := 0
			for _, task := range now {
				if s := task.Status; s.Machine != dead && s.AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
					n++
				}
			}
			if err != nil || n < tasks {
				return fmt.Sprintf("%d of %d, %v", n, tasks, err)
			}
			return ""
		})
		gaps = append(gaps, time.Since(began))
		if n := before.alive(); n != tasks-lost {
			t.Errorf("%d of the first processes run, and %d were not on the dead machine", n, tasks-lost)
		}
		if err := c.StartMaster(t.Context(), elected); err != nil {
			t.Fatal(err)
		}
		if err := c.StartBorglet(t.Context(), elected); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the machine is up", func() string {
			if err := c.ready(t.Context()); err != nil {
				return err.Error()
			}
			return ""
		})
		if err := c.DownAll(shortly(t)); err != nil {
			t.Fatal(err)
		}
	}
	took(t, "master.elected_machine.median_ms", "master.elected_machine.most_ms", 1, gaps)
}
