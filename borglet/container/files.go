package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/proto/borgpb"
)

// Files in a copy's directory; see the package comment.
const (
	launchFile = "launch.json"
	lockFile   = "lock"
	pidFile    = "pid.json"
	statusFile = "status"
	exitFile   = "exit.json"
	shimLog    = "shim.log"
	stdoutFile = "stdout"
	stderrFile = "stderr"
	rootfsDir  = "rootfs"
	taskDir    = "task"
)

// Kinds of runtimes; in launch.json and in a machine's attributes.
const (
	kindContainer = "container"
	kindProcess   = "process"
)

// order is launch.json: what the borglet tells the shim.
type order struct {
	Kind string `json:"kind"`
	// StateDir is libcontainer's own directory.
	StateDir string `json:"state_dir"`
	// CgroupParent of this borglet, "/borg/<name>".
	CgroupParent string `json:"cgroup_parent"`
	// Marker is put into the environment of plain processes, to find them by.
	Marker string `json:"marker"`
	// FirstID is the first of the machine's user and group ids that are the copy's,
	// and its root; 0: it has the machine's own.
	FirstID uint32 `json:"first_id,omitempty"`
	// Cover: its directory is where the copy's root cannot go, and its root file
	// system is mounted where it can. The shim has a mount name space of its own.
	Cover bool `json:"cover,omitempty"`
	// CPUs are the processors that it has alone; Cpuset is where it may run at first,
	// empty: everywhere.
	CPUs   []int          `json:"cpus,omitempty"`
	Cpuset string         `json:"cpuset,omitempty"`
	Launch borglet.Launch `json:"launch"`

	// cpusetChanges is what take said, for started.
	cpusetChanges int
	// users is the path of the user name space that the container joins, while it starts.
	users string
}

// started is pid.json.
type started struct {
	Run           uint32 `json:"run"`
	Proc          proc   `json:"proc"`
	StartedWallNs int64  `json:"started_wall_ns"`
}

func readOrder(dir string) (order, error) {
	var o order
	err := readJSON(dir, launchFile, &o)
	return o, err
}

// readStarted returns pid.json if it is there and of this run.
func readStarted(dir string, run uint32) (started, bool) {
	var s started
	err := readJSON(dir, pidFile, &s)
	return s, err == nil && s.Run == run
}

// readExit returns exit.json if it is there and of this run.
func readExit(dir string, run uint32) (borglet.ExitFile, bool) {
	var e borglet.ExitFile
	err := readJSON(dir, exitFile, &e)
	return e, err == nil && e.Run == run
}

func readJSON(dir, name string, into any) error {
	text, err := beneath.ReadFile(dir, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// replaceJSON replaces a file as a whole, without syncing it: it need not
// outlive a crash of the machine.
func replaceJSON(dir, name string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		err = beneath.WriteFile(dir, name, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// writeExit is the shim's last word.
func writeExit(dir string, e borglet.ExitFile) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode exit.json: %w", err)
	}
	return borglet.WriteSynced(filepath.Join(dir, exitFile), append(text, '\n'))
}

// takeLock opens and locks a copy's lock file. held: a shim has it.
func takeLock(dir string) (f *os.File, held bool, err error) {
	f, err = beneath.Open(dir, lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("lock copy: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, false, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("lock copy: %w", err)
}

// holder returns the shim that holds the lock. While it lives and has not yet
// said its pid, known is false.
func holder(dir string) (shim proc, known, held bool, err error) {
	f, held, err := takeLock(dir)
	if err != nil || !held {
		if f != nil {
			f.Close()
		}
		return proc{}, false, false, err
	}
	var p proc
	if err := readJSON(dir, lockFile, &p); err != nil || !p.alive() {
		// What is in the file is of an earlier shim: the present one has not
		// come to write its own.
		return proc{}, false, true, nil
	}
	return p, true, true, nil
}

// readStatus reads what the init wrote beside the task: "ready 0" when it can
// take signals, then "exit 7", "signal 15", or, with an errno, "error 2",
// "chdir 2" or, when what the program names as its interpreter is not there,
// "interpreter 2". ended is false while there is no word of an end.
func readStatus(dir string) (e borglet.ExitFile, ready, ended bool) {
	f, err := beneath.Open(dir, statusFile, os.O_RDONLY, 0)
	if err != nil {
		return e, false, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return e, false, false
	}
	e.EndedWallNs = time.Now().UnixNano()
	if info, err := f.Stat(); err == nil {
		e.EndedWallNs = info.ModTime().UnixNano()
	}
	for line := range strings.Lines(string(text)) {
		word, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.Atoi(number)
		if err != nil || !strings.HasSuffix(line, "\n") {
			break
		}
		// The first word of an end counts: after a failed exec there is another.
		switch word {
		case "ready":
			ready = true
			continue
		case "exit":
			e.Code = int32(n)
		case "signal":
			e.Signal = int32(n)
		case "error":
			e.Code, e.Way, e.Error = 127, startWay(unix.Errno(n)), notFound(dir, unix.Errno(n))
		case "interpreter":
			e.Code, e.Way, e.Error = 127, borgpb.ExitReason_EXIT_REASON_INTERPRETER_MISSING, noInterpreter(dir, unix.Errno(n))
		case "chdir":
			e.Code, e.Way, e.Error = 127, borgpb.ExitReason_EXIT_REASON_WORKING_DIRECTORY, noDirectory(dir, unix.Errno(n))
		}
		return e, ready, true
	}
	return e, ready, false
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
