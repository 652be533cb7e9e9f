package main

import (
	"strings"
	"testing"

	"borg/borglet/diskquota"
	"borg/proto/borgpb"
)

// TestDiskLimit: where the file system has project quotas a task's write beyond its limit
// fails, and the task goes on; anywhere else the machine says that it measures, and the
// task is ended for it.
func TestDiskLimit(t *testing.T) {
	m := newMachine(t, "container")
	filler := m.want(batch, &borgpb.TaskSpec{
		Args:      []string{"/bin/sh", "-c", "head -c 201326592 /dev/zero > /task/file; echo status $?; sleep 3600"},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20, DiskBytes: 32 << 20},
	})
	m.untilState(filler, running)
	mode := m.poll().GetSpec().GetAttributes()["disk_limit"]
	_, err := diskquota.Open(m.dir)
	if err == nil && strings.Contains(m.log.String(), `"userns":"own"`) {
		if mode != "refused" {
			t.Fatalf("the machine says disk_limit=%s, want refused", mode)
		}
		m.until(filler, "refused", func(*borgpb.TaskReport) bool { return strings.Contains(m.logOf(filler), "status 1\n") })
		m.untilState(filler, running)
		return
	}
	if mode != "measured" {
		t.Errorf("the machine says disk_limit=%s, want measured (%v)", mode, err)
	}
	const said = "what tasks write beyond their disk limit is measured and not refused"
	if got := strings.Count(m.log.String(), said); got != 1 {
		t.Errorf("that it is measured was said %d times, want once", got)
	}
	r := m.untilState(filler, failed)
	if !strings.Contains(r.GetText(), "more on disk than its limit") {
		t.Errorf("the filler: %v, want ended for what it keeps", r)
	}
}
