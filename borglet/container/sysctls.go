package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// memoryPerRequest is how much memory the machine has for each request of asynchronous
	// I/O that it allows, in bytes. A request takes twice that of its task's memory limit, so
	// that all tasks together have no memory for all requests.
	memoryPerRequest = 32
	// memoryPerFile is the same of open files. The kernel charges more than that for each.
	memoryPerFile = 64
	// terminals bounds the pseudo terminals of one copy: the machine has them for all.
	terminals = 64
	// machineTerminals is how many pseudo terminals the machine allows beside its reserve: as
	// many as the most tasks that one machine runs can have.
	machineTerminals = 4096 * terminals
	// filterBytes is how much machine code of BPF programs the machine allows, in bytes: on
	// x86-64 three quarters of what the kernel can (1008 MiB, which it shares with modules).
	filterBytes = 756 << 20
	// filterPart is the part of the machine's memory that this is at most (one in): no cgroup
	// bounds it.
	filterPart = 16
	// epollWatches bounds the epoll watches of one user of the machine. One write to a file
	// wakes all watches of it, with interrupts off: the kernel allows millions.
	epollWatches = 1 << 18
)

// lowerEpollWatches lowers the bound of epoll watches. It reports whether it was higher. root is
// /proc/sys.
func lowerEpollWatches(root string) (lowered bool, err error) {
	file := filepath.Join(root, "fs/epoll/max_user_watches")
	if n, err := readSysctl(file); err != nil || n <= epollWatches {
		return false, err
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(epollWatches)), 0o644); err != nil {
		return false, fmt.Errorf("lower a sysctl to %d: %w", epollWatches, err)
	}
	return true, nil
}

// raiseSysctls raises what the kernel counts for the machine as a whole so far that tasks,
// which have other limits, cannot use it up. It lowers nothing. root is /proc/sys.
func raiseSysctls(root string, memoryBytes int64) error {
	reserve, err := readSysctl(filepath.Join(root, "kernel/pty/reserve"))
	return errors.Join(err,
		raiseSysctl(filepath.Join(root, "fs/aio-max-nr"), memoryBytes/memoryPerRequest),
		raiseSysctl(filepath.Join(root, "fs/file-max"), memoryBytes/memoryPerFile),
		raiseSysctl(filepath.Join(root, "kernel/pty/max"), machineTerminals+reserve),
		raiseFilters(filepath.Join(root, filterLimit), memoryBytes))
}

// raiseFilters raises the limit of compiled filters. A kernel that does not compile them has none.
func raiseFilters(file string, memoryBytes int64) error {
	err := raiseSysctl(file, min(memoryBytes/filterPart, filterBytes))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// raiseSysctl writes a sysctl if it is lower.
func raiseSysctl(file string, least int64) error {
	if n, err := readSysctl(file); err != nil || n >= least {
		return err
	}
	if err := os.WriteFile(file, []byte(strconv.FormatInt(least, 10)), 0o644); err != nil {
		return fmt.Errorf("raise a sysctl to %d: %w", least, err)
	}
	return nil
}

// readSysctl reads a number. What is above the range of int64 counts as its largest value.
func readSysctl(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read a sysctl: %w", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("read a sysctl: %s is %.20q", file, text)
	}
	return n, nil
}
