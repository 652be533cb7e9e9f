package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// SegmentFormat is the newest format of the change log's segments that this
// build writes and reads. It reads all earlier ones.
const SegmentFormat = 1

const (
	segmentMagic = "BORGCLOG"

	// frameEntries is a frame of log entries; header and trailer are those of a
	// checkpoint file.
	frameEntries = 'L'

	// headSumBytes check the head of a frame, so that a length that was damaged is
	// not taken for a frame that was cut off by a crash.
	headSumBytes = 4

	// maxEntryBytes bounds the data of one entry; the cell's own limit is less.
	maxEntryBytes = 2 << 20
)

// PastEntry is one committed entry of a cell's log.
type PastEntry struct {
	// Epoch of the cell, and the log position in it.
	Epoch, Index, Term uint64
	// Data is what the cell was given: empty for what raft made for itself.
	Data []byte
}

// segmentWriter writes one segment of the change log, a frame at a time. What
// was written before an error stays good.
type segmentWriter struct {
	w     io.Writer
	zstd  *zstd.Encoder
	chain chain
	// The next entry must be of this index.
	next uint64
	// Bytes and chained sum up to the last whole frame.
	bytes int64
	sum   []byte
	count uint64
	// Buffers: entries, the same compressed, a frame.
	raw, stored, out []byte
	// broken: a frame was written in part. Nothing may follow it.
	broken bool
}

func newSegmentEncoder() (*zstd.Encoder, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithWindowSize(512<<10))
	if err != nil {
		return nil, fmt.Errorf("make a zstd encoder: %w", err)
	}
	return enc, nil
}

// newSegmentWriter writes the header. The file format in it is set here.
func newSegmentWriter(w io.Writer, enc *zstd.Encoder, header *borgpb.ChangeLogHeader) (*segmentWriter, error) {
	header.FileFormat = SegmentFormat
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("encode the header of a segment: %w", err)
	}
	sw := &segmentWriter{w: w, zstd: enc, next: header.GetFirstIndex()}
	sw.out = append(sw.out, segmentMagic...)
	return sw, sw.frame(frameHeader, len(data), data)
}

// add writes entries as frames and returns how many of them are written whole.
func (w *segmentWriter) add(entries []PastEntry) (n int, err error) {
	for n < len(entries) {
		w.raw = w.raw[:0]
		first, m := w.next, n
		for m < len(entries) && (m == n || len(w.raw)+len(entries[m].Data) < chunkTargetBytes) {
			e := entries[m]
			if e.Index != w.next {
				return n, fmt.Errorf("entry %d cannot follow entry %d in the change log", e.Index, w.next-1)
			}
			if len(e.Data) > maxEntryBytes {
				return n, fmt.Errorf("entry %d has %d bytes and the change log takes %d", e.Index, len(e.Data), maxEntryBytes)
			}
			w.raw = binary.AppendUvarint(w.raw, e.Index)
			w.raw = binary.AppendUvarint(w.raw, e.Term)
			w.raw = binary.AppendUvarint(w.raw, uint64(len(e.Data)))
			w.raw = append(w.raw, e.Data...)
			w.next++
			m++
		}
		w.stored = w.zstd.EncodeAll(w.raw, w.stored[:0])
		if err := w.frame(frameEntries, len(w.raw), w.stored); err != nil {
			w.next = first
			return n, err
		}
		w.count += uint64(m - n)
		n = m
	}
	return n, nil
}

// seal writes the trailer: nothing follows.
func (w *segmentWriter) seal() error {
	var t [trailerBytes]byte
	binary.LittleEndian.PutUint64(t[:], w.count)
	binary.LittleEndian.PutUint64(t[8:], w.next-1)
	return w.frame(frameTrailer, len(t), t[:])
}

// frame writes a frame with one call, so that a crash leaves a prefix of it.
func (w *segmentWriter) frame(kind byte, rawBytes int, payload []byte) error {
	if w.broken {
		return errors.New("the segment ends with a frame that was written in part")
	}
	before := w.chain
	head := frameHead{kind: kind, rawBytes: uint32(rawBytes), storedBytes: uint32(len(payload))}.encode()
	w.out = append(w.out, head[:]...)
	w.out = append(w.out, headSum(&w.chain, head)...)
	w.out = append(w.out, payload...)
	w.out = append(w.out, w.chain.add(head, payload)...)
	n, err := w.w.Write(w.out)
	size := len(w.out)
	w.out = w.out[:0]
	if err != nil {
		w.chain, w.broken = before, true
		return fmt.Errorf("write a segment: %d of %d bytes: %w", n, size, err)
	}
	w.bytes += int64(size)
	w.sum = append(w.sum[:0], w.chain[:chainBytes]...)
	return nil
}

// headSum stands behind the head of a frame.
func headSum(c *chain, head [frameHeadBytes]byte) []byte {
	h := sha256.New()
	h.Write(c[:])
	h.Write(head[:])
	return h.Sum(nil)[:headSumBytes]
}

// checkSegment refuses lengths that no writer of segments makes.
func (h frameHead) checkSegment(offset int64) error {
	switch h.kind {
	case frameEntries:
		if h.rawBytes == 0 || h.rawBytes > maxChunkBytes || h.storedBytes > maxStoredBytes {
			return damagedSegment(offset, "a frame of entries cannot be %d bytes long, stored as %d", h.rawBytes, h.storedBytes)
		}
		return nil
	case frameHeader, frameTrailer:
		if h.check(offset) != nil {
			return damagedSegment(offset, "header or trailer cannot be %d bytes long", h.storedBytes)
		}
		return nil
	default:
		return damagedSegment(offset, "a frame begins with byte %#02x", h.kind)
	}
}

// damagedSegment is an error of the kind ErrDamaged.
func damagedSegment(offset int64, format string, args ...any) error {
	return &segmentDamage{offset, fmt.Sprintf(format, args...)}
}

type segmentDamage struct {
	offset int64
	text   string
}

func (e *segmentDamage) Error() string {
	return fmt.Sprintf("the segment of the change log is damaged: at byte %d: %s", e.offset, e.text)
}

func (e *segmentDamage) Is(target error) bool { return target == ErrDamaged }
