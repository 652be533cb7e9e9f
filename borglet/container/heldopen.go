package container

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

const (
	// maxHeldLooks bounds the open files and mappings of a copy that are looked at.
	maxHeldLooks = 4_000_000
	// heldRounds is how often the processes of a copy are listed, to find those that were
	// started meanwhile and were given its open files.
	heldRounds = 4
	// removedSuffix ends what the kernel says is the path of a file without a name.
	removedSuffix = " (deleted)"
)

// HeldOpen adds up what the processes of runs hold open, or have mapped, of files that have
// no name any more, on the file system of disk. Only a walk over all that they have open
// finds those. places are prefixes of paths as the processes see them.
func (r *Runtime) HeldOpen(disk string, places map[borglet.ID][]string) map[borglet.ID]borglet.HeldOpen {
	w, err := newHeldWalk(disk)
	if err != nil {
		r.cfg.Log.Warn("what tasks hold open of removed files is not known", "machine", r.cfg.Name, "err", err)
		return nil
	}
	runs := r.processes(slices.Collect(maps.Keys(places)))
	found, unseen := make(map[borglet.ID]borglet.HeldOpen, len(runs)), map[borglet.ID]int{}
	order := slices.SortedFunc(maps.Keys(runs), func(a, b borglet.ID) int { return cmp.Compare(a.String(), b.String()) })
	for _, id := range order {
		w.users = taskUsers(runs[id].Pid, r.cfg.TaskIDs)
		found[id] = w.copy(places[id], func() ([]int, error) {
			members, err := r.backend.members(map[borglet.ID]proc{id: runs[id]})
			return members[id], err
		})
		if looks := r.inFlight[id] + 1; w.unseen {
			unseen[id] = looks
			if h := found[id]; h.Unmeasured == "" && looks >= inFlightLooks {
				h.Unmeasured = "files that its processes sent over sockets wait there to be received"
				found[id] = h
			}
		}
	}
	r.inFlight = unseen
	return found
}

// taskUsers are the first and last of the ids that tasks alone have; nil for a process with
// those of the machine.
func taskUsers(pid int, ids [2]uint32) *[2]uint32 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	var inside, outside uint32
	if _, scanErr := fmt.Sscan(string(text), &inside, &outside); err != nil || scanErr != nil || inside == outside {
		return nil
	}
	if ids == [2]uint32{} {
		ids = DefaultTaskIDs
	}
	return &ids
}

// heldWalk looks at what processes have open.
type heldWalk struct {
	// disk is the device of the file system, and kind its type.
	disk uint64
	kind int64
	// root: the borglet may look at everything. Another sees only processes that let it.
	root bool
	// Files already counted, for any process that has them open.
	counted map[inode]bool
	// devices says of those that were asked about whether they are of the file system.
	devices map[uint64]bool

	// Of the copy that is looked at. users are ids that tasks alone have: what belongs to
	// others is the machine's. Nil: it has the machine's ids.
	users  *[2]uint32
	places []string
	bytes  map[string]int64
	looks  int
	seen   map[proc]bool
	// unseen: files are on their way in its sockets that could not be looked at.
	unseen bool
	buf    []byte
}

func newHeldWalk(disk string) (*heldWalk, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Stat(disk, &st), unix.Statfs(disk, &fs)); err != nil {
		return nil, fmt.Errorf("look at the file system of %s: %w", disk, err)
	}
	return &heldWalk{
		disk: uint64(st.Dev), kind: int64(fs.Type), root: os.Geteuid() == 0,
		counted: map[inode]bool{}, devices: map[uint64]bool{}, buf: make([]byte, direntBytes),
	}, nil
}

// errLooks: a copy has more open than is looked at.
var errLooks = fmt.Errorf("its processes have more than %d files open or mapped", maxHeldLooks)

// copy looks at one copy; processes lists its processes.
func (w *heldWalk) copy(places []string, processes func() ([]int, error)) borglet.HeldOpen {
	w.places, w.bytes, w.looks, w.seen, w.unseen = places, map[string]int64{}, 0, map[proc]bool{}, false
	for range heldRounds {
		pids, err := processes()
		news := 0
		for _, pid := range pids {
			if err == nil {
				var isNew bool
				if isNew, err = w.process(pid); isNew {
					news++
				}
			}
		}
		if err != nil {
			return borglet.HeldOpen{Bytes: w.bytes, Unmeasured: err.Error()}
		}
		if news == 0 {
			break
		}
	}
	return borglet.HeldOpen{Bytes: w.bytes}
}

// process looks at the threads of a process. Each may have open files of its own, and a
// first thread that has ended has none.
func (w *heldWalk) process(pid int) (isNew bool, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, nil // it has ended
	}
	last, mapped := 0, false
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		thread, err := identify(tid)
		if err != nil || w.seen[thread] {
			mapped = mapped || err == nil
			continue
		}
		w.seen[thread], isNew = true, true
		if w.looks++; w.looks > maxHeldLooks {
			return true, errLooks
		}
		if last == 0 || !sameFiles(last, tid) {
			if err := w.files(pid, tid); err != nil {
				return true, err
			}
			last = tid
		}
		if !mapped {
			if mapped, err = w.mappings(tid); err == nil {
				err = w.program(tid)
			}
			if err != nil {
				return true, err
			}
		}
	}
	return isNew, nil
}

// kcmpFiles is KCMP_FILES of kcmp(2).
const kcmpFiles = 2

// sameFiles reports whether two threads share their table of open files. Where the kernel
// does not say they do not.
func sameFiles(a, b int) bool {
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && differ == 0
}

// refused reports whether an error only says that the borglet is not root.
func (w *heldWalk) refused(err error) bool {
	return !w.root && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM))
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// files looks at what a thread has open.
func (w *heldWalk) files(pid, tid int) error {
	dir := fmt.Sprintf("/proc/%d/task/%d/fd", pid, tid)
	fd, err := unix.Open(dir, openDirectory, 0)
	if gone(err) || w.refused(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the open files of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Getdents(fd, w.buf)
		if gone(err) || w.refused(err) || err == nil && n <= 0 {
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

// file counts what a link in /proc leads to, if it is a file without a name.
func (w *heldWalk) file(dir int, name string) (isSocket bool, err error) {
	var st unix.Statx_t
	// What a server far away would have to be asked for is as it was last known.
	const what = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_INO | unix.STATX_BLOCKS
	err = unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC, what, &st)
	switch {
	case gone(err) || w.refused(err):
		return false, nil
	case err != nil:
		return false, err
	case st.Nlink != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks == 0:
		return st.Mode&unix.S_IFMT == unix.S_IFSOCK, nil
	case w.users != nil && (st.Uid < w.users[0] || st.Uid > w.users[1]):
		return false, nil
	}
	id := inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}
	if w.counted[id] || !w.onDisk(id.dev, dir, name) {
		return false, nil
	}
	w.counted[id] = true
	place := ""
	buf := make([]byte, unix.PathMax)
	if n, err := unix.Readlinkat(dir, name, buf); err == nil {
		place = placeOf(strings.TrimSuffix(string(buf[:n]), removedSuffix), w.places)
	}
	w.bytes[place] += int64(st.Blocks) * 512
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

// program looks at the file that a process was started from, which it holds also when it
// has it no longer mapped.
func (w *heldWalk) program(tid int) error {
	if w.users == nil {
		return nil // as with what is mapped
	}
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", tid), openDirectory, 0)
	if gone(err) || w.refused(err) {
		return nil
	}
	if err == nil {
		defer unix.Close(dir)
		_, err = w.file(dir, "exe")
	}
	if err != nil {
		return fmt.Errorf("look at the program of process %d: %w", tid, err)
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
		if programs[file] && w.users == nil {
			// A program or library that was replaced while it runs is the machine's.
			continue
		}
		if dir < 0 {
			dir, err = unix.Open(fmt.Sprintf("/proc/%d/map_files", tid), openDirectory, 0)
			if gone(err) || w.refused(err) {
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
