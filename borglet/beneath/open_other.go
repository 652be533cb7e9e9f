//go:build !linux

package beneath

import (
	"io/fs"
	"os"
	"syscall"
)

func open(dir, name string, flag int, perm fs.FileMode) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return nil, errNotPlain
	}
	return root.OpenFile(name, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, perm)
}
