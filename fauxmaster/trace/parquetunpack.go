package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/format"
)

// unpacker finds out whether a page unpacks to no more than its header claims: the library
// makes room for whatever comes out. What does not say so itself is unpacked for that, in
// no more room than is claimed.
type unpacker struct {
	gzip *gzip.Reader
	zstd *zstd.Decoder
	// The page, and what was unpacked of it.
	packed, room []byte
}

func (u *unpacker) check(page *io.SectionReader, claimed int64, codec format.CompressionCodec) error {
	switch codec {
	case format.Uncompressed:
		return nil
	case format.Snappy:
		// It begins with how much it is, and becomes no more.
		var head [binary.MaxVarintLen64]byte
		k, _ := page.ReadAt(head[:], 0)
		if says, n := binary.Uvarint(head[:k]); n > 0 && says > uint64(claimed) {
			return moreThan(claimed)
		}
		return nil
	case format.Gzip:
		return u.checkGzip(page, claimed)
	case format.Zstd:
		return u.checkZstd(page, claimed)
	}
	// How much the others become is not known before, and the library does not end with
	// one of them when it is torn.
	return fmt.Errorf("it is packed with %s, which is not read; write the file with SNAPPY, GZIP, ZSTD or unpacked", codec)
}

func moreThan(claimed int64) error {
	return fmt.Errorf("it unpacks to more than the %d bytes that it claims", claimed)
}

func (u *unpacker) checkGzip(page io.Reader, claimed int64) (err error) {
	if u.gzip == nil {
		u.gzip, err = gzip.NewReader(page)
	} else {
		err = u.gzip.Reset(page)
	}
	if err == nil {
		var n int64
		n, err = io.CopyN(io.Discard, u.gzip, claimed+1)
		if n > claimed {
			return moreThan(claimed)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("unpack it: %w", err)
	}
	return nil
}

func (u *unpacker) checkZstd(page *io.SectionReader, claimed int64) (err error) {
	if u.zstd == nil {
		if u.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true)); err != nil {
			return err
		}
	}
	u.packed = slices.Grow(u.packed[:0], int(page.Size()))[:page.Size()]
	if _, err := io.ReadFull(page, u.packed); err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	u.room = slices.Grow(u.room[:0], int(claimed))
	if _, err = u.zstd.DecodeAll(u.packed, u.room[:0:claimed]); errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return moreThan(claimed)
	}
	if err != nil {
		return fmt.Errorf("unpack it: %w", err)
	}
	return nil
}

// close lets go of what unpacking holds.
func (u *unpacker) close() {
	if u.zstd != nil {
		u.zstd.Close()
	}
}
