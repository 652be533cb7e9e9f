package container

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

const (
	// maxHeldLooks bounds the open files and mappings of a copy that one look visits.
	maxHeldLooks = 4_000_000
	// heldRounds is how often one look lists the processes of a copy, to find those that
	// started meanwhile and inherited open files.
	heldRounds = 4
	// removedSuffix ends the path that the kernel shows for a removed file.
	removedSuffix = " (deleted)"
)

// HeldOpen returns the disk space of removed files that the processes of copies have open or
// mapped, on the file system of the directory disk. Only visiting all open files finds them.
// places are the directories that each copy shares, as its processes see them.
func (r *Runtime) HeldOpen(disk string, places map[borglet.ID][]string) map[borglet.ID]borglet.HeldOpen {
	w, err := newHeldWalk(disk)
	if err != nil {
		r.cfg.Log.Warn("what tasks hold open of removed files is not known", "machine", r.cfg.Name, "err", err)
		return nil
	}
	runs := r.processes(slices.Collect(maps.Keys(places)))
	for id, run := range runs {
		w.copies = append(w.copies, &heldCopy{id: id, run: run, places: places[id], uids: userRange(run.Pid), bytes: map[string]int64{}})
	}
	slices.SortFunc(w.copies, func(a, b *heldCopy) int { return cmp.Compare(a.id.String(), b.id.String()) })
	if w.users = r.cfg.TaskIDs; w.users == [2]uint32{} {
		w.users = DefaultTaskIDs
	}
	groups := r.backend.cgroups(runs)
	for _, together := range groupByFreezer(w.copies, groups) {
		r.lookAtGroup(w, together, groups)
	}
	return r.heldResults(w, groups)
}

// heldCopy is one copy and what a look has found of it.
type heldCopy struct {
	id  borglet.ID
	run proc
	// Directories that it shares with other copies.
	places []string
	// First and last of its user ids; zero if it has the machine's.
	uids [2]uint32
	// Bytes found by place; "" for any other place.
	bytes map[string]int64
	// Why the look failed; nil if it did not.
	failed error
	// Whether sockets hold files in flight that the look could not see.
	unseen bool
	// Whether the copy was frozen during the look.
	frozen bool
	// Whether something vanished, or appeared late, during the look.
	moved bool
	// Processor time of the copy before the look.
	cpuNs int64
}

// hasUser reports whether a user id is in the copy's own range.
func (c *heldCopy) hasUser(uid uint32) bool {
	return c.uids[1] > 0 && uid >= c.uids[0] && uid <= c.uids[1]
}

// userRange returns the first and last user id of a process's user name space; zero for a
// process in that of the machine.
func userRange(pid int) [2]uint32 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	var inside, outside, count uint32
	if _, scanErr := fmt.Sscan(string(text), &inside, &outside, &count); err != nil || scanErr != nil || inside == outside || count == 0 {
		return [2]uint32{}
	}
	return [2]uint32{outside, outside + count - 1}
}

// heldWalk is one pass over the open files of all copies.
type heldWalk struct {
	// Device of the measured file system, and its type.
	disk uint64
	kind int64
	// Whether the borglet is root. Otherwise it sees only processes that permit it.
	root bool
	// First and last user id that only tasks have. For a copy with such ids, files of other
	// users belong to the machine and do not count.
	users [2]uint32
	// All copies, ordered by id.
	copies []*heldCopy
	// Files already counted, whichever process had them open.
	counted map[inode]bool
	// Whether a device belongs to the measured file system, for those met so far.
	devices map[uint64]bool

	// The copy being looked at, the files and mappings visited of it, and its threads seen.
	current *heldCopy
	looks   int
	seen    map[proc]bool

	// sawSocket, if set, is called for each socket in flight.
	sawSocket func(fd int)

	// Buffers for entries of directories and for messages in sockets.
	buf     []byte
	message []byte
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

// errLooks is the error of a copy with more open files and mappings than a look visits.
var errLooks = fmt.Errorf("its processes have more than %d files open or mapped", maxHeldLooks)

// look counts what one copy holds open. processes lists its processes.
func (w *heldWalk) look(c *heldCopy, processes func() ([]int, error)) {
	w.current, w.looks, w.seen = c, 0, map[proc]bool{}
	for round := range heldRounds {
		pids, err := processes()
		news := 0
		for _, pid := range pids {
			if err == nil {
				var isNew bool
				if isNew, err = w.countThreads(pid); isNew {
					news++
				}
			}
		}
		if err != nil {
			c.failed = err
			return
		}
		if news == 0 {
			return
		}
		c.moved = c.moved || round > 0
	}
}

// vanished reports whether an error says that a file or process no longer exists. The copy
// may then have moved a file to where the look has already been, which is recorded.
func (w *heldWalk) vanished(err error) bool {
	isGone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
	w.current.moved = w.current.moved || isGone
	return isGone
}

// charged returns the copy that a file counts for: the one whose user owns the file, since
// another copy may have it open only because it was sent there unasked.
func (w *heldWalk) charged(uid uint32) *heldCopy {
	if w.current.uids[1] == 0 || w.current.hasUser(uid) {
		return w.current
	}
	for _, c := range w.copies {
		if c.hasUser(uid) {
			return c
		}
	}
	return w.current
}

// countThreads counts what the threads of a process hold, and reports whether one of them was
// new. Each thread may have its own open files; a first thread that has exited has none.
func (w *heldWalk) countThreads(pid int) (isNew bool, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		w.current.moved = true // the process has exited
		return false, nil
	}
	last, mapped := 0, false
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		thread, err := identify(tid)
		if err != nil || w.seen[thread] {
			mapped, w.current.moved = mapped || err == nil, w.current.moved || err != nil
			continue
		}
		w.seen[thread], isNew = true, true
		if w.looks++; w.looks > maxHeldLooks {
			return true, errLooks
		}
		if last == 0 || !shared(last, tid, kcmpFiles) {
			if err := w.countOpenFiles(pid, tid); err != nil {
				return true, err
			}
		}
		if last == 0 || !shared(last, tid, kcmpFS) {
			if err := w.countLinks(tid, "cwd", "root"); err != nil {
				return true, err
			}
		}
		last = tid
		if !mapped {
			if mapped, err = w.countMappings(tid); err == nil && w.current.uids[1] > 0 {
				// A process keeps the file of its program also when it is no longer mapped.
				err = w.countLinks(tid, "exe")
			}
			if err != nil {
				return true, err
			}
		}
	}
	return isNew, nil
}
