//go:build linux && cgo

package container

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"

	"borg/borglet"
)

// TestLimitsInVersion2 writes limits into a tree of files as version 2 has them: what a kernel
// with that version makes of them, only such a machine can show.
func TestLimitsInVersion2(t *testing.T) {
	cgroups.TestMode = true
	defer func() { cgroups.TestMode = false }()
	files := []string{"cpu.weight", "cpu.max", "memory.max", "memory.low", "memory.swap.max", "pids.max"}
	pids := strconv.FormatInt(pidsOfTask(), 10)
	for _, tt := range []struct {
		name   string
		limits borglet.Limits
		want   []string
	}{
		{"slack of processor, hard memory", borglet.Limits{CPUMilli: 1000, MemBytes: 64 << 20},
			[]string{"100", "max 100000", "67108864", "", "0", pids}},
		{"hard processor", borglet.Limits{CPUMilli: 250, CPUHard: true, MemBytes: 64 << 20},
			[]string{"35", "25000 100000", "67108864", "", "0", pids}},
		{"batch", borglet.Limits{CPUMilli: 1000, Batch: true, MemBytes: 64 << 20},
			[]string{"12", "max 100000", "67108864", "", "0", pids}},
		{"slack of memory", borglet.Limits{CPUMilli: 1000, MemBytes: 64 << 20, MemSoft: true},
			[]string{"100", "max 100000", "max", "67108864", "max", pids}},
		{"less than a container starts in", borglet.Limits{CPUMilli: 1, CPUHard: true, MemBytes: 1},
			[]string{"1", "1000 100000", "16777216", "", "0", pids}},
		{"nothing asked for", borglet.Limits{},
			[]string{"", "", "", "", "", pids}},
	} {
		empty := map[string]string{"cgroup.controllers": "cpu io memory pids", "cgroup.procs": "", "io.weight": "", "io.bfq.weight": ""}
		for _, f := range files {
			empty[f] = ""
		}
		dir := tree(t, empty)
		r := resources(tt.limits)
		// Rules of devices are a program in the kernel, not a file.
		r.SkipDevices = true
		m, err := fs2.NewManager(&cgroups.Cgroup{Resources: r}, dir)
		if err == nil {
			err = m.Set(r)
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for i, f := range files {
			text, err := os.ReadFile(filepath.Join(dir, f))
			if err != nil || string(text) != tt.want[i] {
				t.Errorf("%s: %s is %q, want %q (%v)", tt.name, f, text, tt.want[i], err)
			}
		}
	}
}

// TestLimitsInVersion2Change: an update in place takes back what was there.
func TestLimitsInVersion2Change(t *testing.T) {
	cgroups.TestMode = true
	defer func() { cgroups.TestMode = false }()
	dir := tree(t, map[string]string{"cgroup.controllers": "cpu memory", "cpu.weight": "10", "cpu.max": "25000 100000", "memory.max": "67108864", "memory.low": "", "memory.swap.max": "0", "memory.current": "1\n"})
	r := limits(borglet.Limits{CPUMilli: 2000, MemBytes: 128 << 20})
	r.SkipDevices = true
	m, err := fs2.NewManager(&cgroups.Cgroup{Resources: r}, dir)
	if err == nil {
		err = m.Set(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{"cpu.max": "max 100000", "memory.max": "134217728"} {
		if text, err := os.ReadFile(filepath.Join(dir, f)); err != nil || string(text) != want {
			t.Errorf("%s is %q, want %q (%v)", f, text, want, err)
		}
	}
}

// TestPathsInVersion2: one tree has all controllers, and a version 2 tree beside version 1 has none
// that is asked for by name.
func TestPathsInVersion2(t *testing.T) {
	alone := pathsIn([]hierarchy{{mount: "/sys/fs/cgroup"}}, "/borg/m1/x")
	if !alone.v2() || alone[""] != "/sys/fs/cgroup/borg/m1/x" {
		t.Errorf("version 2 alone: %v", alone)
	}
	beside := pathsIn([]hierarchy{{mount: "/sys/fs/cgroup/unified"}, {controllers: []string{"memory"}, mount: "/sys/fs/cgroup/memory"}}, "/borg/m1/x")
	if beside.v2() || beside["memory"] != "/sys/fs/cgroup/memory/borg/m1/x" {
		t.Errorf("beside version 1: %v", beside)
	}
}
