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
	// of the data written to it.
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

// judge reports a copy whose output uses more disk than its data and the preallocation of a
// file system explain.
func (r *rotator) judge(id ID, heldBytes, dataBytes int64) {
	if aside := heldBytes - dataBytes; aside > r.keepBytes+aheadPart*dataBytes {
		r.hoarded(Hoarded{ID: id, Why: fmt.Sprintf("its output took %s of disk for nothing that it wrote; the bound of an output stream is %s", mib(aside), mib(r.keepBytes))})
	}
}

// cutBack frees the disk space that a stream uses beyond its data, after rotation removed its
// oldest part.
func (r *rotator) cutBack(f *os.File, path string, pieces []logPiece) error {
	start := int64(0)
	if len(pieces) > 0 {
		start = pieces[len(pieces)-1].to
	}
	held, size, err := blocksOf(f)
	if err != nil {
		return err
	}
	start, err = dataFrom(f, start)
	if err != nil {
		return err
	}
	beyond := func() int64 { return held - max(size-start, 0) }
	if beyond() <= r.keepBytes {
		return nil
	}
	// In the hole that rotation punched before.
	if end := min(start, size); end > 0 {
		if err := r.punch(f, end); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	if held, size, err = blocksOf(f); err == nil && beyond() > r.keepBytes {
		// Beyond the end no hole can be punched. Truncating also drops what the task wrote
		// since its length was read, which only harms a writer that cheats.
		if err = f.Truncate(size); err == nil {
			held, size, err = blocksOf(f)
		}
	}
	if err != nil {
		return fmt.Errorf("give back what a log takes behind its end: %w", err)
	}
	if beyond() > r.keepBytes {
		// The space is not in the file's data. The next run gets another file.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a log: %w", err)
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
