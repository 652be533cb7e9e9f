package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sort"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"borg/proto/borgpb"
)

// ArchiveDir is the name of the archive in a replica's directory.
const ArchiveDir = "archive"

// The files of an archive. What a name says of epoch and index must be what the
// file says of itself.
const (
	checkpointPattern = "checkpoint-%d-%012d.ckpt"
	segmentPattern    = "log-%d-%012d.log"
	partialSuffix     = ".partial"
	damagedSuffix     = ".damaged"
)

// CheckpointName is the name of a checkpoint's file in an archive.
func CheckpointName(epoch, index uint64) string { return fmt.Sprintf(checkpointPattern, epoch, index) }

func segmentName(epoch, first uint64) string { return fmt.Sprintf(segmentPattern, epoch, first) }

// parseName takes the name of an archive's file apart. Other files are none of
// ours.
func parseName(name string) (epoch, index uint64, isCheckpoint, ok bool) {
	pattern := segmentPattern
	if isCheckpoint = strings.HasPrefix(name, "checkpoint-"); isCheckpoint {
		pattern = checkpointPattern
	}
	if _, err := fmt.Sscanf(name, pattern, &epoch, &index); err != nil || fmt.Sprintf(pattern, epoch, index) != name {
		return 0, 0, false, false
	}
	return epoch, index, isCheckpoint, true
}

// Archive is a directory that holds the past of one cell: checkpoints, and the
// committed entries between and after them. It is seen as it was when it was
// opened; what is added later is not.
type Archive struct {
	fs       vfs.FS
	dir      string
	kept     []Kept
	segments []Segment
	damaged  []DamagedFile
}

// Kept is a checkpoint of an archive. Its header has been read and agrees with
// its name; nothing else of it has been.
type Kept struct {
	Name   string
	Header *borgpb.CheckpointHeader
	Bytes  int64
}

// Segment is a piece of an archive's change log, of which the header has been
// read.
type Segment struct {
	Name   string
	Header *borgpb.ChangeLogHeader
	Bytes  int64
}

// DamagedFile is one that cannot be used.
type DamagedFile struct {
	Name string
	Err  error
}

// GapError says that entries of a change log are in no file.
type GapError struct {
	// The first and the last missing entry.
	Epoch, From, To uint64
	// Why, in the words of who wrote the log; empty: nobody knows.
	Why string
}

func (e *GapError) Error() string {
	text := fmt.Sprintf("the change log has no entries %d to %d of epoch %d", e.From, e.To, e.Epoch)
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// OpenArchive opens the archive in dir to read it; a nil fs is the disk. It may
// be written meanwhile. Files that are not an archive's are passed over.
func OpenArchive(fs vfs.FS, dir string) (*Archive, error) {
	a := &Archive{fs: orDisk(fs), dir: dir}
	names, err := a.fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("open the archive %s: %w", dir, err)
	}
	for _, name := range names {
		epoch, index, isCheckpoint, ok := parseName(name)
		if !ok {
			continue
		}
		if isCheckpoint {
			err = a.addCheckpoint(name, epoch, index)
		} else {
			err = a.addSegment(name, epoch, index)
		}
		if isNotExist(err) {
			// Dropped since it was listed.
			continue
		}
		if err != nil {
			a.damaged = append(a.damaged, DamagedFile{name, err})
		}
	}
	slices.SortFunc(a.kept, func(x, y Kept) int {
		return cmp.Or(cmp.Compare(x.Header.GetEpoch(), y.Header.GetEpoch()), cmp.Compare(x.Header.GetIndex(), y.Header.GetIndex()))
	})
	slices.SortFunc(a.segments, func(x, y Segment) int {
		return cmp.Or(cmp.Compare(x.Header.GetEpoch(), y.Header.GetEpoch()), cmp.Compare(x.Header.GetFirstIndex(), y.Header.GetFirstIndex()))
	})
	slices.SortFunc(a.damaged, func(x, y DamagedFile) int { return cmp.Compare(x.Name, y.Name) })
	return a, a.oneCell()
}

// oneCell refuses a directory into which the pasts of two cells were copied.
func (a *Archive) oneCell() error {
	var id, in string
	see := func(cell, file string) error {
		if id != "" && id != cell {
			return fmt.Errorf("the archive %s has files of two cells: %s is of %s, %s of %s", a.dir, in, id, file, cell)
		}
		id, in = cell, file
		return nil
	}
	for _, k := range a.kept {
		if err := see(k.Header.GetCellId(), k.Name); err != nil {
			return err
		}
	}
	for _, s := range a.segments {
		if err := see(s.Header.GetCellId(), s.Name); err != nil {
			return err
		}
	}
	return nil
}

func (a *Archive) addCheckpoint(name string, epoch, index uint64) error {
	f, bytes, err := a.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := NewReader(f)
	if err != nil {
		return err
	}
	if h := r.Header(); h.GetEpoch() != epoch || h.GetIndex() != index {
		return fmt.Errorf("it stands for epoch %d, index %d, which is not what its name says", h.GetEpoch(), h.GetIndex())
	}
	a.kept = append(a.kept, Kept{Name: name, Header: r.Header(), Bytes: bytes})
	return nil
}

func (a *Archive) addSegment(name string, epoch, first uint64) error {
	f, bytes, err := a.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := newSegmentReader(f)
	if errors.Is(err, errTorn) || bytes < int64(len(segmentMagic)) {
		// A crash ended it before its first entry.
		return nil
	}
	if err != nil {
		return err
	}
	if h := r.header; h.GetEpoch() != epoch || h.GetFirstIndex() != first {
		return fmt.Errorf("it begins at epoch %d, index %d, which is not what its name says", h.GetEpoch(), h.GetFirstIndex())
	}
	a.segments = append(a.segments, Segment{Name: name, Header: r.header, Bytes: bytes})
	return nil
}

func (a *Archive) open(name string) (vfs.File, int64, error) {
	f, err := a.fs.Open(a.fs.PathJoin(a.dir, name))
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, closeWith(f, err)
	}
	return f, info.Size(), nil
}

// Checkpoints are the archive's checkpoints by epoch and index, ascending.
func (a *Archive) Checkpoints() []Kept { return slices.Clone(a.kept) }

// Segments are the pieces of its change log by epoch and first index, ascending.
func (a *Archive) Segments() []Segment { return slices.Clone(a.segments) }

// Damaged are files of which not even the header can be used.
func (a *Archive) Damaged() []DamagedFile { return slices.Clone(a.damaged) }

// OpenCheckpoint opens a checkpoint's file, for a Reader.
func (a *Archive) OpenCheckpoint(k Kept) (io.ReadCloser, error) {
	f, _, err := a.open(k.Name)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s of the archive %s: %w", k.Name, a.dir, err)
	}
	return f, nil
}

// OpenSegment opens a segment's file, for InspectSegment.
func (a *Archive) OpenSegment(s Segment) (io.ReadCloser, error) {
	f, _, err := a.open(s.Name)
	if err != nil {
		return nil, fmt.Errorf("open segment %s of the archive %s: %w", s.Name, a.dir, err)
	}
	return f, nil
}

// Before is the newest checkpoint of an epoch that stands for index or an
// earlier one: from there the entries lead to index.
func (a *Archive) Before(epoch, index uint64) (Kept, bool) {
	for _, k := range slices.Backward(a.kept) {
		if k.Header.GetEpoch() == epoch && k.Header.GetIndex() <= index {
			return k, true
		}
	}
	return Kept{}, false
}

// Entries yields the entries of an epoch after an index, in order and without a
// gap, up to the end of the change log. An error is the last thing it yields; a
// *GapError when the next entry is in no file. The data of an entry stays good.
func (a *Archive) Entries(epoch, after uint64) iter.Seq2[PastEntry, error] {
	return func(yield func(PastEntry, error) bool) {
		segments := slices.DeleteFunc(slices.Clone(a.segments), func(s Segment) bool { return s.Header.GetEpoch() != epoch })
		next := after + 1
		i := sort.Search(len(segments), func(i int) bool { return segments[i].Header.GetFirstIndex() > next })
		for i = max(i-1, 0); i < len(segments); i++ {
			s := segments[i]
			if first := s.Header.GetFirstIndex(); first > next {
				why := s.Header.GetGap()
				if d := a.damagedSegment(epoch, next); why == "" && d != nil {
					why = d.Error()
				}
				yield(PastEntry{}, &GapError{Epoch: epoch, From: next, To: first - 1, Why: why})
				return
			}
			var follower *borgpb.ChangeLogHeader
			if i+1 < len(segments) {
				follower = segments[i+1].Header
				if p := follower.GetPreviousIndex(); p != 0 && p < next {
					// Nothing that is asked for is in it.
					continue
				}
			}
			more, err := a.readSegment(s, follower, &next, yield)
			if err != nil {
				yield(PastEntry{}, fmt.Errorf("%s: %w", a.fs.PathJoin(a.dir, s.Name), err))
				return
			}
			if !more {
				return
			}
		}
		if err := a.damagedSegment(epoch, next); err != nil {
			yield(PastEntry{}, err)
		}
	}
}

// Stretch is a part of the change log without a gap.
type Stretch struct {
	Epoch, First, Last uint64
	// Of its files.
	Bytes int64
	// Why the entries before it are missing; empty: they are not, or were dropped.
	Gap string
}

// Stretches are the parts of the change log. Where each segment ends is told by the
// one that follows; of the last one only its writer knows without reading it, and
// last is what he says. Zero: its first entry stands for all.
func (a *Archive) Stretches(last uint64) []Stretch {
	var out []Stretch
	for _, s := range a.segments {
		h := s.Header
		if n := len(out); n > 0 && out[n-1].Epoch == h.GetEpoch() {
			out[n-1].Last = h.GetPreviousIndex()
			if h.GetPreviousIndex()+1 == h.GetFirstIndex() {
				out[n-1].Bytes += s.Bytes
				out[n-1].Last = h.GetFirstIndex()
				continue
			}
		}
		out = append(out, Stretch{Epoch: h.GetEpoch(), First: h.GetFirstIndex(), Last: h.GetFirstIndex(), Bytes: s.Bytes, Gap: h.GetGap()})
	}
	if n := len(out); n > 0 && last >= out[n-1].First {
		out[n-1].Last = last
	}
	return out
}

// damagedSegment is why a segment of an epoch that begins at index or later
// cannot be used; nil: there is none such.
func (a *Archive) damagedSegment(epoch, index uint64) error {
	for _, d := range a.damaged {
		if e, first, isCheckpoint, _ := parseName(d.Name); !isCheckpoint && e == epoch && first >= index {
			return fmt.Errorf("%s: %w", a.fs.PathJoin(a.dir, d.Name), d.Err)
		}
	}
	return nil
}

// readSegment yields the entries of a segment from next on. follower is the
// header of the segment after it, if there is one: it names the last frame that
// counts. What is behind that was left there by a crash or a full disk. Only the
// last segment may end in the middle of a frame without another's word.
func (a *Archive) readSegment(s Segment, follower *borgpb.ChangeLogHeader, next *uint64, yield func(PastEntry, error) bool) (more bool, err error) {
	f, _, err := a.open(s.Name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r, err := newSegmentReader(f)
	if err != nil {
		return false, err
	}
	if sum := follower.GetPreviousSum(); len(sum) > 0 {
		r.until = sum
	}
	for e := range r.entries() {
		if e.Index < *next {
			continue
		}
		if !yield(e, nil) {
			return false, nil
		}
		*next = e.Index + 1
	}
	switch {
	case r.reached, r.until == nil && r.err == nil:
		return true, nil
	case r.err != nil:
		return false, r.err
	}
	return false, damagedSegment(r.good, "it ends with entry %d, and not with the frame that the next segment goes on from, of entry %d", r.next-1, follower.GetPreviousIndex())
}
