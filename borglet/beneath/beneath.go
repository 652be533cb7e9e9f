// Package beneath opens files of directories in which somebody else may have been at
// work: a task that runs as the borglet's own user can put anything in the place of
// its log or of the file that tells how it ended, and says of itself in /proc what it likes. What is opened is a plain file that
// lies in the directory itself. Links are not followed, a pipe that nobody writes to
// holds nobody up, and what is read is bounded.
package beneath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// MaxReadBytes bounds what ReadFile takes: no file of a copy comes near it.
const MaxReadBytes = 64 << 20

// errNotPlain: there is something of that name, and it is no file to read or write.
var errNotPlain = errors.New("is not a plain file")

// Open opens a file of dir as os.OpenFile does. The way to dir is trusted; name is one
// word.
func Open(dir, name string, flag int, perm fs.FileMode) (*os.File, error) {
	path := filepath.Join(dir, name)
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("is not the name of one file")}
	}
	f, err := open(dir, name, flag, perm)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errNotPlain}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile reads a file of dir.
func ReadFile(dir, name string) ([]byte, error) {
	f, err := Open(dir, name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxReadBytes+1))
	if err == nil && len(text) > MaxReadBytes {
		err = fmt.Errorf("read %s: larger than %d bytes", f.Name(), MaxReadBytes)
	}
	return text, err
}

// maxProcBytes bounds what ReadProc takes. The kernel starts no process with more than
// 6 MiB of arguments and environment.
const maxProcBytes = 8 << 20

// ReadProc reads a file of a process, whose directory in /proc is dir, up to maxProcBytes: a process can say that
// all of its memory is its environment or its command line.
func ReadProc(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProcBytes))
}

// WriteFile replaces a file of dir as a whole, by way of name.new, without a sync.
func WriteFile(dir, name string, text []byte, perm fs.FileMode) error {
	path := filepath.Join(dir, name)
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := Open(dir, name+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
