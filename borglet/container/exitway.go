package container

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/proto/borgpb"
)

// errnoWays are the ways of not starting by what the kernel answers to the start of a
// program.
var errnoWays = map[syscall.Errno]borgpb.ExitReason{
	unix.ENOENT: borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING, unix.ENOTDIR: borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING,
	unix.ELOOP: borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING, unix.ENAMETOOLONG: borgpb.ExitReason_EXIT_REASON_PROGRAM_MISSING,
	unix.EACCES: borgpb.ExitReason_EXIT_REASON_NOT_EXECUTABLE, unix.EPERM: borgpb.ExitReason_EXIT_REASON_NOT_EXECUTABLE,
	unix.EISDIR:  borgpb.ExitReason_EXIT_REASON_NOT_EXECUTABLE,
	unix.ENOEXEC: borgpb.ExitReason_EXIT_REASON_WRONG_FORMAT, unix.ELIBBAD: borgpb.ExitReason_EXIT_REASON_WRONG_FORMAT,
	unix.E2BIG: borgpb.ExitReason_EXIT_REASON_ARGUMENTS_TOO_LONG,
}

// startWay is the way of not starting that an error stands for.
func startWay(err error) borgpb.ExitReason {
	var known *taskError
	if errors.As(err, &known) && known.way != 0 {
		return known.way
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errnoWays[errno] != 0 {
		return errnoWays[errno]
	}
	return borgpb.ExitReason_EXIT_REASON_NOT_STARTED
}

// inWay marks an error of the task with the way of not starting that it is; nil stays nil.
func inWay(way borgpb.ExitReason, err error) error {
	if err == nil {
		return nil
	}
	return &taskError{err: err, way: way}
}

// unstarted is the exit of a container whose first process ended before it could take
// signals: it never became the init. It writes why to the task's standard error, which
// nobody else has written to in this run.
func unstarted(dir string, e *borglet.ExitFile) {
	line := lastLine(dir, stderrFile)
	e.Way = borgpb.ExitReason_EXIT_REASON_NOT_STARTED
	if strings.Contains(line, unix.E2BIG.Error()) {
		e.Way = borgpb.ExitReason_EXIT_REASON_ARGUMENTS_TOO_LONG
		line = "arguments and environment of the task are longer than the kernel takes; pass what is long in a file"
	}
	if line == "" {
		line = "its first process ended before the program was started"
	}
	e.Code, e.Error = 127, "start: "+line
}

// lastLineBytes bounds what is read of the end of a file.
const lastLineBytes = 4 << 10

// lastLine is the last line of a file in a copy's directory; empty when it cannot be read.
func lastLine(dir, name string) string {
	f, err := beneath.Open(dir, name, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(info.Size()-lastLineBytes, 0), lastLineBytes))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.ToValidUTF8(strings.TrimSpace(lines[len(lines)-1]), "?")
}

// tellKills adds what the kernel killed for memory to how a run ended: an exit that
// follows from the death of a child is not told as one of its own.
func tellKills(e *borglet.ExitFile, k oomKills) {
	if k.count == 0 {
		return
	}
	e.OOM, e.OOMProcess, e.OOMBytes = true, k.process, k.bytes
	e.Way = borgpb.ExitReason_EXIT_REASON_CHILD_OUT_OF_MEMORY
	if e.Signal == int32(unix.SIGKILL) {
		e.Way = borgpb.ExitReason_EXIT_REASON_OUT_OF_MEMORY
	}
}

// copyOfGroup is the part of a cgroup's directory that the kernel names in its log,
// "/borg/<borglet>/<copy>".
func copyOfGroup(dir string) string {
	dir = filepath.Clean(dir)
	if at := strings.LastIndex(dir, cgroupTop+"/"); at >= 0 {
		return dir[at:]
	}
	return dir
}
