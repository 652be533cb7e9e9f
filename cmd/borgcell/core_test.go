package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxRegionBytes bounds what is read of one region of a process's memory.
const maxRegionBytes = 64 << 20

// lookAtMemory looks at what a process could write and leave in a core: all
// memory that is its own.
func (h *haystack) lookAtMemory(pid int, where string, needles []needle) {
	h.t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	defer mem.Close()
	read := 0
	for s := bufio.NewScanner(bytes.NewReader(maps)); s.Scan(); {
		var first, end uint64
		var mode string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %s", &first, &end, &mode); err != nil {
			h.t.Fatalf("%q: %v", s.Text(), err)
		}
		if !strings.HasPrefix(mode, "rw") {
			continue
		}
		region := make([]byte, min(end-first, maxRegionBytes))
		n, err := mem.ReadAt(region, int64(first))
		if err != nil && n == 0 {
			// Of devices, or gone since.
			continue
		}
		read += n
		h.look(where, region[:n], needles)
	}
	if read < 1<<20 {
		h.t.Errorf("%s: only %d bytes of its memory can be read", where, read)
	}
}

// writesCores says whether this machine would write a core of a process that is
// aborted in a directory: one that hides nothing is.
func writesCores(t *testing.T, dir string) bool {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "ulimit -c unlimited && kill -ABRT $$")
	cmd.Dir = dir
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("a shell that aborts itself: %v", err)
	}
	return exit.Sys().(syscall.WaitStatus).CoreDump()
}

// TestNothingIsInCores: a master, a scheduler and a borglet leave no core when they
// are aborted, where any other program does, and what they say then holds no secret
// and no key; a master's memory does hold the cell's key. A shim, and what runs
// in a task's container beside the task, hide nothing, because there is nothing
// of it in their memory.
func TestNothingIsInCores(t *testing.T) {
	alongside(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: it looks into the memory of processes")
	}
	cores := t.TempDir()
	writes := writesCores(t, cores)
	if !writes {
		t.Log("this machine writes no cores at all")
	}
	left, _ := filepath.Glob(filepath.Join(cores, "*"))
	for _, core := range left {
		os.Remove(core)
	}
	c := newChaosCell(t, 1, 1)
	c.alter = func(spec *processSpec) {
		spec.Args = append([]string{"-c", `ulimit -c unlimited && cd "$0" && exec "$@"`, cores, spec.Path}, spec.Args...)
		spec.Path = "/bin/sh"
		spec.Env = append(spec.Env, "GOTRACEBACK=crash")
	}
	c.startAll(t)
	c.hasLatestFormat(t)

	var random [36]byte
	rand.Read(random[:])
	value := base64.RawURLEncoding.EncodeToString(random[:])
	secret := newNeedle("secret", []byte(value))
	needles := []needle{secret}
	for _, key := range c.cellKeys(t) {
		needles = append(needles, newNeedle("cell key", key))
	}
	if _, err := c.client.SetSecret(shortly(t), &borgrpc.SetSecretRequest{User: c.user, Name: "canary", Value: []byte(value)}); err != nil {
		t.Fatal(err)
	}
	spec := sleepers(1)
	spec.Task.Secrets = []string{"canary"}
	before := c.run(t, "canary", spec)

	memory := &haystack{t: t, found: map[string][]string{}}
	memory.lookAtMemory(c.PID(c.masterName(1)), "the master", needles)
	if len(memory.found["cell key"]) == 0 {
		t.Error("the search does not see the cell key in the memory of a master")
	}
	tasks, err := c.tasks(shortly(t), "canary")
	if err != nil {
		t.Fatal(err)
	}
	shim := c.shimOf(t, tasks[0])
	beside := &haystack{t: t, found: map[string][]string{}}
	beside.lookAtMemory(shim.PID, "the shim", needles)
	for name, at := range beside.found {
		t.Errorf("%s is in the memory of %s", name, at[0])
	}

	h := &haystack{t: t, found: map[string][]string{}}
	abort := func(name string, id processID, log string) {
		t.Helper()
		was, _ := os.ReadFile(log)
		if err := id.signal(syscall.SIGABRT); err != nil {
			t.Fatal(err)
		}
		waitFor(t, name+" is gone", func() string {
			if id.alive() {
				return "it is not"
			}
			return ""
		})
		said, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		said = said[min(len(was), len(said)):]
		if !bytes.Contains(said, []byte("SIGABRT")) || bytes.Count(said, []byte("goroutine ")) < 5 {
			t.Errorf("%s did not say where its goroutines were:\n%s", name, said)
		}
		h.look(log, said, needles)
	}
	for _, id := range c.schedulers(t) {
		abort("the scheduler", id, c.logPath(c.masterName(1)))
	}
	for _, name := range []string{c.masterName(1), c.machineName(1)} {
		in := c.sup.get(name).running()
		abort(name, in.id, c.logPath(name))
		<-in.done
		if !strings.Contains(in.end, "abort") || strings.Contains(in.end, "core") {
			t.Errorf("%s ended by %q, want an abort without a core", name, in.end)
		}
		waitFor(t, name+" is started again", func() string {
			if now := c.sup.get(name).running(); now == nil || now == in {
				return "it is not"
			}
			return ""
		})
	}
	if _, err := c.jobIs(shortly(t), "canary", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	c.stillSame(t, before, "canary")
	for name, at := range h.found {
		t.Errorf("%s is in %s", name, strings.Join(at, "\n"))
	}
	for _, dir := range []string{cores, c.dir, c.RunDir} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && (dir == cores || strings.HasPrefix(d.Name(), "core")) {
				t.Errorf("there is a core, %s", path)
			}
			return nil
		})
	}
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: "canary"}}}); err != nil {
		t.Fatal(err)
	}
	if writes {
		t.Log("this machine writes cores of programs that hide nothing")
	}
}
