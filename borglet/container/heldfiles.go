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

// shared reports whether two threads share their table of open files (kcmpFiles) or their
// directories (kcmpFS). Without kcmp in the kernel it reports false.
func shared(a, b, what int) bool {
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(what), 0, 0, 0)
	return errno == 0 && differ == 0
}

// refused reports whether an error is for want of permission, and the borglet is not root.
func (w *heldWalk) refused(err error) bool {
	return !w.root && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM))
}

// countOpenFiles counts the open files of a thread.
func (w *heldWalk) countOpenFiles(pid, tid int) error {
	dir := fmt.Sprintf("/proc/%d/task/%d/fd", pid, tid)
	fd, err := unix.Open(dir, openDirectory, 0)
	if w.vanished(err) || w.refused(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the open files of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Getdents(fd, w.buf)
		if w.vanished(err) || w.refused(err) || err == nil && n <= 0 {
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
			isSocket, err := w.countFile(fd, name)
			if err != nil {
				return fmt.Errorf("look at an open file of process %d: %w", pid, err)
			}
			if isSocket {
				w.lookIntoSocket(pid, tid, name)
			}
		}
	}
}

// countFile counts the target of a link in /proc if it is a removed file or directory, and
// reports whether it is a socket.
func (w *heldWalk) countFile(dir int, name string) (isSocket bool, err error) {
	var st unix.Statx_t
	// AT_STATX_DONT_SYNC: no file server is asked, which might not answer.
	const what = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_INO | unix.STATX_BLOCKS
	err = unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC, what, &st)
	switch {
	case w.vanished(err) || w.refused(err):
		return false, nil
	case err != nil:
		return false, err
	case st.Nlink != 0:
		return st.Mode&unix.S_IFMT == unix.S_IFSOCK, nil
	case w.current.uids[1] > 0 && (st.Uid < w.users[0] || st.Uid > w.users[1]):
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

// placeOf returns the innermost place that contains a path; empty if none does.
func placeOf(path string, places []string) (place string) {
	for _, p := range places {
		if within(path, p) && len(p) > len(place) {
			place = p
		}
	}
	return place
}

// onDisk reports whether a device belongs to the measured file system; files in memory or on
// other disks do not count. Overlays and btrfs subvolumes have devices of their own and are
// taken to be on it.
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

// countLinks counts the targets of links in a thread's directory in /proc: its working and
// root directory, or its program.
func (w *heldWalk) countLinks(tid int, names ...string) error {
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", tid), openDirectory, 0)
	if w.vanished(err) || w.refused(err) {
		return nil
	}
	if err == nil {
		defer unix.Close(dir)
		for _, name := range names {
			if _, err = w.countFile(dir, name); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("look at what process %d runs and where: %w", tid, err)
	}
	return nil
}

// countMappings counts the mapped files of a process. done is false if the thread has exited
// and so shows no memory.
func (w *heldWalk) countMappings(tid int) (done bool, err error) {
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
		if programs[file] && w.current.uids[1] == 0 {
			// Without user ids of its own the copy runs the machine's programs. One that was
			// replaced while it runs is not the copy's.
			continue
		}
		if dir < 0 {
			dir, err = unix.Open(fmt.Sprintf("/proc/%d/map_files", tid), openDirectory, 0)
			if w.vanished(err) || w.refused(err) {
				return done, nil
			}
			if err != nil {
				return done, fmt.Errorf("list the mapped files of process %d: %w", tid, err)
			}
		}
		if _, err := w.countFile(dir, files[file]); err != nil {
			return done, fmt.Errorf("look at a mapped file of process %d: %w", tid, err)
		}
	}
	return done, nil
}
