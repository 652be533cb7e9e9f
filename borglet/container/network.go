//go:build linux && cgo

package container

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// sysDir is where the shim of a copy with a network of its own mounts the kernel's /sys
// for it, in the copy's directory.
const sysDir = "sys"

// sysSource is what a copy with user ids of its own sees as /sys: it owns no network, and
// so cannot mount one. The machine's shows the machine's network devices.
func (o *order) sysSource() string {
	if o.Launch.Network == "" {
		return "/sys"
	}
	return filepath.Join(o.Launch.Dir, sysDir)
}

// ownNetwork prepares a copy's own network, in the shim's own mount name space.
func ownNetwork(dir string, o *order) error {
	if o.Launch.Network == "" {
		return nil
	}
	path := filepath.Join(dir, sysDir)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("mount /sys of its network: %w", err)
	}
	if err := mountSys(path, o.Launch.Network); err != nil {
		return fmt.Errorf("mount /sys of its network: %w", err)
	}
	return nil
}

// mountSys mounts a /sys that shows the network of a name space: that of the thread that
// mounts it.
func mountSys(path, space string) error {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	f, err := os.Open(space)
	if err != nil {
		return err
	}
	defer f.Close()
	done := make(chan error)
	go func() {
		// A thread that cannot go back ends with this goroutine.
		runtime.LockOSThread()
		err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("sysfs", path, "sysfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
