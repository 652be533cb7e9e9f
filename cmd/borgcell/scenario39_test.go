package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// failingEnv has this program serve a page: it is well until a file of that name is there.
const failingEnv = "BORG_TEST_FAILING"

// serveFailing answers with 200, and with 500 once the file is there.
func serveFailing(file string) error {
	return http.ListenAndServe(":"+os.Getenv("PORT"), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(file); err == nil {
			http.Error(w, "it is failing", http.StatusInternalServerError)
		}
	}))
}

// TestScenario39: a server that answers no more within the timeout of its checks, and then
// one that answers with 500, is not named as running, and is restarted on its machine; once
// it answers well it is named again.
func TestScenario39(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	signs := t.TempDir()
	sign := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(signs, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spec := sleepers(1)
	spec.Task.Ports = []string{"http"}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec.Task.Mounts = []*borgpb.Mount{{Source: c.binDir, Path: c.binDir}, {Source: signs, Path: "/signs"}, {Source: filepath.Dir(self), Path: "/test"}}
	second := int64(time.Second)
	check := func(failures uint32) *borgpb.HealthCheck {
		return &borgpb.HealthCheck{HttpPath: "/healthz", PeriodNs: second, TimeoutNs: second, Failures: failures}
	}
	spec.Task.Ready, spec.Task.Health = check(1), check(3)
	// The first run hangs when it is told to, the second fails then, and the third is well;
	// those that follow the first begin to serve when they are told.
	spec.Task.Args = []string{"/bin/sh", "-c", fmt.Sprintf(`
trap '[ -z "$h" ] || kill -KILL "$h"; exit 0' TERM
wait_for() { until [ -e "/signs/$1" ]; do sleep 0.05; done; }
read -r run < run || run=1
echo $((run+1)) > run
case $run in
1) %[1]s & h=$!; wait_for sick; kill -STOP "$h";;
2) wait_for well; %[2]s=/signs/failing /test/%[3]s & h=$!;;
*) wait_for cured; %[1]s & h=$!;;
esac
while :; do sleep 0.05; done`, filepath.Join(c.binDir, "hello"), failingEnv, filepath.Base(self))}
	c.run(t, "web", spec)
	named := func(running bool) *borgrpc.Endpoint {
		t.Helper()
		var one *borgrpc.Endpoint
		err := until(shortly(t), fmt.Sprintf("that it runs is named: %v", running), func(ctx context.Context) error {
			resp, err := c.client.Resolve(ctx, &borgrpc.ResolveRequest{User: c.user, Job: "web"})
			if err != nil {
				return err
			}
			if one = resp.Endpoints[0]; one.Running != running {
				return fmt.Errorf("it is at %v", one)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	task := func() *borgpb.TaskStatus {
		t.Helper()
		resp, err := c.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: "web"})
		if err != nil || len(resp.Tasks) != 1 {
			t.Fatalf("%v, %v", resp, err)
		}
		return resp.Tasks[0].Status
	}
	before := named(true)
	if n := task().Restarts; n != 0 {
		t.Fatalf("it was restarted %d times while it answered", n)
	}
	restarted := func(times uint32) {
		t.Helper()
		named(false)
		waitFor(t, "it is restarted", func() string {
			if x := task(); x.Restarts < times {
				return fmt.Sprint(x)
			}
			return ""
		})
		// Nobody answers yet.
		named(false)
	}
	again := func() {
		t.Helper()
		after := named(true)
		if after.Attempt != before.Attempt || after.Machine != before.Machine || after.Ports["http"] != before.Ports["http"] {
			t.Errorf("it was %v and is %v; want the same copy", before, after)
		}
	}
	sign("sick")
	restarted(1)
	sign("well")
	again()
	if n := task().Restarts; n != 1 {
		t.Errorf("it was restarted %d times, want once", n)
	}
	sign("failing")
	restarted(2)
	sign("cured")
	again()
	// Whoever asks what happened is told why, each time.
	var told []string
	err = c.client.Events(shortly(t), &borgrpc.EventsRequest{Job: c.user + "/web"}, func(resp *borgrpc.EventsResponse) error {
		for _, e := range resp.Events {
			if e.Kind == borgpb.EventKind_EVENT_KIND_RESTART {
				told = append(told, e.Reason)
			}
		}
		return nil
	})
	const failed = "unhealthy: GET /healthz of port http: "
	if err != nil || len(told) != 2 || !strings.HasPrefix(told[0], "unhealthy: no answer within 1s") || !strings.HasPrefix(told[1], failed+"500 Internal Server Error: it is failing") {
		t.Errorf("it was restarted for %q, %v", told, err)
	}
	if why := task().LastExit.GetReason(); !strings.HasPrefix(why, failed+"500") {
		t.Errorf("its last process ended for %q", why)
	}
	for _, args := range [][]string{{"events", "--job", "web", "--last", "100"}, {"tasks", "web", "-o", "wide"}} {
		if out := c.must(t, "borgcfg", append([]string{"--cell", c.cellFile()}, args...)...); !strings.Contains(out, failed+"500 Internal Server Error: it is failing") {
			t.Errorf("borgcfg %s says\n%s", strings.Join(args, " "), out)
		}
	}
	if out := c.output(t, "web"); strings.Count(out, "serving on port") < 1 {
		t.Errorf("it says\n%s", out)
	}
}
