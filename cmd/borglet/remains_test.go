package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet/container"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// cgroups lists the directories of a copy's cgroup, in an alloc or not.
func (m *machine) cgroups(id *borgrpc.CopyID) (found []string) {
	m.t.Helper()
	name := filepath.Base(m.file(id, ""))
	for _, pattern := range []string{"*/borg", "borg"} {
		for _, in := range []string{"", "alloc-*"} {
			some, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern, m.name, in, name))
			if err != nil {
				m.t.Fatal(err)
			}
			found = append(found, some...)
		}
	}
	return found
}

// state is a file of libcontainer's own for a copy.
func (m *machine) state(id *borgrpc.CopyID, name string) string {
	return filepath.Join(m.runDir, "c", filepath.Base(m.file(id, "")), name)
}

// TestShimKilledInStart kills borglet and shim at each step of a start. The next borglet
// takes away what there is of the container, and starts the task, once; and nothing is
// left of it when it is forgotten.
func TestShimKilledInStart(t *testing.T) {
	alongside(t)
	steps := []struct {
		name string
		// alloc: the copy is in one.
		alloc   bool
		reached func(m *machine, id *borgrpc.CopyID) bool
		// within says that it had not come further.
		within func(m *machine, id *borgrpc.CopyID) bool
	}{
		{name: "the shim is there", reached: func(*machine, *borgrpc.CopyID) bool { return true }},
		{name: "its root file system is made", reached: func(m *machine, id *borgrpc.CopyID) bool { return exists(m.file(id, "rootfs/usr")) }},
		{
			name: "the container is not written down", reached: func(m *machine, id *borgrpc.CopyID) bool { return exists(m.state(id, "")) },
			within: func(m *machine, id *borgrpc.CopyID) bool { return !exists(m.state(id, "state.json")) },
		},
		{
			name: "its cgroup is made", reached: func(m *machine, id *borgrpc.CopyID) bool { return len(m.cgroups(id)) > 0 },
			within: func(m *machine, id *borgrpc.CopyID) bool { return !exists(m.state(id, "state.json")) },
		},
		{
			name: "its cgroup is made in an alloc", alloc: true,
			reached: func(m *machine, id *borgrpc.CopyID) bool { return len(m.cgroups(id)) > 0 },
			within:  func(m *machine, id *borgrpc.CopyID) bool { return !exists(m.state(id, "state.json")) },
		},
		{name: "the container is written down", reached: func(m *machine, id *borgrpc.CopyID) bool { return exists(m.state(id, "state.json")) }},
		{name: "its process is told of", reached: func(m *machine, id *borgrpc.CopyID) bool { return exists(m.file(id, "pid.json")) }},
	}
	for i, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			m := newMachine(t, "container")
			// A process that is about to be killed may come further first.
			const tries = 20
			for try := range tries {
				sleep := fmt.Sprintf("82%02d%02d", i, try)
				id := m.service("sleep", sleep)
				if s.alloc {
					d := m.desired[len(m.desired)-1]
					d.Alloc, d.AllocResources = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 96 << 20}
				}
				m.killBothWhen(id, s.reached)
				within := s.within == nil || s.within(m, id)
				m.start()
				if pid := m.untilState(id, running).GetPid(); !alive(int(pid)) {
					t.Errorf("it is said to run as process %d, and there is none", pid)
				}
				// It is running when the init is let go, a moment before it is sleep.
				m.until(id, "sleeping", func(*borgpb.TaskReport) bool { return len(processes("sleep\x00"+sleep)) > 0 })
				if n := len(processes("sleep\x00" + sleep)); n != 1 {
					t.Errorf("it runs %d times", n)
				}
				m.forgetAll(id)
				m.gone(id)
				if within || t.Failed() {
					return
				}
			}
			t.Errorf("in %d tries the shim was not killed there", tries)
		})
	}
}

// killBothWhen has a copy started, and kills borglet and shim when it has come to
// a point.
func (m *machine) killBothWhen(id *borgrpc.CopyID, reached func(*machine, *borgrpc.CopyID) bool) {
	m.t.Helper()
	m.poll()
	var shim struct{ Pid int }
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		if shim.Pid == 0 {
			if text, err := os.ReadFile(m.file(id, "lock")); err == nil {
				_ = json.Unmarshal(text, &shim)
			}
		}
		if shim.Pid != 0 && reached(m, id) {
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatal("the start does not come so far")
		}
	}
	m.kill()
	_ = unix.Kill(shim.Pid, unix.SIGKILL)
	for deadline := time.Now().Add(patience); alive(shim.Pid) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// forgetAll has copies stopped and forgotten.
func (m *machine) forgetAll(ids ...*borgrpc.CopyID) {
	m.t.Helper()
	for _, id := range ids {
		m.stop(id, 0)
	}
	for _, id := range ids {
		m.untilState(id, stopped)
	}
	m.stops, m.forget = nil, ids
	for deadline := time.Now().Add(patience); len(m.poll().GetTasks()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatal("forgotten copies are still told of")
		}
	}
	m.forget = nil
}

// gone waits until nothing is left of a forgotten copy.
func (m *machine) gone(id *borgrpc.CopyID) {
	m.t.Helper()
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		left = m.cgroups(id)
		for _, path := range []string{m.file(id, ""), m.state(id, "")} {
			if exists(path) {
				left = append(left, path)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	m.t.Errorf("left: %q", left)
}

// TestBusyCgroup: a cgroup that the kernel does not let go, since somebody else's
// process is in it, is taken away when it does, also of a copy that is forgotten.
func TestBusyCgroup(t *testing.T) {
	m := newMachine(t, "container")
	id := m.service("sleep", "3600")
	m.untilState(id, running)
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(end)
	group := m.cgroups(id)[0]
	for _, g := range m.cgroups(id) {
		if strings.Contains(g, "/memory/") {
			group = g
		}
	}
	within := filepath.Join(group, "guest")
	if err := os.Mkdir(within, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(within, "cgroup.procs"), fmt.Appendf(nil, "%d", cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	m.forgetAll(id)
	for deadline := time.Now().Add(patience); !strings.Contains(m.log.String(), `"op":"remove"`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the borglet does not say that it could not remove the copy")
		}
	}
	if !exists(group) || !alive(cmd.Process.Pid) {
		t.Fatal("the cgroup is gone, with somebody in it")
	}
	end()
	m.gone(id)
}

// TestEndKept: an end that was told stands, also when the borglet is killed at that
// moment: what was never started here and is over does not start later.
func TestEndKept(t *testing.T) {
	m := newMachine(t, "process")
	var ids []*borgrpc.CopyID
	const n = 20
	for range n {
		ids = append(ids, m.service("sleep", "8333"))
	}
	late := m.desired
	for _, id := range ids {
		m.stop(id, time.Second)
	}
	over := map[string]bool{}
	for deadline := time.Now().Add(patience); len(over) == 0 && time.Now().Before(deadline); {
		for _, r := range m.poll().GetTasks() {
			if r.GetState() == int32(stopped) {
				over[r.GetJobUid()] = true
			}
		}
	}
	m.kill()
	m.start()
	if len(over) == 0 {
		t.Fatal("no copy is told to have stopped")
	}
	t.Logf("%d of %d were told to be over when the borglet was killed", len(over), n)
	m.stops, m.desired = nil, late
	for _, id := range ids {
		want := running
		if over[id.GetJobUid()] {
			want = stopped
		}
		m.until(id, want.String(), func(r *borgpb.TaskReport) bool {
			return r.GetState() == int32(want) || (want == running && r.GetState() == int32(stopped))
		})
		if over[id.GetJobUid()] && exists(m.file(id, "stdout")) {
			t.Errorf("%v was over, and was started", id)
		}
	}
}

// TestReboot: after a reboot of the machine nothing pretends to run, although the files
// of a copy name a process that is there: another one, with the same number and start.
func TestReboot(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			job, again := m.batch("sleep", "8444"), m.service("sleep", "8444")
			ended := m.batch("/bin/sh", "-c", "exit 7")
			m.untilState(ended, failed)
			for _, id := range []*borgrpc.CopyID{job, again} {
				m.untilState(id, running)
			}
			m.kill()
			for _, id := range []*borgrpc.CopyID{job, again} {
				killShim(t, m, id)
			}
			if _, err := container.Sweep(t.Context(), container.SweepConfig{Name: m.name, Dir: m.dir, RunDir: m.runDir}); err != nil {
				t.Fatal(err)
			}
			other := exec.Command("sleep", "3600")
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
			for _, id := range []*borgrpc.CopyID{job, again} {
				m.replant(id, other.Process.Pid)
			}
			m.start()
			if r := m.untilState(job, failed); !r.GetExit().GetUnknown() || !strings.Contains(r.GetText(), "restarted") {
				t.Errorf("the batch task: got %v, want an unknown exit by the restart of the machine", r)
			}
			r := m.until(again, "started again", func(r *borgpb.TaskReport) bool {
				return r.GetRestarts() == 1 && r.GetState() == int32(running)
			})
			if r.GetPid() == int64(other.Process.Pid) {
				t.Errorf("somebody else's process is taken for the task: %v", r)
			}
			if r := m.untilState(ended, failed); r.GetExit().GetCode() != 7 {
				t.Errorf("what had ended before: got %v, want code 7", r)
			}
			if !alive(other.Process.Pid) {
				t.Error("somebody else's process was ended")
			}
		})
	}
}

// replant makes a copy's files as those of an earlier boot, and pid the process that
// they name.
func (m *machine) replant(id *borgrpc.CopyID, pid int) {
	m.t.Helper()
	edit := func(name string, change func(map[string]any)) {
		m.t.Helper()
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(m.read(id, name)), &fields); err != nil {
			m.t.Fatal(err)
		}
		change(fields)
		text, err := json.Marshal(fields)
		if err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(m.file(id, name), text, 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	edit("intent", func(f map[string]any) {
		if f["boot"] == "" || f["boot"] == nil {
			m.t.Fatalf("the intent names no boot: %v", f)
		}
		f["boot"] = "an earlier one"
	})
	edit("pid.json", func(f map[string]any) { f["proc"] = map[string]any{"pid": pid, "start_ticks": startTicks(m.t, pid)} })
}

// startTicks is when a process started, as the kernel counts.
func startTicks(t testing.TB, pid int) (ticks uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if _, err := fmt.Sscan(fields[19], &ticks); err != nil {
		t.Fatal(err)
	}
	return ticks
}
