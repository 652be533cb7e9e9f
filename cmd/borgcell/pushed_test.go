package main

import (
	"fmt"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestFilesArePushed: a task in its container sees a small file of its user, sees the next
// version of it and is told by a signal, without a restart, also when its borglet and
// the master were killed in between; it cannot write it.
func TestFilesArePushed(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	write := func(content string) {
		t.Helper()
		if _, err := c.client.WriteFile(shortly(t), c.user, "conf/app", []byte(content), nil); err != nil {
			t.Fatal(err)
		}
	}
	said := func(want string) {
		t.Helper()
		c.wrote(t, "web", want)
	}
	write("first\n")
	spec := sleepers(1)
	spec.Task.Files = []*borgpb.PushedFile{{Name: "conf/app", Signal: borgpb.ReloadSignal_RELOAD_SIGNAL_HUP}}
	spec.Task.Args = []string{"/bin/sh", "-c", `f={{task.files}}/conf/app
trap 'echo "told of $(cat $f)"' HUP
test $f = $BORG_FILES/conf/app && echo "has $(cat $f)"
echo x >> $f || echo read-only
while :; do sleep 0.1; done`}
	before := c.run(t, "web", spec)
	said("has first\n")
	if runtimes, err := c.runtimes(t.Context()); err == nil && strings.Contains(runtimes, "container") {
		said("read-only\n")
	}
	write("second\n")
	said("told of second\n")
	if err := c.Kill(c.machineName(1)); err != nil {
		t.Fatal(err)
	}
	write("third\n")
	if err := c.Kill(c.masterName(1)); err != nil {
		t.Fatal(err)
	}
	if err := c.StartMaster(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.StartBorglet(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	said("told of third\n")
	c.stillSame(t, before, "web")
	if out := c.output(t, "web"); strings.Count(out, "told of") != 2 {
		t.Errorf("the task was told of what had not changed:\n%s", out)
	}
}

// TestNotReadyLeavesTheNames: a task that is not ready is not named as one that runs, says
// so, and goes on as the same process; then it is named again.
func TestNotReadyLeavesTheNames(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	if _, err := c.client.WriteFile(shortly(t), c.user, "ready", []byte("yes"), nil); err != nil {
		t.Fatal(err)
	}
	spec := sleepers(1)
	spec.Task.Files = []*borgpb.PushedFile{{Name: "ready"}}
	spec.Task.Ready = &borgpb.HealthCheck{Command: []string{"/bin/sh", "-c", "grep yes $BORG_FILES/ready || { echo it is busy >&2; exit 1; }"}, PeriodNs: 1e9, Failures: 2}
	before := c.run(t, "web", spec)
	named := func(want bool, reason string) {
		t.Helper()
		waitFor(t, fmt.Sprintf("it is named as one that runs: %v", want), func() string {
			where, err := c.client.Resolve(shortly(t), &borgrpc.ResolveRequest{User: c.user, Job: "web"})
			if err != nil || len(where.Endpoints) != 1 || where.Endpoints[0].Running != want {
				return fmt.Sprintf("%v, %v", where, err)
			}
			tasks, err := c.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: "web"})
			if err != nil || len(tasks.Tasks) != 1 || !strings.Contains(tasks.Tasks[0].Status.Reason, reason) {
				return fmt.Sprintf("%v, %v", tasks, err)
			}
			return ""
		})
	}
	named(true, "")
	if _, err := c.client.WriteFile(shortly(t), c.user, "ready", []byte("no"), nil); err != nil {
		t.Fatal(err)
	}
	named(false, "not ready: /bin/sh: exit code 1: it is busy")
	if _, err := c.client.WriteFile(shortly(t), c.user, "ready", []byte("yes"), nil); err != nil {
		t.Fatal(err)
	}
	named(true, "")
	c.stillSame(t, before, "web")
}
