package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/cli"
)

func testLayout(t *testing.T) layout {
	t.Helper()
	// A path with a symbolic link in it would not be what the kernel shows.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return layout{
		Name: "sweeptest", Masters: 3, Machines: 2, PortBase: 17000, TaskPortBase: 20000, Runtime: "process",
		dir: dir, RunDir: filepath.Join(dir, "run"), binDir: filepath.Join(dir, "bin"),
	}
}

// background starts a process that nobody supervises, and reaps it.
func background(t *testing.T, cmd *exec.Cmd) processID {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return id
}

// A sweep ends what a killed run left: what it recorded, what bears its mark,
// what writes to its directories, and the children of all these; nobody else.
func TestSweepEndsWhatIsOurs(t *testing.T) {
	l := testLayout(t)
	recorded := background(t, exec.Command("sleep", "1000"))
	if err := writeJSON(l.recordPath(), record{Processes: []recordedProcess{
		{Name: "master-1", processID: recorded},
		// A number that was given to another process since.
		{Name: "master-2", processID: processID{PID: os.Getpid(), StartTicks: 1, Boot: recorded.Boot}},
	}}); err != nil {
		t.Fatal(err)
	}
	marked := exec.Command("/bin/sh", "-c", "sleep 1000 & exec sleep 1000")
	marked.Env = append(os.Environ(), l.envMark())
	markedID := background(t, marked)

	outPath := filepath.Join(l.dir, "borglets", "sweeptest-m1", "tasks", "1-2-0.0.1", "stdout")
	if err := os.MkdirAll(filepath.Dir(outPath), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(outPath)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	writer := exec.Command("sleep", "1000")
	writer.Stdout, writer.Env = out, []string{}
	writerID := background(t, writer)
	innocent := exec.Command("sleep", "1000")
	innocent.Env = append(os.Environ(), l.envMark()+"x")
	innocentID := background(t, innocent)
	fakeBorglet(t, l)

	waitFor(t, "the processes are seen", func() string {
		left, err := l.leftovers()
		if err != nil {
			t.Fatal(err)
		}
		if len(left) < 3 {
			return fmt.Sprintf("only %q", left)
		}
		return ""
	})
	if err := l.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := l.leftovers()
	if err != nil || len(left) > 0 {
		t.Errorf("left after the sweep: %v, %v", left, err)
	}
	for name, id := range map[string]processID{"recorded": recorded, "marked": markedID, "writer": writerID} {
		if id.alive() {
			t.Errorf("the %s process still runs", name)
		}
	}
	if !innocentID.alive() {
		t.Error("the sweep ended a process of somebody else")
	}
	swept, err := os.ReadFile(filepath.Join(l.binDir, "calls"))
	if want := "sweep --name sweeptest-m1 --dir " + l.borgletDir(1); err != nil || !strings.HasPrefix(string(swept), want) {
		t.Errorf("borglet was called with %q, %v, want %q", swept, err, want)
	}
}

// fakeBorglet puts a borglet into the programs' directory that only writes down
// how it was called.
func fakeBorglet(t *testing.T, l layout) {
	t.Helper()
	if err := os.MkdirAll(l.binDir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho \"$@\" >>" + filepath.Join(l.binDir, "calls") + "\n"
	if err := os.WriteFile(l.bin("borglet"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// The check at the end of a run sees a cgroup in any one hierarchy and a mount,
// and the sweep removes both.
func TestLeftoversAreSeen(t *testing.T) {
	l := testLayout(t)
	// Cgroups of all tests on this machine lie side by side.
	l.Name = fmt.Sprintf("left-%d", os.Getpid())
	fakeBorglet(t, l)
	if left, err := l.leftovers(); err != nil || len(left) > 0 {
		t.Fatalf("left before anything was: %v, %v", left, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("making cgroups and mounts needs root")
	}
	var planted []string
	roots, err := cgroupRoots()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(root, l.cgroup(2), "1-2-0.0.1")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Logf("no cgroup in %s: %v", root, err)
			continue
		}
		planted = append(planted, "cgroup "+dir, "cgroup "+filepath.Dir(dir))
	}
	point := filepath.Join(l.RunDir, "a mount")
	if err := os.MkdirAll(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", point, "tmpfs", 0, ""); err != nil {
		t.Logf("no mount: %v", err)
	} else {
		planted = append(planted, "mount "+point)
	}
	if len(planted) == 0 {
		t.Skip("neither cgroups nor mounts can be made here")
	}
	left, err := l.leftovers()
	if err != nil {
		t.Error(err)
	}
	for _, p := range planted {
		if !slices.Contains(left, p) {
			t.Errorf("not seen: %s; seen: %q", p, left)
		}
	}
	if err := l.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := l.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left after the sweep: %v, %v", left, err)
	}
}

func TestLockIsForOne(t *testing.T) {
	dir := t.TempDir()
	first, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = takeLock(dir)
	if e, ok := err.(*cli.Error); !ok || e.Code != cli.Conflict || !strings.Contains(e.What, "process ") {
		t.Errorf("second lock: %v, want a conflict that names the process", err)
	}
	// The file may go while it is held; the next one makes its own.
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	first.release()
	second, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	second.release()
}

func TestMarksOfMounts(t *testing.T) {
	if got, want := unescapeMount(`/a\040b\134c`), `/a b\c`; got != want {
		t.Errorf("unescapeMount = %q, want %q", got, want)
	}
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/a/b", "/a", true}, {"/a", "/a", true}, {"/ab", "/a", false}, {"/", "/a", false}} {
		if got := within(c.path, c.dir); got != c.want {
			t.Errorf("within(%q, %q) = %v, want %v", c.path, c.dir, got, c.want)
		}
	}
	root, err := mountsWithin([]string{"/proc"})
	if err != nil || len(root) == 0 {
		t.Errorf("mounts within /proc: %v, %v, want /proc at least", root, err)
	}
}

func TestUntilKeepsTheLastAnswer(t *testing.T) {
	err := until(t.Context(), "never", func(ctx context.Context) error { return &finalError{os.ErrPermission} })
	if err == nil || !strings.Contains(err.Error(), "never") {
		t.Errorf("until with a final error: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	n := 0
	err = until(ctx, "all is well", func(ctx context.Context) error {
		if n++; n == 1 {
			return os.ErrPermission
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "all is well") || !strings.Contains(err.Error(), os.ErrPermission.Error()) {
		t.Errorf("until at its end: %v, want what it waited for and what it saw", err)
	}
}

// A killed run is found by the run-time directory that it shared with the next
// one, wherever its own directory was, and even when that was removed.
func TestSweepFindsARunElsewhere(t *testing.T) {
	for _, removed := range []bool{false, true} {
		killed, next := testLayout(t), testLayout(t)
		next.RunDir = killed.RunDir
		fakeBorglet(t, next)
		if err := os.MkdirAll(killed.RunDir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := (&Cell{layout: killed}).sweepEarlier(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if err := writeJSON(killed.layoutFile(), killed); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		cmd.Env = append(os.Environ(), killed.envMark())
		left := background(t, cmd)
		if removed {
			// The run-time directory is in it only for this test.
			if err := os.Remove(killed.layoutFile()); err != nil {
				t.Fatal(err)
			}
		}
		if err := (&Cell{layout: next}).sweepEarlier(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if left.alive() {
			t.Errorf("directory removed %v: the process of the killed run goes on", removed)
		}
		if place, err := os.ReadFile(next.placeFile()); err != nil || strings.TrimSpace(string(place)) != next.dir {
			t.Errorf("the run-time directory names %q, %v, want %s", place, err, next.dir)
		}
	}
}
