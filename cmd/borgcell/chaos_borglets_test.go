package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
)

// waiter is a batch task that ends with a code of its own once a file is
// there. The directory has the same path in the task as on the machine, so that
// it works with and without containers.
func waiter(dir string, code int) *borgpb.JobSpec {
	spec := sleepers(1)
	spec.Kind, spec.Priority = borgpb.JobKind_JOB_KIND_BATCH, 110
	spec.Task.Args = []string{"/bin/sh", "-c", fmt.Sprintf("while [ ! -e %s/go ]; do sleep 0.05; done; exit %d", dir, code)}
	spec.Task.Mounts = []*borgpb.Mount{{Source: dir, Path: dir}}
	return spec
}

// A borglet that was killed finds all its tasks again, and knows truly how one
// ended that did so meanwhile.
func TestBorgletIsKilled(t *testing.T) {
	alongside(t)
	const exitCode = 7
	c := chaosCell(t, 1, 1)
	before := c.run(t, "web", sleepers(size(12, 100)))
	dir := filepath.Join(filepath.Dir(c.dir), "gate")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	waiting := c.run(t, "waiter", waiter(dir, exitCode))
	holds, err := c.Held(shortly(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(before) + len(waiting); len(holds.pids) != want {
		t.Fatalf("the borglet holds %d copies, want %d", len(holds.pids), want)
	}
	if err := c.Kill(c.machineName(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, w := range waiting {
		waitFor(t, "the task ends while no borglet lives", func() string {
			if ticks, alive, err := readStat(int(w.pid)); err == nil && alive && ticks == w.startTicks {
				return "it runs"
			}
			return ""
		})
	}
	began := time.Now()
	if err := c.StartBorglet(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	took, err := c.Adopted(shortly(t), 1, holds, len(waiting), began)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tasks adopted %v after the start", len(before), took.Round(time.Millisecond))
	c.stillSame(t, before, "web")

	_, err = c.jobIs(shortly(t), "waiter", "the end of the task is known", func(j *borgpb.Job) bool { return j.Status.GetDead() == 1 })
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := c.tasks(t.Context(), "waiter")
	if err != nil {
		t.Fatal(err)
	}
	exit := tasks[0].Status.GetLastExit()
	if exit.GetCode() != exitCode || exit.GetSignal() != 0 || exit.GetUnknown() {
		t.Errorf("the task ended with %v, want code %d", exit, exitCode)
	}
}

// runInBackground starts `borgcell run` as a process of its own and waits until
// it says that the cell is up.
func runInBackground(t *testing.T, l layout) (cmd *exec.Cmd, logPath string) {
	t.Helper()
	logPath = filepath.Join(filepath.Dir(l.dir), fmt.Sprintf("run-%d.log", time.Now().UnixNano()))
	log, err := os.Create(logPath)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd = exec.Command(l.bin("borgcell"), "run", "--cell", l.Name, "--dir", l.dir, "--run-dir", l.RunDir,
		"--masters", fmt.Sprint(l.Masters), "--machines", fmt.Sprint(l.Machines), "--port-base", fmt.Sprint(l.PortBase),
		"--task-port-base", fmt.Sprint(l.TaskPortBase), "--capacity", l.Capacity)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Nil once it was waited for.
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	waitFor(t, "borgcell run says that the cell is up", func() string {
		said, err := os.ReadFile(logPath)
		if err == nil && strings.Contains(string(said), "is up after") {
			return ""
		}
		return fmt.Sprintf("it says %q, %v", said, err)
	})
	return cmd, logPath
}

// A run that was killed is swept by the next one, which is the same cell; and
// that leaves nothing when it is told to stop.
func TestKilledRunIsSwept(t *testing.T) {
	alongside(t)
	l := chaosLayout(t, 1, 1)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.sweep(ctx); err != nil {
			t.Error(err)
		}
	})
	first, _ := runInBackground(t, l)
	file, err := client.ReadCellFile(l.cellFile())
	if err != nil {
		t.Fatal(err)
	}
	place, err := client.Lookup{Flag: l.cellFile()}.Find()
	if err != nil {
		t.Fatal(err)
	}
	who, err := place.Source()
	if err != nil {
		t.Fatal(err)
	}
	asker, err := client.New(client.Config{Masters: file.Masters, CellID: file.CellID, Identity: who})
	if err != nil {
		t.Fatal(err)
	}
	defer asker.Close()
	c := &Cell{layout: l, client: asker, user: userName()}
	before := c.run(t, "web", sleepers(2))
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()

	second, logPath := runInBackground(t, l)
	for name, was := range before {
		if ticks, alive, err := readStat(int(was.pid)); err == nil && alive && ticks == was.startTicks {
			t.Errorf("task %s of the killed run still runs", name)
		}
	}
	again, err := client.ReadCellFile(l.cellFile())
	if err != nil || again.CellID != file.CellID {
		t.Errorf("the next run is cell %v, %v, want %s", again, err, file.CellID)
	}
	// The cell remembers the job; its machine starts the tasks anew.
	waitFor(t, "the tasks run again", func() string {
		now, err := c.snap(t.Context(), "web")
		if err != nil || len(now) != 2 {
			return fmt.Sprintf("%v, %v", now, err)
		}
		return ""
	})
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = second.Wait()
	said, _ := os.ReadFile(logPath)
	if err != nil || !strings.Contains(string(said), "stopped; checked") {
		t.Errorf("borgcell run ended with %v and said:\n%s", err, said)
	}
	if left, err := l.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left after the stop: %v, %v", left, err)
	}
}
