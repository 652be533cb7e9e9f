package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"borg/borgmaster/audit"
	"borg/proto/borgpb"
)

const (
	// A file takes what comes in a day, and no more than this part of all bytes or
	// this many.
	filePart     = 64
	maxFileBytes = 64 << 20
	minFileBytes = 1 << 20
	oneDay       = 24 * time.Hour
	// The index of a file has a mark after so many bytes.
	markEveryBytes = 64 << 10
	// How much room is kept from one block to the next.
	maxBufBytes = 1 << 20
	filePrefix  = "events."
	indexSuffix = ".index"
)

// store is blocks in files. It may be used by many goroutines.
type store struct {
	dir       string
	bytes     int64
	fileBytes int64
	keep      time.Duration
	now       func() time.Time
	// Held while room is made; before mu.
	thinning sync.Mutex
	// When a file was looked at ahead. Guarded by thinning.
	weighed time.Time

	mu sync.Mutex
	// Oldest first; the last one is written. Guarded by mu, as is all that follows.
	files []*file
	// The last file, open; nil: it is opened with the next block.
	open     *os.File
	unsynced bool
	// Why the file before the last one was closed without a sync; nil: sync has told it.
	unsealed error
	// Room for the next block.
	buf []byte
	// What was wrong with the last file when it was opened.
	cutBytes int64
	// What was dropped of each user, and how much of it since this process began.
	dropped map[string]*borgpb.AuditRecord
	drops   uint64
}

// file is one file of a store.
type file struct {
	number uint64
	bytes  int64
	// When it was begun, and when it was last written.
	from, at time.Time
	// Its sparse index; nil: it is in the file's index file, or must be made.
	marks []mark
	// Bytes of each user in it; nil: it was not looked at yet.
	held shares
}

// mark says what is in a stretch of a file.
type mark struct {
	// Where it begins and ends.
	offset, end int64
	span        span
}

// openStore opens the files in dir, which is made when it is not there. The torn end
// of the last one is cut off. each is called with the blocks of the last file.
func openStore(dir string, keep time.Duration, bytes int64, now func() time.Time, each func(*borgpb.JournalBlock)) (*store, error) {
	s := &store{dir: dir, bytes: bytes, fileBytes: min(max(bytes/filePart, minFileBytes), maxFileBytes), keep: keep, now: now, dropped: map[string]*borgpb.AuditRecord{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the events: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of the events: %w", err)
	}
	for _, e := range entries {
		var number uint64
		rest, ok := strings.CutPrefix(e.Name(), filePrefix)
		if _, err := fmt.Sscanf(rest, "%d", &number); !ok || err != nil || rest != fmt.Sprintf("%08d", number) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("read the directory of the events: %w", err)
		}
		s.files = append(s.files, &file{number: number, bytes: info.Size(), from: info.ModTime(), at: info.ModTime()})
	}
	for _, d := range audit.ReadDrops(filepath.Join(dir, droppedName)) {
		s.dropped[d.Who] = d
	}
	if err := remove(filepath.Join(dir, thinName)); err != nil {
		return nil, err
	}
	slices.SortFunc(s.files, func(a, b *file) int { return int(int64(a.number) - int64(b.number)) })
	if len(s.files) == 0 {
		return s, nil
	}
	return s, s.resume(each)
}

// resume goes on after the last whole block of the last file.
func (s *store) resume(each func(*borgpb.JournalBlock)) error {
	last := s.files[len(s.files)-1]
	f, err := os.OpenFile(s.path(last.number), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the events: %w", err)
	}
	if !wholeMagic(f) {
		// Of no use as it is: it is kept, told as damaged, and followed by another.
		return f.Close()
	}
	good := int64(len(fileMagic))
	scan := &scanner{r: f, size: last.bytes, at: good}
	for scan.next() {
		b, ok, err := scan.body()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		if !ok {
			continue
		}
		last.add(scan.began, scan.at, scan.head.span)
		good = scan.at
		each(b)
	}
	if scan.err != nil {
		return errors.Join(fmt.Errorf("read the events: %w", scan.err), f.Close())
	}
	if s.cutBytes = last.bytes - good; s.cutBytes > 0 {
		if err := f.Truncate(good); err != nil {
			return errors.Join(fmt.Errorf("cut off a torn block of events: %w", err), f.Close())
		}
		last.bytes = good
	}
	// The process before this one may have ended before it synced.
	s.open, s.unsynced = f, true
	return nil
}

func wholeMagic(r io.ReaderAt) bool {
	magic := make([]byte, len(fileMagic))
	_, err := r.ReadAt(magic, 0)
	return err == nil && string(magic) == fileMagic
}

func (s *store) path(number uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf(filePrefix+"%08d", number))
}

// add notes a block in the index.
func (f *file) add(offset, end int64, sp span) {
	if n := len(f.marks); n > 0 && end-f.marks[n-1].offset <= markEveryBytes {
		m := &f.marks[n-1]
		m.end, m.span = end, m.span.with(sp)
		return
	}
	f.marks = append(f.marks, mark{offset, end, sp})
}

// append writes a block. When it returns without an error, the block outlives this
// process; it outlives the machine once it is synced. begun says that it is the
// first one of a file.
func (s *store) append(b *borgpb.JournalBlock) (begun bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, head, err := encode(s.buf, b, s.now().UnixNano())
	if err != nil {
		return false, err
	}
	if s.buf = data; cap(data) > maxBufBytes {
		s.buf = nil
	}
	if begun, err = s.room(int64(len(data))); err != nil {
		return false, err
	}
	last := s.files[len(s.files)-1]
	if _, err := s.open.WriteAt(data, last.bytes); err != nil {
		// What was written of it is written over by the next one.
		return false, fmt.Errorf("write events: %w", err)
	}
	last.add(last.bytes, last.bytes+int64(len(data)), head.span)
	last.bytes += int64(len(data))
	last.at = s.now()
	s.unsynced = true
	return begun, nil
}

// room makes sure that a file is open which takes so many bytes more, and drops the
// oldest files. The caller holds mu.
func (s *store) room(bytes int64) (begun bool, err error) {
	if s.open != nil {
		last := s.files[len(s.files)-1]
		if last.bytes+bytes > s.fileBytes && last.bytes > int64(len(fileMagic)) || s.now().Sub(last.from) > oneDay {
			if err := s.seal(); err != nil {
				return false, err
			}
		}
	}
	if s.open == nil {
		if err := s.begin(); err != nil {
			return false, err
		}
		begun = true
	}
	return begun, s.dropOld(bytes)
}

// seal ends the last file. The caller holds mu.
func (s *store) seal() error {
	f, last := s.open, s.files[len(s.files)-1]
	s.open = nil
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		s.unsealed = fmt.Errorf("close a file of events: %w", err)
		return s.unsealed
	}
	if err := os.WriteFile(s.path(last.number)+indexSuffix, putMarks(last.marks), 0o600); err != nil {
		return fmt.Errorf("write the index of a file of events: %w", err)
	}
	last.marks = nil
	return nil
}

// begin begins the next file. The caller holds mu.
func (s *store) begin() error {
	number := uint64(1)
	if len(s.files) > 0 {
		number = s.files[len(s.files)-1].number + 1
	}
	f, err := os.OpenFile(s.path(number), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("begin a file of events: %w", err)
	}
	if _, err := f.Write([]byte(fileMagic)); err != nil {
		return errors.Join(fmt.Errorf("begin a file of events: %w", err), f.Close(), os.Remove(f.Name()))
	}
	s.open = f
	s.files = append(s.files, &file{number: number, bytes: int64(len(fileMagic)), from: s.now(), at: s.now()})
	return nil
}

// dropOld removes what is beyond the bounds, never the file that is written. The
// caller holds mu.
func (s *store) dropOld(more int64) error {
	total := more
	for _, f := range s.files {
		total += f.bytes
	}
	for len(s.files) > 1 && (total > s.bytes || s.now().Sub(s.files[0].at) > s.keep) {
		path := s.path(s.files[0].number)
		if total > s.bytes && s.now().Sub(s.files[0].at) <= s.keep {
			// There was no time to make room otherwise.
			drops, err := s.countAll(s.files[0])
			if err = errors.Join(err, s.keepDropped(drops)); err != nil {
				return err
			}
		}
		if err := errors.Join(remove(path), remove(path+indexSuffix)); err != nil {
			return err
		}
		total -= s.files[0].bytes
		s.files = slices.Delete(s.files, 0, 1)
	}
	return nil
}

// sync makes what was written outlive the machine. After an error the disk may lack
// everything since the last sync that succeeded, also if the next one does.
func (s *store) sync() error {
	s.mu.Lock()
	f, unsynced, unsealed := s.open, s.unsynced, s.unsealed
	s.unsynced, s.unsealed = unsynced && unsealed != nil, nil
	s.mu.Unlock()
	if unsealed != nil {
		return unsealed
	}
	if f == nil || !unsynced {
		return nil
	}
	err := f.Sync()
	if errors.Is(err, os.ErrClosed) {
		// It was closed meanwhile, and another one may have been begun.
		return s.sync()
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unsynced = true
		return fmt.Errorf("sync the events: %w", err)
	}
	return nil
}

func (s *store) close() error {
	err := s.sync()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil {
		err = errors.Join(err, s.open.Close())
		s.open = nil
	}
	return err
}

// size is how many bytes and files there are, and how much was dropped of users who
// passed their share.
func (s *store) size() (bytes int64, files int, drops int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		bytes += f.bytes
	}
	return bytes, len(s.files), int64(s.drops)
}

// reading is a file that is read: open, with its index, so that it may be dropped or
// replaced meanwhile.
type reading struct {
	f     *os.File
	bytes int64
	marks []mark
	path  string
	// Nil: there is none.
	indexFile *os.File
}

func (r *reading) close() {
	r.f.Close()
	if r.indexFile != nil {
		r.indexFile.Close()
	}
}

// openAll opens all files.
func (s *store) openAll() (all []reading, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		o, err := os.Open(s.path(f.number))
		if err != nil {
			return all, fmt.Errorf("read the events: %w", err)
		}
		r := reading{f: o, bytes: f.bytes, marks: slices.Clone(f.marks), path: o.Name()}
		if r.marks == nil {
			r.indexFile, _ = os.Open(r.path + indexSuffix)
		}
		all = append(all, r)
	}
	return all, nil
}

// read calls f with each block in which something may be in [since, until); zeros
// are no bounds. What is damaged is told as a gap that has no indexes. Before each block it
// calls step, and ends if that returns an error.
func (s *store) read(since, until int64, pick Pick, step func() error, f func(*borgpb.JournalBlock) error) error {
	all, err := s.openAll()
	defer func() {
		for _, r := range all {
			r.close()
		}
	}()
	if err != nil {
		return err
	}
	for i := range all {
		if err := all[i].each(since, until, pick, step, f); err != nil {
			return err
		}
	}
	return nil
}

func (r *reading) each(since, until int64, pick Pick, step func() error, f func(*borgpb.JournalBlock) error) error {
	damaged := func(at, bytes int64) error {
		if bytes <= 0 {
			return nil
		}
		why := fmt.Sprintf("%s is damaged: %d bytes from byte %d on", filepath.Base(r.path), bytes, at)
		return f(&borgpb.JournalBlock{Gaps: []*borgpb.AuditHole{{Why: why}}})
	}
	if !wholeMagic(r.f) {
		return damaged(0, max(r.bytes, 1))
	}
	stretches := []mark{{int64(len(fileMagic)), r.bytes, span{}}}
	if marks := r.index(); len(marks) > 0 {
		stretches = marks
	}
	at := int64(len(fileMagic))
	var room []byte
	for _, m := range stretches {
		if err := damaged(at, m.offset-at); err != nil {
			return err
		}
		if at = m.end; !m.span.touches(since, until) {
			continue
		}
		scan := &scanner{r: r.f, size: m.end, at: m.offset, pick: pick, data: room}
		for more := true; more; {
			if err := step(); err != nil {
				return err
			}
			more = scan.next()
			if err := damaged(scan.began-scan.damaged, scan.damaged); err != nil {
				return err
			}
			if !more || !scan.head.span.touches(since, until) {
				continue
			}
			b, ok, err := scan.body()
			room = scan.data
			switch {
			case err == nil && ok && b != nil:
				err = f(b)
			case err == nil && !ok:
				err = damaged(scan.began, scan.at-scan.began)
			}
			if err != nil {
				return err
			}
		}
		if scan.err != nil {
			return fmt.Errorf("read the events: %w", scan.err)
		}
	}
	return damaged(at, r.bytes-at)
}

// index is the sparse index of the file; none: it must be read as a whole.
func (r *reading) index() []mark {
	if r.marks != nil {
		return r.marks
	}
	if r.indexFile == nil {
		return nil
	}
	data, err := io.ReadAll(io.NewSectionReader(r.indexFile, 0, r.bytes))
	if err != nil {
		return nil
	}
	marks := takeMarks(data)
	at := int64(len(fileMagic))
	for _, m := range marks {
		if m.offset < at || m.end < m.offset || m.end > r.bytes {
			return nil
		}
		at = m.end
	}
	return marks
}

const markBytes = 4 * 8

func putMarks(marks []mark) []byte {
	b := make([]byte, 0, len(marks)*markBytes+4)
	for _, m := range marks {
		for _, n := range []int64{m.offset, m.end, m.span.firstNs, m.span.lastNs} {
			b = binary.BigEndian.AppendUint64(b, uint64(n))
		}
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// takeMarks reads an index; nil: it was not written so.
func takeMarks(b []byte) (marks []mark) {
	if len(b) < 4 || (len(b)-4)%markBytes != 0 || binary.BigEndian.Uint32(b[len(b)-4:]) != crc32.Checksum(b[:len(b)-4], castagnoli) {
		return nil
	}
	for b = b[:len(b)-4]; len(b) > 0; b = b[markBytes:] {
		n := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[i*8:])) }
		marks = append(marks, mark{n(0), n(1), span{n(2), n(3)}})
	}
	return marks
}
