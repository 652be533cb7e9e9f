package container

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// cgroupTop holds all cgroups of ours on this machine; no other is touched.
const cgroupTop = "/borg"

const cgroupRoot = "/sys/fs/cgroup"

// allocPrefix begins the names of the cgroups of allocs.
const allocPrefix = "alloc-"

// minMemBytes is the smallest memory limit that a container starts in: its own start needs
// some. Smaller limits count as this one.
const minMemBytes = 16 << 20

// allocPath is where the cgroup of an alloc lies.
func allocPath(parent, alloc string) string { return filepath.Join(parent, allocPrefix+alloc) }

func cgroupParent(name string) string { return filepath.Join(cgroupTop, name) }

func stateDir(cfg Config) string { return filepath.Join(cfg.RunDir, "c") }

// hierarchy is one mounted tree of cgroups.
type hierarchy struct {
	// controllers that it has; "" in version 2.
	controllers []string
	mount       string
}

// hierarchies lists what is mounted. In version 1 each controller has its own;
// a version 2 tree may be mounted beside them.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	defer f.Close()
	var list []hierarchy
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields, kinds := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(kinds) < 3 || !within(fields[4], cgroupRoot) {
			continue
		}
		switch kinds[0] {
		case "cgroup2":
			list = append(list, hierarchy{mount: fields[4]})
		case "cgroup":
			list = append(list, hierarchy{controllers: strings.Split(kinds[2], ","), mount: fields[4]})
		}
	}
	return list, lines.Err()
}

// unified: version 2 alone.
func unified() bool {
	var fs unix.Statfs_t
	return unix.Statfs(cgroupRoot, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

func cgroupVersion() string {
	if unified() {
		return "v2"
	}
	return "v1"
}

// ioWeights: disks are divided by weight among the cgroups below root. Version 1 has
// the files of weights in all cgroups but the first, which shows by others of their
// scheduler that they will be there.
func ioWeights(root string) bool {
	for _, pattern := range []string{"blkio/blkio.bfq.io_service_bytes", "blkio/blkio.weight", "*/io.weight", "*/io.bfq.weight"} {
		if found, err := filepath.Glob(filepath.Join(root, pattern)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// cgroupsUsable says why limits cannot be had here.
func cgroupsUsable() error {
	list, err := hierarchies()
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("no cgroups are mounted at %s; mount them, or say --runtime process", cgroupRoot)
	}
	probe := list[0].mount
	if !unified() {
		for _, want := range []string{"memory", "cpu", "devices"} {
			i := slices.IndexFunc(list, func(h hierarchy) bool { return slices.Contains(h.controllers, want) })
			if i < 0 {
				return fmt.Errorf("the cgroup controller %s is not mounted below %s; mount it, or say --runtime process", want, cgroupRoot)
			}
			probe = list[i].mount
		}
	}
	if err := unix.Access(probe, unix.W_OK); err != nil {
		return fmt.Errorf("cgroups at %s cannot be written: %w; say --runtime process", probe, err)
	}
	return nil
}

// paths are the directories of one cgroup, by controller; version 2 has one,
// under "".
type paths map[string]string

// cgroupPaths returns the directories of the cgroup at path.
func cgroupPaths(path string) paths {
	list, err := hierarchies()
	if err != nil {
		return paths{}
	}
	return pathsIn(list, path)
}

func pathsIn(list []hierarchy, path string) paths {
	p := paths{}
	for _, h := range list {
		if h.controllers == nil {
			p[""] = filepath.Join(h.mount, path)
		}
		for _, c := range h.controllers {
			p[c] = filepath.Join(h.mount, path)
		}
	}
	return p
}

// pathsOf returns the directories of the cgroup of ours that a process is in.
func pathsOf(list []hierarchy, pid int) (paths, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, errGone
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && within(parts[2], cgroupTop) && (parts[1] == "memory" || (parts[1] == "" && unified())) {
			return pathsIn(list, parts[2]), nil
		}
	}
	return nil, errGone
}

// number reads a file of one number; zero if it cannot.
func (p paths) number(controller, file string) int64 {
	text, err := os.ReadFile(filepath.Join(p[controller], file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// field reads one line "name number" of a file; zero if it is not there.
func (p paths) field(controller, file, name string) int64 {
	text, err := os.ReadFile(filepath.Join(p[controller], file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}

func (p paths) v2() bool { return p["memory"] == "" }

// oomKills counts the processes that the kernel killed for lack of memory.
func (p paths) oomKills() int64 {
	if p.v2() {
		return p.field("", "memory.events", "oom_kill")
	}
	return p.field("memory", "memory.oom_control", "oom_kill")
}

func (p paths) maxMemBytes() int64 {
	if p.v2() {
		return p.number("", "memory.peak")
	}
	return p.number("memory", "memory.max_usage_in_bytes")
}

func (p paths) cpuNs() int64 {
	if p.v2() {
		return p.field("", "cpu.stat", "usage_usec") * 1000
	}
	return p.number("cpuacct", "cpuacct.usage")
}

// pids are the processes in it.
func (p paths) pids() []int {
	if p.v2() {
		return pidsIn(p[""])
	}
	return pidsIn(p["memory"])
}

// pidsIn lists the processes in one directory of a hierarchy; of one that is gone none.
func pidsIn(dir string) (list []int) {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// placesOf lists the cgroups of a copy below a borglet's: its own, or one in an alloc.
func placesOf(parent string, id borglet.ID) []string {
	list, err := hierarchies()
	if err != nil {
		return nil
	}
	var places []string
	for _, h := range list {
		for _, pattern := range []string{"", allocPrefix + "*"} {
			// Neither has a character that a pattern knows.
			found, _ := filepath.Glob(filepath.Join(h.mount, parent, pattern, id.String()))
			for _, dir := range found {
				path := strings.TrimPrefix(dir, filepath.Clean(h.mount))
				if !slices.Contains(places, path) {
					places = append(places, path)
				}
			}
		}
	}
	return places
}

// removeCgroup removes an empty cgroup in all hierarchies; one in use stays.
func removeCgroup(path string) {
	list, err := hierarchies()
	if err != nil || !within(path, cgroupTop) {
		return
	}
	for _, h := range list {
		_ = unix.Rmdir(filepath.Join(h.mount, path))
	}
}

// emptyCgroup removes a cgroup in all hierarchies, and first what is left of a
// container that never began: who made it was killed, and the process that was to
// become the task may not yet have noticed.
func emptyCgroup(path string) error {
	list, err := hierarchies()
	if err != nil || !within(path, cgroupTop) {
		return err
	}
	for _, h := range list {
		dir := filepath.Join(h.mount, path)
		for tries := 0; ; tries++ {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if tries == emptyTries {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
			for _, pid := range pidsIn(dir) {
				if pid > 1 {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
			time.Sleep(emptyPause)
		}
	}
	return nil
}

// A process that was killed is out of its cgroup some milliseconds later.
const (
	emptyTries = 100
	emptyPause = 10 * time.Millisecond
)

// cgroupTree lists the directories below path in one hierarchy, deepest first.
func cgroupTree(h hierarchy, path string) []string {
	var dirs []string
	err := filepath.WalkDir(filepath.Join(h.mount, path), func(dir string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if e.IsDir() {
			dirs = append(dirs, dir)
		}
		return nil
	})
	if err != nil {
		return nil
	}
	slices.Reverse(dirs)
	return dirs
}
