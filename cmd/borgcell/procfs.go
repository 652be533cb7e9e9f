package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"borg/borglet/beneath"
)

// processID names a process for good: a number alone may be given to another
// process later.
type processID struct {
	PID int `json:"pid"`
	// When the process started, in clock ticks since the boot.
	StartTicks uint64 `json:"start_ticks"`
	// The boot that StartTicks counts from.
	Boot string `json:"boot"`
}

// identify returns the identity of a process that runs now.
func identify(pid int) (processID, error) {
	ticks, alive, err := readStat(pid)
	if err != nil {
		return processID{}, err
	}
	if !alive {
		return processID{}, fmt.Errorf("process %d has ended", pid)
	}
	boot, err := bootID()
	if err != nil {
		return processID{}, err
	}
	return processID{PID: pid, StartTicks: ticks, Boot: boot}, nil
}

// alive reports whether this very process still runs. One that has ended and
// waits to be reaped does not.
func (id processID) alive() bool {
	if boot, err := bootID(); err != nil || boot != id.Boot {
		return false
	}
	ticks, alive, err := readStat(id.PID)
	return err == nil && alive && ticks == id.StartTicks
}

// signal signals this very process and no later one with its number.
func (id processID) signal(sig syscall.Signal) error {
	// FindProcess takes hold of the process; what is checked afterwards is
	// true of the process that is signalled.
	p, err := os.FindProcess(id.PID)
	if err != nil {
		return err
	}
	defer p.Release()
	if !id.alive() {
		return os.ErrProcessDone
	}
	return p.Signal(sig)
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// readStat returns when a process started and whether it still runs.
func readStat(pid int) (startTicks uint64, alive bool, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// The name is in parentheses and may hold anything, parentheses too.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return 0, false, fmt.Errorf("/proc/%d/stat: no name in %q", pid, b)
	}
	fields := strings.Fields(string(b[end+1:]))
	// From the state, which is field 3 of proc(5), to the start time, field 22.
	if len(fields) < 20 {
		return 0, false, fmt.Errorf("/proc/%d/stat: only %d fields", pid, len(fields)+2)
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return ticks, fields[0] != "Z" && fields[0] != "X", nil
}

// marks are the signs by which processes of one cell are known.
type marks struct {
	// An entry of the environment that every process we start has, and those
	// that they start.
	env string
	// Directories in which only processes of the cell have their output.
	outputDirs []string
	// Cgroups, from the root of each hierarchy, in which only tasks of the cell
	// run.
	cgroups []string
	// Directories that only the cell's own programs name as they serve. Into those
	// that hold keys nobody may look who cannot trace them.
	serveDirs []string
}

// Why a process is taken for the cell's, when it was not started by a task.
const (
	byEnvironment = "environment"
	byCommandLine = "command line"
)

// foundProcess is a process that bears one of the marks.
type foundProcess struct {
	processID
	// Command line, shortened.
	command string
	// The mark, for people.
	because string
}

func (p foundProcess) String() string {
	return fmt.Sprintf("process %d (%s): %s", p.PID, p.because, p.command)
}

// find returns the processes that bear a mark, except this one. Processes
// that may not be looked into are passed over: they are another user's.
func (m marks) find() ([]foundProcess, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []foundProcess
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		because := m.match(filepath.Join("/proc", e.Name()))
		if because == "" {
			continue
		}
		id, err := identify(pid)
		if err != nil {
			continue
		}
		found = append(found, foundProcess{processID: id, command: commandLine(pid), because: because})
	}
	return found, nil
}

// match says which mark a process bears, or "".
func (m marks) match(procDir string) string {
	if env, err := beneath.ReadProc(procDir, "environ"); err == nil {
		if slices.Contains(strings.Split(string(env), "\x00"), m.env) {
			return byEnvironment
		}
	}
	if m.serves(procDir) {
		return byCommandLine
	}
	if lines, err := os.ReadFile(filepath.Join(procDir, "cgroup")); err == nil {
		for line := range strings.Lines(string(lines)) {
			// hierarchy:controllers:path
			_, path, _ := strings.Cut(strings.TrimSpace(line), ":")
			_, path, _ = strings.Cut(path, ":")
			if slices.ContainsFunc(m.cgroups, func(c string) bool { return within(path, c) }) {
				return "cgroup " + path
			}
		}
	}
	for _, fd := range []string{"1", "2"} {
		target, err := os.Readlink(filepath.Join(procDir, "fd", fd))
		if err == nil && slices.ContainsFunc(m.outputDirs, func(d string) bool { return within(target, d) }) {
			return "writes to " + target
		}
	}
	return ""
}

// serves tells a master, a scheduler or a borglet of the cell.
func (m marks) serves(procDir string) bool {
	line, err := beneath.ReadProc(procDir, "cmdline")
	words := strings.Split(string(line), "\x00")
	if err != nil || len(words) < 3 || (words[1] != "serve" && words[1] != "scheduler") {
		return false
	}
	if program := filepath.Base(words[0]); program != "borgmaster" && program != "borglet" {
		return false
	}
	return slices.ContainsFunc(words[2:], func(word string) bool {
		return slices.ContainsFunc(m.serveDirs, func(dir string) bool { return within(word, dir) })
	})
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

func commandLine(pid int) string {
	b, err := beneath.ReadProc(fmt.Sprintf("/proc/%d", pid), "cmdline")
	if err != nil {
		return "?"
	}
	s := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	if len(s) > 120 {
		s = s[:120] + "..."
	}
	return s
}

// mountsWithin returns the mount points of this mount namespace in or below
// the directories, innermost first.
func mountsWithin(dirs []string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescapeMount(fields[4])
		if slices.ContainsFunc(dirs, func(d string) bool { return within(point, d) }) {
			points = append(points, point)
		}
	}
	slices.Reverse(points)
	return points, nil
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// cgroupRoot is where the cgroup hierarchies are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// cgroupRoots returns the directories in which a cgroup may be: the mounts of
// the hierarchies, one (v2) or many (v1).
func cgroupRoots() ([]string, error) {
	entries, err := os.ReadDir(cgroupRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for cgroups: %w", err)
	}
	roots := []string{cgroupRoot}
	for _, e := range entries {
		if e.IsDir() {
			roots = append(roots, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return roots, nil
}

// cgroupDirs returns the directories, in every hierarchy, of a cgroup and all
// below it, innermost first.
func cgroupDirs(cgroup string) ([]string, error) {
	roots, err := cgroupRoots()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join(root, cgroup), func(path string, d fs.DirEntry, err error) error {
			// A cgroup may go while we look.
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Reverse(dirs)
	return dirs, nil
}

// devicePrefix begins the names of all network devices of ours.
const devicePrefix = "borg"

// networkDevices returns the network devices of ours.
func networkDevices() ([]string, error) {
	entries, err := os.ReadDir("/sys/class/net")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var devices []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), devicePrefix) {
			devices = append(devices, e.Name())
		}
	}
	return devices, nil
}
