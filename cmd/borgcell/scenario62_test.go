package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestScenario62 drives a cell by borgcfg: up creates what is not there, and asks for nothing
// when it is; another flag restarts each task once, and other memory, which follows from the
// number of shards, restarts none; the same input is the same bytes; and down leaves neither
// a process nor an address.
func TestScenario62(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 5, 2)
	c.hasLatestFormat(t)
	u := newUpdater(t, c, `shards = int(param("shards", "9"))
ram = lambda n: "%dMiB" % (576 // n)
job(name = "web", tasks = 3,
    task = task(args = ["/bin/sh", "-c", "exec sleep 100000" + param("more", "")], grace = "1s", resources = resources(cpu = 0.01, mem = ram(shards)), ports = ["http"]),
    update = update(batch = 3))`)
	memBytes := func() int64 {
		t.Helper()
		resp, err := c.client.GetJob(shortly(t), &borgrpc.GetJobRequest{User: c.user, Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Job.Spec.Task.Resources.MemBytes
	}
	file := func(verb string, more ...string) []string { return append([]string{verb, u.file}, more...) }
	// asks counts what was asked of the cell by its user while do was done.
	marks := 0
	asks := func(do func()) (others int) {
		t.Helper()
		mark := func() string {
			marks++
			value := fmt.Sprint("mark", marks)
			u.cfg(t, "", "annotate", "machine", c.machineName(1), "scenario=62", "--reason", value)
			return value
		}
		from := mark()
		do()
		to := mark()
		waitFor(t, "both marks are in the audit", func() string {
			seen := map[string]int{}
			n := 0
			err := c.client.Audit(shortly(t), &borgrpc.AuditRequest{User: c.user}, func(r *borgrpc.AuditResponse) error {
				for _, record := range r.Records {
					seen[record.Reason] = n
					n++
				}
				return nil
			})
			_, began := seen[from]
			_, ended := seen[to]
			if err != nil || !began || !ended {
				return fmt.Sprint(seen, err)
			}
			others = seen[to] - seen[from] - 1
			return ""
		})
		return others
	}

	if n := asks(func() { u.cfg(t, "job web: created, 3 tasks", file("up", "--wait", "--timeout", "60s")...) }); n != 1 {
		t.Errorf("the first up asked for %d changes, want 1", n)
	}
	before := u.running(t, 3)
	if n := memBytes(); n != 64<<20 {
		t.Errorf("with 9 shards a task has %d bytes, want 64 MiB", n)
	}
	named := func(ctx context.Context) ([]*borgrpc.Endpoint, error) {
		resp, err := c.client.Resolve(ctx, &borgrpc.ResolveRequest{User: c.user, Job: "web"})
		return resp.GetEndpoints(), err
	}
	waitFor(t, "all tasks are named", func() string {
		all, err := named(shortly(t))
		n := 0
		for _, e := range all {
			if e.Running && e.Host != "" && e.Ports["http"] != 0 {
				n++
			}
		}
		if err != nil || n != 3 {
			return fmt.Sprint(all, err)
		}
		return ""
	})
	if n := asks(func() { u.cfg(t, "job web: unchanged", file("up")...) }); n != 0 {
		t.Errorf("the second up asked for %d changes, want none", n)
	}
	c.stillSame(t, before, "web")

	u.push(t, "more=0")
	u.cfg(t, "0 changed in place, 3 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	after := u.running(t, 3)
	for name, was := range before {
		if is := after[name]; is.attempt != was.attempt+1 || is.pid == was.pid || is.restarts != 0 {
			t.Errorf("%s has another flag; it was %+v and is %+v", name, was, is)
		}
	}
	u.push(t, "more=0", "shards=12")
	u.cfg(t, "3 changed in place, 0 restarted, 0 moved, 0 to do; done", "update", "status", "web")
	c.stillSame(t, after, "web")
	if n := memBytes(); n != 48<<20 {
		t.Errorf("with 12 shards a task has %d bytes, want 48 MiB", n)
	}

	eval := func(shards string) string {
		t.Helper()
		return c.must(t, "borgcfg", file("eval", "--set", "shards="+shards)...)
	}
	if first := eval("7"); eval("7") != first || eval("8") == first {
		t.Errorf("the same input is other bytes, or other input the same: %s", first)
	}

	u.cfg(t, "", "down", "web", "--wait", "--timeout", "60s")
	if n, err := c.runningOf("web"); n != 0 || err != nil {
		t.Errorf("%d processes are left, %v", n, err)
	}
	all, err := named(shortly(t))
	var refused *client.RefusedError
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Running || e.Host != "" || len(e.Ports) > 0 {
			t.Errorf("of what is down %v is named", e)
		}
	}
	if out, _ := c.says(t, "borgcfg", "--cell", c.cellFile(), "resolve", "web"); strings.Contains(out, ":") {
		t.Errorf("borgcfg resolve says\n%s", out)
	}
	if job, err := c.jobIs(shortly(t), "web", "it is dead", func(j *borgpb.Job) bool { return j.Status.GetDead() == 3 }); err != nil {
		t.Errorf("%v, %v", job, err)
	}
}
