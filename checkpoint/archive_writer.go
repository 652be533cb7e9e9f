package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"

	"borg/proto/borgpb"
)

// segmentTargetBytes and segmentTargetNs are where a segment is ended: what is
// dropped is dropped by the segment.
const (
	segmentTargetBytes = 32 << 20
	segmentTargetNs    = 3600_000_000_000
)

// ArchiveWriter adds to the archive of one replica. One goroutine uses it.
type ArchiveWriter struct {
	fs   vfs.FS
	dir  string
	id   *borgpb.ReplicaIdentity
	zstd *zstd.Encoder

	// All files, in no order.
	held []Held
	// The epoch that is written.
	epoch uint64
	// The segment being written; nil: the next entry begins one.
	file    vfs.File
	segment *segmentWriter
	current Held
	begunNs int64
	// What the next segment goes on from: the last entry that is written, and the
	// sum of its frame.
	last uint64
	sum  []byte
	// Why last+1 is not what comes next; empty: it is.
	gap string
	// The same of what outlives the machine.
	synced    uint64
	syncedSum []byte
	// The first entry of those up to last that have no gap between them.
	stretch uint64
	// Segments that a failure left behind and that count for nothing. No other is
	// begun beside them: who finds both could not tell which of them counts.
	stale []string
}

// OpenArchiveWriter opens the archive in dir, which is made when it is not there,
// to add to an epoch of the cell of id. It reads the last segment whole, and
// begins the next one after what of it is good.
func OpenArchiveWriter(fs vfs.FS, dir string, id *borgpb.ReplicaIdentity, epoch uint64) (*ArchiveWriter, error) {
	fs = orDisk(fs)
	if err := makeDir(fs, dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the archive %s: %w", dir, err)
	}
	enc, err := newSegmentEncoder()
	if err != nil {
		return nil, err
	}
	w := &ArchiveWriter{fs: fs, dir: dir, id: id, zstd: enc, epoch: epoch}
	if err := w.sweep(); err != nil {
		return nil, err
	}
	a, err := OpenArchive(fs, dir)
	if err != nil {
		return nil, err
	}
	if err := w.belongs(a); err != nil {
		return nil, err
	}
	for _, k := range a.kept {
		w.held = append(w.held, heldCheckpoint(k))
	}
	for i, s := range a.segments {
		if h := s.Header; h.GetEpoch() == epoch && h.GetPreviousIndex()+1 != h.GetFirstIndex() {
			w.stretch = h.GetFirstIndex()
		}
		h := Held{Name: s.Name, Epoch: s.Header.GetEpoch(), Index: s.Header.GetFirstIndex(), WallNs: s.Header.GetWallTimeNs(), Bytes: s.Bytes}
		if i+1 < len(a.segments) {
			h.WallNs = a.segments[i+1].Header.GetWallTimeNs()
		}
		w.held = append(w.held, h)
	}
	if err := w.resume(a); err != nil {
		return nil, err
	}
	return w, w.setAside(a)
}

// setAside renames segments that begin after the last entry and cannot be read:
// a crash may leave such a one that was just begun. What they may have held is
// appended again, or told to be missing.
func (w *ArchiveWriter) setAside(a *Archive) error {
	for _, d := range a.damaged {
		epoch, first, isCheckpoint, _ := parseName(d.Name)
		if isCheckpoint || epoch != w.epoch || first <= w.last {
			continue
		}
		path := w.fs.PathJoin(w.dir, d.Name)
		if err := w.fs.Rename(path, path+damagedSuffix); err != nil {
			return fmt.Errorf("set a segment of the change log aside that cannot be read: %w", err)
		}
		if err := syncDir(w.fs, w.dir); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes checkpoints that were not finished.
func (w *ArchiveWriter) sweep() error {
	names, err := w.fs.List(w.dir)
	if err != nil {
		return fmt.Errorf("list the archive %s: %w", w.dir, err)
	}
	for _, name := range names {
		if base, ok := strings.CutSuffix(name, partialSuffix); ok {
			if _, _, _, ours := parseName(base); ours {
				if err := w.fs.Remove(w.fs.PathJoin(w.dir, name)); err != nil {
					return fmt.Errorf("remove an unfinished checkpoint of the archive: %w", err)
				}
			}
		}
	}
	return nil
}

func (w *ArchiveWriter) belongs(a *Archive) error {
	found := ""
	for _, k := range a.kept {
		found = k.Header.GetCellId()
	}
	for _, s := range a.segments {
		found = s.Header.GetCellId()
	}
	if found != "" && found != w.id.GetCellId() {
		return fmt.Errorf("the archive %s is of the cell with the id %s, and this replica's has %s; move it away", w.dir, found, w.id.GetCellId())
	}
	return nil
}

// resume finds the last entry of the epoch that is written well. A segment
// without any is removed, for the next one has its name.
func (w *ArchiveWriter) resume(a *Archive) error {
	for _, s := range slices.Backward(a.segments) {
		if s.Header.GetEpoch() != w.epoch {
			continue
		}
		f, err := a.OpenSegment(s)
		if err != nil {
			return err
		}
		r, err := newSegmentReader(f)
		if err == nil {
			for range r.entries() {
			}
		}
		if err2 := f.Close(); err == nil {
			err = err2
		}
		if err == nil && r.err != nil && !errors.Is(r.err, ErrDamaged) {
			err = r.err
		}
		if err != nil {
			return fmt.Errorf("read segment %s of the archive %s: %w", s.Name, w.dir, err)
		}
		if r.next == s.Header.GetFirstIndex() {
			if err := w.Drop([]string{s.Name}); err != nil {
				return err
			}
			continue
		}
		w.last, w.sum = r.next-1, slices.Clone(r.sum)
		if r.err != nil {
			return w.trim(s.Name, r.good)
		}
		return w.syncFile(s.Name)
	}
	return nil
}

// trim takes off the end of the segment that an earlier process wrote last what a
// crash has left there. A disk may have written a later part of the end and not an
// earlier one: to who reads the archive that looks like damage.
func (w *ArchiveWriter) trim(name string, good int64) error {
	path := w.fs.PathJoin(w.dir, name)
	err := func() error {
		from, err := w.fs.Open(path)
		if err != nil {
			return err
		}
		defer from.Close()
		to, err := w.fs.Create(path+partialSuffix, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, io.LimitReader(from, good))
		if err == nil {
			err = to.Sync()
		}
		if err = errors.Join(err, to.Close()); err == nil {
			err = w.fs.Rename(path+partialSuffix, path)
		}
		if err != nil {
			return errors.Join(err, w.fs.Remove(path+partialSuffix))
		}
		return syncDir(w.fs, w.dir)
	}()
	if err != nil {
		return fmt.Errorf("trim segment %s of the archive %s: %w", name, w.dir, err)
	}
	w.synced, w.syncedSum = w.last, w.sum
	return nil
}

// syncFile syncs what an earlier process wrote last.
func (w *ArchiveWriter) syncFile(name string) error {
	f, err := w.fs.OpenReadWrite(w.fs.PathJoin(w.dir, name), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Sync()
		if err2 := f.Close(); err == nil {
			err = err2
		}
	}
	if err == nil {
		// It may have ended before it could make the name outlive the machine.
		err = syncDir(w.fs, w.dir)
	}
	if err != nil {
		return fmt.Errorf("sync segment %s of the archive %s: %w", name, w.dir, err)
	}
	w.synced, w.syncedSum = w.last, w.sum
	return nil
}

// Epoch is the one that is written.
func (w *ArchiveWriter) Epoch() uint64 { return w.epoch }

// Last is the last entry that is written; zero: there is none in this epoch.
func (w *ArchiveWriter) Last() uint64 { return w.last }

// Synced is up to where entries outlive the machine.
func (w *ArchiveWriter) Synced() uint64 { return w.synced }

// Stretch is the first entry of those up to Last that have no gap between them.
func (w *ArchiveWriter) Stretch() uint64 { return w.stretch }

// Skip has the next entry be of another index than the one after the last.
func (w *ArchiveWriter) Skip(why string) { w.gap = why }

// Append writes entries of this epoch. After an error Last says what is written,
// which may be less than before; what follows can be appended again, or something
// later after Skip.
func (w *ArchiveWriter) Append(entries []PastEntry, wallNs int64) error {
	if len(entries) == 0 {
		return nil
	}
	first := entries[0].Index
	follows := first == w.last+1
	if w.last != 0 && !follows && w.gap == "" || first <= w.last {
		return fmt.Errorf("entry %d cannot follow entry %d in the change log", first, w.last)
	}
	if follows {
		w.gap = ""
	}
	if w.segment != nil && w.gap != "" {
		if err := w.endSegment(); err != nil {
			return err
		}
	}
	if w.segment == nil {
		if err := w.beginSegment(first, wallNs); err != nil {
			return err
		}
	}
	n, err := w.segment.add(entries)
	if n > 0 && !follows {
		w.stretch = first
	}
	if n > 0 {
		w.last, w.sum = entries[n-1].Index, slices.Clone(w.segment.sum)
	}
	w.current.Bytes, w.current.WallNs = w.segment.bytes, wallNs
	if err != nil {
		// Nothing can follow a frame that is written in part.
		return errors.Join(err, w.abandon(false))
	}
	if w.segment.bytes >= segmentTargetBytes || wallNs-w.begunNs >= segmentTargetNs {
		return w.endSegment()
	}
	return nil
}

func (w *ArchiveWriter) beginSegment(first uint64, wallNs int64) error {
	header := &borgpb.ChangeLogHeader{
		CellName: w.id.GetCellName(), CellId: w.id.GetCellId(), Epoch: w.epoch,
		FirstIndex: first, WallTimeNs: wallNs, PreviousIndex: w.last, PreviousSum: w.sum, Gap: w.gap,
	}
	if err := w.clear(); err != nil {
		return err
	}
	name := segmentName(w.epoch, first)
	path := w.fs.PathJoin(w.dir, name)
	f, err := w.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("begin a segment of the change log: %w", err)
	}
	sw, err := newSegmentWriter(f, w.zstd, header)
	if err == nil {
		err = syncDir(w.fs, w.dir)
	}
	if err != nil {
		w.stale = append(w.stale, name)
		return errors.Join(fmt.Errorf("begin a segment of the change log: %w", err), f.Close(), w.clear())
	}
	// One of the name that could not be removed is replaced.
	w.held = slices.DeleteFunc(w.held, func(h Held) bool { return h.Name == name })
	w.file, w.segment, w.gap, w.begunNs = f, sw, "", wallNs
	w.current = Held{Name: name, Epoch: w.epoch, Index: first, WallNs: wallNs, Bytes: sw.bytes}
	return nil
}

// endSegment ends a segment in order.
func (w *ArchiveWriter) endSegment() error {
	if w.segment == nil {
		return nil
	}
	if err := w.segment.seal(); err != nil {
		return errors.Join(fmt.Errorf("end segment %s of the change log: %w", w.current.Name, err), w.abandon(false))
	}
	w.sum = slices.Clone(w.segment.sum)
	w.current.Bytes = w.segment.bytes
	if err := w.Sync(); err != nil {
		return err
	}
	return w.letGo()
}

// letGo closes the segment.
func (w *ArchiveWriter) letGo() error {
	f := w.file
	w.file, w.segment = nil, nil
	w.held = append(w.held, w.current)
	return f.Close()
}

// abandon ends a segment after a failure. What of it does not outlive the machine
// counts as not written: the next segment names the last frame that does.
func (w *ArchiveWriter) abandon(syncFailed bool) (err error) {
	// A sync that failed may seem to succeed when it is tried again.
	if !syncFailed {
		if err = w.file.Sync(); err == nil {
			w.synced, w.syncedSum = w.last, w.sum
		}
	}
	w.last, w.sum = w.synced, w.syncedSum
	err = errors.Join(err, w.letGo())
	if w.last < w.current.Index {
		w.stale = append(w.stale, w.current.Name)
		err = errors.Join(err, w.clear())
	}
	return err
}

// clear removes what failures left behind.
func (w *ArchiveWriter) clear() error {
	if err := w.Drop(w.stale); err != nil {
		return err
	}
	w.stale = nil
	return nil
}

// Sync makes what was appended outlive the machine.
func (w *ArchiveWriter) Sync() error {
	if w.file == nil || w.synced == w.last && string(w.sum) == string(w.syncedSum) {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync the change log: %w", err), w.abandon(true))
	}
	w.synced, w.syncedSum = w.last, w.sum
	return nil
}

// AddCheckpoint writes a picture into the archive. It is there when it is whole
// and synced, under its name, and not before.
func (w *ArchiveWriter) AddCheckpoint(ctx context.Context, p *Picture, nowNs int64) (Kept, error) {
	h := p.Header()
	name := CheckpointName(h.GetEpoch(), h.GetIndex())
	path := w.fs.PathJoin(w.dir, name)
	f, err := w.fs.Create(path+partialSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return Kept{}, fmt.Errorf("write checkpoint %s: %w", name, err)
	}
	counted := &countingWriter{w: f}
	buffered := bufio.NewWriterSize(counted, 1<<20)
	err = p.WriteTo(ctx, buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = w.fs.Rename(path+partialSuffix, path)
	}
	if err == nil {
		err = syncDir(w.fs, w.dir)
	}
	if err != nil {
		return Kept{}, errors.Join(fmt.Errorf("write checkpoint %s: %w", name, err), w.fs.Remove(path+partialSuffix))
	}
	k := Kept{Name: name, Header: h, Bytes: counted.n}
	made := heldCheckpoint(k)
	made.MadeNs = nowNs
	w.held = append(slices.DeleteFunc(w.held, func(h Held) bool { return h.Name == name }), made)
	return k, nil
}

func heldCheckpoint(k Kept) Held {
	return Held{Name: k.Name, Checkpoint: true, Epoch: k.Header.GetEpoch(), Index: k.Header.GetIndex(), WallNs: k.Header.GetWallTimeNs(), Bytes: k.Bytes}
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// Newest is the newest checkpoint from which the change log leads to Last; with
// no name: there is none.
func (w *ArchiveWriter) Newest() Held {
	var newest Held
	for _, h := range w.held {
		if h.Checkpoint && h.Epoch == w.epoch && h.Index+1 >= w.stretch && (newest.Name == "" || h.Index > newest.Index) {
			newest = h
		}
	}
	return newest
}

// Held is every file of the archive, the segment being written last.
func (w *ArchiveWriter) Held() []Held {
	held := slices.Clone(w.held)
	if w.segment != nil {
		c := w.current
		c.Writing = true
		held = append(held, c)
	}
	return held
}

// FreeBytes is the room on the disk and its size; false: nobody knows.
func (w *ArchiveWriter) FreeBytes() (free, total uint64, ok bool) {
	u, err := w.fs.GetDiskUsage(w.dir)
	return u.AvailBytes, u.TotalBytes, err == nil && u.TotalBytes > 0
}

// Drop removes files.
func (w *ArchiveWriter) Drop(names []string) error {
	for _, name := range names {
		if err := w.fs.Remove(w.fs.PathJoin(w.dir, name)); err != nil && !isNotExist(err) {
			return fmt.Errorf("drop %s of the archive: %w", name, err)
		}
		w.held = slices.DeleteFunc(w.held, func(h Held) bool { return h.Name == name })
	}
	return nil
}

// Close ends the segment being written.
func (w *ArchiveWriter) Close() error { return w.endSegment() }
