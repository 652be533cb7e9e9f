package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// processes lists those whose command line begins with words (separated by
// zero bytes).
func processes(words string) []int {
	var found []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range dirs {
		text, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(text), words+"\x00") {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				found = append(found, pid)
			}
		}
	}
	return found
}

// TestAdopt: a borglet that is killed loses nothing: the next one finds its
// tasks running with the same pids, and what ended meanwhile as it ended.
func TestAdopt(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			stays := m.service("sleep", "3600")
			ends := m.batch("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 9")
			killed := m.batch("sleep", "3600")
			pids := map[*borgrpc.CopyID]int64{}
			for _, id := range []*borgrpc.CopyID{stays, ends, killed} {
				pids[id] = m.untilState(id, running).GetPid()
			}
			m.kill()
			if err := os.WriteFile(m.file(ends, "task/go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(int(pids[killed]), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for _, id := range []*borgrpc.CopyID{ends, killed} {
				for deadline := time.Now().Add(patience); !exists(m.file(id, "exit.json")) && time.Now().Before(deadline); {
					time.Sleep(10 * time.Millisecond)
				}
			}
			if !alive(int(pids[stays])) {
				t.Fatal("the task did not outlive the borglet")
			}
			m.start()
			if r := m.untilState(stays, running); r.GetPid() != pids[stays] || r.GetRestarts() != 0 || r.GetShimLost() {
				t.Errorf("adopted: got %v, want pid %d", r, pids[stays])
			}
			if r := m.untilState(ends, failed); r.GetExit().GetCode() != 9 {
				t.Errorf("ended meanwhile: got %v, want code 9", r)
			}
			if r := m.untilState(killed, failed); r.GetExit().GetSignal() != 9 {
				t.Errorf("killed meanwhile: got %v, want signal 9", r)
			}
			// And it still obeys: an adopted task is stopped like any other.
			m.stop(stays, time.Hour)
			if r := m.untilState(stays, stopped); r.GetExit().GetSignal() != 15 {
				t.Errorf("stop of an adopted task: got %v, want signal 15", r)
			}
		})
	}
}

// TestDeadShim: a task whose shim is killed goes on. In a container even its
// exit code stays known.
func TestDeadShim(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			while := m.batch("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 9")
			stop := m.service("sleep", "3600")
			across := m.batch("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 8")
			all := []*borgrpc.CopyID{while, stop, across}
			pids := map[*borgrpc.CopyID]int64{}
			for _, id := range all {
				pids[id] = m.untilState(id, running).GetPid()
			}
			for _, id := range all[:2] {
				if err := unix.Kill(m.shimOf(id), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			lost := func(r *borgpb.TaskReport) bool { return r.GetShimLost() }
			for _, id := range all[:2] {
				if r := m.until(id, "without shim", lost); r.GetPid() != pids[id] || r.GetState() != int32(running) {
					t.Errorf("shim killed: got %v, want running with pid %d", r, pids[id])
				}
			}
			// Both die: the next borglet finds the task nevertheless.
			m.kill()
			if err := unix.Kill(m.shimOf(across), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			m.start()
			for _, id := range all {
				if r := m.until(id, "without shim", lost); r.GetPid() != pids[id] || r.GetState() != int32(running) {
					t.Errorf("borglet and shim killed: got %v, want running with pid %d", r, pids[id])
				}
			}
			for _, id := range []*borgrpc.CopyID{while, across} {
				if err := os.WriteFile(m.file(id, "task/go"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m.stop(stop, time.Hour)
			want := func(id *borgrpc.CopyID, state borgpb.AttemptState, code, signal int32) {
				t.Helper()
				e := m.untilState(id, state).GetExit()
				if runtime == "container" && (e.GetCode() != code || e.GetSignal() != signal || e.GetUnknown()) {
					t.Errorf("end without a shim: got %v, want code %d, signal %d", e, code, signal)
				}
				if runtime == "process" && !e.GetUnknown() {
					t.Errorf("end without a shim: got %v, want unknown", e)
				}
			}
			want(while, failed, 9, 0)
			want(across, failed, 8, 0)
			want(stop, stopped, 0, 15)
		})
	}
}

// TestRestart: a service that ends is started again by its borglet, as the
// same copy.
func TestRestart(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			id := m.service("/bin/sh", "-c", "echo run; if [ -e second ]; then sleep 3600; fi; touch second; exit 5")
			r := m.until(id, "started again", func(r *borgpb.TaskReport) bool {
				return r.GetRestarts() == 1 && r.GetState() == int32(running)
			})
			if r.GetExit().GetCode() != 5 || r.GetAttempt() != 1 {
				t.Errorf("got %v, want the last exit to be 5", r)
			}
			m.until(id, "writing behind what its first run wrote", func(*borgpb.TaskReport) bool {
				return m.read(id, "stdout") == "run\nrun\n"
			})
		})
	}
}

// TestRestartWaits: who ends again and again is started again ever later.
func TestRestartWaits(t *testing.T) {
	alongside(t)
	m := newMachine(t, "process", "--backoff", "4m")
	id := m.service("/bin/sh", "-c", "exit 5")
	r := m.until(id, "ended twice", func(r *borgpb.TaskReport) bool {
		return r.GetRestarts() >= 1 && r.GetState() == int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF)
	})
	if r.GetRestarts() != 1 || !strings.Contains(r.GetText(), "starts again 4m0s after that") {
		t.Errorf("got %v, want one restart and then a wait of four minutes", r)
	}
}

// TestAbsence: what masters no longer name goes on, and so it does when the next borglet
// has never heard of it.
func TestAbsence(t *testing.T) {
	m := newMachine(t, "process")
	id := m.service("sleep", "3600")
	pid := m.untilState(id, running).GetPid()
	m.desired = nil
	same := func() {
		t.Helper()
		// An order that comes of a poll is there when the next one is answered.
		for range 3 {
			m.poll()
		}
		if r := m.untilState(id, running); r.GetPid() != pid || r.GetRestarts() != 0 || !alive(int(pid)) {
			t.Errorf("got %v, want running with pid %d", r, pid)
		}
	}
	same()
	m.kill()
	m.start()
	same()
}

func killShim(t *testing.T, m *machine, id *borgrpc.CopyID) {
	t.Helper()
	if err := unix.Kill(m.shimOf(id), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// killSomeShim kills the shim of a copy wherever it is, if there is one yet.
func (m *machine) killSomeShim(id *borgrpc.CopyID) {
	var p struct{ Pid int }
	text, err := os.ReadFile(m.file(id, "lock"))
	if err == nil && json.Unmarshal(text, &p) == nil && p.Pid > 0 {
		_ = unix.Kill(p.Pid, unix.SIGKILL)
	}
}
