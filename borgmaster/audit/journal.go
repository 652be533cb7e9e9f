package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// A file of a journal is a magic, the hash of the last batch before it, and frames. A
// frame of a batch is length (4 bytes, big-endian), hash, data; the hash is SHA-256 over
// the hash before it and the data. A frame whose length is one of these marks has no
// data: it holds how often a refusal was repeated, or the hash that the next file
// follows where batches before it were dropped.
const (
	fileMagic  = "borgaud1"
	headBytes  = len(fileMagic) + sha256.Size
	frameBytes = 4 + sha256.Size

	countMark = 1<<32 - 1
	joinMark  = 1<<32 - 2
)

// limits bound a journal.
type limits struct {
	// Of all files together, and of one file.
	bytes, fileBytes int64
	age              time.Duration
}

// pool is the most that the records of admins, or those of everybody else, take. One
// file's worth is left for a file that is being rewritten, and one for the file that
// is written.
func (l limits) pool(admins bool) int64 {
	quarter := (l.bytes - 2*l.fileBytes) / 4
	if admins {
		return quarter
	}
	return 3 * quarter
}

// journal is batches of records in files. It may be used by many goroutines.
type journal struct {
	dir, name string
	limits    limits
	now       func() time.Time
	// Held while old records are dropped; before mu.
	dropping sync.Mutex

	mu sync.Mutex
	// Oldest first; the last one is written. Guarded by mu, as is all that
	// follows.
	files []*journalFile
	// The last file, open; nil: it is opened with the next batch.
	open *os.File
	// Hash of the last batch.
	chain [sha256.Size]byte
	// Something is not synced.
	unsynced bool
	// A sync of the last file failed.
	doubted bool
	// Room for the next batches, with their frames.
	buf []byte
	// What was dropped of each share since it began to pass its bound.
	dropped map[share]*borgpb.AuditRecord
	// Records that were dropped since this process began.
	drops uint64
}

// maxBufBytes is how much room is kept from one batch to the next.
const maxBufBytes = 256 << 10

// journalFile is one file. All but the last one never change: a file that lost records
// is replaced by another one.
type journalFile struct {
	// The numbers of the files that it stands for, which are more than one after
	// files that had become small were joined.
	number, last uint64
	bytes        int64
	// When it was begun, or was there when the journal was opened; and when it was
	// last written.
	from, at time.Time
	// Bytes of each share; nil: it was not read yet.
	held tally
	// It does not go on as it was written, and is left as it is.
	damaged bool
}

// place is where the count of a refusal stands; zero: nowhere.
type place struct {
	number uint64
	offset int64
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
		f := &journalFile{}
		rest, ok := strings.CutPrefix(e.Name(), name+".")
		if !ok || !f.named(rest) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("read the directory of the audit: %w", err)
		}
		f.bytes, f.from, f.at = info.Size(), info.ModTime(), info.ModTime()
		j.files = append(j.files, f)
	}
	if err := j.removeReplaced(); err != nil {
		return nil, err
	}
	j.dropped = readDropped(j.droppedPath())
	if err := os.Remove(j.tmpPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove what was left of the audit: %w", err)
	}
	if len(j.files) == 0 {
		return j, nil
	}
	return j, j.resume(last)
}

// resume goes on where the last file ends well.
func (j *journal) resume(last func(*borgpb.AuditBatch)) error {
	tail := j.files[len(j.files)-1]
	path := j.path(tail)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the audit: %w", err)
	}
	r := &fileReader{r: io.NewSectionReader(f, 0, tail.bytes)}
	var batch *borgpb.AuditBatch
	tail.held = tally{}
	err = r.each(func(b *borgpb.AuditBatch) error {
		batch = b
		tail.held[shareOf(b.Records[0])] += r.frame
		return nil
	})
	var bad *damagedError
	if err != nil && !errors.As(err, &bad) {
		return errors.Join(err, f.Close())
	}
	if batch == nil {
		var failed error
		if batch, failed = j.lastBefore(); failed != nil {
			return errors.Join(failed, f.Close())
		}
	}
	if batch != nil {
		last(batch)
	}
	j.chain = r.chain
	if err != nil {
		// The end of a crash, or worse: it is left as it is, and told as a hole. The
		// next batch begins the next file.
		tail.setDamaged()
		return f.Close()
	}
	// The process before this one may have ended before it synced.
	j.open, j.unsynced = f, true
	return nil
}

// lastBefore returns the last batch of the files before the last one, or nil if there is
// none: the last file may have been begun without one, or lost it.
func (j *journal) lastBefore() (batch *borgpb.AuditBatch, err error) {
	for i := len(j.files) - 2; batch == nil && i >= 0; i-- {
		err := j.readClosed(j.files[i], func(b *borgpb.AuditBatch, _ *fileReader) error {
			batch = b
			return nil
		})
		var bad *damagedError
		if err != nil && !errors.As(err, &bad) {
			return nil, err
		}
	}
	return batch, nil
}

func (j *journal) path(f *journalFile) string {
	name := fmt.Sprintf("%s.%08d", j.name, f.number)
	if f.last != f.number {
		name += fmt.Sprintf("-%08d", f.last)
	}
	return filepath.Join(j.dir, name)
}

// named reads the numbers off the name of a file.
func (f *journalFile) named(text string) bool {
	first, last, joined := strings.Cut(text, "-")
	var err error
	if f.number, err = strconv.ParseUint(first, 10, 64); err != nil {
		return false
	}
	if f.last = f.number; joined {
		f.last, err = strconv.ParseUint(last, 10, 64)
	}
	return err == nil && f.number > 0 && f.last >= f.number
}

// removeReplaced sorts the files and removes those that a joined one stands for: the
// process ended between the two.
func (j *journal) removeReplaced() error {
	slices.SortFunc(j.files, func(a, b *journalFile) int {
		return cmp.Or(cmp.Compare(a.number, b.number), -cmp.Compare(a.last, b.last))
	})
	through := uint64(0)
	for i := 0; i < len(j.files); {
		f := j.files[i]
		if f.number > through {
			through = f.last
			i++
			continue
		}
		if err := os.Remove(j.path(f)); err != nil {
			return fmt.Errorf("remove a file of the audit that was replaced: %w", err)
		}
		j.files = slices.Delete(j.files, i, i+1)
	}
	return nil
}

// append writes batches, of one record or several of the same share each. When it
// returns without an error, they outlive this process; they outlive the machine once
// they are synced. It returns the place of the count of each batch that is a refusal.
func (j *journal) append(batches ...*borgpb.AuditBatch) ([]place, error) {
	for tries := 0; ; tries++ {
		places, full, err := j.tryAppend(batches, tries == maxTries)
		if err != nil || !full {
			return places, err
		}
		if err := j.drop(); err != nil {
			return nil, err
		}
	}
}

// maxTries is how often room is made for batches. What is larger than a file is written
// all the same, and the next ones make room for it.
const maxTries = 3

// tryAppend is append, unless there is no room before old records are dropped. It does not
// ask with force.
func (j *journal) tryAppend(batches []*borgpb.AuditBatch, force bool) (places []place, full bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	data, held, counts, chain := j.buf[:0], tally{}, make([]int, len(batches)), j.chain
	for i, b := range batches {
		at := len(data)
		data, err = proto.MarshalOptions{}.MarshalAppend(slices.Grow(data, frameBytes)[:at+frameBytes], b)
		if err != nil {
			return nil, false, fmt.Errorf("encode an audit record: %w", err)
		}
		chain = chained(chain, data[at+frameBytes:])
		putFrame(data[at:], uint32(len(data)-at-frameBytes), chain)
		if r := b.Records[0]; r.Refusal != nil {
			counts[i] = len(data)
			data = counter{1, r.WallNs}.appendTo(data)
		}
		held[shareOf(b.Records[0])] += int64(len(data) - at)
	}
	if j.buf = data; cap(data) > maxBufBytes {
		j.buf = nil
	}
	more := int64(len(data))
	if full, err := j.room(more, force); err != nil || full {
		return nil, full, err
	}
	file := j.files[len(j.files)-1]
	if _, err := j.open.WriteAt(data, file.bytes); err != nil {
		// What was written of it is written over by the next one.
		return nil, false, fmt.Errorf("write an audit record: %w", err)
	}
	places = make([]place, len(batches))
	for i, at := range counts {
		if at > 0 {
			places[i] = place{file.number, file.bytes + int64(at)}
		}
	}
	for s, n := range held {
		file.held[s] += n
	}
	file.bytes += more
	file.at = j.now()
	j.chain, j.unsynced = chain, true
	return places, false, nil
}

func putFrame(frame []byte, length uint32, hash [sha256.Size]byte) {
	binary.BigEndian.PutUint32(frame, length)
	copy(frame[4:], hash[:])
}

// room makes sure that a file is open which takes so many bytes more, and drops the
// files that are too old. It reports whether records must be dropped first. The caller
// holds mu.
func (j *journal) room(bytes int64, force bool) (full bool, err error) {
	if j.open != nil && (j.files[len(j.files)-1].bytes+bytes > j.limits.fileBytes || j.now().Sub(j.files[len(j.files)-1].from) > oneDay) {
		if err := j.seal(); err != nil {
			return false, err
		}
	}
	if err := j.dropAged(); err != nil {
		return false, err
	}
	// A file that is rewritten needs room meanwhile, and so does what was dropped.
	if !force && j.total()+int64(headBytes)+bytes > j.limits.bytes-j.limits.fileBytes*9/8 && len(j.files) > 1 {
		return true, nil
	}
	if j.open == nil {
		return false, j.next()
	}
	return false, nil
}

// seal ends the file that is written. The caller holds mu.
func (j *journal) seal() error {
	if j.open == nil {
		return nil
	}
	err := errors.Join(j.open.Sync(), j.open.Close())
	j.open, j.doubted = nil, false
	if err != nil {
		return fmt.Errorf("close a file of the audit: %w", err)
	}
	return nil
}

// total is the size of all files. The caller holds mu.
func (j *journal) total() (bytes int64) {
	for _, f := range j.files {
		bytes += f.bytes
	}
	return bytes
}

// next begins the next file. The caller holds mu.
func (j *journal) next() error {
	file := &journalFile{number: 1, bytes: int64(headBytes), from: j.now(), at: j.now(), held: tally{}}
	if len(j.files) > 0 {
		file.number = j.files[len(j.files)-1].last + 1
	}
	file.last = file.number
	f, err := os.OpenFile(j.path(file), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("begin a file of the audit: %w", err)
	}
	if _, err := f.Write(append([]byte(fileMagic), j.chain[:]...)); err != nil {
		return errors.Join(fmt.Errorf("begin a file of the audit: %w", err), f.Close(), os.Remove(f.Name()))
	}
	j.open = f
	j.files = append(j.files, file)
	return nil
}

// dropAged removes the files that are too old, never the one that is written. The
// caller holds mu.
func (j *journal) dropAged() error {
	for len(j.files) > 1 && j.now().Sub(j.files[0].at) > j.limits.age {
		if err := j.removeOldest(); err != nil {
			return err
		}
	}
	return nil
}

// removeOldest removes the oldest file. The caller holds mu.
func (j *journal) removeOldest() error {
	if err := os.Remove(j.path(j.files[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("drop the oldest file of the audit: %w", err)
	}
	j.files = slices.Delete(j.files, 0, 1)
	return nil
}

// recount writes the count of a refusal anew. It reports whether it could: not once its
// file is no longer the one that is written.
func (j *journal) recount(at place, c counter) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open == nil || j.files[len(j.files)-1].number != at.number {
		return false
	}
	if _, err := j.open.WriteAt(c.appendTo(nil), at.offset); err != nil {
		return false
	}
	j.unsynced = true
	return true
}

// sync makes what was written outlive the machine. After a sync that failed the disk may lack
// what it was to write, also if the next one succeeds. Readers then find the file damaged, and
// what follows it in the file is not read: so the next batch begins another one.
func (j *journal) sync() error {
	j.mu.Lock()
	f, unsynced := j.open, j.unsynced
	j.unsynced = false
	j.mu.Unlock()
	if f == nil || !unsynced {
		return nil
	}
	err := f.Sync()
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.open != f:
		// It was closed meanwhile, and synced before that.
		return nil
	case err != nil:
		j.unsynced, j.doubted = true, true
		return fmt.Errorf("sync the audit: %w", err)
	case j.doubted:
		return j.seal()
	}
	return nil
}

// end returns the hash of the last batch.
func (j *journal) end() [sha256.Size]byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.chain
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seal()
}
