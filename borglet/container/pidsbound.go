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
)

// processParts is how many quarters of the processes and threads that the machine can
// have are for all tasks together. The last quarter is left to the system.
const processParts = 3

// boundProcesses bounds the processes and threads of all tasks of all borglets of the
// machine together: each task may have pidsLimit, and many times that is more than the
// machine has. It is set at each start of a task: the end of
// the last other task may have removed the cgroup.
func boundProcesses() error {
	most, err := mostProcesses("/proc/sys/kernel")
	if err != nil {
		return err
	}
	list, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range list {
		if h.controllers == nil && unified() {
			// A cgroup has the file when the one above it gives the controller on.
			_ = os.WriteFile(filepath.Join(h.mount, "cgroup.subtree_control"), []byte("+pids"), 0o644)
		} else if !slices.Contains(h.controllers, "pids") {
			continue
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
	return fmt.Errorf("bound the processes of tasks: no cgroup controller pids is mounted below %s", cgroupRoot)
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
