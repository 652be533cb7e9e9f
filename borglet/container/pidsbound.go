package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"borg/borglet"
	"borg/borglet/sockets"
)

// kernelSysctls is where the kernel's bounds of processes are.
const kernelSysctls = "/proc/sys/kernel"

// pidsLimit bounds the processes and threads of one copy, if the machine has enough.
const pidsLimit = 4096

// processParts is how many quarters of the processes and threads that the machine can
// have are for all tasks together. The last quarter is left to the system.
const processParts = 3

// boundProcesses bounds the processes and threads of all tasks of all borglets of the
// machine together: each task may have pidsLimit, and many times that is more than the
// machine has. It is set at each start of a task: the end of
// the last other task may have removed the cgroup.
func boundProcesses() error {
	most, err := mostProcesses(kernelSysctls)
	if err != nil {
		return err
	}
	h, err := processHierarchy()
	if err != nil {
		return err
	}
	if h.controllers == nil {
		// A cgroup has the file when the one above it gives the controller on.
		_ = os.WriteFile(filepath.Join(h.mount, "cgroup.subtree_control"), []byte("+pids"), 0o644)
	}
	dir := filepath.Join(h.mount, cgroupTop)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("bound the processes of tasks: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.FormatInt(most, 10)), 0o644); err != nil {
		return fmt.Errorf("bound the processes of tasks: %w", err)
	}
	return nil
}

// processHierarchy returns the cgroup hierarchy that counts processes.
func processHierarchy() (hierarchy, error) {
	list, err := hierarchies()
	if err != nil {
		return hierarchy{}, err
	}
	for _, h := range list {
		if h.controllers == nil && unified() || slices.Contains(h.controllers, "pids") {
			return h, nil
		}
	}
	return hierarchy{}, fmt.Errorf("bound the processes of tasks: no cgroup controller pids is mounted below %s", cgroupRoot)
}

// pidsOfTask returns how many processes and threads one copy may have.
func pidsOfTask() int64 {
	most, err := mostProcesses(kernelSysctls)
	if err != nil {
		return pidsLimit
	}
	return min(pidsLimit, sockets.Use{sockets.Processes: most}.OfTask()[sockets.Processes])
}

// processesHeld returns how many processes and threads each copy has. It returns nil while all
// tasks of the machine together have no more than a part of them may have.
func (r *Runtime) processesHeld(now time.Time) map[borglet.ID]sockets.Use {
	w := &r.sockets
	if now.Before(w.processesDue) {
		return nil
	}
	w.processesDue = now.Add(inetEvery)
	most, err := mostProcesses(kernelSysctls)
	h, hierarchyErr := processHierarchy()
	if err != nil || hierarchyErr != nil {
		return nil
	}
	w.machine[sockets.Processes] = most
	tasks := paths{"pids": filepath.Join(h.mount, cgroupTop)}
	if tasks.number("pids", "pids.current") <= w.machine.OfTasks()[sockets.Processes] {
		return nil
	}
	held := map[borglet.ID]sockets.Use{}
	for id, group := range r.backend.cgroups(r.processes(r.ids())) {
		controller := "pids"
		if group.v2() {
			controller = ""
		}
		held[id] = sockets.Use{sockets.Processes: group.number(controller, "pids.current")}
	}
	w.processesDue = now.Add(max(inetEvery, walkRest*time.Since(now)))
	return held
}

// mostProcesses is how many processes and threads all tasks may have.
func mostProcesses(sysctls string) (int64, error) {
	most := int64(-1)
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile(filepath.Join(sysctls, name))
		if err != nil {
			return 0, fmt.Errorf("bound the processes of tasks: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || n <= 0 {
			return 0, fmt.Errorf("bound the processes of tasks: %s is %.20q", name, text)
		}
		if most < 0 || n < most {
			most = n
		}
	}
	return max(most*processParts/4, 1), nil
}
