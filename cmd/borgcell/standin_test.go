package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestAbortedSurgeKeepsTasks aborts an update in the middle: two of three tasks are down for
// it, and two extra ones are up in their place. Those stay, and go as the two come up: never
// do fewer than three run.
func TestAbortedSurgeKeepsTasks(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 2)
	c.hasLatestFormat(t)
	signs := t.TempDir()
	ready := func(version string, indices ...int) {
		t.Helper()
		for _, i := range indices {
			if err := os.WriteFile(filepath.Join(signs, fmt.Sprintf("%s.%d", version, i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A task is up when there is a sign for its version and its index.
	spec := func(version string) *borgpb.JobSpec {
		s := sleepers(3)
		s.Task.Env = map[string]string{"VERSION": version}
		s.Task.Mounts = []*borgpb.Mount{{Source: signs, Path: "/signs"}}
		s.Task.Ready = &borgpb.HealthCheck{Command: []string{"/bin/sh", "-c", `[ -e "/signs/$VERSION.${BORG_TASK##*/}" ]`}, Failures: 1}
		s.Update = &borgpb.UpdatePolicy{Surge: 2}
		return s
	}
	ready("a", 0, 1, 2)
	before := c.run(t, "web", spec("a"))
	ready("b", 3, 4)
	seen := c.watchStarted(t.Context(), "web")
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: c.user, Name: "web", Spec: encodeSpec(t, spec("b"))}}}); err != nil {
		t.Fatal(err)
	}
	is := func(what string, extra uint32, tasks int, restarted ...int) {
		t.Helper()
		waitFor(t, what, func() string {
			resp, err := c.client.GetJob(shortly(t), &borgrpc.GetJobRequest{User: c.user, Name: "web"})
			if err != nil {
				return err.Error()
			}
			all, err := c.tasks(shortly(t), "web")
			if err != nil {
				return err.Error()
			}
			up := resp.Job.Status.GetStarted() == 3 && resp.Update.GetStatus().GetExtra() == extra && len(all) == tasks
			for _, i := range restarted {
				up = up && i < len(all) && all[i].Status.GetAttempt() == 2 && all[i].Status.GetPid() != 0
			}
			if !up {
				return fmt.Sprint(resp.Job.Status, resp.Update.GetStatus(), all)
			}
			return ""
		})
	}
	is("two extra tasks run, and two are down", 2, 5, 0, 1)
	c.must(t, "borgcfg", "--cell", c.cellFile(), "update", "abort", "web")
	is("two stand in", 2, 5, 0, 1)
	ready("b", 0)
	is("one stands in", 1, 4, 0, 1)
	ready("b", 1)
	is("nobody does", 0, 3, 0, 1)
	if fewest, looks := seen(); fewest < 3 {
		t.Errorf("looked %d times: %d of 3 tasks ran", looks, fewest)
	}
	name := c.user + "/web/2"
	now, err := c.snap(shortly(t), "web")
	if err != nil || now[name] != before[name] {
		t.Errorf("%s was %+v and is %+v, %v", name, before[name], now[name], err)
	}
}
