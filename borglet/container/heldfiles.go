package container

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kcmpFiles and kcmpFS are KCMP_FILES and KCMP_FS of kcmp(2).
const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// shared reports whether two threads have the same open files, or directories. Where the
// kernel does not say they do not.
func shared(a, b, what int) bool {
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(what), 0, 0, 0)
	return errno == 0 && differ == 0
}

// refused reports whether an error only says that the borglet is not root.
func (w *heldWalk) refused(err error) bool {
	return !w.root && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM))
}

// files looks at what a thread has open.
func (w *heldWalk) files(pid, tid int) error {
	dir := fmt.Sprintf("/proc/%d/task/%d/fd", pid, tid)
	fd, err := unix.Open(dir, openDirectory, 0)
	if w.gone(err) || w.refused(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the open files of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Getdents(fd, w.buf)
		if w.gone(err) || w.refused(err) || err == nil && n <= 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the open files of process %d: %w", pid, err)
		}
		_, _, names := unix.ParseDirent(w.buf[:n], -1, nil)
		for _, name := range names {
			if w.looks++; w.looks > maxHeldLooks {
				return errLooks
			}
			isSocket, err := w.file(fd, name)
			if err != nil {
				return fmt.Errorf("look at an open file of process %d: %w", pid, err)
			}
			if isSocket {
				w.socket(pid, tid, name)
			}
		}
	}
}

// file counts what a link in /proc leads to, if it is a file, or a directory, without a name.
func (w *heldWalk) file(dir int, name string) (isSocket bool, err error) {
	var st unix.Statx_t
	// What a server far away would have to be asked for is as it was last known.
	const what = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_INO | unix.STATX_BLOCKS
	err = unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC, what, &st)
	switch {
	case w.gone(err) || w.refused(err):
		return false, nil
	case err != nil:
		return false, err
	case st.Nlink != 0:
		return st.Mode&unix.S_IFMT == unix.S_IFSOCK, nil
	case w.copy.ids[1] > 0 && (st.Uid < w.users[0] || st.Uid > w.users[1]):
		return false, nil
	}
	id := inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}
	if w.counted[id] || !w.onDisk(id.dev, dir, name) {
		return false, nil
	}
	w.counted[id] = true
	c, place := w.charged(st.Uid), ""
	buf := make([]byte, unix.PathMax)
	if n, err := unix.Readlinkat(dir, name, buf); err == nil {
		place = placeOf(strings.TrimSuffix(string(buf[:n]), removedSuffix), c.places)
	}
	c.bytes[place] += max(int64(st.Blocks), fileBlocks) * 512
	return false, nil
}

// placeOf is the place that a path is in; empty: none.
func placeOf(path string, places []string) (place string) {
	for _, p := range places {
		if within(path, p) && len(p) > len(place) {
			place = p
		}
	}
	return place
}

// onDisk reports whether a device is of the file system that is measured: what is in memory
// or on another disk does not count. An overlay has a device of its own for what it keeps
// there, and so has each subvolume.
func (w *heldWalk) onDisk(dev uint64, dir int, name string) bool {
	if dev == w.disk {
		return true
	}
	on, known := w.devices[dev]
	if !known {
		var fs unix.Statfs_t
		err := unix.Statfs(filepath.Join("/proc/self/fd", strconv.Itoa(dir), name), &fs)
		on = err == nil && (fs.Type == unix.OVERLAYFS_SUPER_MAGIC || fs.Type == unix.BTRFS_SUPER_MAGIC && w.kind == unix.BTRFS_SUPER_MAGIC)
		w.devices[dev] = on
	}
	return on
}

// links looks at what a thread holds by links of its directory in /proc: where it works,
// and the program that it was started from.
func (w *heldWalk) links(tid int, names ...string) error {
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", tid), openDirectory, 0)
	if w.gone(err) || w.refused(err) {
		return nil
	}
	if err == nil {
		defer unix.Close(dir)
		for _, name := range names {
			if _, err = w.file(dir, name); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("look at what process %d runs and where: %w", tid, err)
	}
	return nil
}

// mappings looks at what a process has mapped; done is false of a thread that has ended and
// has no memory any more.
func (w *heldWalk) mappings(tid int) (done bool, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", tid))
	if err != nil {
		return false, nil
	}
	defer f.Close()
	dir := -1
	defer func() {
		if dir >= 0 {
			unix.Close(dir)
		}
	}()
	programs := map[string]bool{}
	var ranges []string
	files := map[string]string{}
	for lines := bufio.NewReaderSize(f, 64<<10); ; {
		line, tooLong, err := lines.ReadLine()
		if err != nil {
			break
		}
		done = true
		if w.looks++; w.looks > maxHeldLooks {
			return done, errLooks
		}
		if tooLong || !bytes.HasSuffix(line, []byte(removedSuffix)) {
			continue
		}
		// start-end perms offset device inode path
		fields := strings.Fields(string(line))
		if len(fields) < 6 {
			continue
		}
		file := fields[3] + " " + fields[4]
		if strings.Contains(fields[1], "x") {
			programs[file] = true
		}
		if _, known := files[file]; !known {
			files[file] = fields[0]
			ranges = append(ranges, file)
		}
	}
	for _, file := range ranges {
		if programs[file] && w.copy.ids[1] == 0 {
			// A program or library that was replaced while it runs is the machine's.
			continue
		}
		if dir < 0 {
			dir, err = unix.Open(fmt.Sprintf("/proc/%d/map_files", tid), openDirectory, 0)
			if w.gone(err) || w.refused(err) {
				return done, nil
			}
			if err != nil {
				return done, fmt.Errorf("list the mapped files of process %d: %w", tid, err)
			}
		}
		if _, err := w.file(dir, files[file]); err != nil {
			return done, fmt.Errorf("look at a mapped file of process %d: %w", tid, err)
		}
	}
	return done, nil
}
