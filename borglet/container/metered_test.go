package container

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"borg/borglet"
)

// busyGroup makes a cgroup of ours in which a busy loop runs, and returns the loop.
func busyGroup(t *testing.T, list []hierarchy, path string) proc {
	t.Helper()
	for _, h := range list {
		if err := os.MkdirAll(filepath.Join(h.mount, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	loop := exec.Command("/bin/sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = loop.Process.Kill()
		_ = loop.Wait()
		if err := emptyCgroup(path); err != nil {
			t.Error(err)
		}
	})
	for _, h := range list {
		if err := os.WriteFile(filepath.Join(h.mount, path, "cgroup.procs"), []byte(strconv.Itoa(loop.Process.Pid)), 0); err != nil && h.controllers != nil {
			if filepath.Base(h.mount) != "cpuset" { // It has no processors yet.
				t.Fatal(err)
			}
		}
	}
	id, err := identify(loop.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestMetersAreTheCgroups: what is measured of copies, and of an alloc with two of them,
// lies between what the files of their cgroups said just before and say just after.
func TestMetersAreTheCgroups(t *testing.T) {
	if err := cgroupsUsable(); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and cgroups: %v", err)
	}
	list, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	parent := cgroupParent(fmt.Sprintf("metered-%d", os.Getpid()))
	t.Cleanup(func() {
		removeCgroup(allocPath(parent, "alice.pool.0"))
		removeCgroup(parent)
		removeCgroup(cgroupTop)
	})
	runs, groups := map[borglet.ID]proc{}, map[borglet.ID]string{}
	for i := range uint32(2) {
		id := borglet.ID{JobUID: "1-2-0", Index: i, Attempt: 1}
		groups[id] = filepath.Join(allocPath(parent, "alice.pool.0"), id.String())
		runs[id] = busyGroup(t, list, groups[id])
	}
	m := newMeters()
	defer m.close()
	alloc := pathsIn(list, allocPath(parent, "alice.pool.0"))
	for id, group := range groups {
		for began := time.Now(); pathsIn(list, group).cpuNs() == 0; {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("nothing runs in the cgroup of %s", id)
			}
		}
	}
	for range 50 {
		before := map[borglet.ID]int64{}
		for id, group := range groups {
			before[id] = pathsIn(list, group).cpuNs()
		}
		allBefore := alloc.cpuNs()
		copies, err := m.sample(runs)
		if err != nil {
			t.Fatal(err)
		}
		allocs, err := m.sampleAllocs(parent, []string{"alice.pool.0", "alice.pool.1"})
		if err != nil {
			t.Fatal(err)
		}
		for id, group := range groups {
			if got, after := copies[id].CPUNs, pathsIn(list, group).cpuNs(); got < before[id] || got > after || got == 0 {
				t.Fatalf("copy %s used %d ns, its cgroup says %d to %d", id, got, before[id], after)
			}
		}
		if got, after := allocs["alice.pool.0"].CPUNs, alloc.cpuNs(); got < allBefore || got > after || got == 0 {
			t.Fatalf("the alloc used %d ns, its cgroup says %d to %d", got, allBefore, after)
		}
		if _, told := allocs["alice.pool.1"]; told {
			t.Fatal("an alloc without a cgroup is told of")
		}
	}
	if n := len(m.allocs); n != 1 {
		t.Errorf("files of %d allocs are open, want 1", n)
	}
	if _, err := m.sampleAllocs(parent, nil); err != nil || len(m.allocs) != 0 {
		t.Errorf("%d are open of allocs that nobody asks for, %v", len(m.allocs), err)
	}
}
