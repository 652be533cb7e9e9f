package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hung remembers when each package was first told to end.
type hung map[string]time.Time

// dumpFor is how long a test binary may take to print its goroutines.
const dumpFor = 20 * time.Second

// end ends the test binary of a package in which a test hangs. The first signal
// makes it print its goroutines; if it goes on, it is killed. goTest is the
// process of go test.
func (h hung) end(goTest int, late key, dir string, limit time.Duration, now time.Time) (lines []string) {
	first, told := h[late.pkg]
	if told && now.Sub(first) < dumpFor {
		return nil
	}
	signal := syscall.SIGQUIT
	if told {
		signal = syscall.SIGKILL
	} else {
		h[late.pkg] = now
		lines = append(lines, fmt.Sprintf("%s has run for %s without an end: it is stopped, its goroutines follow", late, limit))
	}
	pid, ok := testBinary(goTest, late.pkg, dir)
	if !ok {
		return append(lines, "the test binary of "+late.pkg+" was not found")
	}
	if err := syscall.Kill(pid, signal); err != nil {
		lines = append(lines, fmt.Sprintf("kill %d: %v", pid, err))
	}
	return lines
}

// testBinary returns the process of a package's test binary: a child of go test
// of that name which works in the directory of the package.
func testBinary(goTest int, pkg, dir string) (pid int, ok bool) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, false
	}
	for _, d := range procs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || parentOf(pid) != goTest {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", d.Name(), "exe"))
		cwd, _ := os.Readlink(filepath.Join("/proc", d.Name(), "cwd"))
		if cwd == dir && strings.TrimSuffix(filepath.Base(exe), ".test") == path.Base(pkg) {
			return pid, true
		}
	}
	return 0, false
}

// parentOf returns the parent of a process, zero if it is gone.
func parentOf(pid int) int {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// The name is in parentheses and may hold spaces; state and parent follow it.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
