package main

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
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
