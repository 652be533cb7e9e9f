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
	path := filepath.Join("/sys/fs/cgroup", controller, "borg", m.name, filepath.Base(m.file(id, "")), v1)
	if !exists("/sys/fs/cgroup/" + controller) {
		path = filepath.Join("/sys/fs/cgroup/borg", m.name, filepath.Base(m.file(id, "")), v2)
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
	u := m.usageOf(holds, "at rest with its memory", func(u *borgrpc.Usage) bool {
		// The kernel may take files out of memory again at any time.
		return u.GetRssBytes() > 48<<20 && u.GetCacheBytes() > 0 && u.GetDiskBytes() >= 80<<20 && u.GetMemMaxBytes() > 128<<20
	})
	used := m.groupNumber(holds, "memory", "memory.usage_in_bytes", "memory.current")
	// The kernel's own structures are in its total too.
	if sum := u.GetRssBytes() + u.GetCacheBytes(); sum > used+used/20 || sum < used-used/10 {
		t.Errorf("%d of its own and %d of files, the cgroup has %d", u.GetRssBytes(), u.GetCacheBytes(), used)
	}
	u = m.usageOf(spins, "throttled", func(u *borgrpc.Usage) bool { return u.GetThrottledNs() > 0 && u.GetCpuMilliMean() > 0 })
	if u.GetCpuMilliMean() > 200 {
		t.Errorf("with a hard limit of 100: %v", u)
	}
}
