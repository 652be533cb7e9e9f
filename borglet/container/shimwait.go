//go:build linux && cgo

package container

import "C"

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Variables of shimwait.c.
const (
	waitVariable = "_BORG_SHIM_WAIT"
	dirVariable  = "_BORG_SHIM_DIR"
)

// waitSmall makes this process one that only waits for the task, and then the shim
// again, with endedVariable set. It returns if it cannot.
func waitSmall(dir string, pid int) error {
	// It holds the lock all the while.
	if _, err := unix.FcntlInt(lockFD, unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keep the lock: %w", err)
	}
	env := append(os.Environ(), waitVariable+"="+strconv.Itoa(pid), dirVariable+"="+dir)
	err := unix.Exec("/proc/self/exe", []string{"borglet", "shim", dir}, env)
	unix.CloseOnExec(lockFD)
	return fmt.Errorf("wait with less memory: %w", err)
}
