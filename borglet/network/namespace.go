package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// containerID is what plugins know a network by: no other borglet of the machine has
// the same, whatever its tasks are called.
func containerID(runDir, key string) string {
	sum := sha256.Sum256([]byte(runDir))
	return "borg-" + hex.EncodeToString(sum[:4]) + "-" + key
}

// nsfsMagic is the kernel's file system of name spaces.
const nsfsMagic = 0x6e736673

// isSpace tells whether a name space is held at a path.
func isSpace(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == nsfsMagic
}

// makeSpace makes a name space with a loopback device that is up, in which everybody may
// have every port, and holds it at a path.
func makeSpace(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return fmt.Errorf("hold a network name space: %w", err)
	}
	f.Close()
	done := make(chan error)
	go func() {
		// Another network is a thread's own matter. One that cannot go back ends with this
		// goroutine.
		runtime.LockOSThread()
		err, back := enterNew(path)
		if back {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// enterNew makes the name space with the present thread, and says whether that is back
// where it was.
func enterNew(path string) (err error, back bool) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("hold a network name space: %w", err), true
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network name space: %w", err), true
	}
	err = loopbackUp()
	if err == nil {
		// It has no capabilities, and its ports are nobody else's.
		err = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	}
	if err == nil {
		err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}
	if err != nil {
		err = fmt.Errorf("make a network name space: %w", err)
	}
	return err, unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil
}

// loopbackUp switches lo on.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	return nil
}

// dropSpace lets a name space go; what is still in it keeps it. With the file the kernel
// takes away the mounts on it that others have in their view of the machine's mounts,
// such as shims that began meanwhile.
func dropSpace(path string) error {
	for isSpace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("let network name space %s go: %w", filepath.Base(path), err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("let network name space %s go: %w", filepath.Base(path), err)
	}
	return nil
}
