package checkpoint

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// ErrNotSegment is returned for input that does not begin as a segment of the
// change log does.
var ErrNotSegment = errors.New("this is not a segment of a Borg cell's change log")

// errTorn: a frame was begun and the file ends in it, as a crash leaves it.
var errTorn = errors.New("its last frame is not whole")

// segmentReader reads one segment as a stream and checks every byte of it.
type segmentReader struct {
	r      *bufio.Reader
	zstd   *zstd.Decoder
	chain  chain
	stored []byte
	header *borgpb.ChangeLogHeader
	// Where the next byte is.
	offset int64
	// Up to where frames were whole, and the chained sum of the last of them.
	good int64
	sum  []byte
	// The next entry must be of this index.
	next  uint64
	count uint64
	// until is the chained sum of a frame after which nothing counts, and reached
	// says that it was found; nil: everything counts.
	until   []byte
	reached bool
	// sealed: it ends with a trailer. torn: a crash, or a disk that took no more,
	// cut its last frame off.
	sealed, torn bool
	err          error
}

// newSegmentReader reads the header of a segment.
func newSegmentReader(r io.Reader) (*segmentReader, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxChunkBytes), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make a zstd decoder: %w", err)
	}
	sr := &segmentReader{r: bufio.NewReaderSize(r, 64<<10), zstd: dec}
	var m [len(segmentMagic)]byte
	if err := sr.fill(m[:]); errors.Is(err, errTorn) || err == io.EOF || err == nil && string(m[:]) != segmentMagic {
		return nil, ErrNotSegment
	} else if err != nil {
		return nil, err
	}
	at := sr.offset
	head, data, err := sr.frame()
	switch {
	case err == io.EOF, errors.Is(err, errTorn):
		return nil, errors.Join(damagedSegment(sr.offset, "it ends in its header"), errTorn)
	case err != nil:
		return nil, err
	case head.kind != frameHeader:
		return nil, damagedSegment(at, "the header is missing")
	}
	sr.header = new(borgpb.ChangeLogHeader)
	if err := proto.Unmarshal(data, sr.header); err != nil {
		return nil, damagedSegment(at, "the header cannot be read: %v", err)
	}
	if f := sr.header.GetFileFormat(); f > SegmentFormat {
		return nil, &NewerFormatError{What: "segment of the change log", Found: f, Known: SegmentFormat}
	}
	if sr.header.GetFirstIndex() == 0 {
		return nil, damagedSegment(at, "the header names no first entry")
	}
	sr.next = sr.header.GetFirstIndex()
	return sr, nil
}

// entries yields the entries in order. Their data stays good. err tells
// afterwards whether the segment was as it was written; of a torn one, only
// what comes next in the archive can tell whether that is all.
func (r *segmentReader) entries() iter.Seq[PastEntry] {
	return func(yield func(PastEntry) bool) {
		for r.err == nil && !r.sealed && !r.reached {
			at := r.offset
			head, payload, err := r.frame()
			if err == io.EOF {
				return
			}
			if errors.Is(err, errTorn) {
				r.torn = true
				return
			}
			more := true
			if err == nil {
				switch head.kind {
				case frameEntries:
					more, err = r.block(at, head, payload, yield)
				case frameTrailer:
					err = r.trailer(at, payload)
				default:
					err = damagedSegment(at, "a second header")
				}
			}
			if err != nil {
				r.err = err
				return
			}
			if !more {
				return
			}
			r.reached = r.until != nil && bytes.Equal(r.sum, r.until)
		}
	}
}

func (r *segmentReader) block(at int64, head frameHead, stored []byte, yield func(PastEntry) bool) (more bool, err error) {
	// A buffer of its own: the entries keep pieces of it.
	raw, err := r.zstd.DecodeAll(stored, make([]byte, 0, head.rawBytes))
	if err != nil {
		return false, damagedSegment(at, "entries cannot be decompressed: %v", err)
	}
	if uint32(len(raw)) != head.rawBytes {
		return false, damagedSegment(at, "entries have %d bytes instead of %d", len(raw), head.rawBytes)
	}
	for len(raw) > 0 {
		index, n := binary.Uvarint(raw)
		term, m := binary.Uvarint(raw[max(n, 0):])
		if n <= 0 || m <= 0 {
			return false, damagedSegment(at, "an entry has no index or term")
		}
		data, rest, ok := cut(raw[n+m:])
		if !ok {
			return false, damagedSegment(at, "an entry runs over the end of its frame")
		}
		if index != r.next {
			return false, damagedSegment(at, "entry %d stands where entry %d should", index, r.next)
		}
		raw = rest
		r.next++
		r.count++
		if !yield(PastEntry{Epoch: r.header.GetEpoch(), Index: index, Term: term, Data: data}) {
			return false, nil
		}
	}
	return true, nil
}

func (r *segmentReader) trailer(at int64, t []byte) error {
	if n := binary.LittleEndian.Uint64(t); n != r.count {
		return damagedSegment(at, "the trailer counts %d entries and the segment has %d", n, r.count)
	}
	if last := binary.LittleEndian.Uint64(t[8:]); last != r.next-1 {
		return damagedSegment(at, "the trailer says that entry %d is the last, and that is %d", last, r.next-1)
	}
	r.sealed = true
	if _, err := r.r.ReadByte(); err == nil {
		return damagedSegment(r.offset, "there are bytes after the end")
	} else if err != io.EOF {
		return fmt.Errorf("read a segment: %w", err)
	}
	return nil
}

// frame reads the next frame and checks it against the chain. The payload is
// good until the next call. io.EOF: there is none; errTorn: the file ends in it.
func (r *segmentReader) frame() (frameHead, []byte, error) {
	at := r.offset
	var hb [frameHeadBytes + headSumBytes]byte
	if err := r.fill(hb[:]); err != nil {
		return frameHead{}, nil, err
	}
	if hb == [len(hb)]byte{} && r.onlyZeros() {
		// A file system had made the file longer and not yet written to it.
		return frameHead{}, nil, errTorn
	}
	headBytes := [frameHeadBytes]byte(hb[:])
	head := decodeFrameHead(headBytes)
	if !bytes.Equal(hb[frameHeadBytes:], headSum(&r.chain, headBytes)) {
		return frameHead{}, nil, damagedSegment(at, "the checksum of a frame's head does not match")
	}
	if err := head.checkSegment(at); err != nil {
		return frameHead{}, nil, err
	}
	if cap(r.stored) < int(head.storedBytes) {
		r.stored = make([]byte, head.storedBytes)
	}
	payload := r.stored[:head.storedBytes]
	var sum [chainBytes]byte
	for _, b := range [][]byte{payload, sum[:]} {
		if err := r.fill(b); err == io.EOF {
			return frameHead{}, nil, errTorn
		} else if err != nil {
			return frameHead{}, nil, err
		}
	}
	before := r.chain
	if !bytes.Equal(sum[:], r.chain.add(headBytes, payload)) {
		r.chain = before
		return frameHead{}, nil, damagedSegment(at, "a checksum does not match")
	}
	r.good, r.sum = r.offset, append(r.sum[:0], sum[:]...)
	return head, payload, nil
}

// fill reads all of b: io.EOF when nothing is left, errTorn when too little is.
func (r *segmentReader) fill(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.offset += int64(n)
	switch err {
	case nil, io.EOF:
		return err
	case io.ErrUnexpectedEOF:
		return errTorn
	default:
		return fmt.Errorf("read a segment: %w", err)
	}
}

func (r *segmentReader) onlyZeros() bool {
	for {
		b, err := r.r.ReadByte()
		if err != nil || b != 0 {
			return err == io.EOF
		}
		r.offset++
	}
}

// SegmentInfo is what InspectSegment tells of a segment of the change log.
type SegmentInfo struct {
	Header *borgpb.ChangeLogHeader
	// Its entries, and the bytes of their data.
	Entries, EntryBytes uint64
	// Last is the index of the last one; zero: there is none.
	Last uint64
	// Sealed: it was ended in order. Otherwise it is being written, or a crash
	// ended it; TornBytes of its end are then no whole frame and count for
	// nothing.
	Sealed    bool
	TornBytes int64
	FileBytes int64
}

// InspectSegment reads a whole segment and checks every byte of it.
func InspectSegment(r io.Reader) (*SegmentInfo, error) {
	sr, err := newSegmentReader(r)
	if err != nil {
		return nil, err
	}
	info := &SegmentInfo{Header: sr.header}
	for e := range sr.entries() {
		info.Entries++
		info.EntryBytes += uint64(len(e.Data))
		info.Last = e.Index
	}
	if sr.err != nil {
		return nil, sr.err
	}
	info.Sealed, info.FileBytes = sr.sealed, sr.offset
	info.TornBytes = sr.offset - sr.good
	return info, nil
}
