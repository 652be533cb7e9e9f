package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// coreMachine starts a borglet on a machine whose tasks can have cores alone.
func coreMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "container")
	resp := m.poll()
	if n := resp.GetSpec().GetCapacity().GetDevices()[borgpb.ExclusiveCPU]; n == 0 {
		if runtime.NumCPU() > 1 {
			t.Fatalf("%d processors, and tasks can have none alone:\n%s", runtime.NumCPU(), m.log)
		}
		t.Skip("needs two cores")
	}
	if got := resp.GetSpec().GetAttributes()[borgpb.CoreThreads]; got != "1" {
		t.Skipf("written for cores of one thread, these have %s", got)
	}
	return m
}

// cpusOf is where a copy's process may run, as the kernel says it.
func (m *machine) cpusOf(id *borgrpc.CopyID) string {
	m.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.untilState(id, running).GetPid()))
	if err != nil {
		m.t.Fatal(err)
	}
	return allowedIn(m.t, string(text))
}

func allowedIn(t testing.TB, status string) string {
	t.Helper()
	_, rest, ok := strings.Cut(status, "Cpus_allowed_list:\t")
	if !ok {
		t.Fatalf("no processors in %q", status)
	}
	cpus, _, _ := strings.Cut(rest, "\n")
	return cpus
}

func (m *machine) wantCPUs(when string, id *borgrpc.CopyID, want string) {
	m.t.Helper()
	m.until(id, "on processors "+want+" "+when, func(r *borgpb.TaskReport) bool {
		return r.GetState() == int32(running) && m.cpusOf(id) == want
	})
}

// alone wants a task with cores of its own, which prints where it may run.
func (m *machine) alone(numbers ...uint32) *borgrpc.CopyID {
	id := m.want(service, &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status; exec sleep 3600"}, ExclusiveCores: true,
		Resources: &borgpb.Resources{CpuMilli: 1000 * int64(len(numbers)), MemBytes: 64 << 20},
	})
	m.desired[len(m.desired)-1].Devices = []*borgpb.DeviceGrant{{Name: borgpb.ExclusiveCPU, Numbers: numbers}}
	return id
}

// TestExclusiveCores: a task with a core of its own sees that one alone, and all others
// run on the rest, those that were there, those that come, and those in allocs; also
// when limits change, when the borglet is killed, and until it ends.
func TestExclusiveCores(t *testing.T) {
	m := coreMachine(t)
	neighbour := m.service("sleep", "3600")
	all := m.cpusOf(neighbour)
	own, rest := "1", "0"
	if n := runtime.NumCPU(); n > 2 {
		rest = fmt.Sprintf("0,2-%d", n-1)
		if n == 3 {
			rest = "0,2"
		}
	}
	id := m.alone(0)
	m.wantCPUs("alone", id, own)
	m.until(id, "seen by itself", func(*borgpb.TaskReport) bool { return m.read(id, "stdout") != "" })
	if got := allowedIn(t, m.read(id, "stdout")); got != own {
		t.Errorf("it sees the processors %s, want %s", got, own)
	}
	m.wantCPUs("that was there", neighbour, rest)
	later := m.service("sleep", "3600")
	inside := m.service("sleep", "3600")
	last := m.desired[len(m.desired)-1]
	last.Alloc, last.AllocResources = "alice/pool/0", &borgpb.Resources{CpuMilli: 500, MemBytes: 128 << 20}
	m.wantCPUs("that came later", later, rest)
	m.wantCPUs("in an alloc", inside, rest)
	shares := m.groupNumber(neighbour, "cpu", "cpu.shares", "cpu.weight")
	for _, d := range m.desired {
		if d.GetCopy() == neighbour {
			d.Version, d.Spec = 2, &borgpb.TaskSpec{Args: d.Spec.Args, Resources: &borgpb.Resources{CpuMilli: 400, MemBytes: 64 << 20}}
		}
	}
	m.until(neighbour, "with more weight", func(*borgpb.TaskReport) bool {
		return m.groupNumber(neighbour, "cpu", "cpu.shares", "cpu.weight") > shares
	})
	m.wantCPUs("after new limits", neighbour, rest)

	pid := m.untilState(id, running).GetPid()
	m.kill()
	m.start()
	if r := m.untilState(id, running); r.GetPid() != pid {
		t.Errorf("process %d is another now: %d", pid, r.GetPid())
	}
	m.wantCPUs("after kill -9 of the borglet", id, own)
	m.wantCPUs("after kill -9 of the borglet", neighbour, rest)
	after := m.service("sleep", "3600")
	m.wantCPUs("that came after it", after, rest)

	m.stop(id, 0)
	m.until(id, "ended", func(r *borgpb.TaskReport) bool { return r.GetState() == int32(stopped) })
	for _, other := range []*borgrpc.CopyID{neighbour, later, inside, after} {
		m.wantCPUs("when nobody has any alone", other, all)
	}
}

// TestExclusiveCoresAreNotShared: who is given what another copy still has waits for it,
// and who is given what is not there is told so.
func TestExclusiveCoresAreNotShared(t *testing.T) {
	m := coreMachine(t)
	first := m.alone(0)
	m.wantCPUs("alone", first, "1")
	second := m.alone(0)
	m.until(second, "told who has them", func(r *borgpb.TaskReport) bool {
		return strings.Contains(r.GetText(), "still has the processors 1")
	})
	m.stop(first, 0)
	m.until(first, "ended", func(r *borgpb.TaskReport) bool { return r.GetState() == int32(stopped) })
	m.wantCPUs("alone in its turn", second, "1")
	none := m.alone(4096)
	m.until(none, "told that there is none", func(r *borgpb.TaskReport) bool {
		return strings.Contains(r.GetText(), "none of number 4096")
	})
}
