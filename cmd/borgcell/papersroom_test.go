package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

// TestPapersAreTheTasksMemory: the cell refuses a task whose secrets and files may take more
// than its memory, whoever sends it. In its container a task has so much less memory; when it
// holds every version of a file open it gets no more of them, and another task with the same
// file does. What it held is free when it ends.
func TestPapersAreTheTasksMemory(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	if runtimes, err := c.runtimes(t.Context()); err != nil || !strings.Contains(runtimes, "container") {
		t.Skipf("tasks have no memory limits here: %s, %v", runtimes, err)
	}
	const name = "held-open"
	write := func(version int) {
		t.Helper()
		content := []byte(strings.Repeat(fmt.Sprint(version), borgpb.MaxFileBytes))
		if _, err := c.client.WriteFile(shortly(t), c.user, name, content, nil); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	spec := sleepers(1)
	spec.Task.Files = []*borgpb.PushedFile{{Name: name, Signal: borgpb.ReloadSignal_RELOAD_SIGNAL_HUP}}
	spec.Task.Resources.MemBytes = 2*borgpb.MaxFileBytes - 1
	if _, err := c.submit(shortly(t), "small", spec); err == nil || !strings.Contains(err.Error(), "ask for more memory") {
		t.Errorf("a task with less memory than its file: %v", err)
	}
	spec.Task.Resources.MemBytes = 32 << 20
	spec.Task.Args = []string{"/bin/sh", "-c", "f={{task.files}}/" + name + "\ntrap 'sleep 1000000 <$f &' HUP\nsleep 1000000 <$f &\nwhile :; do sleep 0.1; done"}
	before := c.run(t, "holder", spec)
	holder := c.onlyPapers(t)
	if got, want := memLimit(t, filepath.Base(holder)), int64(32<<20-2*borgpb.MaxFileBytes); got != want {
		t.Errorf("the limit of its cgroup is %d, want %d", got, want)
	}
	spec.Task.Args = sleepers(1).Task.Args
	spec.Task.Files[0].Signal = borgpb.ReloadSignal_RELOAD_SIGNAL_UNSPECIFIED
	c.run(t, "beside", spec)
	var beside string
	for _, dir := range c.papersDirs(t) {
		if dir != holder {
			beside = dir
		}
	}
	const room = 1<<20 + 2*borgpb.MaxFileBytes
	full := false
	for version := 1; version < 10; version++ {
		write(version)
		has := func(dir string) bool {
			content, err := os.ReadFile(filepath.Join(dir, "files", name))
			return err == nil && strings.HasPrefix(string(content), fmt.Sprint(version))
		}
		waitFor(t, fmt.Sprintf("the other task has version %d", version), func() string {
			if !has(beside) {
				return "it has an older one"
			}
			return ""
		})
		// Each is pushed to both of them at about the same time; then the signal is awaited.
		waitFor(t, fmt.Sprintf("the holder has version %d, or no room for it", version), func() string {
			full = full || papersTake(t, holder) > room-borgpb.MaxFileBytes
			if !full && !has(holder) {
				return "neither"
			}
			return ""
		})
		if got := papersTake(t, holder); got > room {
			t.Errorf("after version %d its papers take %d bytes, want at most %d", version, got, int64(room))
		}
		if got := papersTake(t, beside); got > 2*borgpb.MaxFileBytes {
			t.Errorf("after version %d those of the other task take %d bytes", version, got)
		}
		waitFor(t, "the holder opens it", func() string {
			if n := heldOpen(name); !full && n < version {
				return fmt.Sprintf("%d of %d replaced versions are open", n, version)
			}
			return ""
		})
	}
	if !full {
		t.Error("the holder had room for all versions")
	}
	c.stillSame(t, before, "holder")
	op := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: "holder"}}}
	if _, err := c.client.Mutate(shortly(t), op); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the papers of the holder are gone", func() string {
		if _, err := os.Stat(holder); !os.IsNotExist(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// papersDirs returns the directories of papers on machine 1.
func (c *Cell) papersDirs(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(c.papersOf(1), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (c *Cell) onlyPapers(t *testing.T) string {
	t.Helper()
	found := c.papersDirs(t)
	if len(found) != 1 {
		t.Fatalf("papers in %v, want those of one task", found)
	}
	return found[0]
}

// papersTake returns the memory of a directory of papers that is a file system of its own.
func papersTake(t *testing.T, dir string) int64 {
	t.Helper()
	var is unix.Statfs_t
	if err := unix.Statfs(dir, &is); err != nil {
		t.Fatal(err)
	}
	return int64(is.Blocks-is.Bfree) * int64(is.Bsize)
}

// memLimit returns the memory limit of the cgroup of a copy.
func memLimit(t *testing.T, copyName string) (limit int64) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/memory/borg/*/" + copyName + "/memory.limit_in_bytes", "/sys/fs/cgroup/borg/*/" + copyName + "/memory.max"} {
		for _, path := range matches(pattern) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Sscan(string(text), &limit); err != nil {
				t.Fatal(err)
			}
		}
	}
	return limit
}

func matches(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
}

// heldOpen returns how many processes have a replaced version of a file as standard input.
func heldOpen(name string) (n int) {
	for _, fd := range matches("/proc/[0-9]*/fd/0") {
		if to, err := os.Readlink(fd); err == nil && strings.HasSuffix(to, "/"+name+" (deleted)") {
			n++
		}
	}
	return n
}
