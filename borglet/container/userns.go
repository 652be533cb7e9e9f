package container

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// idsPerCopy is how many user and group ids a copy has: as many as programs and
// images count on.
const idsPerCopy = 1 << 16

// DefaultTaskIDs are the first and last of the machine's user ids that copies get
// theirs of, for 4,095 of them: above what people, services and other container
// managers use, below where ids become negative numbers.
var DefaultTaskIDs = [2]uint32{0x7000_0000, 0x7ffe_ffff}

// idRanges gives each copy that lives a range of ids that no other has, on the whole
// machine: a range is given only in blocks of ids that this borglet has claimed.
type idRanges struct {
	first uint32
	count int
	// claim takes a block of ids for this borglet alone, or reports that another has it.
	claim func(block uint32) (ok bool, err error)

	mu sync.Mutex
	// held is the number of each copy's range, and taken the copy of each range.
	// Guarded by mu, as is all that follows.
	held  map[borglet.ID]int
	taken map[int]borglet.ID
	// blocks are those that this borglet has claimed.
	blocks map[uint32]bool
	// next is where the search for a free one goes on: what was given back is
	// given again as late as can be.
	next int
}

func newIDRanges(ids [2]uint32, claim func(block uint32) (bool, error)) *idRanges {
	return &idRanges{
		first: ids[0], count: int((uint64(ids[1]) - uint64(ids[0]) + 1) / idsPerCopy), claim: claim,
		held: map[borglet.ID]int{}, taken: map[int]borglet.ID{}, blocks: map[uint32]bool{},
	}
}

// idBlocks are the blocks that ids from first to last lie in.
func idBlocks(first, last uint32) (blocks []uint32) {
	for block := first / idsPerBlock; block <= last/idsPerBlock; block++ {
		blocks = append(blocks, block)
	}
	return blocks
}

// begin takes over the blocks that an earlier borglet claimed, and claims a first one.
func (r *idRanges) begin(own []uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, block := range own {
		if _, err := r.claimed([]uint32{block}); err != nil {
			return err
		}
	}
	_, err := r.search(r.claimed)
	return err
}

// claimed reports whether this borglet has all of the blocks, and claims those that are
// free.
func (r *idRanges) claimed(blocks []uint32) (bool, error) {
	for _, block := range blocks {
		if r.blocks[block] {
			continue
		}
		if ok, err := r.claim(block); err != nil || !ok {
			return false, err
		}
		r.blocks[block] = true
	}
	return true, nil
}

// known is claimed without a look beyond what this borglet has.
func (r *idRanges) known(blocks []uint32) (bool, error) {
	return !slices.ContainsFunc(blocks, func(block uint32) bool { return !r.blocks[block] }), nil
}

// search returns the number of a range that no copy has and whose blocks pass; -1 when
// there is none. It asks once about blocks that follow each other.
func (r *idRanges) search(pass func(blocks []uint32) (bool, error)) (int, error) {
	var asked []uint32
	ok := false
	for i := range r.count {
		n := (r.next + i) % r.count
		if _, used := r.taken[n]; used {
			continue
		}
		first := r.at(n)
		if blocks := idBlocks(first, first+idsPerCopy-1); !slices.Equal(blocks, asked) {
			var err error
			if ok, err = pass(blocks); err != nil {
				return -1, err
			}
			asked = blocks
		}
		if ok {
			return n, nil
		}
	}
	return -1, nil
}

func (r *idRanges) at(n int) uint32 { return r.first + uint32(n)*idsPerCopy }

// take returns the first id of the copy's range, which it keeps until it is
// given back.
func (r *idRanges) take(id borglet.ID) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.held[id]
	if !ok {
		var err error
		if n, err = r.search(r.known); n < 0 && err == nil {
			n, err = r.search(r.claimed)
		}
		if err != nil {
			return 0, err
		}
		if n < 0 {
			return 0, fmt.Errorf("all %d ranges of user ids are in use by tasks of this borglet or of others on the machine; start the borglet with more --task-ids", r.count)
		}
		r.held[id], r.taken[n], r.next = n, id, n+1
	}
	return r.at(n), nil
}

// keep takes the very range that a copy of an earlier borglet has. One outside
// of ours, or from before they were moved, is in nobody's way.
func (r *idRanges) keep(id borglet.ID, first uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first < r.first || (first-r.first)%idsPerCopy != 0 || int((first-r.first)/idsPerCopy) >= r.count {
		return nil
	}
	n := int((first - r.first) / idsPerCopy)
	if _, used := r.taken[n]; !used {
		r.held[id], r.taken[n] = n, id
	}
	if ok, err := r.claimed(idBlocks(first, first+idsPerCopy-1)); err != nil || ok {
		return err
	}
	return fmt.Errorf("the user ids from %d on of copy %s are claimed by another borglet too: each may close the other's ports until the copy has ended", first, id)
}

// users are the ids that this borglet has claimed, as ranges of first and last.
func (r *idRanges) users() (ranges [][2]uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := [2]uint32{r.first, r.first + uint32(r.count)*idsPerCopy - 1}
	for _, block := range slices.Sorted(maps.Keys(r.blocks)) {
		first, last := max(block*idsPerBlock, all[0]), min(block*idsPerBlock+idsPerBlock-1, all[1])
		if n := len(ranges); n > 0 && ranges[n-1][1]+1 == first {
			ranges[n-1][1] = last
		} else if first <= last {
			ranges = append(ranges, [2]uint32{first, last})
		}
	}
	return ranges
}

// empty reports whether no copy has ids.
func (r *idRanges) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held) == 0
}

func (r *idRanges) free(id borglet.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.held[id]; ok {
		delete(r.held, id)
		delete(r.taken, n)
	}
}

// userNamespace opens a user name space in which a range of the machine's ids is
// 0 and up. A process is stopped in it before its first instruction, and ended
// when the name space has been opened.
//
// The name space is owned by the first id of the range, where that can be: what the kernel
// counts of it by user, such as instances of inotify, queued signals and locked memory, it
// counts of its owner too. Were that root, one task could take what all others and root
// itself have together.
func userNamespace(first uint32) (*os.File, error) {
	// Who traces a process is a thread, and so is who has another user id.
	runtime.LockOSThread()
	restore, err := becomeOwner(first)
	if err != nil {
		defer runtime.UnlockOSThread()
		return openNamespace(first)
	}
	p, startErr := stoppedIn(first)
	if err := restore(); err != nil {
		// The thread ends with this goroutine: it is never unlocked.
		if startErr == nil {
			endStopped(p)
		}
		return nil, fmt.Errorf("make a user name space: %w", err)
	}
	defer runtime.UnlockOSThread()
	if startErr != nil {
		// The program may be none that everybody may execute.
		return openNamespace(first)
	}
	defer endStopped(p)
	return namespaceOf(p)
}

// openNamespace is userNamespace with root as owner. The caller has locked its thread.
func openNamespace(first uint32) (*os.File, error) {
	p, err := stoppedIn(first)
	if err != nil {
		return nil, fmt.Errorf("make a user name space: %w", err)
	}
	defer endStopped(p)
	return namespaceOf(p)
}

// sharedCounts reports whether user name spaces of copies are owned by root, whose counts
// are then those of all.
func sharedCounts(first uint32) (bool, error) {
	users, err := userNamespace(first)
	if err != nil {
		return true, err
	}
	defer users.Close()
	owner, err := unix.IoctlGetInt(int(users.Fd()), unix.NS_GET_OWNER_UID)
	if err != nil {
		return true, fmt.Errorf("ask who owns a user name space: %w", err)
	}
	return uint32(owner) != first, nil
}

func stoppedIn(first uint32) (*os.Process, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(first), Size: idsPerCopy}}
	return os.StartProcess("/proc/self/exe", []string{"borglet"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
}

func endStopped(p *os.Process) {
	_ = p.Kill()
	_, _ = p.Wait()
}

func namespaceOf(p *os.Process) (*os.File, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
	if err != nil {
		return nil, fmt.Errorf("make a user name space: %w", err)
	}
	return f, nil
}

// becomeOwner gives this thread another effective user id and all its capabilities still.
// restore undoes that.
func becomeOwner(id uint32) (restore func() error, err error) {
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	// With another user id the process becomes one that nobody may look into.
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	const keepCapabilities = 1 << 2 // SECBIT_NO_SETUID_FIXUP
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|keepCapabilities), 0, 0, 0); err != nil {
		return nil, err
	}
	const same = ^uintptr(0)
	set := func(uid int) error {
		// Of this thread alone: syscall.Setresuid is of all.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
			return errno
		}
		return nil
	}
	was := os.Geteuid()
	restore = func() error {
		err := errors.Join(set(was), unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits), 0, 0, 0))
		if dumpable == 1 {
			err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
		}
		return err
	}
	if err := set(int(id)); err != nil {
		return nil, errors.Join(err, restore())
	}
	return restore, nil
}

// mappedTree returns a mount of a directory or file, attached nowhere, in which
// what belongs to root belongs to root of a user name space.
func mappedTree(path string, users *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open %s as a mount: %w", path, err)
	}
	tree := os.NewFile(uintptr(fd), path)
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())})
	if err != nil {
		tree.Close()
		return nil, fmt.Errorf("mount %s with other owners: %w", path, err)
	}
	return tree, nil
}

// mountMapped mounts a directory so at a path.
func mountMapped(path, at string, users *os.File) error {
	tree, err := mappedTree(path, users)
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", path, at, err)
	}
	return nil
}

// canMap says whether the file system of a path can be mounted with other owners.
func canMap(path string, users *os.File) bool {
	tree, err := mappedTree(path, users)
	if err != nil {
		return false
	}
	tree.Close()
	return true
}

// ownUsers says why copies cannot have user name spaces of their own here, with
// their directories in dirs; nil: they can.
func ownUsers(first uint32, dirs []string) error {
	users, err := userNamespace(first)
	if err != nil {
		return err
	}
	defer users.Close()
	for _, dir := range dirs {
		tree, err := mappedTree(dir, users)
		if err != nil {
			return err
		}
		tree.Close()
	}
	return nil
}

// covers are directories of which no task sees anything and that the shim has no
// use for.
var covers = []string{"/dev/pts", "/dev/mqueue"}

// reachable says whether anybody may go to a path. Root of another user name
// space is anybody on the way to its own root file system.
func reachable(path string) bool {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if at == "/" {
			return true
		}
	}
}

// coverRoot makes a root file system appear where anybody can go, in the shim's own
// mount name space: at a path that no container has, as libcontainer takes paths that
// begin with that of the root for paths in it.
func coverRoot(root string) (string, error) {
	for _, at := range covers {
		if info, err := os.Stat(at); err != nil || !info.IsDir() || !reachable(at) {
			continue
		}
		err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=64k")
		if at = filepath.Join(at, ".borg-root"); err == nil {
			err = os.Mkdir(at, 0o711)
		}
		if err == nil {
			err = unix.Mount(root, at, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return "", fmt.Errorf("mount the root file system at %s: %w", at, err)
		}
		return at, nil
	}
	return "", fmt.Errorf("there is none of %s to mount the root file system at; put --dir where everybody may go (chmod o+x)", strings.Join(covers, ", "))
}

// giveTree makes what is in a directory the copy's own.
func giveTree(root string, first uint32) error {
	return filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(first), int(first))
	})
}
