package main

import (
	"testing"

	"borg/proto/borgpb"
)

// TestProductionStartsBeforeFlood: a job without quota has hundreds of tasks that fail as soon as
// they start. Production that comes later starts before most of them had a turn, and those that
// failed again and again wait before they are placed again.
func TestProductionStartsBeforeFlood(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	flood := sleepers(300)
	flood.Kind, flood.Priority, flood.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, 0, 1_000
	flood.Task.Args = []string{"/no/such/program"}
	flood.Task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}
	if _, err := c.submit(shortly(t), "flood", flood); err != nil {
		t.Fatal(err)
	}
	placed := func(j *borgpb.Job) bool { return j.Status.Running > 100 }
	if _, err := c.jobIs(shortly(t), "flood", "its tasks are placed", placed); err != nil {
		t.Fatal(err)
	}
	c.run(t, "web", sleepers(5))
	tasks, err := c.tasks(shortly(t), "flood")
	if err != nil {
		t.Fatal(err)
	}
	waiting := 0
	for _, task := range tasks {
		if task.Status.Failures == 0 {
			waiting++
		}
	}
	if waiting == 0 {
		t.Error("every start of the flood came before production")
	}
	failedAgain := func(*borgpb.Job) bool {
		tasks, err := c.tasks(shortly(t), "flood")
		if err != nil {
			return false
		}
		for _, task := range tasks {
			if s := task.Status; s.Failures >= 2 && s.State == borgpb.State_STATE_PENDING && s.Reason != "" {
				return true
			}
		}
		return false
	}
	if _, err := c.jobIs(shortly(t), "flood", "a task waits for its next attempt", failedAgain); err != nil {
		t.Fatal(err)
	}
}
