package container

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth bounds how deep a tree is walked: each level holds a file open.
	maxDepth = 256
	// maxFiles bounds how many files of a tree are looked at.
	maxFiles = 1_000_000
	// namesAtOnce is how many names of a directory are read at a time.
	namesAtOnce = 1024
)

// TreeBytes adds up the disk that a directory and all below take: blocks, not
// lengths, and a file with several names once. The tree is a task's, which may change
// it meanwhile: each directory is opened by one name from the one above, and not
// through a link, so that nothing outside is ever looked at.
func TreeBytes(dir string) (int64, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open directory: %w", err)
	}
	w := treeWalk{linked: map[uint64]bool{}}
	err = w.walk(fd, 0)
	return w.blocks * 512, err
}

type treeWalk struct {
	blocks int64
	files  int
	// linked has the files with several names that were counted.
	linked map[uint64]bool
}

// walk adds up what is in an open directory, and closes it.
func (w *treeWalk) walk(fd, depth int) error {
	dir := os.NewFile(uintptr(fd), "directory")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(namesAtOnce)
		for _, name := range names {
			if err := w.add(fd, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read directory: %w", err)
		}
	}
}

func (w *treeWalk) add(fd int, name string, depth int) error {
	if w.files++; w.files > maxFiles {
		return fmt.Errorf("there are more than %d files", maxFiles)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		// Files come and go while a task works.
		return nil
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Nlink > 1 && !isDir {
		if w.linked[st.Ino] {
			return nil
		}
		w.linked[st.Ino] = true
	}
	w.blocks += st.Blocks
	if !isDir {
		return nil
	}
	if depth == maxDepth {
		return fmt.Errorf("directories are more than %d deep", maxDepth)
	}
	sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return w.walk(sub, depth+1)
}

// AvailableDiskBytes is how much may still be written on the disk of a directory.
func AvailableDiskBytes(dir string) (int64, bool) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, false
	}
	return int64(fs.Bavail) * fs.Bsize, true
}
