package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestWaysOfNotStarting: each way of not starting has a reason of its own and a sentence
// that says what to mend. None is told as an exit code of the task.
func TestWaysOfNotStarting(t *testing.T) {
	alongside(t)
	m := newMachine(t, "container")
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "no program", 0o644)
	write("no-shell", "#!/no/such/interpreter\n", 0o755)
	write("arm", "\x7fELF\x02\x01\x01"+strings.Repeat("\x00", 57), 0o755)
	write("zeros", strings.Repeat("\x00", 64), 0o755)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := []*borgpb.Mount{{Source: dir, Path: "/opt/it"}}
	task := func(args ...string) *borgpb.TaskSpec { return &borgpb.TaskSpec{Args: args, Mounts: mounts} }
	long := make([]string, 0, 31)
	long = append(long, "true")
	for range 30 {
		long = append(long, strings.Repeat("x", 100<<10))
	}
	for name, c := range map[string]struct {
		spec *borgpb.TaskSpec
		way  borgpb.ExitReason
		says string
	}{
		"missing":         {task("/no/such"), borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING, `start "/no/such": no such file`},
		"not in PATH":     {task("no-such-program"), borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING, `start "no-such-program": no such file`},
		"not executable":  {task("/opt/it/plain"), borgpb.ExitReason_EXIT_REASON_NOT_EXECUTABLE, "permission denied"},
		"a directory":     {task("/opt/it"), borgpb.ExitReason_EXIT_REASON_NOT_EXECUTABLE, "permission denied"},
		"no interpreter":  {task("/opt/it/no-shell"), borgpb.ExitReason_EXIT_REASON_INTERPRETER_MISSING, "the interpreter or loader that it names is not"},
		"another machine": {task("/opt/it/arm"), borgpb.ExitReason_EXIT_REASON_WRONG_FORMAT, "exec format error"},
		"no program":      {task("/opt/it/zeros"), borgpb.ExitReason_EXIT_REASON_WRONG_FORMAT, "exec format error"},
		"one argument":    {task("true", strings.Repeat("x", 200<<10)), borgpb.ExitReason_EXIT_REASON_ARGUMENTS_TOO_LONG, "longer than the kernel takes"},
		"all arguments":   {task(long...), borgpb.ExitReason_EXIT_REASON_ARGUMENTS_TOO_LONG, "longer than the kernel takes"},
		"no directory":    {&borgpb.TaskSpec{Args: []string{"true"}, Cwd: "/no/such"}, borgpb.ExitReason_EXIT_REASON_WORKING_DIRECTORY, "working directory /no/such"},
		"no mount":        {&borgpb.TaskSpec{Args: []string{"true"}, Mounts: []*borgpb.Mount{{Source: "/no/such", Path: "/data"}}}, borgpb.ExitReason_EXIT_REASON_MOUNT, "no such file or directory on machine"},
		"no root":         {&borgpb.TaskSpec{Args: []string{"true"}, Rootfs: "/no/such"}, borgpb.ExitReason_EXIT_REASON_MOUNT, "no such directory on machine"},
		"unbound name":    {task("true", "{{port.http}}"), borgpb.ExitReason_EXIT_REASON_NOT_STARTED, "{{port.http}}"},
	} {
		r := m.untilState(m.want(batch, c.spec), failed)
		e := r.GetExit()
		if e.GetReasonCode() != c.way || !strings.Contains(e.GetError(), c.says) || !strings.Contains(r.GetText(), c.says) {
			t.Errorf("%s: got %v, want %v and %q", name, r, c.way, c.says)
		}
	}
}

// TestScriptWithoutInterpreter: the shell runs it, as it would anywhere.
func TestScriptWithoutInterpreter(t *testing.T) {
	m := newMachine(t, "container")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "script"), []byte("exit $1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	id := m.want(batch, &borgpb.TaskSpec{Args: []string{"/opt/it/script", "7"}, Mounts: []*borgpb.Mount{{Source: dir, Path: "/opt/it"}}})
	if r := m.untilState(id, failed); r.GetExit().GetCode() != 7 {
		t.Errorf("got %v, want code 7", r)
	}
}

// TestWaysOfBeingKilled: the kernel's kill of a child is told with the child's name and
// what it held, and the exit that follows is not told as an ordinary one. A SIGKILL of
// somebody else is told from both.
func TestWaysOfBeingKilled(t *testing.T) {
	m := newMachine(t, "container")
	limit := &borgpb.Resources{CpuMilli: 1000, MemBytes: 32 << 20}
	child := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", "tail /dev/zero; exit 5"}, Resources: limit})
	self := m.want(batch, &borgpb.TaskSpec{Args: []string{"tail", "/dev/zero"}, Resources: limit})
	shot := m.want(batch, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", "kill -9 $$"}})
	_, err := os.Stat("/dev/kmsg")
	named := err == nil && unix.Access("/dev/kmsg", unix.R_OK) == nil
	for _, c := range []struct {
		id  *borgrpc.CopyID
		way borgpb.ExitReason
	}{{child, borgpb.ExitReason_EXIT_REASON_CHILD_OUT_OF_MEMORY}, {self, borgpb.ExitReason_EXIT_REASON_OUT_OF_MEMORY}} {
		r := m.untilState(c.id, failed)
		e := r.GetExit()
		if e.GetReasonCode() != c.way || !e.GetOom() {
			t.Errorf("got %v, want %v", r, c.way)
		}
		if named && (e.GetOomProcess() != "tail" || e.GetOomBytes() < 16<<20 || e.GetOomBytes() > 64<<20 || !strings.Contains(r.GetText(), "killed its process tail, which held ")) {
			t.Errorf("got %v, want the name tail and about 32 MiB", r)
		}
	}
	if r := m.untilState(shot, failed); r.GetExit().GetReasonCode() != borgpb.ExitReason_EXIT_REASON_KILLED || r.GetExit().GetOom() {
		t.Errorf("got %v, want killed by somebody", r)
	}
}

// TestKilledWorker: that the kernel killed a process of a task is told while the task goes
// on, also after a restart of the borglet.
func TestKilledWorker(t *testing.T) {
	m := newMachine(t, "container")
	limit := &borgpb.Resources{CpuMilli: 1000, MemBytes: 32 << 20}
	id := m.want(service, &borgpb.TaskSpec{Args: []string{"/bin/sh", "-c", "tail /dev/zero; exec sleep 1000"}, Resources: limit})
	told := func(r *borgpb.TaskReport) bool {
		return r.GetState() == int32(running) && r.GetOomKills() == 1 && strings.Contains(r.GetText(), "the kernel has killed one process of it")
	}
	m.until(id, "told", told)
	m.kill()
	m.start()
	m.until(id, "told again", told)
}
