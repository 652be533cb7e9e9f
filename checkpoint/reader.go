package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Reader reads a checkpoint file as a stream and checks every byte of it. What
// it gives before the trailer was seen has passed the chained checksums, but
// only a nil Err after the last record says that nothing is missing.
type Reader struct {
	r      io.Reader
	offset int64
	whole  hash.Hash
	chain  chain
	zstd   *zstd.Decoder
	stored []byte
	raw    []byte
	header *borgpb.CheckpointHeader

	records, bytes uint64
	chunks         int
	// Bytes of chunks, as they are stored and as they become.
	storedBytes, unpacked int64
	done                  bool
	err                   error
}

// NewReader reads the header of a checkpoint file.
func NewReader(r io.Reader) (*Reader, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxChunkBytes), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make a zstd decoder: %w", err)
	}
	cr := &Reader{r: r, whole: newWhole(), zstd: dec}
	var m [len(magic)]byte
	if err := cr.fill(m[:]); err != nil {
		if errors.Is(err, ErrDamaged) {
			return nil, ErrNotCheckpoint
		}
		return nil, err
	}
	if string(m[:]) != magic {
		return nil, ErrNotCheckpoint
	}
	head, data, err := cr.frame()
	if err != nil {
		return nil, err
	}
	if head.kind != frameHeader {
		return nil, damaged(int64(len(magic)), "the header is missing")
	}
	cr.header = new(borgpb.CheckpointHeader)
	if err := proto.Unmarshal(data, cr.header); err != nil {
		return nil, damaged(int64(len(magic)), "the header cannot be read: %v", err)
	}
	if f := cr.header.GetFileFormat(); f > FileFormat {
		return nil, &NewerFormatError{What: "checkpoint file", Found: f, Known: FileFormat}
	}
	return cr, nil
}

// Header says what the file is a picture of. It must not be changed.
func (r *Reader) Header() *borgpb.CheckpointHeader { return r.header }

// Records yields the records in the order in which they were written. Key and
// value are only good until the next one. Err says after the loop whether the
// file was whole.
func (r *Reader) Records() iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		for !r.done && r.err == nil {
			at := r.offset
			head, stored, err := r.frame()
			if err != nil {
				r.err = err
				return
			}
			switch head.kind {
			case frameChunk:
				r.chunks++
				ok, err := r.chunk(at, head, stored, yield)
				if err != nil {
					r.err = err
				}
				if !ok {
					return
				}
			case frameTrailer:
				r.err = r.trailer(at, stored)
				r.done = true
			default:
				r.err = damaged(at, "a second header")
			}
		}
	}
}

// Err returns the error that ended Records, if any did.
func (r *Reader) Err() error { return r.err }

func (r *Reader) chunk(at int64, head frameHead, stored []byte, yield func(k, v []byte) bool) (ok bool, err error) {
	if cap(r.raw) < int(head.rawBytes) {
		r.raw = make([]byte, 0, head.rawBytes)
	}
	raw, err := r.zstd.DecodeAll(stored, r.raw[:0])
	if err != nil {
		return false, damaged(at, "a chunk cannot be decompressed: %v", err)
	}
	if uint32(len(raw)) != head.rawBytes {
		return false, damaged(at, "a chunk has %d bytes instead of %d", len(raw), head.rawBytes)
	}
	r.storedBytes, r.unpacked = r.storedBytes+int64(len(stored)), r.unpacked+int64(len(raw))
	if r.unpacked > max(freeUnpackedBytes, r.storedBytes*maxUnpackedRatio) {
		return false, damaged(at, "it becomes more than %d bytes, and than %d times what it has", freeUnpackedBytes, maxUnpackedRatio)
	}
	for len(raw) > 0 {
		var k, v []byte
		if k, raw, ok = cut(raw); ok {
			v, raw, ok = cut(raw)
		}
		if !ok {
			return false, damaged(at, "a record runs over the end of its chunk")
		}
		r.records++
		r.bytes += uint64(len(k) + len(v))
		if !yield(k, v) {
			return false, nil
		}
	}
	return true, nil
}

// cut takes a length-prefixed byte string off the front of b.
func cut(b []byte) (s, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, nil, false
	}
	end := w + int(n)
	return b[w:end:end], b[end:], true
}

func (r *Reader) trailer(at int64, t []byte) error {
	if n := binary.LittleEndian.Uint64(t); n != r.records {
		return damaged(at, "the trailer counts %d records and the file has %d", n, r.records)
	}
	if n := binary.LittleEndian.Uint64(t[8:]); n != r.bytes {
		return damaged(at, "the trailer counts %d bytes of records and the file has %d", n, r.bytes)
	}
	want := r.whole.Sum(nil)
	at = r.offset
	var sum [sha256.Size]byte
	if err := r.fill(sum[:]); err != nil {
		return err
	}
	if !bytes.Equal(sum[:], want) {
		return damaged(at, "the checksum of the whole file does not match")
	}
	var one [1]byte
	switch _, err := io.ReadFull(r.r, one[:]); err {
	case io.EOF:
		return nil
	case nil:
		return damaged(r.offset, "there are bytes after the end")
	default:
		return fmt.Errorf("read the checkpoint file: %w", err)
	}
}

// frame reads the next frame and checks it against the chain. The payload is
// good until the next call.
func (r *Reader) frame() (frameHead, []byte, error) {
	at := r.offset
	var hb [frameHeadBytes]byte
	if err := r.fill(hb[:]); err != nil {
		return frameHead{}, nil, err
	}
	head := decodeFrameHead(hb)
	if err := head.check(at); err != nil {
		return frameHead{}, nil, err
	}
	if cap(r.stored) < int(head.storedBytes) {
		r.stored = make([]byte, head.storedBytes)
	}
	payload := r.stored[:head.storedBytes]
	if err := r.fill(payload); err != nil {
		return frameHead{}, nil, err
	}
	want := r.chain.add(hb, payload)
	var sum [chainBytes]byte
	if err := r.fill(sum[:]); err != nil {
		return frameHead{}, nil, err
	}
	if !bytes.Equal(sum[:], want) {
		return frameHead{}, nil, damaged(at, "a checksum does not match")
	}
	return head, payload, nil
}

func (r *Reader) fill(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.whole.Write(b[:n])
	r.offset += int64(n)
	switch err {
	case nil:
		return nil
	case io.EOF, io.ErrUnexpectedEOF:
		return damaged(r.offset, "it ends too early")
	default:
		return fmt.Errorf("read the checkpoint file: %w", err)
	}
}
