package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"borg/borgmaster/client"
)

// The short form of the demo, with the programs as they are.
func TestThinDemo(t *testing.T) {
	l := chaosLayout(t, 3, 1)
	code, stdout, stderr := try(t, "demo", "--thin", "--cell", l.Name, "--masters", "3", "--dir", l.dir, "--run-dir", l.RunDir, "--bin", l.binDir,
		"--port-base", fmt.Sprint(l.PortBase), "--task-port-base", fmt.Sprint(l.TaskPortBase), "--examples", "../../examples")
	if code != 0 || !strings.Contains(stdout, "all of it was true") || strings.Contains(stdout, "FAILED") {
		t.Errorf("demo --thin: exit %d\n%s%s", code, stdout, stderr)
	}
	if left, err := l.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left after the demo: %v, %v", left, err)
	}
}

func testDemo(out *strings.Builder) *demo {
	return &demo{out: out, began: time.Now(), layout: layout{dir: "/cell"}, cell: &Cell{}}
}

// A claim that is not true ends the demo, with what was expected and seen.
func TestDemoStopsAtWhatIsNotTrue(t *testing.T) {
	var out strings.Builder
	d := testDemo(&out)
	err := d.play(t.Context(), []step{
		{"the first claim", time.Minute, func(context.Context) (string, error) { return "two\nlines", nil }},
		{"the second claim", time.Minute, func(context.Context) (string, error) { return "", expected("3 tasks", "%d", 2) }},
		{"the third claim", time.Minute, func(context.Context) (string, error) { t.Error("went on"); return "", nil }},
	})
	failure := d.failure(err).Error()
	if !strings.Contains(failure, "expected: 3 tasks") || !strings.Contains(failure, "seen:     2") {
		t.Errorf("failure: %s", failure)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "ok     the first claim") || !strings.Contains(lines[3], "FAILED the second claim") {
		t.Errorf("the demo said:\n%s", out.String())
	}
}

// A step that hangs is ended by its limit, and Ctrl-C is told from it.
func TestDemoStepsAreBounded(t *testing.T) {
	var out strings.Builder
	hang := func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	err := testDemo(&out).play(t.Context(), []step{{"it ends", time.Millisecond, hang}})
	if err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a step beyond its limit: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := testDemo(&out).play(ctx, []step{{"it ends", time.Minute, hang}}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted step: %v", err)
	}
}

// Any change of a process is seen, and only a change.
func TestSnapshotsDiffer(t *testing.T) {
	was := copyState{machine: "m1", attempt: 1, pid: 100, startTicks: 5}
	before := snapshot{"a/web/0": was, "a/web/1": was}
	if diff := before.difference(snapshot{"a/web/0": was, "a/web/1": was, "a/web/2": was}); diff != "" {
		t.Errorf("difference of equal snapshots: %s", diff)
	}
	for name, change := range map[string]func(*copyState){
		"machine":    func(c *copyState) { c.machine = "m2" },
		"attempt":    func(c *copyState) { c.attempt++ },
		"restarts":   func(c *copyState) { c.restarts++ },
		"pid":        func(c *copyState) { c.pid++ },
		"same pid":   func(c *copyState) { c.startTicks++ },
		"not a task": nil,
	} {
		now := snapshot{"a/web/0": was}
		if change != nil {
			is := was
			change(&is)
			now["a/web/1"] = is
		}
		if diff := before.difference(now); !strings.Contains(diff, "a/web/1") || strings.Contains(diff, "a/web/0") {
			t.Errorf("%s: difference = %q", name, diff)
		}
	}
}

func TestOnlyARefusalAsExistingIsADouble(t *testing.T) {
	if alreadyExists(errors.New("already exists")) || alreadyExists(&client.NotFoundError{}) {
		t.Error("another error is taken for a submit that was done twice")
	}
}
