package cfg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// evalJob evaluates a file with one job in it.
func evalJob(t *testing.T, text string) *Object {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.borg")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Evaluate(path, Options{User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	return f.Objects[0]
}

func TestDiff(t *testing.T) {
	old := evalJob(t, `job(name = "web", tasks = 3, labels = {"a": "1", "b": "2"}, max_per = {"gen": 1, "row": 2}, task = task(
		args = ["/bin/web", "--old"], env = {"A": "1", "B": "2"}, ports = ["http"], constraints = ["arch=amd64"],
		resources = resources(cpu = 1, mem = "1GiB", devices = {"gpu": 1})))`)
	next := evalJob(t, `job(name = "web", tasks = 5, priority = 150, labels = {"a": "1", "c": "3"}, alloc_set = "place", max_per = {"gen": 2},
		overrides = [override(index = 0, task = task(env = {"FIRST": "1"}))], task = task(
		args = ["/bin/web", "--new", "-v"], env = {"A": "1", "B": "3"}, ports = ["http", "admin"], constraints = ["arch=arm64"],
		resources = resources(cpu = 1.5, mem = "1GiB", devices = {"gpu": 2}), grace = "5s",
		mounts = [mount(source = "/srv", path = "/srv")]))`)
	stored := &borgpb.Job{Meta: &borgpb.Meta{Labels: old.Labels}, Spec: old.Job}
	var lines []string
	for _, c := range DiffJob(stored, next) {
		lines = append(lines, c.String())
	}
	want := `labels.b: removed "2" (no task is disturbed)
labels.c: added "3" (no task is disturbed)
tasks: 3 -> 5 (other tasks are left alone)
priority: 200 -> 150 (no task is disturbed)
task.resources.cpu_milli: 1 -> 1.5 (in place where it still fits)
task.resources.devices.gpu: 1 -> 2 (restarts tasks)
task.args[1]: "--old" -> "--new" (restarts tasks)
task.args[2]: added "-v" (restarts tasks)
task.env.B: "2" -> "3" (restarts tasks)
task.ports[1]: added "admin" (restarts tasks)
task.constraints[0].value: "amd64" -> "arm64" (in place where it still fits)
task.mounts[0]: added (source = "/srv", path = "/srv") (restarts tasks)
task.grace_ns: 30s -> 5s (in place where it still fits)
overrides[0]: added for tasks 0 to 0 (env = {"FIRST": "1"}) (restarts tasks)
alloc_set: added "alice/place" (moves tasks)
max_per.gen: 1 -> 2 (no task is disturbed)
max_per.row: removed 2 (no task is disturbed)`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("diff:\n%s\nwant:\n%s", got, want)
	}
	if same := DiffJob(&borgpb.Job{Meta: &borgpb.Meta{Labels: next.Labels}, Spec: proto.CloneOf(next.Job)}, next); len(same) != 0 {
		t.Errorf("a job differs from itself: %v", same)
	}
	// The spec that a cell shows has the present number of tasks.
	spec := proto.CloneOf(old.Job)
	spec.Tasks = 7
	resized := &borgpb.Job{Meta: stored.Meta, Spec: spec}
	if got := DiffJob(resized, old); len(got) != 1 || got[0].String() != "tasks: 7 -> 3 (other tasks are left alone)" {
		t.Errorf("after a resize: %v", got)
	}
}
