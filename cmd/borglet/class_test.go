package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestAppClass: who nobody waits for gives way: a sixteenth of the weight on the
// processor, and less on disks.
func TestAppClass(t *testing.T) {
	m := newMachine(t, "container")
	sleep := func(kind borgpb.JobKind, class borgpb.AppClass) *borgrpc.CopyID {
		return m.want(kind, &borgpb.TaskSpec{
			Args: []string{"sleep", "3600"}, AppClass: class, Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 64 << 20},
		})
	}
	urgent := []*borgrpc.CopyID{sleep(service, 0), sleep(batch, borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE)}
	patient := []*borgrpc.CopyID{sleep(batch, 0), sleep(service, borgpb.AppClass_APP_CLASS_BATCH)}
	for want, ids := range map[int64][]*borgrpc.CopyID{1024: urgent, 64: patient} {
		for _, id := range ids {
			m.untilState(id, running)
			if !exists("/sys/fs/cgroup/cpu") {
				t.Skip("weights of version 2 are another scale")
			}
			if got := m.groupNumber(id, "cpu", "cpu.shares", "cpu.weight"); got != want {
				t.Errorf("%v has weight %d, want %d", id, got, want)
			}
		}
	}
	if exists("/sys/fs/cgroup/blkio/blkio.bfq.io_service_bytes") {
		if u, p := m.groupNumber(urgent[0], "blkio", "blkio.bfq.weight", ""), m.groupNumber(patient[0], "blkio", "blkio.bfq.weight", ""); u <= p {
			t.Errorf("weights on disks are %d and %d, want less for batch", u, p)
		}
	}
	// The class may change while it runs.
	for _, d := range m.desired {
		if d.GetCopy() == urgent[0] {
			d.Version, d.Spec = 2, &borgpb.TaskSpec{Args: d.Spec.Args, Resources: d.Spec.Resources, AppClass: borgpb.AppClass_APP_CLASS_BATCH}
		}
	}
	if exists("/sys/fs/cgroup/cpu") {
		m.until(urgent[0], "with less weight", func(*borgpb.TaskReport) bool {
			return m.groupNumber(urgent[0], "cpu", "cpu.shares", "cpu.weight") == 64
		})
	}
}

// TestAllocAppClass: an alloc in which only batch runs gives way as batch does, as long
// as that is so, and whoever else was its borglet meanwhile.
func TestAllocAppClass(t *testing.T) {
	m := newMachine(t, "container")
	urgent, patient := int64(1024), int64(64)
	if !exists("/sys/fs/cgroup/cpu") {
		urgent, patient = 100, 12
	}
	inAlloc := func(kind borgpb.JobKind) *borgrpc.CopyID {
		id := m.want(kind, &borgpb.TaskSpec{Args: []string{"sleep", "3600"}})
		d := m.desired[len(m.desired)-1]
		d.Alloc, d.AllocResources = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20}
		m.untilState(id, running)
		return id
	}
	first := inAlloc(batch)
	weighs := func(when string, want int64) {
		t.Helper()
		m.until(first, when, func(*borgpb.TaskReport) bool {
			return m.numberIn("alloc-alice.pool.0", "cpu", "cpu.shares", "cpu.weight") == want
		})
	}
	weighs("in an alloc of batch alone", patient)
	second := inAlloc(service)
	weighs("beside one that is urgent", urgent)
	next := func() {
		t.Helper()
		m.kill()
		m.start()
		m.untilState(second, running)
	}
	next()
	weighs("under the next borglet", urgent)
	become := func(version uint64, class borgpb.AppClass) {
		for _, d := range m.desired {
			if d.GetCopy() == second {
				d.Version, d.Spec = version, &borgpb.TaskSpec{Args: d.Spec.Args, Resources: d.Spec.Resources, AppClass: class}
			}
		}
	}
	// What the run began with counts no longer.
	become(2, borgpb.AppClass_APP_CLASS_BATCH)
	weighs("beside one that became patient", patient)
	next()
	weighs("under the borglet after that", patient)
	become(3, borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE)
	weighs("beside one that became urgent again", urgent)
	m.stop(second, 0)
	m.untilState(second, stopped)
	weighs("alone again", patient)
}

// catches reports whether a process has a handler for a signal.
func catches(pid int, signal syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && caught>>(signal-1)&1 == 1
		}
	}
	return false
}

// TestForkBomb: a task that forks without end has its bound, and neither its
// neighbour nor the borglet notices.
func TestForkBomb(t *testing.T) {
	m := newMachine(t, "container")
	quiet := m.service("sleep", "3600")
	pid := m.untilState(quiet, running).GetPid()
	bomb := m.want(batch, &borgpb.TaskSpec{
		// It waits until it was looked at: on a slow machine it would be at a bound before.
		Args:      []string{"/bin/sh", "-c", "b() { b | b & }; trap b USR1; while :; do sleep 0.1; done"},
		Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20},
	})
	m.untilState(bomb, running)
	if got, want := m.groupNumber(bomb, "pids", "pids.max", "pids.max"), min(4096, m.boundedProcesses()/8); got != want {
		t.Errorf("it may have %d processes, want %d", got, want)
	}
	// goOff tells the bomb to begin. A signal is lost if it comes to the shell's child before
	// that is sleep, so it is sent again while the bomb has not gone off.
	goOff := func(procs []string) {
		for _, word := range procs {
			if pid, err := strconv.Atoi(word); err == nil && catches(pid, syscall.SIGUSR1) {
				_ = syscall.Kill(pid, syscall.SIGUSR1)
			}
		}
	}
	// Until it has come to one of its bounds: so many processes, or all of its memory.
	most := 0
	m.until(bomb, "at a bound", func(r *borgpb.TaskReport) bool {
		for _, group := range m.cgroups(bomb) {
			text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			if err != nil {
				continue
			}
			procs := strings.Fields(string(text))
			if most = max(most, len(procs)); most < 10 {
				goOff(procs)
			}
		}
		return most >= 100 || r.GetExit().GetOom()
	})
	if most < 10 {
		t.Errorf("only %d processes were seen: that is no bomb", most)
	}
	m.stop(bomb, 0)
	m.until(bomb, "ended", func(r *borgpb.TaskReport) bool {
		s := borgpb.AttemptState(r.GetState())
		return s == stopped || s == failed
	})
	if r := m.untilState(quiet, running); r.GetPid() != pid || r.GetRestarts() != 0 {
		t.Errorf("the neighbour: %v, want as it was", r)
	}
}

// TestMemoryNeighbour: who grows beyond his memory is ended by the kernel, and a quiet
// neighbour of the same size does not notice.
func TestMemoryNeighbour(t *testing.T) {
	m := newMachine(t, "container")
	limit := &borgpb.Resources{CpuMilli: 500, MemBytes: 32 << 20}
	quiet := m.want(service, &borgpb.TaskSpec{Args: []string{"sleep", "3600"}, Resources: limit})
	pid := m.untilState(quiet, running).GetPid()
	eater := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", "x=$(head -c 67108864 /dev/zero | tr '\\0' x)"}, Resources: limit})
	if r := m.untilState(eater, failed); !r.GetExit().GetOom() {
		t.Errorf("the eater: %v, want out of memory", r)
	}
	if r := m.untilState(quiet, running); r.GetPid() != pid || r.GetRestarts() != 0 || r.GetExit() != nil {
		t.Errorf("the neighbour: %v, want as it was", r)
	}
}
