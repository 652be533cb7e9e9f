package beneath

import (
	"errors"
	"io/fs"
	"os"
)

// RemoveAll removes a directory and everything below it, as os.RemoveAll does, however
// deep it is: two directories are open at a time. What is there must be nobody's to write
// to any more.
func RemoveAll(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		err = Clear(dir)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Clear removes everything below a directory; one that is not there is empty.
func Clear(dir string) error {
	if err := clearDir(dir); err != nil {
		return &fs.PathError{Op: "clear", Path: dir, Err: err}
	}
	return nil
}
