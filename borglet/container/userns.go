package container

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// idRanges gives each copy that lives a range of ids that no other has.
type idRanges struct {
	first uint32
	count int

	mu sync.Mutex
	// held is the number of each copy's range, and taken the copy of each range.
	// Guarded by mu, as is next.
	held  map[borglet.ID]int
	taken map[int]borglet.ID
	// next is where the search for a free one goes on: what was given back is
	// given again as late as can be.
	next int
}

func newIDRanges(ids [2]uint32) *idRanges {
	return &idRanges{
		first: ids[0], count: int((uint64(ids[1]) - uint64(ids[0]) + 1) / idsPerCopy),
		held: map[borglet.ID]int{}, taken: map[int]borglet.ID{},
	}
}

// take returns the first id of the copy's range, which it keeps until it is
// given back.
func (r *idRanges) take(id borglet.ID) (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.held[id]
	if !ok {
		if len(r.taken) >= r.count {
			return 0, fmt.Errorf("all %d ranges of user ids are in use by tasks; start the borglet with more --task-ids", r.count)
		}
		for n = r.next; ; n++ {
			n %= r.count
			if _, used := r.taken[n]; !used {
				break
			}
		}
		r.held[id], r.taken[n], r.next = n, id, n+1
	}
	return r.first + uint32(n)*idsPerCopy, nil
}

// keep takes the very range that a copy of an earlier borglet has. One outside
// of ours, or from before they were moved, is in nobody's way.
func (r *idRanges) keep(id borglet.ID, first uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first < r.first || (first-r.first)%idsPerCopy != 0 || int((first-r.first)/idsPerCopy) >= r.count {
		return
	}
	n := int((first - r.first) / idsPerCopy)
	if _, used := r.taken[n]; !used {
		r.held[id], r.taken[n] = n, id
	}
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
func userNamespace(first uint32) (*os.File, error) {
	// Who traces a process is a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(first), Size: idsPerCopy}}
	p, err := os.StartProcess("/proc/self/exe", []string{"borglet"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
	if err != nil {
		return nil, fmt.Errorf("make a user name space: %w", err)
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	f, err := os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
	if err != nil {
		return nil, fmt.Errorf("make a user name space: %w", err)
	}
	return f, nil
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
