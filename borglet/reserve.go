package borglet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	// Room on the disk that is kept for what must be written although it is full.
	reserveBytes = 1 << 20
	// So much of it is given up at once: whoever fills the disk may take that
	// before we do.
	reserveStepBytes = 64 << 10
	// It is made again when so much is free beside it.
	reserveAgainBytes = 16 << 20
	// With less than this nothing starts: half of a start is worth nothing, and
	// what the reserve has given up is not for that.
	startBytes = 1 << 20
)

// reserve is a file whose blocks are given up when the disk is full, so that a
// borglet can go on to obey: a task that fills the disk could not be stopped
// otherwise. It is for fences, stops and ends; what is to start waits.
type reserve struct {
	path string

	mu sync.Mutex
	// What is left of it. Guarded by mu.
	bytes int64
}

// openReserve finds what an earlier borglet left of the reserve and makes it
// whole. That there is no room for it is no error.
func openReserve(dir string) (*reserve, error) {
	r := &reserve{path: filepath.Join(dir, "reserve")}
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.ENOSPC) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the reserve of the disk: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open the reserve of the disk: %w", err)
	}
	// A reserve with holes is none.
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		r.bytes = min(info.Size(), stat.Blocks*512)
	}
	r.refill()
	return r, nil
}

// spend runs a write, and again with a little more room as long as the disk is
// full and something of the reserve is left.
func (r *reserve) spend(write func() error) error {
	err := write()
	r.mu.Lock()
	defer r.mu.Unlock()
	for noRoom(err) && r.giveUp() {
		err = write()
	}
	if err == nil {
		r.refill()
	}
	return err
}

func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// giveUp makes the reserve smaller and says whether it did. Call with mu held.
func (r *reserve) giveUp() bool {
	if r.bytes == 0 {
		return false
	}
	left := max(0, r.bytes-reserveStepBytes)
	if err := os.Truncate(r.path, left); err != nil {
		return false
	}
	r.bytes = left
	return true
}

// refill makes the reserve whole if there is room to spare. Call with mu held,
// or before anybody else has it.
func (r *reserve) refill() {
	if r.bytes == reserveBytes {
		return
	}
	if free, err := r.freeBytes(); err != nil || free < reserveAgainBytes {
		return
	}
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	err = syscall.Fallocate(int(f.Fd()), 0, 0, reserveBytes)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, reserveBytes), 0)
	}
	if err == nil {
		r.bytes = reserveBytes
	}
}

func (r *reserve) freeBytes() (uint64, error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(r.path), &disk); err != nil {
		return 0, fmt.Errorf("ask for the room on the disk: %w", err)
	}
	return disk.Bavail * uint64(disk.Bsize), nil
}

// startable says why nothing can be started, if so.
func (r *reserve) startable() error {
	free, err := r.freeBytes()
	if err == nil && free < startBytes {
		err = fmt.Errorf("the disk of %s is full: %d KiB are free and a start needs %d; it is tried again", filepath.Dir(r.path), free>>10, startBytes>>10)
	}
	return err
}
