package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

const (
	// maxBatchBytes is the largest batch; larger ones are not ours.
	maxBatchBytes = 64 << 20
	// A file that was last written so long ago goes. A file takes what comes in a
	// day.
	maxDays = 30
	oneDay  = 24 * time.Hour
)

// A file of a journal is a magic, the hash of the last batch of the file before
// it, and batches: length (4 bytes, big-endian), hash, data. The hash is SHA-256
// over the hash before it and the data.
const (
	fileMagic   = "borgaud1"
	headBytes   = len(fileMagic) + sha256.Size
	frameBytes  = 4 + sha256.Size
	filePattern = "%s.%08d"
)

// limits bound a journal.
type limits struct {
	// Of all files together, and of one file.
	bytes, fileBytes int64
	age              time.Duration
}

// journal is batches of records in files. It may be used by many goroutines.
type journal struct {
	dir, name string
	limits    limits
	now       func() time.Time

	mu sync.Mutex
	// Oldest first; the last one is written. Guarded by mu, as is all that
	// follows.
	files []journalFile
	// The last file, open; nil: it is opened with the next batch.
	open *os.File
	// Hash of the last batch.
	chain [sha256.Size]byte
	// Something is not synced.
	unsynced bool
	// Room for the next batch, with its frame.
	buf []byte
}

// maxBufBytes is how much room is kept from one batch to the next.
const maxBufBytes = 256 << 10

type journalFile struct {
	number uint64
	bytes  int64
	// When it was begun, or was there when the journal was opened; and when it was
	// last written.
	from, at time.Time
}

// openJournal opens the journal of that name in dir, which is made when it is not
// there. last is called with the last batch, if there is one.
func openJournal(dir, name string, limits limits, now func() time.Time, last func(*borgpb.AuditBatch)) (*journal, error) {
	j := &journal{dir: dir, name: name, limits: limits, now: now}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the audit: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of the audit: %w", err)
	}
	for _, e := range entries {
		var number uint64
		rest, ok := strings.CutPrefix(e.Name(), name+".")
		if _, err := fmt.Sscanf(rest, "%d", &number); !ok || err != nil || number == 0 {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("read the directory of the audit: %w", err)
		}
		j.files = append(j.files, journalFile{number, info.Size(), info.ModTime(), info.ModTime()})
	}
	slices.SortFunc(j.files, func(a, b journalFile) int { return int(int64(a.number) - int64(b.number)) })
	if len(j.files) == 0 {
		return j, nil
	}
	return j, j.resume(last)
}

// resume goes on where the last file ends well.
func (j *journal) resume(last func(*borgpb.AuditBatch)) error {
	tail := &j.files[len(j.files)-1]
	path := j.path(tail.number)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the audit: %w", err)
	}
	r := &fileReader{r: io.NewSectionReader(f, 0, tail.bytes)}
	var batch *borgpb.AuditBatch
	err = r.each(func(b *borgpb.AuditBatch) error { batch = b; return nil })
	if batch != nil {
		last(batch)
	}
	var bad *damagedError
	if err != nil && !errors.As(err, &bad) {
		return errors.Join(err, f.Close())
	}
	j.chain = r.chain
	if err != nil {
		// The end of a crash, or worse: it is left as it is, and told as a hole. The
		// next batch begins the next file.
		return f.Close()
	}
	j.open = f
	return nil
}

func (j *journal) path(number uint64) string {
	return filepath.Join(j.dir, fmt.Sprintf(filePattern, j.name, number))
}

// append writes a batch. When it returns without an error, the batch outlives
// this process; it outlives the machine once it is synced.
func (j *journal) append(batch *borgpb.AuditBatch) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	frame, err := proto.MarshalOptions{}.MarshalAppend(slices.Grow(j.buf[:0], frameBytes)[:frameBytes], batch)
	if err != nil {
		return fmt.Errorf("encode an audit record: %w", err)
	}
	if j.buf = frame; cap(frame) > maxBufBytes {
		j.buf = nil
	}
	if err := j.room(int64(len(frame))); err != nil {
		return err
	}
	file := &j.files[len(j.files)-1]
	data := frame[frameBytes:]
	hash := chained(j.chain, data)
	binary.BigEndian.PutUint32(frame, uint32(len(data)))
	copy(frame[4:], hash[:])
	if _, err := j.open.WriteAt(frame, file.bytes); err != nil {
		// What was written of it is written over by the next one.
		return fmt.Errorf("write an audit record: %w", err)
	}
	file.bytes += int64(len(frame))
	file.at = j.now()
	j.chain, j.unsynced = hash, true
	return nil
}

// room makes sure that a file is open which takes so many bytes more, and drops
// the oldest files. The caller holds mu.
func (j *journal) room(bytes int64) error {
	if j.open != nil && (j.files[len(j.files)-1].bytes+bytes > j.limits.fileBytes || j.now().Sub(j.files[len(j.files)-1].from) > oneDay) {
		if err := errors.Join(j.open.Sync(), j.open.Close()); err != nil {
			j.open = nil
			return fmt.Errorf("close a file of the audit: %w", err)
		}
		j.open = nil
	}
	if j.open == nil {
		if err := j.next(); err != nil {
			return err
		}
	}
	return j.dropOld(bytes)
}

// next begins the next file. The caller holds mu.
func (j *journal) next() error {
	number := uint64(1)
	if len(j.files) > 0 {
		number = j.files[len(j.files)-1].number + 1
	}
	f, err := os.OpenFile(j.path(number), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("begin a file of the audit: %w", err)
	}
	if _, err := f.Write(append([]byte(fileMagic), j.chain[:]...)); err != nil {
		return errors.Join(fmt.Errorf("begin a file of the audit: %w", err), f.Close(), os.Remove(f.Name()))
	}
	j.open = f
	j.files = append(j.files, journalFile{number, int64(headBytes), j.now(), j.now()})
	return nil
}

// dropOld removes what is beyond the bounds, never the file that is written. The
// caller holds mu.
func (j *journal) dropOld(more int64) error {
	total := more
	for _, f := range j.files {
		total += f.bytes
	}
	for len(j.files) > 1 && (total > j.limits.bytes || j.now().Sub(j.files[0].at) > j.limits.age) {
		if err := os.Remove(j.path(j.files[0].number)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("drop the oldest file of the audit: %w", err)
		}
		total -= j.files[0].bytes
		j.files = slices.Delete(j.files, 0, 1)
	}
	return nil
}

// sync makes what was written outlive the machine.
func (j *journal) sync() error {
	j.mu.Lock()
	f, unsynced := j.open, j.unsynced
	j.unsynced = false
	j.mu.Unlock()
	if f == nil || !unsynced {
		return nil
	}
	// A file that was closed meanwhile was synced before that.
	if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("sync the audit: %w", err)
	}
	return nil
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open == nil {
		return nil
	}
	err := errors.Join(j.open.Sync(), j.open.Close())
	j.open = nil
	return err
}

// each calls f with every batch, oldest first. What is appended meanwhile may be
// missing. A damaged file is told as a hole.
func (j *journal) each(f func(*borgpb.AuditBatch) error) error {
	opened, err := j.reading()
	defer func() {
		for _, o := range opened {
			o.f.Close()
		}
	}()
	if err != nil {
		return err
	}
	for i, o := range opened {
		r := &fileReader{r: io.NewSectionReader(o.f, 0, o.bytes)}
		err := r.each(f)
		var bad *damagedError
		if errors.As(err, &bad) {
			why := fmt.Sprintf("%s is damaged from byte %d on", filepath.Base(o.f.Name()), r.good)
			err = f(&borgpb.AuditBatch{Records: []*borgpb.AuditRecord{{Hole: &borgpb.AuditHole{Why: why}}}})
		}
		if err == nil && i+1 < len(opened) && !opened[i+1].follows(r.chain) {
			why := fmt.Sprintf("%s does not follow %s: something between them is gone", filepath.Base(opened[i+1].f.Name()), filepath.Base(o.f.Name()))
			err = f(&borgpb.AuditBatch{Records: []*borgpb.AuditRecord{{Hole: &borgpb.AuditHole{Why: why}}}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type openFile struct {
	f     *os.File
	bytes int64
}

// follows says whether a file begins where the chain stood.
func (o openFile) follows(chain [sha256.Size]byte) bool {
	head := make([]byte, headBytes)
	_, err := o.f.ReadAt(head, 0)
	return err == nil && bytes.Equal(head[len(fileMagic):], chain[:])
}

// reading opens all files, so that none is dropped while it is read.
func (j *journal) reading() ([]openFile, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var opened []openFile
	for _, file := range j.files {
		f, err := os.Open(j.path(file.number))
		if err != nil {
			return opened, fmt.Errorf("read the audit: %w", err)
		}
		opened = append(opened, openFile{f, file.bytes})
	}
	return opened, nil
}

// damagedError says that a file does not go on as it was written.
type damagedError struct{ why string }

func (e *damagedError) Error() string { return e.why }

// fileReader reads one file.
type fileReader struct {
	r io.Reader
	// How far it was right, and the hash there.
	good  int64
	chain [sha256.Size]byte
}

func (r *fileReader) each(f func(*borgpb.AuditBatch) error) error {
	buffered := bufio.NewReader(r.r)
	head := make([]byte, headBytes)
	if _, err := io.ReadFull(buffered, head); err != nil || string(head[:len(fileMagic)]) != fileMagic {
		return &damagedError{"no head"}
	}
	copy(r.chain[:], head[len(fileMagic):])
	r.good = int64(headBytes)
	frame := make([]byte, frameBytes)
	for {
		if _, err := io.ReadFull(buffered, frame); err == io.EOF {
			return nil
		} else if err != nil {
			return &damagedError{"half a frame"}
		}
		size := binary.BigEndian.Uint32(frame)
		if size > maxBatchBytes {
			return &damagedError{"a frame that is too long"}
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(buffered, data); err != nil {
			return &damagedError{"half a batch"}
		}
		hash := chained(r.chain, data)
		batch := new(borgpb.AuditBatch)
		if !bytes.Equal(hash[:], frame[4:]) || proto.Unmarshal(data, batch) != nil {
			return &damagedError{"a batch that was not written so"}
		}
		r.chain = hash
		r.good += int64(frameBytes) + int64(size)
		if err := f(batch); err != nil {
			return err
		}
	}
}

func chained(before [sha256.Size]byte, data []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(before[:])
	h.Write(data)
	return [sha256.Size]byte(h.Sum(nil))
}
