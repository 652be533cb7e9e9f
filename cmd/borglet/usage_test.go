package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// groupNumber reads a file of a copy's cgroup of one number, by its name in each
// version.
func (m *machine) groupNumber(id *borgrpc.CopyID, controller, v1, v2 string) int64 {
	m.t.Helper()
	return m.numberIn(filepath.Base(m.file(id, "")), controller, v1, v2)
}

// numberIn does so for a cgroup below the borglet's.
func (m *machine) numberIn(group, controller, v1, v2 string) int64 {
	m.t.Helper()
	path := filepath.Join("/sys/fs/cgroup", controller, "borg", m.name, group, v1)
	if !exists("/sys/fs/cgroup/" + controller) {
		path = filepath.Join("/sys/fs/cgroup/borg", m.name, group, v2)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(string(text), "usage_usec ")), 10, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// usageOf polls until there is usage of a copy that is as wanted.
func (m *machine) usageOf(id *borgrpc.CopyID, what string, ok func(*borgrpc.Usage) bool) *borgrpc.Usage {
	m.t.Helper()
	var last *borgrpc.Usage
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		for _, u := range m.poll().GetUsage() {
			if u.GetCopy().GetJobUid() == id.GetJobUid() {
				if last = u; ok(u) {
					return u
				}
			}
		}
	}
	m.t.Fatalf("usage of %v is not %s; last: %v", id, what, last)
	return nil
}

// TestUsageIsTheCgroups: what is reported is what the cgroup says, within a
// twentieth: memory of its own, of files, what was written, and throttling of a task
// with a hard limit.
func TestUsageIsTheCgroups(t *testing.T) {
	m := newMachine(t, "container")
	// 48 MiB of its own, held by a shell; 80 MiB of files.
	holds := m.want(service, &borgpb.TaskSpec{
		Args:      []string{"/bin/sh", "-c", "x=$(head -c 50331648 /dev/zero | tr '\\0' x); head -c 83886080 /dev/zero > file; sync file; sleep 3600; echo $x"},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 512 << 20},
	})
	spins := m.want(service, &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", "while :; do :; done"}, CpuSlack: borgpb.Slack_SLACK_OFF,
		Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20},
	})
	m.untilState(holds, running)
	m.untilState(spins, running)
	// What is told is older than the cgroup, which the kernel may take files from at any
	// time: they are compared until both are of a time of rest.
	m.usageOf(holds, "at rest with the memory of its cgroup", func(u *borgrpc.Usage) bool {
		used := m.groupNumber(holds, "memory", "memory.usage_in_bytes", "memory.current")
		// The kernel's own structures are in its total too.
		sum := u.GetRssBytes() + u.GetCacheBytes()
		return u.GetRssBytes() > 48<<20 && u.GetCacheBytes() > 0 && u.GetDiskBytes() >= 80<<20 && u.GetMemMaxBytes() > 128<<20 &&
			sum <= used+used/20 && sum >= used-used/10
	})
	u := m.usageOf(spins, "throttled", func(u *borgrpc.Usage) bool { return u.GetThrottledNs() > 0 && u.GetCpuMilliMean() > 0 })
	if u.GetCpuMilliMean() > 200 {
		t.Errorf("with a hard limit of 100: %v", u)
	}
}

// TestUsageOfAllocIsTheCgroups: of an alloc is told what its cgroup says, within a
// twentieth: all that is in it, what has ended there too, and not what is beside it.
func TestUsageOfAllocIsTheCgroups(t *testing.T) {
	m := newMachine(t, "container")
	holds := func(mib int, then string) *borgrpc.CopyID {
		return m.want(service, &borgpb.TaskSpec{
			Args:      []string{"/bin/sh", "-c", "x=$(head -c " + strconv.Itoa(mib<<20) + " /dev/zero | tr '\\0' x); " + then + "; echo $x"},
			Resources: &borgpb.Resources{CpuMilli: 500, MemBytes: 256 << 20},
		})
	}
	one, two := holds(24, "head -c 4194304 /dev/zero > {{alloc.dir}}/file; sleep 3600"), holds(40, "while :; do :; done")
	for _, d := range m.desired {
		d.Alloc, d.AllocResources = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 512 << 20}
	}
	beside := holds(8, "sleep 3600")
	for _, id := range []*borgrpc.CopyID{one, two, beside} {
		m.untilState(id, running)
	}
	const group = "alloc-alice.pool.0"
	// Shells that read much hold twice of it for a moment, and what is told is older than
	// the cgroup: they are compared until both are of a time of rest.
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		var told *borgrpc.Usage
		if all := m.poll().GetAllocUsage(); len(all) == 1 && all[0].GetAlloc() == "alice/pool/0" {
			told = all[0].GetUsage()
		}
		used := m.numberIn(group, "memory", "memory.usage_in_bytes", "memory.current")
		sum := told.GetRssBytes() + told.GetCacheBytes()
		if told.GetRssBytes() > 64<<20 && told.GetCpuMilliMean() > 0 && told.GetDiskBytes() >= 4<<20 && sum <= used+used/20 && sum >= used-used/10 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cgroup has %d bytes; the alloc's usage is not at rest with as much: %v", used, told)
		}
	}
	// One ends: what is left is the other.
	m.stop(two, 0)
	m.untilState(two, stopped)
	m.allocUsage(t)
	if u := m.allocUsage(t); u.GetRssBytes() < 24<<20 || u.GetRssBytes() > 40<<20 {
		t.Errorf("with one task left: %v", u)
	}
	m.stop(one, 0)
	m.untilState(one, stopped)
	m.poll()
	for deadline := time.Now().Add(patience); len(m.poll().GetAllocUsage()) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("usage of an alloc is told in which nothing is")
		}
	}
}

// allocUsage polls until the usage of the only alloc is told again.
func (m *machine) allocUsage(t *testing.T) *borgrpc.Usage {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if all := m.poll().GetAllocUsage(); len(all) == 1 {
			return all[0].GetUsage()
		}
	}
	t.Fatal("nothing is told of the alloc")
	return nil
}
