package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestQuarantineKeepsTheProcess puts a copy into quarantine: its process goes on, it can be
// gone into and its log read, and another copy is what the job counts and names show. A
// borglet that is killed and an elected master that is change nothing, and when it is
// released it ends, alone.
func TestQuarantineKeepsTheProcess(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 2)
	c.hasLatestFormat(t)
	spec := sleepers(1)
	spec.Task.Ports = []string{"http"}
	spec.Task.Args = []string{"/bin/sh", "-c", `echo "copy $BORG_ATTEMPT" | tee "$BORG_TASK_DIR/mark"; exec sleep 1000000`}
	odd := c.run(t, "web", spec)
	name := c.user + "/web/0"
	op := &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{User: c.user, Name: "web", Attempt: 1}}, Reason: "odd answers"}
	if _, err := c.client.Mutate(shortly(t), op); err != nil {
		t.Fatal(err)
	}
	if _, err := c.jobIs(shortly(t), "web", "another copy runs", func(j *borgpb.Job) bool {
		tasks, err := c.tasks(shortly(t), "web")
		return err == nil && started(j) && tasks[0].Status.Attempt == 2
	}); err != nil {
		t.Fatal(err)
	}
	serves, err := c.snap(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	if serves[name].pid == odd[name].pid {
		t.Fatalf("both copies are process %d", odd[name].pid)
	}
	stands := func(when string) {
		t.Helper()
		if ticks, alive, err := readStat(int(odd[name].pid)); err != nil || !alive || ticks != odd[name].startTicks {
			t.Fatalf("%s: the process in quarantine is not as it was: %v, %v", when, alive, err)
		}
		c.stillSame(t, serves, "web")
		resp, err := c.client.ListAllTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: "web", Attempts: true}, 0)
		if err != nil || len(resp.Tasks) != 1 || len(resp.Tasks[0].Status.Attempts) != 1 {
			t.Fatalf("%s: %v, %v; want one task with one copy beside the present one", when, resp, err)
		}
		if kept := resp.Tasks[0].Status.Attempts[0]; kept.Attempt != 1 || kept.State != borgpb.AttemptState_ATTEMPT_STATE_QUARANTINED || kept.GetQuarantine().GetReason() != "odd answers" {
			t.Errorf("%s: the copy is %v", when, kept)
		}
		j, err := c.client.GetJob(shortly(t), &borgrpc.GetJobRequest{User: c.user, Name: "web"})
		if err != nil || j.Job.Status.GetStarted() != 1 || j.Job.Status.GetRunning() != 1 {
			t.Errorf("%s: the job counts %v, %v; want one task", when, j.GetJob().GetStatus(), err)
		}
		named, err := c.client.Resolve(shortly(t), &borgrpc.ResolveRequest{User: c.user, Job: "web"})
		if err != nil || len(named.Endpoints) != 1 || named.Endpoints[0].Attempt != 2 || !named.Endpoints[0].Running {
			t.Errorf("%s: named are %v, %v; want the second copy alone", when, named.GetEndpoints(), err)
		}
		for attempt, want := range map[uint64]string{1: "copy 1\n", 2: "copy 2\n", 0: "copy 2\n"} {
			if said := c.inside(t, "web", attempt, "/bin/sh", "-c", `cat "$BORG_TASK_DIR/mark"`); said != want {
				t.Errorf("%s: in copy %d stands %q, want %q", when, attempt, said, want)
			}
		}
	}
	stands("when another runs")

	at := odd[name].machine
	if err := c.Kill(at); err != nil {
		t.Fatal(err)
	}
	if err := c.StartBorglet(shortly(t), c.machineNumber(at)); err != nil {
		t.Fatal(err)
	}
	c.restartElected(t)
	if _, err := c.jobIs(shortly(t), "web", "its machine was heard again", started); err != nil {
		t.Fatal(err)
	}
	stands("when its borglet and a master were killed")

	release := &borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: &borgpb.ReleaseTask{User: c.user, Name: "web"}}, Reason: "seen"}
	if _, err := c.client.Mutate(shortly(t), release); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the process that was in quarantine has ended", func() string {
		if ticks, alive, err := readStat(int(odd[name].pid)); err == nil && alive && ticks == odd[name].startTicks {
			return "it has not"
		}
		return ""
	})
	c.stillSame(t, serves, "web")
}

// inside runs a program in a copy of the first task of a job, and is what it wrote; 0:
// in the present copy.
func (c *Cell) inside(t *testing.T, job string, attempt uint64, args ...string) string {
	t.Helper()
	var text bytes.Buffer
	// A machine whose borglet was killed may have to be found again.
	waitFor(t, fmt.Sprintf("a program has run in copy %d", attempt), func() string {
		text.Reset()
		var exit *borgpb.Exit
		req := &borgrpc.ExecRequest{User: c.user, Name: job, Attempt: attempt, Program: &borgrpc.ExecProgram{Args: args}}
		err := c.client.Exec(shortly(t), req, func(func(*borgrpc.ExecInput) error) {}, func(r *borgrpc.ExecResponse) error {
			text.Write(r.GetData())
			if r.Exit != nil {
				exit = r.Exit
			}
			return nil
		})
		if err != nil || exit == nil || exit.Code != 0 || exit.Signal != 0 {
			return strings.TrimSpace(fmt.Sprint(text.String(), " ", exit, " ", err))
		}
		return ""
	})
	return text.String()
}
