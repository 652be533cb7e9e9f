package borglet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A task can allocate disk blocks to its output file without writing to them (fallocate):
// beyond its end, or in the hole that rotation punched. Neither the length of the file nor its
// data shows such blocks.

const (
	// seekHole is SEEK_HOLE of lseek(2).
	seekHole = 4
	// maxExtents bounds the extents of an output file that dataBytes adds up.
	maxExtents = 1024
	// aheadPart is how much a file system may preallocate for a growing file, as a multiple
	// of the data in it.
	aheadPart = 2
)

// blocksOf returns the disk space that an open file uses, and its length.
func blocksOf(f *os.File) (bytes, size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("look at a log: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		bytes = st.Blocks * 512
	}
	return bytes, info.Size(), nil
}

// dataBytes returns how many bytes of a file before end are data and not holes.
func dataBytes(f *os.File, end int64) (sum int64) {
	at := int64(0)
	for range maxExtents {
		from, err := f.Seek(at, seekData)
		if err != nil || from >= end {
			return sum
		}
		to, err := f.Seek(from, seekHole)
		if err != nil || to <= from {
			return sum
		}
		sum += min(to, end) - from
		at = to
	}
	return sum
}

// hoards reports whether a stream uses more disk than its data, the preallocation of a file
// system and the bound of a stream explain.
func (r *rotator) hoards(heldBytes, dataBytes int64) bool {
	return heldBytes-dataBytes > r.keepBytes+aheadPart*dataBytes
}

// judge reports a copy whose output hoards disk.
func (r *rotator) judge(id ID, heldBytes, dataBytes int64) {
	if r.hoards(heldBytes, dataBytes) {
		r.hoarded(Hoarded{ID: id, Why: fmt.Sprintf("its output took %s of disk for nothing that it wrote; the bound of an output stream is %s", mib(heldBytes-dataBytes), mib(r.keepBytes))})
	}
}

// cutBack frees the disk that a stream hoards, after rotation removed its oldest part. Space
// that judge allows stays: the file system frees its own preallocation, and truncating the
// file would drop output that the task appends meanwhile.
func (r *rotator) cutBack(f *os.File, path string, pieces []logPiece) error {
	hoards := func() (bool, error) {
		held, size, err := blocksOf(f)
		return err == nil && r.hoards(held, dataBytes(f, size)), err
	}
	if still, err := hoards(); err != nil || !still {
		return err
	}
	// Blocks in the hole that rotation punched.
	if err := r.punchTaken(f, pieces); err != nil {
		return err
	}
	if still, err := hoards(); err != nil || !still {
		return err
	}
	// Blocks beyond the end of the file: only truncating frees them. That also drops what
	// the task wrote since its length was read, which only harms a task that hoards.
	_, size, err := blocksOf(f)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		return fmt.Errorf("free the space beyond the end of a log: %w", err)
	}
	if still, err := hoards(); err != nil || !still {
		return err
	}
	// The space is not in the file's data. The next run gets another file.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a log: %w", err)
	}
	return nil
}

// punchTaken punches again the hole before the first data that no piece holds.
func (r *rotator) punchTaken(f *os.File, pieces []logPiece) error {
	_, size, err := blocksOf(f)
	if err != nil {
		return err
	}
	start := int64(0)
	if len(pieces) > 0 {
		start = pieces[len(pieces)-1].to
	}
	if start, err = dataFrom(f, start); err != nil {
		return err
	}
	if end := min(start, size); end > 0 {
		if err := r.punch(f, end); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return nil
}

// hoarded tells the core that a copy must end for its output.
func (a *Agent) hoarded(ev Hoarded) {
	select {
	case a.results <- ev:
	case <-a.life.Done():
	}
}

// outputBeyond returns the disk space that the output files of a copy use beyond keepBytes
// each; with keepBytes zero, beyond their length.
func outputBeyond(dir string, keepBytes int64) (sum int64) {
	for _, stream := range streamFiles {
		info, err := os.Lstat(filepath.Join(dir, stream))
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && keepBytes > 0 {
			sum += max(st.Blocks*512-keepBytes, 0)
		} else if ok {
			sum += max(st.Blocks*512-info.Size(), 0)
		}
	}
	return sum
}
