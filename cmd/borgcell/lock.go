package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"borg/cli"
)

// lock is held on a directory while a borgcell works in it. The kernel lets go
// of it when we die, however we die.
type lock struct {
	file *os.File
}

// takeLock takes the lock of a directory, or says who has it.
func takeLock(dir string) (*lock, error) {
	path := filepath.Join(dir, "lock")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			defer f.Close()
			if !errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", dir, err)
			}
			return nil, lockedError(dir, f)
		}
		if !isStill(f, path) {
			// Its last holder removed the file between our open and our lock.
			f.Close()
			continue
		}
		l := &lock{file: f}
		if err := l.sign(); err != nil {
			l.release()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		return l, nil
	}
}

// sign writes who holds the lock, for the message of whoever wants it too.
func (l *lock) sign() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return err
}

// release lets go of the lock.
func (l *lock) release() {
	l.file.Close()
}

func isStill(f *os.File, path string) bool {
	here, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(here, there)
}

func lockedError(dir string, f *os.File) error {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	holder := strings.TrimSpace(string(b[:n]))
	return cli.Errorf(cli.Conflict, "another borgcell (process %s) runs in %s", holder, dir).
		Hint("stop it with Ctrl-C or: kill %s\nor run a second cell: --cell NAME --dir DIRECTORY --port-base PORT --task-port-base PORT", holder)
}
