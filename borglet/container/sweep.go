package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/borglet/network"
)

// SweepConfig says whose leftovers to sweep.
type SweepConfig struct {
	Name   string
	Dir    string
	RunDir string
}

// Swept is what a sweep has removed.
type Swept struct {
	Processes  int
	Containers int
	Cgroups    int
	Mounts     int
	Networks   int
}

func (s Swept) String() string {
	return fmt.Sprintf("%d processes, %d containers, %d cgroups, %d mounts, %d networks", s.Processes, s.Containers, s.Cgroups, s.Mounts, s.Networks)
}

const (
	// sweepBound is how long processes may take to end.
	sweepBound = 15 * time.Second
	sweepEvery = 20 * time.Millisecond
)

// Sweep ends everything that a borglet which runs no more has left on the
// machine: tasks first, so that their shims can still write how they ended,
// then shims, cgroups and mounts. The copies' directories stay: they tell the
// next borglet what has ended.
func Sweep(ctx context.Context, cfg SweepConfig) (Swept, error) {
	var swept Swept
	ctx, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	shims := liveShims(filepath.Join(cfg.Dir, "tasks"))
	tasks := func() []proc {
		return append(cgroupProcs(cgroupParent(cfg.Name)), marked(cfg.RunDir+"#")...)
	}
	if err := endAll(ctx, tasks, &swept.Processes); err != nil {
		return swept, fmt.Errorf("end tasks: %w", err)
	}
	// A shim whose task has ended writes how, and ends by itself; one that does
	// not is ended.
	grace, cancelGrace := context.WithTimeout(ctx, sweepBound/3)
	defer cancelGrace()
	for _, s := range shims {
		if h, err := s.open(); err == nil {
			err = h.wait(grace)
			h.close()
			if err != nil {
				_ = s.signal(unix.SIGKILL)
			}
			swept.Processes++
		}
	}
	// A shim that was starting a task may have finished doing so meanwhile.
	if err := endAll(ctx, tasks, &swept.Processes); err != nil {
		return swept, fmt.Errorf("end tasks: %w", err)
	}
	var err error
	if swept.Networks, err = network.Sweep(cfg.Dir, cfg.RunDir); err != nil {
		return swept, err
	}
	if err := sweepContainers(cfg, &swept); err != nil {
		return swept, err
	}
	if err := releaseIDs(idClaimsDir, stateDir(Config{RunDir: cfg.RunDir})); err != nil {
		return swept, err
	}
	if err := sweepCgroups(ctx, cgroupParent(cfg.Name), &swept); err != nil {
		return swept, err
	}
	// Other borglets on this machine may still use what is above.
	removeCgroup(cgroupTop)
	if err := removeWall(tableName(cfg.Name)); err != nil {
		return swept, err
	}
	// Those of each copy are a mount, as a rule.
	if err := sweepMounts([]string{borglet.PapersDir(cfg.RunDir)}, new(Swept)); err != nil {
		return swept, err
	}
	if err := os.RemoveAll(borglet.PapersDir(cfg.RunDir)); err != nil {
		return swept, fmt.Errorf("remove papers: %w", err)
	}
	return swept, sweepMounts([]string{cfg.Dir, cfg.RunDir}, &swept)
}

// liveShims lists the shims of a borglet by what they were started with: a plain task
// may have removed the lock that says who its shim is.
func liveShims(tasks string) []proc {
	want := "borglet\x00shim\x00" + filepath.Clean(tasks) + "/"
	var list []proc
	for _, pid := range pids() {
		line, err := beneath.ReadProc(fmt.Sprintf("/proc/%d", pid), "cmdline")
		if err != nil || !strings.HasPrefix(string(line), want) {
			continue
		}
		if p, err := identify(pid); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// cgroupProcs lists the processes below a cgroup, each once.
func cgroupProcs(path string) []proc {
	list, err := hierarchies()
	if err != nil {
		return nil
	}
	seen := map[int]bool{}
	var procs []proc
	for _, h := range list {
		for _, dir := range cgroupTree(h, path) {
			for _, pid := range pidsIn(dir) {
				if pid == 0 || seen[pid] {
					continue
				}
				seen[pid] = true
				if p, err := identify(pid); err == nil {
					procs = append(procs, p)
				}
			}
		}
	}
	return procs
}

// endAll kills what list finds until it finds nothing.
func endAll(ctx context.Context, list func() []proc, count *int) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	seen := map[proc]bool{}
	for {
		var left []proc
		for _, p := range list() {
			if p.alive() {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			if !seen[p] {
				seen[p] = true
				*count++
			}
			if err := p.signal(unix.SIGKILL); err != nil && !errors.Is(err, errGone) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end, the first is %d", len(left), left[0].Pid)
		case <-ticker.C:
		}
	}
}

// sweepContainers removes libcontainer's records.
func sweepContainers(cfg SweepConfig, swept *Swept) error {
	dir := stateDir(Config{RunDir: cfg.RunDir})
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		swept.Containers++
	}
	return nil
}

// sweepCgroups removes a tree of cgroups in which no process is left. The
// kernel may need a moment until it says so.
func sweepCgroups(ctx context.Context, path string, swept *Swept) error {
	list, err := hierarchies()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for _, h := range list {
		for _, dir := range cgroupTree(h, path) {
			for {
				err := unix.Rmdir(dir)
				if err == nil {
					swept.Cgroups++
				}
				if err == nil || errors.Is(err, unix.ENOENT) {
					break
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("remove cgroup %s: %w", dir, err)
				case <-ticker.C:
				}
			}
		}
	}
	return nil
}

// sweepMounts unmounts what is mounted below the borglet's directories. Our
// containers mount in name spaces of their own, so that there is nothing,
// unless somebody else did it.
func sweepMounts(dirs []string, swept *Swept) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := fields[4]
		below := func(dir string) bool { return point != dir && within(point, dir) }
		if slices.ContainsFunc(dirs, below) {
			points = append(points, point)
		}
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
		swept.Mounts++
	}
	return nil
}
