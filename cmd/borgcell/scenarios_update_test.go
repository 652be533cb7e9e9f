package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	served "github.com/google/go-containerregistry/pkg/registry"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
)

// Scenarios about updates, asked for by borgcfg.

// updater pushes versions of a job file.
type updater struct {
	c    *Cell
	file string
}

func newUpdater(t *testing.T, c *Cell, text string) *updater {
	t.Helper()
	u := &updater{c, filepath.Join(t.TempDir(), "web.borg")}
	if err := os.WriteFile(u.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return u
}

// cfg runs borgcfg, and wants its output to have a text.
func (u *updater) cfg(t *testing.T, want string, args ...string) {
	t.Helper()
	if out := u.c.must(t, "borgcfg", append([]string{"--cell", u.c.cellFile()}, args...)...); !strings.Contains(out, want) {
		t.Fatalf("borgcfg %s says\n%s\nwant %q", strings.Join(args, " "), out, want)
	}
}

// copies are the copies of the job, once all its tasks run.
func (u *updater) copies(t *testing.T) snapshot {
	t.Helper()
	if _, err := u.c.jobIs(shortly(t), "web", "its tasks run", started); err != nil {
		t.Fatal(err)
	}
	now, err := u.c.snap(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// running is copies where there are so many.
func (u *updater) running(t *testing.T, n int) snapshot {
	t.Helper()
	now := u.copies(t)
	if len(now) != n {
		t.Fatalf("%d tasks run, want %d", len(now), n)
	}
	return now
}

// push has an update done to its end.
func (u *updater) push(t *testing.T, sets ...string) {
	t.Helper()
	args := []string{"update", u.file, "--wait", "--timeout", "60s"}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	u.cfg(t, "", args...)
}

// An update of a hundred tasks that may disturb ten restarts exactly ten, and says of
// ninety that they were skipped; until it is closed one step takes all back, and then none.
func rollingUpdate(t *testing.T, s *scenarios) {
	u := newUpdater(t, s.Cell, `job(name = "web", tasks = 100,
    task = task(args = ["/bin/web", "--greeting=" + param("greeting", "hello")], resources = resources(cpu = 0.1, mem = "16MiB")),
    update = update(batch = 5, max_disruptions = 10))`)
	u.cfg(t, "job web: created, 100 tasks", "up", u.file, "--wait", "--timeout", "60s")
	t.Cleanup(func() { s.end(t, s.user, "web") })
	attempts := func(number uint64) (tasks []uint32) {
		for _, x := range s.tasksOf(t, s.user, "web") {
			if x.Status.Attempt == number {
				tasks = append(tasks, x.Index)
			}
		}
		return tasks
	}
	u.push(t, "greeting=hi")
	u.cfg(t, "10 restarted, 0 moved, 0 to do, 90 skipped; done", "update", "status", "web")
	u.cfg(t, "90 tasks run with another version", "update", "status", "web")
	if once, twice := attempts(1), attempts(2); len(once) != 90 || len(twice) != 10 {
		t.Fatalf("%d tasks run as they were and %d were restarted, want 90 and 10", len(once), len(twice))
	}
	again := attempts(2)
	u.cfg(t, "rolling back", "update", "rollback", "web", "--wait", "--timeout", "60s")
	u.cfg(t, "90 changed in place, 10 restarted, 0 moved, 0 to do; rolled back", "update", "status", "web")
	if back := attempts(3); fmt.Sprint(back) != fmt.Sprint(again) || len(attempts(1)) != 90 {
		t.Errorf("for the way back were restarted %v, want those of the way there, %v", back, again)
	}
	u.push(t, "greeting=hi")
	u.cfg(t, "closed", "update", "close", "web")
	if out, code := s.says(t, "borgcfg", "--cell", s.cellFile(), "update", "rollback", "web"); code != cli.Refused || !strings.Contains(out, "is closed and cannot be rolled back") {
		t.Errorf("a rollback of what is closed: exit code %d: %s", code, out)
	}
}

// TestScenario35 changes a task in a container: with its priority, or with a fifth more
// memory that fits, the same process goes on; with more than its machine has left it is
// placed elsewhere; with other arguments it is restarted.
func TestScenario35(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 2)
	c.hasLatestFormat(t)
	u := newUpdater(t, c, `job(name = "web", priority = int(param("priority", "200")),
    task = task(args = ["/bin/sh", "-c", "exec sleep 100000" + param("more", "")], grace = "1s",
        resources = resources(cpu = 0.1, mem = param("mem", "100MiB"))))`)
	here := c.machineName(1)
	c.run(t, "filler", func() *borgpb.JobSpec {
		spec := sleepers(1)
		spec.Task.Resources.MemBytes = 6 * gib
		spec.Task.Constraints = []*borgpb.Constraint{{Key: cell.NameAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: here}}
		return spec
	}())
	drain := func(on bool) {
		t.Helper()
		op := &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: c.machineName(2), Drain: on}}}
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
	drain(true)
	u.cfg(t, "created", "up", u.file, "--wait", "--timeout", "60s")
	drain(false)
	before, err := c.snap(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	name := c.user + "/web/0"
	if at := before[name].machine; at != here {
		t.Fatalf("it is on %s, want %s", at, here)
	}
	u.push(t, "priority=210")
	u.cfg(t, "1 changed in place, 0 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	c.stillSame(t, before, "web")
	u.push(t, "priority=210", "mem=120MiB")
	u.cfg(t, "1 changed in place, 0 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	c.stillSame(t, before, "web")

	is := func(machine string, attempt uint64) {
		t.Helper()
		now, err := c.snap(shortly(t), "web")
		if err != nil {
			t.Fatal(err)
		}
		if x := now[name]; x.machine != machine || x.attempt != attempt || x.pid == before[name].pid {
			t.Errorf("it is %+v, want attempt %d on %s", x, attempt, machine)
		}
		before = now
	}
	u.push(t, "priority=210", "mem=3GiB")
	u.cfg(t, "0 changed in place, 0 restarted, 1 moved, 0 to do; done", "update", "status", "web")
	is(c.machineName(2), 2)
	u.push(t, "priority=210", "mem=3GiB", "more=1")
	u.cfg(t, "0 changed in place, 1 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	is(c.machineName(2), 3)
}

// TestScenario35Package gives a task in a container another version of its package: it is
// always restarted, on its machine, and finds that version there; with its priority alone
// changed the same process goes on with it.
func TestScenario35Package(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("packages at a path need containers, and containers need root")
	}
	alongside(t)
	inner := served.New(served.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	digests := map[string]string{}
	for _, version := range []string{"one", "two"} {
		digests[version] = imageWith(t, inner, "name", "version "+version+"\n")
	}
	registry := httptest.NewServer(inner)
	t.Cleanup(registry.Close)
	c := newChaosCell(t, 5, 2)
	c.alter = func(spec *processSpec) {
		if c.machineNumber(spec.Name) > 0 {
			spec.Args = append(spec.Args, "--package-source", registry.URL+"/a/tool")
		}
	}
	c.startAll(t)
	c.hasLatestFormat(t)
	u := newUpdater(t, c, `job(name = "web", tasks = 2, priority = int(param("priority", "200")),
    task = task(args = ["/bin/sh", "-c", "cat /opt/tool/name; exec sleep 1000000"], grace = "1s", resources = resources(cpu = 0.1, mem = "16MiB"),
        packages = [package(name = "tool", digest = param("digest"), path = "/opt/tool")]))`)
	reads := func(version string, attempt uint64) {
		t.Helper()
		waitFor(t, "the task has read its package", func() string {
			if out := c.output(t, "web"); !strings.Contains(out, "version "+version) {
				return out
			}
			return ""
		})
		for name, x := range u.copies(t) {
			if x.attempt != attempt {
				t.Errorf("%s is attempt %d, want %d", name, x.attempt, attempt)
			}
		}
	}
	u.cfg(t, "created", "up", u.file, "--set", "digest="+digests["one"], "--wait", "--timeout", "60s")
	reads("one", 1)
	before := u.copies(t)
	u.push(t, "digest="+digests["one"], "priority=210")
	u.cfg(t, "2 changed in place, 0 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	c.stillSame(t, before, "web")
	u.push(t, "digest="+digests["two"], "priority=210")
	u.cfg(t, "0 changed in place, 2 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	reads("two", 2)
	for name, was := range before {
		if is := u.copies(t)[name]; is.pid == was.pid || is.machine != was.machine {
			t.Errorf("%s has another package; it was %+v and is %+v", name, was, is)
		}
	}
}

// TestUpdatesAskTheirGate has an update ask a metrics server that the cell's operator lets
// it ask, and no other: while the value is out of bounds nobody is disturbed, whoever is
// elected, and once it is not the update goes on, without the client that asked for it.
func TestUpdatesAskTheirGate(t *testing.T) {
	alongside(t)
	var good atomic.Bool
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		value := "7"
		if good.Load() {
			value = "0"
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,%q]}]}}`, value)
	}))
	defer server.Close()
	c := fakeCell(t, 3, 2, fleet.Life{})
	c.MetricGates = []string{server.URL}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	u := newUpdater(t, c, `job(name = "web", tasks = 3,
    task = task(args = ["/bin/web", param("flag", "a")], resources = resources(cpu = 0.1, mem = "16MiB")),
    update = update(gate = gate(url = param("url", "`+server.URL+`"), query = "errors", most = 1, fail_after = "1h")))`)
	u.cfg(t, "created", "up", u.file, "--wait", "--timeout", "60s")
	if out, code := c.says(t, "borgcfg", "--cell", c.cellFile(), "update", u.file, "--set", "url=http://127.0.0.1:1"); code == cli.OK || !strings.Contains(out, "--metric-gates") {
		t.Errorf("a server that nobody lets it ask: exit code %d: %s", code, out)
	}
	u.cfg(t, "", "update", u.file, "--set", "flag=b")
	untouched := func() {
		t.Helper()
		tasks, err := c.tasks(shortly(t), "web")
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range tasks {
			if x.Status.Attempt != 1 {
				t.Fatalf("task %d was disturbed: %v", x.Index, x.Status)
			}
		}
	}
	wait := func(times int64) {
		t.Helper()
		want := asked.Load() + times
		waitFor(t, "the server is asked", func() string {
			if n := asked.Load(); n < want {
				return fmt.Sprint(n, " times")
			}
			return ""
		})
		untouched()
	}
	wait(2)
	c.restartElected(t)
	wait(2)
	good.Store(true)
	if _, err := c.jobIs(shortly(t), "web", "all tasks are restarted", func(j *borgpb.Job) bool {
		tasks, err := c.tasks(shortly(t), "web")
		for _, x := range tasks {
			if x.Status.Attempt != 2 {
				return false
			}
		}
		return err == nil && started(j)
	}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the update says that it is done", func() string {
		const want = "3 restarted, 0 moved, 0 to do; done"
		if out := u.c.must(t, "borgcfg", "--cell", u.c.cellFile(), "update", "status", "web"); !strings.Contains(out, want) {
			return out
		}
		return ""
	})
}
