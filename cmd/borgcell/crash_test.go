package main

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestScenario40CrashPairing has a task that crashes on one machine only: after two crashes
// it is placed elsewhere, and others still use that machine.
func TestScenario40CrashPairing(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 2)
	c.hasLatestFormat(t)
	bad, good := c.machineName(1), c.machineName(2)
	drain := func(on bool) {
		t.Helper()
		op := &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: good, Drain: on}}}
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
	// So that it begins where it crashes.
	drain(true)
	spec := sleepers(1)
	spec.Kind, spec.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, 1_000
	spec.Task.Args = []string{"/bin/sh", "-c", fmt.Sprintf(`test "$BORG_MACHINE" != %s`, bad)}
	if _, err := c.submit(shortly(t), "picky", spec); err != nil {
		t.Fatal(err)
	}
	failedTwice := func(*borgpb.Job) bool {
		tasks, err := c.tasks(shortly(t), "picky")
		return err == nil && tasks[0].Status.Failures >= 2
	}
	if _, err := c.jobIs(shortly(t), "picky", "it has crashed twice where it had to be", failedTwice); err != nil {
		t.Fatal(err)
	}
	drain(false)
	if _, err := c.jobIs(shortly(t), "picky", "it has finished elsewhere", finished); err != nil {
		t.Fatal(err)
	}
	tasks, err := c.tasks(shortly(t), "picky")
	if err != nil {
		t.Fatal(err)
	}
	if s := tasks[0].Status; s.Machine != good {
		t.Errorf("it has finished on %s, want %s", s.Machine, good)
	}
	other := sleepers(1)
	other.Task.Constraints = []*borgpb.Constraint{{Key: cell.NameAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: bad}}
	c.run(t, "other", other)
}

// TestScenario40CrashingService has two services whose processes end again and again: one on
// a single machine, and is tried on the other, where it runs; one wherever it is, and is tried
// elsewhere once.
func TestScenario40CrashingService(t *testing.T) {
	alongside(t)
	c := newChaosCell(t, 1, 2)
	c.alter = func(spec *processSpec) {
		if spec.Path == c.bin("borglet") {
			spec.Args = append(spec.Args, "--backoff", "200ms")
		}
	}
	c.startAll(t)
	c.hasLatestFormat(t)
	bad, good := c.machineName(1), c.machineName(2)
	drain := func(on bool) {
		t.Helper()
		op := &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: good, Drain: on}}}
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
	task := func(name string) *borgpb.Task {
		resp, err := c.client.ListAllTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: name, Attempts: true}, 0)
		if err != nil || len(resp.GetTasks()) != 1 {
			t.Fatalf("the task of %s: %v, %v", name, resp, err)
		}
		return resp.Tasks[0]
	}
	// So that both begin where the first one crashes.
	drain(true)
	for name, does := range map[string]string{"picky": fmt.Sprintf(`test "$BORG_MACHINE" != %s && exec sleep 1000`, bad), "broken": "exit 1"} {
		spec := sleepers(1)
		spec.Task.Args = []string{"/bin/sh", "-c", does}
		if _, err := c.submit(shortly(t), name, spec); err != nil {
			t.Fatal(err)
		}
		if _, err := c.jobIs(shortly(t), name, "it has a place where it crashes", func(*borgpb.Job) bool { return task(name).Status.Machine == bad }); err != nil {
			t.Fatal(err)
		}
	}
	drain(false)
	if _, err := c.jobIs(shortly(t), "picky", "it runs elsewhere", func(*borgpb.Job) bool {
		s := task("picky").Status
		return s.Machine == good && s.AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	}); err != nil {
		t.Fatal(err)
	}
	if s := task("picky").Status; s.Attempt != 2 || len(s.Attempts) != 1 || s.Attempts[0].Cause != borgpb.StopCause_STOP_CAUSE_CRASHED {
		t.Errorf("it came there so: %v", s)
	}
	if _, err := c.jobIs(shortly(t), "broken", "it has crashed often elsewhere too", func(*borgpb.Job) bool {
		s := task("broken").Status
		return s.Attempt >= 2 && s.Restarts >= 6
	}); err != nil {
		t.Fatal(err)
	}
	if s := task("broken").Status; s.Attempt != 2 || s.Machine != good {
		t.Errorf("it crashes wherever it is, and is at its attempt %d, on %s", s.Attempt, s.Machine)
	}
}
