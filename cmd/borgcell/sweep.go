package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// What was killed with SIGKILL is gone by then, unless its disk hangs.
	killWait = 10 * time.Second
	// Bound on one `borglet sweep`.
	sweepWait = 30 * time.Second
	lookEvery = 20 * time.Millisecond
)

// sweep ends and removes whatever of the cell is left on this machine: its
// processes, its tasks, their cgroups and mounts. It is used on what a killed
// run left, and at the end of every run.
func (l layout) sweep(ctx context.Context) error {
	// First those who would start things anew.
	if err := l.killRecorded(); err != nil {
		return err
	}
	if err := l.killFound(ctx, func(p foundProcess) bool {
		return !isShim(p) && (p.because == byEnvironment || p.because == byCommandLine)
	}); err != nil {
		return err
	}
	var errs []error
	for k := 1; k <= l.knownMachines(); k++ {
		errs = append(errs, l.sweepBorglet(ctx, k))
	}
	// borglet sweep has ended the tasks in their own order. What it did not
	// know of is ended here.
	errs = append(errs, l.killFound(ctx, func(foundProcess) bool { return true }))
	errs = append(errs, l.removeMounts(), l.removeCgroups(ctx))
	return errors.Join(errs...)
}

func isShim(p foundProcess) bool {
	words := strings.Fields(p.command)
	return len(words) > 1 && words[1] == "shim"
}

// killRecorded kills the processes of the record that still run.
func (l layout) killRecorded() error {
	r, err := readRecord(l.recordPath())
	if err != nil {
		return err
	}
	for _, p := range r.Processes {
		if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s (process %d) of an earlier run: %w", p.Name, p.PID, err)
		}
	}
	return nil
}

// killFound kills the marked processes that are wanted, until there are none:
// one may start another while we look.
func (l layout) killFound(ctx context.Context, want func(foundProcess) bool) error {
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		found, err := l.marks().find()
		if err != nil {
			return fmt.Errorf("look for processes of %s: %w", l.dir, err)
		}
		found = slices.DeleteFunc(found, func(p foundProcess) bool { return !want(p) })
		if len(found) == 0 {
			return nil
		}
		for _, p := range found {
			// One that has ended meanwhile is what we want; any other trouble
			// shows when it is still there at the end.
			_ = p.signal(syscall.SIGKILL)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("killed and still there: %v", found)
		}
	}
}

// sweepBorglet has the borglet program remove what borglet k left.
func (l layout) sweepBorglet(ctx context.Context, k int) error {
	if _, err := os.Stat(l.borgletDir(k)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	name := l.machineName(k)
	cmd := exec.CommandContext(ctx, l.bin("borglet"), "sweep", "--name", name, "--dir", l.borgletDir(k), "--run-dir", l.runOf(name))
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("borglet sweep --name %s: %w: %s", name, err, strings.TrimSpace(out.String()))
	}
	return nil
}

func (l layout) removeMounts() error {
	points, err := mountsWithin([]string{l.dir, l.RunDir})
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	var errs []error
	for _, p := range points {
		if err := syscall.Unmount(p, syscall.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// removeCgroups removes the cgroups of the machines, and the common parent if
// nobody else has one in it. A cgroup stays busy for a moment after its last
// process.
func (l layout) removeCgroups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		left, err := l.cgroupsLeft()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		var busy error
		for _, dir := range left {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				busy = fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
		}
		if busy == nil {
			continue
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return busy
		}
	}
	roots, err := cgroupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		// Refused while another cell has cgroups in it, rightly.
		_ = syscall.Rmdir(filepath.Join(root, "borg"))
	}
	return nil
}

func (l layout) cgroupsLeft() ([]string, error) {
	var left []string
	for k := 1; k <= l.knownMachines(); k++ {
		dirs, err := cgroupDirs(l.cgroup(k))
		if err != nil {
			return nil, fmt.Errorf("look for cgroups of %s: %w", l.machineName(k), err)
		}
		left = append(left, dirs...)
	}
	return left, nil
}

// leftovers says what of the cell is still on this machine: nothing, if all
// went well.
func (l layout) leftovers() ([]string, error) {
	var left []string
	found, err := l.marks().find()
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	for _, p := range found {
		left = append(left, p.String())
	}
	cgroups, err := l.cgroupsLeft()
	if err != nil {
		return nil, err
	}
	for _, c := range cgroups {
		left = append(left, "cgroup "+c)
	}
	mounts, err := mountsWithin([]string{l.dir, l.RunDir})
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	for _, m := range mounts {
		left = append(left, "mount "+m)
	}
	devices, err := networkDevices()
	if err != nil {
		return nil, fmt.Errorf("look for network devices: %w", err)
	}
	for _, d := range devices {
		left = append(left, "network device "+d)
	}
	return left, nil
}
