package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/proto/borgpb"
)

// Files that a shim inherits.
const (
	readyFD = 3
	lockFD  = 4
)

// begun is a run whose process exists.
type begun struct {
	proc proc
	// release lets the task's program go; nil: it goes already.
	release func() error
	// wait returns when the process has ended and nothing of the run is left.
	wait func() borglet.ExitFile
}

// taskError lies in the task: it would not start on any machine. way is which of the known
// ways of not starting it is; zero when the error itself says so.
type taskError struct {
	err error
	way borgpb.ExitReason
}

func (e *taskError) Error() string { return e.err.Error() }
func (e *taskError) Unwrap() error { return e.err }

// Shim watches over the run that is described in dir, and returns the exit
// code of its process. It holds dir's lock from before its first instruction
// to its last, does not touch what the task writes, and ends without taking
// the container away: the borglet does that when it has read how it ended.
func Shim(dir string) int {
	unix.CloseOnExec(lockFD)
	lock := os.NewFile(lockFD, "lock")
	// The lock is let go by the end of the process and not before: a file that
	// is used no more would be closed by the garbage collector.
	defer runtime.KeepAlive(lock)
	var err error
	if pid, convErr := strconv.Atoi(os.Getenv(endedVariable)); convErr == nil {
		err = shimEnds(dir, pid)
	} else {
		unix.CloseOnExec(readyFD)
		err = shim(dir, os.NewFile(readyFD, "ready"), lock)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s shim: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		return 1
	}
	return 0
}

func shim(dir string, ready, lock *os.File) error {
	if err := checkLock(dir, lock); err != nil {
		return err
	}
	o, err := readOrder(dir)
	if err != nil {
		return err
	}
	// Whatever the task leaves behind becomes a child of the shim and is ended
	// with it; and the kernel spares the shim when memory is short, if allowed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0)
	run, err := beginRun(dir, &o)
	if err != nil {
		e := borglet.ExitFile{Run: o.Launch.Run, Code: 127, Error: err.Error(), EndedWallNs: time.Now().UnixNano()}
		var inTask *taskError
		if e.Retry = !errors.As(err, &inTask); !e.Retry {
			e.Way = startWay(err)
		}
		return writeExit(dir, e)
	}
	_, _ = ready.WriteString("OK\n")
	ready.Close()
	if err := waitSmall(dir, run.proc.Pid); err != nil {
		fmt.Fprintf(os.Stderr, "%s shim: %v\n", time.Now().UTC().Format(time.RFC3339), err)
	}
	e := run.wait()
	e.Run = o.Launch.Run
	return writeExit(dir, e)
}

// endedVariable names the process that has ended, to a shim that had become one that
// only waits; see shimwait.c.
const endedVariable = "_BORG_SHIM_ENDED"

// shimEnds is the end of a shim, when its task has ended.
func shimEnds(dir string, pid int) error {
	o, err := readOrder(dir)
	if err != nil {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("collect the task: %w", err)
	}
	var e borglet.ExitFile
	if o.Kind == kindContainer {
		state, waitErr := p.Wait()
		e = endedContainer(dir, cgroupPaths(cgroupPath(o.CgroupParent, &o.Launch)), state, waitErr)
	} else {
		e = endedProcess(p)
	}
	e.Run = o.Launch.Run
	return writeExit(dir, e)
}

// checkLock makes sure that this shim holds the lock of dir and says whose it
// is.
func checkLock(dir string, lock *os.File) error {
	given, err := lock.Stat()
	if err == nil {
		var own os.FileInfo
		if own, err = os.Stat(filepath.Join(dir, lockFile)); err == nil && !os.SameFile(given, own) {
			err = errors.New("another file was inherited in its place")
		}
	}
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return fmt.Errorf("hold the lock of %s: %w; a shim is started by the borglet, not by hand", dir, err)
	}
	self, err := identify(os.Getpid())
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`{"pid":%d,"start_ticks":%d}`, self.Pid, self.StartTicks)
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("write the lock of %s: %w", dir, err)
	}
	if _, err := lock.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write the lock of %s: %w", dir, err)
	}
	return nil
}

// beginRun starts the process, writes who it is, and lets it go.
func beginRun(dir string, o *order) (*begun, error) {
	stdout, err := openLog(dir, stdoutFile)
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := openLog(dir, stderrFile)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	var run *begun
	switch o.Kind {
	case kindContainer:
		run, err = beginContainer(dir, o, stdout, stderr)
	case kindProcess:
		run, err = beginProcess(o, stdout, stderr)
	default:
		err = fmt.Errorf("launch.json asks for a runtime %q that this shim does not know", o.Kind)
	}
	if err != nil {
		return nil, err
	}
	s := started{Run: o.Launch.Run, Proc: run.proc, StartedWallNs: time.Now().UnixNano()}
	if err := replaceJSON(dir, pidFile, s); err != nil {
		// Without it the task could not be found again. It has done nothing yet,
		// or nothing that anybody has been told of.
		_ = run.proc.signal(unix.SIGKILL)
		run.wait()
		return nil, err
	}
	if run.release == nil {
		return run, nil
	}
	if err := run.release(); err != nil {
		_ = run.proc.signal(unix.SIGKILL)
		run.wait()
		return nil, fmt.Errorf("let the task's program go: %w", err)
	}
	return run, nil
}

// openLog opens an output file so that each write goes to its end, also after
// the start of it was freed.
func openLog(dir, name string) (*os.File, error) {
	f, err := beneath.Open(dir, name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open the task's %s: %w", name, err)
	}
	return f, nil
}
