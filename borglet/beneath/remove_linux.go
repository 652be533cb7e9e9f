package beneath

import (
	"errors"
	"math"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	openDirectory = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// maxNested bounds the file systems in one another that are cleared.
	maxNested = 64
	// direntBytes is how much of a directory is read at a time.
	direntBytes = 32 << 10
)

func clearDir(dir string) error {
	fd, err := unix.Open(dir, openDirectory, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r := remover{top: fd}
	return r.clear(fd)
}

// remover empties one directory. A directory below it that is not empty is moved up into
// it before it is emptied itself, so that no way down becomes long.
type remover struct {
	top int
	// moved counts the names that were given.
	moved  uint64
	nested int
}

// clear removes what is in an open directory.
func (r *remover) clear(fd int) error {
	buf := make([]byte, direntBytes)
	for empty := false; !empty; {
		// Names that were passed over by a listing that changed show in the next.
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
		empty = true
		for {
			n, err := unix.Getdents(fd, buf)
			if err != nil {
				return err
			}
			if n <= 0 {
				break
			}
			_, _, names := unix.ParseDirent(buf[:n], -1, nil)
			for _, name := range names {
				empty = false
				if err := r.remove(fd, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// remove removes one name, or moves a directory of that name up.
func (r *remover) remove(fd int, name string) error {
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if fd != r.top {
		err := r.lift(fd, name)
		if !errors.Is(err, unix.EXDEV) {
			return err
		}
	}
	sub, err := unix.Openat(fd, name, openDirectory, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sub)
	if fd != r.top {
		// A file system in the file system: its directories stay in it.
		if r.nested++; r.nested > maxNested {
			return unix.ELOOP
		}
		inner := remover{top: sub, nested: r.nested}
		err = inner.clear(sub)
		r.nested--
	} else {
		err = r.clear(sub)
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
}

// lift moves a directory up to the top under a name that nobody has.
func (r *remover) lift(fd int, name string) error {
	for r.moved < math.MaxUint64 {
		r.moved++
		err := unix.Renameat2(fd, name, r.top, ".borg-"+strconv.FormatUint(r.moved, 10), unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			// A file system that cannot promise not to replace: it replaces no directory with
			// something in it, and an empty one is no loss.
			err = unix.Renameat(fd, name, r.top, ".borg-"+strconv.FormatUint(r.moved, 10))
			if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
				continue
			}
		}
		return err
	}
	return unix.EMFILE
}
