package checkpoint

import (
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Writer writes a checkpoint file as a stream.
type Writer struct {
	w       io.Writer
	whole   hash.Hash
	chain   chain
	zstd    *zstd.Encoder
	chunk   []byte
	stored  []byte
	records uint64
	bytes   uint64
	// err is the first error; nothing is written after it.
	err error
}

// NewWriter writes the header of a checkpoint file to w. The file format in it
// is set by the writer.
func NewWriter(w io.Writer, header *borgpb.CheckpointHeader) (*Writer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("make a zstd encoder: %w", err)
	}
	cw := &Writer{w: w, whole: newWhole(), zstd: enc}
	h := proto.CloneOf(header)
	h.FileFormat = FileFormat
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode the checkpoint header: %w", err)
	}
	if len(data) > maxHeaderBytes {
		return nil, fmt.Errorf("the checkpoint header has %d bytes and may have %d", len(data), maxHeaderBytes)
	}
	cw.write([]byte(magic))
	cw.frame(frameHeader, len(data), data)
	return cw, cw.err
}

// Add appends a record. It keeps neither key nor value.
func (w *Writer) Add(key, value []byte) error {
	if w.err != nil {
		return w.err
	}
	if n := len(key) + len(value); n > maxRecordBytes {
		w.err = fmt.Errorf("record %q has %d bytes and a checkpoint's record may have %d", key, n, maxRecordBytes)
		return w.err
	}
	w.chunk = binary.AppendUvarint(w.chunk, uint64(len(key)))
	w.chunk = append(w.chunk, key...)
	w.chunk = binary.AppendUvarint(w.chunk, uint64(len(value)))
	w.chunk = append(w.chunk, value...)
	w.records++
	w.bytes += uint64(len(key) + len(value))
	if len(w.chunk) >= chunkTargetBytes {
		w.closeChunk()
	}
	return w.err
}

// Close writes the trailer. A file without one is refused by every reader, so
// a writer that is given up need not be closed.
func (w *Writer) Close() error {
	w.closeChunk()
	var t [trailerBytes]byte
	binary.LittleEndian.PutUint64(t[:], w.records)
	binary.LittleEndian.PutUint64(t[8:], w.bytes)
	w.frame(frameTrailer, len(t), t[:])
	w.write(w.whole.Sum(nil))
	return w.err
}

func (w *Writer) closeChunk() {
	if len(w.chunk) == 0 {
		return
	}
	w.stored = w.zstd.EncodeAll(w.chunk, w.stored[:0])
	w.frame(frameChunk, len(w.chunk), w.stored)
	w.chunk = w.chunk[:0]
}

func (w *Writer) frame(kind byte, rawBytes int, payload []byte) {
	head := frameHead{kind: kind, rawBytes: uint32(rawBytes), storedBytes: uint32(len(payload))}.encode()
	w.write(head[:])
	w.write(payload)
	w.write(w.chain.add(head, payload))
}

func (w *Writer) write(b []byte) {
	if w.err != nil {
		return
	}
	w.whole.Write(b)
	if _, err := w.w.Write(b); err != nil {
		w.err = fmt.Errorf("write the checkpoint file: %w", err)
	}
}
