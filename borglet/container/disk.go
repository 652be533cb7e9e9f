package container

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth bounds how deep a tree is walked: each level takes some memory.
	maxDepth = 1 << 16
	// openLevels bounds the directories of a tree that are open at once.
	openLevels = 64
	// maxFiles bounds how many files of a tree are looked at.
	maxFiles = 1_000_000
	// maxWaitingBytes bounds the names of directories that wait for their turn.
	maxWaitingBytes = 64 << 20
	// direntBytes is how much of a directory is read at a time.
	direntBytes = 16 << 10
	// fileBlocks is what a file counts as at least, in blocks of 512 bytes: a file system
	// has room for so many of them, also of those in which nothing is.
	fileBlocks = 8
	// walkTries is how often a tree is walked that changes under the walk.
	walkTries = 3
)

// errMoved: a directory was moved while the walk was far below it.
var errMoved = errors.New("its directories are moved about all the time")

// TreeBytes adds up the disk that a directory and everything below it takes: blocks, not
// lengths, at least 4 KiB a file, and a file with several names once. The tree belongs to a task, which may
// change it meanwhile: each directory is opened by one name from the one above it and
// never through a link, so that nothing outside is looked at. An error means that part of
// the tree was not counted; the sum is then what was.
func TreeBytes(dir string) (bytes int64, err error) {
	for range walkTries {
		bytes, err = treeBytes(dir, treeBounds{maxDepth, maxFiles, maxWaitingBytes})
		if !errors.Is(err, errMoved) {
			break
		}
	}
	return bytes, err
}

// treeBounds are how much of a tree is looked at.
type treeBounds struct{ depth, files, waitingBytes int }

func treeBytes(dir string, bounds treeBounds) (int64, error) {
	fd, err := unix.Open(dir, openDirectory, 0)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open directory: %w", err)
	}
	w := treeWalk{bounds: bounds, linked: map[inode]bool{}, buf: make([]byte, direntBytes)}
	defer w.close()
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		// An empty one counts as nothing. What had many names may not have become smaller.
		w.blocks = max(st.Blocks-fileBlocks, 0)
	}
	if err = w.push(fd); err == nil {
		err = w.walk()
	}
	return w.blocks * 512, err
}

const openDirectory = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// inode names a file on the machine. One file system may have several device numbers, and
// in each the same inode numbers, as subvolumes do.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{uint64(st.Dev), st.Ino} }

type treeWalk struct {
	bounds treeBounds
	blocks int64
	files  int
	// linked has the files with several names that were counted.
	linked map[inode]bool
	// levels are the directories from the top to the one that is read. Those more than
	// openLevels above it are closed, and opened again on the way back.
	levels []level
	// waitingBytes is the length of all names in levels.
	waitingBytes int
	buf          []byte
}

// level is one directory on the way.
type level struct {
	// fd is -1 while the directory is closed.
	fd int
	// id is compared when it is opened again.
	id inode
	// at is where reading goes on; read: all names were read.
	at   int64
	read bool
	// subs are the directories in it that were read and not yet walked.
	subs []string
}

func (w *treeWalk) close() {
	for _, l := range w.levels {
		if l.fd >= 0 {
			unix.Close(l.fd)
		}
	}
}

// push goes down into an open directory.
func (w *treeWalk) push(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fmt.Errorf("look at a directory: %w", err)
	}
	w.levels = append(w.levels, level{fd: fd, id: inodeOf(&st)})
	if far := len(w.levels) - 1 - openLevels; far >= 0 {
		unix.Close(w.levels[far].fd)
		w.levels[far].fd = -1
	}
	return nil
}

// pop goes back up, and opens the directory above again if it was closed.
func (w *treeWalk) pop() error {
	top := len(w.levels) - 1
	child := w.levels[top]
	w.levels = w.levels[:top]
	defer unix.Close(child.fd)
	if top == 0 || w.levels[top-1].fd >= 0 {
		return nil
	}
	l := &w.levels[top-1]
	fd, err := unix.Openat(child.fd, "..", openDirectory, 0)
	if err != nil {
		return fmt.Errorf("open the directory above: %w", err)
	}
	l.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at a directory: %w", err)
	}
	if inodeOf(&st) != l.id {
		return errMoved
	}
	if _, err := unix.Seek(fd, l.at, unix.SEEK_SET); err != nil {
		return fmt.Errorf("go on reading a directory: %w", err)
	}
	return nil
}

func (w *treeWalk) walk() error {
	for len(w.levels) > 0 {
		l := &w.levels[len(w.levels)-1]
		if last := len(l.subs) - 1; last >= 0 {
			name := l.subs[last]
			l.subs = l.subs[:last]
			w.waitingBytes -= len(name)
			if err := w.descend(l.fd, name); err != nil {
				return err
			}
			continue
		}
		l.subs = nil
		var err error
		if l.read {
			err = w.pop()
		} else {
			err = w.readNames(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *treeWalk) descend(fd int, name string) error {
	if len(w.levels) > w.bounds.depth {
		return fmt.Errorf("directories are more than %d deep", w.bounds.depth)
	}
	sub, err := unix.Openat(fd, name, openDirectory, 0)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		// Files come and go while a task works.
		return nil
	case err != nil:
		return fmt.Errorf("open directory: %w", err)
	}
	return w.push(sub)
}

// readNames counts the next files of a directory.
func (w *treeWalk) readNames(l *level) error {
	n, err := unix.Getdents(l.fd, w.buf)
	if errors.Is(err, unix.ENOENT) {
		n, err = 0, nil // it was removed
	}
	if err == nil && n > 0 {
		l.at, err = unix.Seek(l.fd, 0, unix.SEEK_CUR)
	}
	if err != nil {
		return fmt.Errorf("read directory: %w", err)
	}
	if n <= 0 {
		l.read = true
		return nil
	}
	_, _, names := unix.ParseDirent(w.buf[:n], -1, nil)
	for _, name := range names {
		if err := w.add(l, name); err != nil {
			return err
		}
	}
	return nil
}

func (w *treeWalk) add(l *level, name string) error {
	if w.files++; w.files > w.bounds.files {
		return fmt.Errorf("there are more than %d files", w.bounds.files)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(l.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look at a file: %w", err)
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Nlink > 1 && !isDir {
		if w.linked[inodeOf(&st)] {
			return nil
		}
		w.linked[inodeOf(&st)] = true
	}
	w.blocks += max(st.Blocks, fileBlocks)
	if !isDir {
		return nil
	}
	if w.waitingBytes += len(name); w.waitingBytes > w.bounds.waitingBytes {
		return errors.New("there are too many directories with long names in one another")
	}
	l.subs = append(l.subs, name)
	return nil
}

// AvailableDiskBytes is how much may still be written on the disk of a directory. Where a
// smaller part of its files is left than of its bytes, it is that part.
func AvailableDiskBytes(dir string) (int64, bool) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, false
	}
	return availableBytes(&fs), true
}

func availableBytes(fs *unix.Statfs_t) int64 {
	free := int64(fs.Bavail) * fs.Bsize
	if fs.Files == 0 { // as many as there is room for
		return free
	}
	return min(free, int64(float64(fs.Blocks)*float64(fs.Bsize)*(float64(fs.Ffree)/float64(fs.Files))))
}
