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
	for id, run := range runs {
		w.copies = append(w.copies, &heldCopy{id: id, run: run, places: places[id], ids: ownIDs(run.Pid), bytes: map[string]int64{}})
	}
	slices.SortFunc(w.copies, func(a, b *heldCopy) int { return cmp.Compare(a.id.String(), b.id.String()) })
	if w.users = r.cfg.TaskIDs; w.users == [2]uint32{} {
		w.users = DefaultTaskIDs
	}
	groups := r.backend.cgroups(runs)
	for _, together := range heldTogether(w.copies, groups) {
		r.lookAt(w, together, groups)
	}
	return r.judgeHeld(w, groups)
}

// heldCopy is a copy that is looked at.
type heldCopy struct {
	id  borglet.ID
	run proc
	// places are what is not its own alone.
	places []string
	// ids are the first and last of its user ids; zero: it has the machine's.
	ids   [2]uint32
	bytes map[string]int64
	// failed is why it could not be looked at; nil: it was.
	failed error
	// unseen: files are on their way in its sockets that could not be looked at.
	unseen bool
	// still: it stood still meanwhile. Otherwise moved tells that something was gone when
	// it was its turn, and cpuNs what it had worked before.
	still, moved bool
	cpuNs        int64
}

// own reports whether a user id is one of its own.
func (c *heldCopy) own(uid uint32) bool { return c.ids[1] > 0 && uid >= c.ids[0] && uid <= c.ids[1] }

// ownIDs are the user ids that a process alone has; zero for one with those of the machine.
func ownIDs(pid int) [2]uint32 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	var inside, outside, count uint32
	if _, scanErr := fmt.Sscan(string(text), &inside, &outside, &count); err != nil || scanErr != nil || inside == outside || count == 0 {
		return [2]uint32{}
	}
	return [2]uint32{outside, outside + count - 1}
}

// heldWalk looks at what processes have open.
type heldWalk struct {
	// disk is the device of the file system, and kind its type.
	disk uint64
	kind int64
	// root: the borglet may look at everything. Another sees only processes that let it.
	root bool
	// users are ids that tasks alone have: to one that has them, what belongs to others is
	// the machine's.
	users [2]uint32
	// copies are all that are looked at, in the order of their ids.
	copies []*heldCopy
	// Files already counted, for any process that has them open.
	counted map[inode]bool
	// devices says of those that were asked about whether they are of the file system.
	devices map[uint64]bool

	// copy is the one whose turn it is.
	copy  *heldCopy
	looks int
	seen  map[proc]bool
	buf   []byte
	// message is room for what waits in a socket.
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

// errLooks: a copy has more open than is looked at.
var errLooks = fmt.Errorf("its processes have more than %d files open or mapped", maxHeldLooks)

// look is the turn of one copy; processes lists its processes.
func (w *heldWalk) look(c *heldCopy, processes func() ([]int, error)) {
	w.copy, w.looks, w.seen = c, 0, map[proc]bool{}
	for round := range heldRounds {
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
			c.failed = err
			return
		}
		if news == 0 {
			return
		}
		c.moved = c.moved || round > 0
	}
}

// gone notes that something was there and is not any more: it ended or was closed, or it
// was given to one whose turn is over.
func (w *heldWalk) gone(err error) bool {
	isGone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
	w.copy.moved = w.copy.moved || isGone
	return isGone
}

// charged is the copy that a file counts for: the one whose user it belongs to, wherever it
// is open. Another may have sent it where nobody asked for it.
func (w *heldWalk) charged(uid uint32) *heldCopy {
	if w.copy.ids[1] == 0 || w.copy.own(uid) {
		return w.copy
	}
	for _, c := range w.copies {
		if c.own(uid) {
			return c
		}
	}
	return w.copy
}

// process looks at the threads of a process. Each may have open files of its own, and a
// first thread that has ended has none.
func (w *heldWalk) process(pid int) (isNew bool, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		w.copy.moved = true // it has ended
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
			mapped, w.copy.moved = mapped || err == nil, w.copy.moved || err != nil
			continue
		}
		w.seen[thread], isNew = true, true
		if w.looks++; w.looks > maxHeldLooks {
			return true, errLooks
		}
		if last == 0 || !shared(last, tid, kcmpFiles) {
			if err := w.files(pid, tid); err != nil {
				return true, err
			}
		}
		if last == 0 || !shared(last, tid, kcmpFS) {
			if err := w.links(tid, "cwd", "root"); err != nil {
				return true, err
			}
		}
		last = tid
		if !mapped {
			if mapped, err = w.mappings(tid); err == nil && w.copy.ids[1] > 0 {
				// As with what is mapped: a program is held also when it is mapped no longer.
				err = w.links(tid, "exe")
			}
			if err != nil {
				return true, err
			}
		}
	}
	return isNew, nil
}
