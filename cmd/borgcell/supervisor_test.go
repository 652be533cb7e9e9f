package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitFor waits until f says "", and fails with what it said last.
func waitFor(t *testing.T, what string, f func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := until(ctx, what, func(context.Context) error {
		if s := f(); s != "" {
			return errors.New(s)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testSupervisor(t *testing.T) (s *supervisor, dir string) {
	t.Helper()
	dir = t.TempDir()
	s = newSupervisor(slog.New(slog.DiscardHandler), filepath.Join(dir, "processes.json"))
	t.Cleanup(func() {
		s.stopAll(context.Background(), s.all(), time.Second)
		s.close()
	})
	return s, dir
}

// shell adds a process that runs a script of the shell.
func shell(s *supervisor, dir, name, script string) *process {
	return s.add(processSpec{Name: name, Path: "/bin/sh", Args: []string{"-c", script}, LogPath: filepath.Join(dir, name+".log")})
}

func TestDeadProcessIsStartedAgain(t *testing.T) {
	s, dir := testSupervisor(t)
	p := shell(s, dir, "a", "exec sleep 1000")
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		was := p.pid()
		if err := p.kill(false); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "it runs again", func() string {
			if pid := p.pid(); pid == 0 || pid == was {
				return "not yet"
			}
			return ""
		})
	}
}

func TestProcessThatIsOverStaysDead(t *testing.T) {
	s, dir := testSupervisor(t)
	over := filepath.Join(dir, "over")
	p := s.add(processSpec{
		Name: "a", Path: "/bin/sh", Args: []string{"-c", "exec sleep 1000"}, LogPath: filepath.Join(dir, "a.log"),
		Over: func() bool { return exists(over) },
	})
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.serves(p.running())
	if err := os.WriteFile(over, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.kill(false); err != nil {
		t.Fatal(err)
	}
	if p.crashed() {
		t.Error("it counts as one that crashed")
	}
	waitFor(t, "it is not wanted any more", func() string {
		if p.wanted() {
			return "it is"
		}
		return ""
	})
	if pid := p.pid(); pid != 0 {
		t.Errorf("it runs as process %d", pid)
	}
}

func TestHeldProcessStaysDeadUntilStarted(t *testing.T) {
	s, dir := testSupervisor(t)
	p := shell(s, dir, "a", "echo here; exec sleep 1000")
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	was := p.pid()
	if err := p.kill(true); err != nil {
		t.Fatal(err)
	}
	if err := p.kill(true); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("second kill: %v", err)
	}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pid := p.pid(); pid == 0 || pid == was {
		t.Errorf("pid after start = %d, before the kill %d", pid, was)
	}
	// One start and one more: it was not started in between.
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.starts != 2 {
		t.Errorf("starts = %d, want 2", p.starts)
	}
}

// A start that is asked for just after a kill, before the owner has seen the
// end, does not wait for the backoff.
func TestStartAfterKillIsNotHeldUp(t *testing.T) {
	p := newProcess(processSpec{Name: "a"}, slog.New(slog.DiscardHandler), func() {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.start(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("start without an owner: %v", err)
	}
	if p.pause(time.Hour) {
		t.Error("the backoff was waited for")
	}
}

func TestStopKillsWhatIgnoresSIGTERM(t *testing.T) {
	s, dir := testSupervisor(t)
	obeys := shell(s, dir, "obeys", "exec sleep 1000")
	ignores := shell(s, dir, "ignores", "trap '' TERM; echo ready; while :; do sleep 1; done")
	for _, p := range s.all() {
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the trap is set", func() string {
		if tail := ignores.logTail(100); tail != "ready" {
			return fmt.Sprintf("its log ends with %q", tail)
		}
		return ""
	})
	if killed := s.stopAll(t.Context(), []*process{obeys}, time.Minute); len(killed) != 0 {
		t.Errorf("killed %v, which obeys SIGTERM", killed)
	}
	if killed := s.stopAll(t.Context(), []*process{ignores}, 100*time.Millisecond); len(killed) != 1 || killed[0] != "ignores" {
		t.Errorf("killed %v, want the one that ignores SIGTERM", killed)
	}
	if obeys.pid() != 0 || ignores.pid() != 0 {
		t.Errorf("pids after stop: %d, %d", obeys.pid(), ignores.pid())
	}
}

func TestStartSaysWhyNot(t *testing.T) {
	s, dir := testSupervisor(t)
	p := s.add(processSpec{Name: "a", Path: filepath.Join(dir, "nothing"), LogPath: filepath.Join(dir, "a.log")})
	if err := p.start(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start: %v, want that there is no such file", err)
	}
	if p.wanted() {
		t.Error("a process that could not be started is tried for ever")
	}
}

func TestRecordNamesWhatRuns(t *testing.T) {
	s, dir := testSupervisor(t)
	a, b := shell(s, dir, "a", "exec sleep 1000"), shell(s, dir, "b", "exec sleep 1000")
	for _, p := range s.all() {
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	recorded := func() map[string]processID {
		r, err := readRecord(s.recordPath)
		if err != nil {
			t.Fatal(err)
		}
		m := make(map[string]processID)
		for _, p := range r.Processes {
			m[p.Name] = p.processID
		}
		return m
	}
	waitFor(t, "both are recorded", func() string {
		if r := recorded(); r["a"].PID != a.pid() || r["b"].PID != b.pid() || len(r) != 2 {
			return "not yet"
		}
		return ""
	})
	id := recorded()["a"]
	if !id.alive() {
		t.Error("a recorded process that runs is not alive")
	}
	a.stop(t.Context(), time.Second)
	if id.alive() {
		t.Error("a process that has ended is alive")
	}
	if err := id.signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to a process that has ended: %v", err)
	}
	waitFor(t, "only b is recorded", func() string {
		if r := recorded(); len(r) != 1 || r["b"].PID != b.pid() {
			return "not yet"
		}
		return ""
	})
}

func TestLogTailIsWholeLines(t *testing.T) {
	dir := t.TempDir()
	p := &process{spec: processSpec{LogPath: filepath.Join(dir, "a.log")}}
	if got := p.logTail(10); got != "" {
		t.Errorf("tail of no log = %q", got)
	}
	if err := os.WriteFile(p.spec.LogPath, []byte("first line\nsecond\nthird\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for maxBytes, want := range map[int64]string{100: "first line\nsecond\nthird", 14: "second\nthird", 8: "third"} {
		if got := p.logTail(maxBytes); got != want {
			t.Errorf("tail of %d bytes = %q, want %q", maxBytes, got, want)
		}
	}
}
