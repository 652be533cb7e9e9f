package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/borglet/container"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestAdoptHundred: a hundred tasks are found again by the next borglet, all
// of them, with the same processes; each costs a shim of at most 2 MiB.
func TestAdoptHundred(t *testing.T) {
	m := newMachine(t, "container")
	const n = 100
	var ids []*borgrpc.CopyID
	for range n {
		ids = append(ids, m.service("sleep", "3600"))
	}
	pids := map[string]int64{}
	for _, id := range ids {
		pids[id.GetJobUid()] = m.untilState(id, running).GetPid()
	}
	const shimMost = 2048
	most := 0
	for _, id := range ids {
		shim := m.shimOf(id)
		// It becomes small a moment after its task runs.
		m.until(id, "watched by a small shim", func(*borgpb.TaskReport) bool { return privateKiB(t, shim) <= shimMost })
		most = max(most, privateKiB(t, shim))
	}
	t.Logf("memory of its own: a shim %d KiB at most, the borglet %d KiB", most, privateKiB(t, m.cmd.Process.Pid))
	m.kill()
	began := time.Now()
	m.start()
	resp := m.poll()
	t.Logf("%d tasks reported %s after the start of the next borglet", len(resp.GetTasks()), time.Since(began).Round(time.Millisecond))
	if len(resp.GetTasks()) != n {
		t.Fatalf("%d tasks, want %d", len(resp.GetTasks()), n)
	}
	for _, r := range resp.GetTasks() {
		if r.GetState() != int32(running) || r.GetPid() != pids[r.GetJobUid()] || r.GetRestarts() != 0 || r.GetShimLost() {
			t.Errorf("%v, want running with pid %d", r, pids[r.GetJobUid()])
		}
	}
}

// TestTwoHundredAtOnce: as many tasks are ordered by one poll, and each starts at the
// first try.
func TestTwoHundredAtOnce(t *testing.T) {
	alongside(t)
	m := newMachine(t, "container")
	var ids []*borgrpc.CopyID
	for i := range 200 {
		ids = append(ids, m.batch("/bin/sh", "-c", fmt.Sprintf("exit %d", i%2)))
	}
	for i, id := range ids {
		want := []borgpb.AttemptState{finished, failed}[i%2]
		if r := m.untilState(id, want); r.GetExit().GetCode() != int32(i%2) || r.GetRestarts() != 0 {
			t.Errorf("%v: want code %d", r, i%2)
		}
	}
	for line := range strings.Lines(m.log.String()) {
		if strings.Contains(line, "task not started") || strings.Contains(line, "could not be done") {
			t.Errorf("the borglet says %s", line)
		}
	}
}

// privateKiB is the memory that a process has alone.
func privateKiB(t testing.TB, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, rest, _ := strings.Cut(line, ":"); strings.HasPrefix(name, "Private_") {
			n := 0
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
			kib += n
		}
	}
	return kib
}

// TestKilledAnywhere kills the borglet, and shims, again and again while they
// start and stop tasks. Every copy ends up as wanted, and none of them twice.
func TestKilledAnywhere(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			var all, live, gone []*borgrpc.CopyID
			for round := range 6 {
				for i := range 4 {
					live = append(live, m.service("sleep", fmt.Sprintf("7%02d%02d", round, i)))
				}
				all = append(all, live[len(live)-4:]...)
				m.poll()
				if round%2 == 1 {
					m.stop(live[0], time.Duration(random.IntN(2))*time.Hour)
					gone, live = append(gone, live[0]), live[1:]
					m.poll()
				}
				time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
				if random.IntN(2) == 0 {
					m.killSomeShim(all[len(all)-1])
				}
				m.kill()
				m.start()
			}
			for _, id := range live {
				r := m.untilState(id, running)
				if !alive(int(r.GetPid())) {
					t.Errorf("%v: no such process", r)
				}
			}
			for _, id := range gone {
				m.untilState(id, stopped)
			}
			for round := range 6 {
				for i := range 4 {
					want := 1
					if slices.Contains(gone, all[round*4+i]) {
						want = 0
					}
					args := fmt.Sprintf("sleep\x007%02d%02d", round, i)
					if got := len(processes(args)); got != want {
						t.Errorf("sleep 7%02d%02d runs %d times, want %d", round, i, got, want)
					}
				}
			}
		})
	}
}

// TestSweep: after a sweep nothing of a killed borglet is left, and its tasks'
// ends are known.
func TestSweep(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			with := m.service("sleep", "8111")
			without := m.service("/bin/sh", "-c", "setsid sleep 8111 & sleep 8111")
			m.untilState(with, running)
			pid := m.untilState(without, running).GetPid()
			m.kill()
			killShim(t, m, without)
			swept, err := container.Sweep(t.Context(), container.SweepConfig{Name: m.name, Dir: m.dir, RunDir: m.runDir})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("swept: %s", swept)
			if left := processes("sleep\x008111"); len(left) > 0 || alive(int(pid)) {
				t.Errorf("left running: %v", left)
			}
			groups, _ := filepath.Glob("/sys/fs/cgroup/*/borg/" + m.name)
			unified, _ := filepath.Glob("/sys/fs/cgroup/borg/" + m.name)
			if len(groups)+len(unified) > 0 {
				t.Errorf("cgroups left: %v %v", groups, unified)
			}
			m.start()
			signaled := func(r *borgpb.TaskReport) bool { return r.GetExit().GetSignal() == 9 }
			m.until(with, "ended by signal 9", signaled)
		})
	}
}
