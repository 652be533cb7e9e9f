package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// The tests in chaos_*_test.go start the real programs and kill them. Plain
// `go test` does it in a small size; BORG_CHAOS=full in the size that the
// promises are made for. BORG_BIN names a directory of programs to use instead
// of building them.

// size is small in plain tests and full with BORG_CHAOS=full.
func size(small, full int) int {
	if os.Getenv("BORG_CHAOS") == "full" {
		return full
	}
	return small
}

// builds is the one build of the programs for all tests.
var builds struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if builds.dir != os.Getenv("BORG_BIN") {
			os.RemoveAll(builds.dir)
		}
		os.Exit(code)
	}))
}

// programsDir returns a directory with the programs.
func programsDir(t *testing.T) string {
	t.Helper()
	builds.once.Do(func() {
		if builds.dir = os.Getenv("BORG_BIN"); builds.dir != "" {
			return
		}
		if builds.dir, builds.err = os.MkdirTemp("", "borg-bin-"); builds.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", builds.dir, "borg/cmd/...", "borg/examples/hello").CombinedOutput()
		if err != nil {
			builds.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if builds.err != nil {
		t.Fatal(builds.err)
	}
	return builds.dir
}

var cellsMade atomic.Int32

// chaosLayout is the layout of a cell of a test's own: no other test, and no
// other run of the tests, has its name, its directories or its ports.
func chaosLayout(t *testing.T, masters, machines int) layout {
	t.Helper()
	// Not t.TempDir: its paths are too long for sockets.
	dir, err := os.MkdirTemp("", "borgcell-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cell's directory is kept: %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	n := int(cellsMade.Add(1))
	l := layout{
		Name: fmt.Sprintf("t%d-%d", os.Getpid(), n), Masters: masters, Machines: machines,
		TaskPortBase: 30000, Capacity: "cpu=4,mem=8GiB,disk=20GiB", Runtime: "auto",
		dir: filepath.Join(dir, "cell"), RunDir: filepath.Join(dir, "run"), binDir: programsDir(t),
	}
	for l.PortBase = 10000 + os.Getpid()%100*100; l.PortBase < 30000; l.PortBase += 200 {
		if (&Cell{layout: l}).checkPorts() == nil {
			return l
		}
	}
	t.Fatal("no free ports from 10000 to 30000")
	return l
}

// chaosCell starts a cell, which is stopped at the end of the test; nothing of
// it may be left then.
func chaosCell(t *testing.T, masters, machines int) *Cell {
	t.Helper()
	l := chaosLayout(t, masters, machines)
	c, err := OpenCell(t.Context(), l, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if !t.Failed() {
			if err := c.DownAll(ctx); err != nil {
				t.Errorf("down: %v", err)
			}
		}
		if err := c.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		left, err := l.leftovers()
		if err != nil || len(left) > 0 {
			t.Errorf("left after the stop: %v, %v", left, err)
		}
	})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runtimes, err := c.runtimes(t.Context()); err == nil {
		t.Log(runtimes)
	}
	return c
}

// shortly bounds a wait that should take a moment.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// sleepers is a service job whose tasks do nothing for as long as they may.
func sleepers(tasks int) *borgpb.JobSpec {
	return &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(tasks), Priority: 200,
		Task: &borgpb.TaskSpec{
			Args:      []string{"/bin/sh", "-c", "exec sleep 1000000"},
			Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 16 << 20},
			GraceNs:   int64(time.Second),
		},
	}
}

// unplaceable is a job that stays pending: no machine has what it asks for.
func unplaceable() *borgpb.JobSpec {
	spec := sleepers(1)
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "there-is-no-such", Relation: borgpb.Relation_RELATION_PRESENT}}
	return spec
}

// submit submits a job of our own and returns its uid.
func (c *Cell) submit(ctx context.Context, name string, spec *borgpb.JobSpec) (*borgpb.Result, error) {
	raw, err := proto.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return c.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: c.user, Name: name, Spec: raw}}})
}

// run submits a service and waits until all its tasks run.
func (c *Cell) run(t *testing.T, name string, spec *borgpb.JobSpec) snapshot {
	t.Helper()
	if _, err := c.submit(shortly(t), name, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := c.jobIs(shortly(t), name, "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	s, err := c.snap(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(s) != int(spec.Tasks) {
		t.Fatalf("%d tasks run, want %d", len(s), spec.Tasks)
	}
	return s
}

// stillSame fails the test unless the same processes run as before.
func (c *Cell) stillSame(t *testing.T, before snapshot, jobs ...string) {
	t.Helper()
	if err := c.unchanged(shortly(t), before, jobs...); err != nil {
		t.Error(err)
	}
}

// allJobs lists all our jobs by name.
func (c *Cell) allJobs(t *testing.T) map[string]*borgpb.Job {
	t.Helper()
	resp, err := c.client.ListJobs(shortly(t), &borgrpc.ListJobsRequest{User: c.user, Dead: true})
	if err != nil {
		t.Fatal(err)
	}
	jobs := make(map[string]*borgpb.Job)
	for _, j := range resp.Jobs {
		if jobs[j.Meta.Name] != nil {
			t.Errorf("job %s is listed twice", j.Meta.Name)
		}
		jobs[j.Meta.Name] = j
	}
	return jobs
}

// alreadyExists tells a submit that was done twice.
func alreadyExists(err error) bool {
	var refused *client.RefusedError
	return errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS
}

// shimOf finds the shim of a task's copy.
func (c *Cell) shimOf(t *testing.T, task *borgpb.Task) processID {
	t.Helper()
	copyName := fmt.Sprintf("%s.%d.%d", task.Meta.Uid, task.Index, task.Status.Attempt)
	found, err := c.marks().find()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		full, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if isShim(p) && strings.Contains(string(full), copyName) {
			return p.processID
		}
	}
	t.Fatalf("task %s (%s) has no shim among %v", taskName(task), copyName, found)
	return processID{}
}
