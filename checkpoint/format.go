package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
)

// FileFormat is the newest format of checkpoint files that this build writes
// and reads. It reads all earlier ones.
const FileFormat = 1

const (
	magic = "BORGCKPT"

	frameHeader  = 'H'
	frameChunk   = 'C'
	frameTrailer = 'E'

	// frameHeadBytes is the kind, the raw length and the stored length.
	frameHeadBytes = 1 + 4 + 4
	chainBytes     = 16
	// trailerBytes is the number of records and the bytes of keys and values.
	trailerBytes = 8 + 8

	// chunkTargetBytes is the size at which a chunk is closed.
	chunkTargetBytes = 256 << 10
	// maxRecordBytes bounds key and value of one record together.
	maxRecordBytes = 4 << 20
	// maxChunkBytes bounds a chunk before compression, so that a reader never
	// allocates more than this on the word of a file.
	maxChunkBytes  = chunkTargetBytes + maxRecordBytes + 2*binary.MaxVarintLen32
	maxStoredBytes = maxChunkBytes + maxChunkBytes/128 + 1024
	maxHeaderBytes = 1 << 20
	// freeUnpackedBytes and maxUnpackedRatio bound what the chunks of a file become: so
	// many bytes, or so many times what they are stored in. Who reads a file keeps it all.
	freeUnpackedBytes = int64(1 << 30)
	maxUnpackedRatio  = int64(200)
)

// ErrNotCheckpoint is returned for input that does not begin as a checkpoint
// file does.
var ErrNotCheckpoint = errors.New("this is not a checkpoint file of a Borg cell")

// ErrDamaged is the kind of every error that says that a checkpoint file is not
// as it was written.
var ErrDamaged = errors.New("the checkpoint file is damaged")

// NewerFormatError says that something on disk was written in a format that
// this build does not know.
type NewerFormatError struct {
	// What has the format: "checkpoint file", "replica directory".
	What string
	// Found is its format, Known the newest that this build reads.
	Found, Known uint32
}

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("the %s has format %d and this build reads up to %d; use the build that wrote it or a newer one", e.What, e.Found, e.Known)
}

func damaged(offset int64, format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrDamaged, offset, fmt.Sprintf(format, args...))
}

// frameHead is what stands before each frame's payload.
type frameHead struct {
	kind byte
	// rawBytes is the length of the payload before compression, storedBytes
	// its length in the file.
	rawBytes, storedBytes uint32
}

func (h frameHead) encode() [frameHeadBytes]byte {
	var b [frameHeadBytes]byte
	b[0] = h.kind
	binary.LittleEndian.PutUint32(b[1:], h.rawBytes)
	binary.LittleEndian.PutUint32(b[5:], h.storedBytes)
	return b
}

func decodeFrameHead(b [frameHeadBytes]byte) frameHead {
	return frameHead{
		kind:        b[0],
		rawBytes:    binary.LittleEndian.Uint32(b[1:]),
		storedBytes: binary.LittleEndian.Uint32(b[5:]),
	}
}

// check refuses lengths that no writer makes, before anything is allocated for
// them.
func (h frameHead) check(offset int64) error {
	switch h.kind {
	case frameHeader:
		if h.rawBytes != h.storedBytes || h.storedBytes > maxHeaderBytes {
			return damaged(offset, "the header cannot be %d bytes long", h.storedBytes)
		}
	case frameChunk:
		if h.rawBytes > maxChunkBytes || h.storedBytes > maxStoredBytes {
			return damaged(offset, "a chunk cannot be %d bytes long, stored as %d", h.rawBytes, h.storedBytes)
		}
	case frameTrailer:
		if h.rawBytes != trailerBytes || h.storedBytes != trailerBytes {
			return damaged(offset, "the trailer cannot be %d bytes long", h.storedBytes)
		}
	default:
		return damaged(offset, "a frame begins with byte %#02x", h.kind)
	}
	return nil
}

// newWhole is the checksum over the whole file.
func newWhole() hash.Hash { return sha256.New() }

// chain is the running checksum over frames: each sum covers the frame and the
// sum before it.
type chain [sha256.Size]byte

func (c *chain) add(head [frameHeadBytes]byte, payload []byte) []byte {
	h := sha256.New()
	h.Write(c[:])
	h.Write(head[:])
	h.Write(payload)
	h.Sum(c[:0])
	return c[:chainBytes]
}
