// Package diskquota has the file system itself limit what directories hold, by its
// project quotas (XFS mounted with pquota, ext4 with prjquota): a write beyond the limit
// fails with EDQUOT, and what is used is known without looking at any file.
//
// A directory has a project of its own, which all that is made in it inherits. That is
// kept where the directory is, in its inode: there is no file that could say something
// else, whoever was killed. A project is given to an empty directory only, since what is
// in it already would not be counted. Its number is one that nobody on the file system
// uses, other borglets and other programs included, as the kernel tells.
//
// It must not be used for what a task with the machine's user ids owns: an owner may take
// a file out of its project. In a user name space the kernel refuses that.
package diskquota

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// Projects of borglets are numbered from firstProject to its double: people and
	// other programs count from below.
	firstProject = 1 << 30
	// takenBound is how many numbers are tried for a directory, each of which somebody has.
	takenBound = 64
)

// ErrOccupied: what is in the directory would not be counted.
var ErrOccupied = errors.New("there were files in it before it had a project")

// Quotas limits directories of one file system. Its methods may be called from several
// goroutines.
type Quotas struct {
	kernel kernel
	limits limits
	// blockBytes is what the file system counts in.
	blockBytes int64

	// mu is held while a number is chosen: until the limit of its project is written,
	// another would take it for free. One is written even where nothing is limited.
	mu sync.Mutex
}

// Open finds out whether the file system of a borglet's directory has project quotas. The
// error says why it has none that can be used.
func Open(root string) (*Quotas, error) { return open(root, calls{}) }

func open(root string, k kernel) (*Quotas, error) {
	dir, err := openDir(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	magic, blockBytes, err := k.fileSystem(dir)
	if err != nil {
		return nil, fmt.Errorf("ask for the file system of %s: %w", root, err)
	}
	q := &Quotas{kernel: k, blockBytes: max(blockBytes, 1<<12)}
	mount := "pquota"
	switch magic {
	case unix.XFS_SUPER_MAGIC:
		q.limits = xfsLimits{k}
	case unix.EXT4_SUPER_MAGIC:
		q.limits, mount = extLimits{k}, "prjquota"
	default:
		return nil, fmt.Errorf("the file system of %s is neither XFS nor ext4", root)
	}
	enforced, err := enforces(k, dir)
	if err != nil {
		return nil, fmt.Errorf("the file system of %s has no project quotas (%w); mount it with %s, on a kernel that has them", root, err, mount)
	}
	if !enforced {
		return nil, fmt.Errorf("the file system of %s does not enforce project quotas; mount it with %s", root, mount)
	}
	a, err := getAttr(k, dir)
	if err != nil {
		return nil, fmt.Errorf("read the project of %s: %w", root, err)
	}
	if a.Project != 0 {
		return nil, fmt.Errorf("%s is in the project %d of somebody else; choose another --dir", root, a.Project)
	}
	return q, nil
}

// Limit has the directory hold so much at most; zero: as much as there is. One that has
// no project gets one if it is empty, otherwise the error is ErrOccupied.
func (q *Quotas) Limit(path string, bytes int64) error {
	dir, err := openDir(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	q.mu.Lock()
	defer q.mu.Unlock()
	a, err := getAttr(q.kernel, dir)
	if err != nil {
		return fmt.Errorf("read the project of %s: %w", path, err)
	}
	if ours(a) {
		if err := q.set(dir, a.Project, bytes); err != nil {
			return fmt.Errorf("limit %s: %w", path, err)
		}
		return nil
	}
	if _, err := dir.Readdirnames(1); !errors.Is(err, io.EOF) {
		return fmt.Errorf("give %s a project: %w", path, ErrOccupied)
	}
	if a.Project, err = q.choose(dir, path); err != nil {
		return fmt.Errorf("give %s a project: %w", path, err)
	}
	// The limit comes first: who has the project is limited, whoever is killed between.
	if err := q.set(dir, a.Project, bytes); err != nil {
		return fmt.Errorf("limit %s: %w", path, err)
	}
	a.Flags |= flagProjInherit
	if err := setAttr(q.kernel, dir, a); err != nil {
		return errors.Join(fmt.Errorf("give %s a project: %w", path, err), q.limits.set(dir, a.Project, 0))
	}
	return nil
}

// Used is what is in a directory, and in those that share its project; ok is false where
// it has none.
func (q *Quotas) Used(path string) (bytes int64, ok bool) {
	dir, err := openDir(path)
	if err != nil {
		return 0, false
	}
	defer dir.Close()
	a, err := getAttr(q.kernel, dir)
	if err != nil || !ours(a) {
		return 0, false
	}
	u, err := q.limits.get(dir, a.Project)
	return u.bytes, err == nil
}

// Drop takes a directory out of its project, and the project's limit away. One that has
// none, or is gone, is left alone. What is in it already is counted no longer.
func (q *Quotas) Drop(path string) error {
	dir, err := openDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	a, err := getAttr(q.kernel, dir)
	if err != nil || !ours(a) {
		return err
	}
	err = q.limits.set(dir, a.Project, 0)
	if err == nil {
		a.Flags, a.Project = a.Flags&^flagProjInherit, 0
		err = setAttr(q.kernel, dir, a)
	}
	if err != nil {
		return fmt.Errorf("take the limit of %s away: %w", path, err)
	}
	return nil
}

// Share puts directories, which must be empty, into the project of another, if it has one.
// A file cannot be moved between directories of different projects.
func Share(with string, paths ...string) error { return share(calls{}, with, paths...) }

func share(k kernel, with string, paths ...string) error {
	dir, err := openDir(with)
	if err != nil {
		return err
	}
	of, err := getAttr(k, dir)
	dir.Close()
	if err != nil || !ours(of) {
		// A file system that does not know of projects has none to share.
		return nil
	}
	for _, path := range paths {
		dir, err := openDir(path)
		if err != nil {
			return err
		}
		a, err := getAttr(k, dir)
		if err == nil {
			a.Flags, a.Project = a.Flags|flagProjInherit, of.Project
			err = setAttr(k, dir, a)
		}
		dir.Close()
		if err != nil {
			return fmt.Errorf("put %s into the project of %s: %w", path, with, err)
		}
	}
	return nil
}

// choose finds a project that nobody has: nothing belongs to it and it has no limit.
func (q *Quotas) choose(dir *os.File, path string) (uint32, error) {
	info, err := dir.Stat()
	if err != nil {
		return 0, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return 0, err
	}
	h := fnv.New64a()
	fmt.Fprint(h, path, stat.Ino, info.ModTime().UnixNano())
	sum := h.Sum64()
	for n := range uint64(takenBound) {
		project := uint32(firstProject + (sum+n)%firstProject)
		u, err := q.limits.get(dir, project)
		if err != nil {
			return 0, err
		}
		if u == (usage{}) {
			return project, nil
		}
	}
	return 0, fmt.Errorf("%d projects in turn belong to others", takenBound)
}

// set rounds a limit down to what the file system counts in: it would round up, and what
// is then used would be more than the task may.
func (q *Quotas) set(dir *os.File, project uint32, bytes int64) error {
	if bytes > 0 {
		bytes = max(bytes/q.blockBytes*q.blockBytes, q.blockBytes)
	}
	return q.limits.set(dir, project, bytes)
}

// ours: it is a project that a borglet gave.
func ours(a attr) bool {
	return a.Flags&flagProjInherit != 0 && a.Project >= firstProject && a.Project < 2*firstProject
}

func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
