package main

import (
	"strings"
	"testing"

	"borg/cli"
	"borg/proto/borgpb"
)

// TestScenarioD20: automation sets the number of a job's tasks and writes labels and
// annotations, the elected master dies, and then the owner pushes his file, in which a flag
// is another. What automation wrote stays, and diff says so before; who is not changed is not
// restarted. What he changes himself becomes as he says, --exactly puts all of it back, and --prune ends
// what his file does not say any more.
func TestScenarioD20(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 5, 1)
	c.hasLatestFormat(t)
	u := newUpdater(t, c, `job(name = "web", labels = {"tier": "web"}, tasks = int(param("tasks", "3")), priority = int(param("priority", "200")),
    task = task(args = ["/bin/sh", "-c", "exec sleep 100000" + param("more", "")], grace = "1s", resources = resources(cpu = 0.01, mem = "16MiB")))`)
	set := func(verb string, sets ...string) []string {
		args := []string{verb, u.file}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return args
	}
	differs := func(want []string, args ...string) {
		t.Helper()
		out, code := c.says(t, "borgcfg", append([]string{"--cell", c.cellFile()}, args...)...)
		if code != cli.Changes {
			t.Errorf("borgcfg %s: exit code %d, want %d", strings.Join(args, " "), code, cli.Changes)
		}
		for _, w := range want {
			if not, ok := strings.CutPrefix(w, "!"); strings.Contains(out, strings.TrimPrefix(w, "!")) == ok {
				t.Errorf("borgcfg %s: says %q: %v:\n%s", strings.Join(args, " "), not, ok, out)
			}
		}
	}
	meta := func(when string, labels, annotations map[string]string) {
		t.Helper()
		job, err := c.jobIs(shortly(t), "web", "it is there", func(*borgpb.Job) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for what, q := range map[string][2]map[string]string{"labels": {job.Meta.Labels, labels}, "annotations": {job.Meta.Annotations, annotations}} {
			if len(q[0]) != len(q[1]) {
				t.Errorf("%s its %s are %v, want %v", when, what, q[0], q[1])
			}
			for key, want := range q[1] {
				if q[0][key] != want {
					t.Errorf("%s its %s are %v, want %v", when, what, q[0], q[1])
				}
			}
		}
	}
	u.cfg(t, "created", append(set("up"), "--wait", "--timeout", "60s")...)
	u.running(t, 3)

	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: c.user, Name: "web", Tasks: 7}}}); err != nil {
		t.Fatal(err)
	}
	u.cfg(t, "", "label", "job", "web", "tier=hot", "load=high")
	u.cfg(t, "", "annotate", "job", "web", "scaler=seven, of three")
	written := map[string]string{"tier": "hot", "load": "high"}
	noted := map[string]string{"scaler": "seven, of three"}
	before := u.running(t, 7)
	c.restartElected(t)

	// The same file again is nothing new.
	u.cfg(t, "job web: unchanged", set("up")...)
	c.stillSame(t, before, "web")
	// His flag, and no more than that; first only looked at.
	stays := []string{"tasks: stays 7, as it was resized to since the file said 3", "!tasks: 7 -> 3",
		`labels.tier: stays "hot", as it was set in the cell`, `labels.load: stays "high"`, "priority: 200 -> 210"}
	differs(stays, set("diff", "priority=210")...)
	u.cfg(t, "tasks: stays 7", append(set("up", "priority=210"), "--dry-run")...)
	meta("after a look", written, noted)
	c.stillSame(t, before, "web")
	u.push(t, "priority=210")
	u.running(t, 7)
	c.stillSame(t, before, "web")
	meta("after a priority", written, noted)
	u.push(t, "priority=210", "more=0")
	restarted := u.running(t, 7)
	for name, was := range before {
		if restarted[name].pid == was.pid {
			t.Errorf("%s has other arguments and is still process %d", name, was.pid)
		}
	}
	meta("after a flag", written, noted)

	// Another number is his own.
	differs([]string{"tasks: 7 -> 4", "!tasks: stays"}, set("diff", "priority=210", "more=0", "tasks=4")...)
	u.push(t, "priority=210", "more=0", "tasks=4")
	now := u.running(t, 4)
	for name, is := range now {
		if restarted[name] != is {
			t.Errorf("%s was %+v and is %+v", name, restarted[name], is)
		}
	}
	// All of it as in the file.
	exactly := append(set("up", "priority=210", "more=0", "tasks=4"), "--exactly")
	differs([]string{`labels.tier: "hot" -> "web"`, `labels.load: removed "high"`}, append(set("diff", "priority=210", "more=0", "tasks=4"), "--exactly")...)
	u.cfg(t, "", append(exactly, "--wait", "--timeout", "60s")...)
	meta("exactly as in the file", map[string]string{"tier": "web"}, nil)
	c.stillSame(t, now, "web")
	u.cfg(t, "job web: unchanged", exactly...)

	// What is not in the file any more ends when he says so, and nothing else does.
	for name, labels := range map[string]map[string]string{"old": {"tier": "web"}, "beside": {"tier": "mail"}} {
		if _, err := c.submitOp(shortly(t), &borgpb.SubmitJob{Name: name, Labels: labels}, sleepers(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.jobIs(shortly(t), name, "it runs", started); err != nil {
			t.Fatal(err)
		}
	}
	beside, err := c.snap(shortly(t), "beside")
	if err != nil {
		t.Fatal(err)
	}
	prune := append(exactly, "--prune", "tier=web")
	u.cfg(t, "- job old: not in the files, ended", append(prune, "--dry-run")...)
	if _, err := c.jobIs(shortly(t), "old", "it runs", started); err != nil {
		t.Fatal(err)
	}
	u.cfg(t, "job old: down", prune...)
	if _, err := c.jobIs(shortly(t), "old", "it is dead", func(j *borgpb.Job) bool { return j.Status.GetDead() == 1 && j.Status.GetStopping() == 0 }); err != nil {
		t.Fatal(err)
	}
	c.stillSame(t, beside, "beside")
	c.stillSame(t, now, "web")
	u.cfg(t, "job web: unchanged", prune...)
}
