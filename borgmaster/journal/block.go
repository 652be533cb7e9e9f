package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// A file is a magic and blocks. A block is a head and a borgpb.JournalBlock:
//
//	magic (4) | length (4) | first time (8) | last time (8) | first index (8) |
//	last index (8) | CRC of the body (4) | CRC of the head before it (4)
//
// Numbers are big-endian, sums are CRC-32C.
const (
	fileMagic  = "borgevt1"
	blockMagic = "\xb0BE\x01"
	headBytes  = 48
	// maxBlockBytes is the largest block; larger ones are not ours.
	maxBlockBytes = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockHead says what is in a block, so that it can be passed over.
type blockHead struct {
	length  uint32
	bodySum uint32
	span    span
	// Log indexes of the entries and gaps in it; zero: none.
	firstIndex, lastIndex uint64
}

// span is a stretch of wall time, both ends in it. The zero span holds nothing.
type span struct{ firstNs, lastNs int64 }

func (s span) empty() bool { return s == span{} }

func (s span) with(o span) span {
	switch {
	case s.empty():
		return o
	case o.empty():
		return s
	}
	return span{min(s.firstNs, o.firstNs), max(s.lastNs, o.lastNs)}
}

// touches says whether something of it may be in [since, until); zeros are no
// bounds. What has no time may be anywhere.
func (s span) touches(since, until int64) bool {
	return s.empty() || (since == 0 || s.lastNs >= since) && (until == 0 || s.firstNs < until)
}

// encode makes the bytes of a block, in room if that is enough.
func encode(room []byte, b *borgpb.JournalBlock, nowNs int64) ([]byte, blockHead, error) {
	size := proto.Size(b)
	if size > maxBlockBytes {
		return nil, blockHead{}, fmt.Errorf("a block of %d bytes is too large", size)
	}
	room = slices.Grow(room[:0], headBytes+size)[:headBytes]
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(room, b)
	if err != nil {
		return nil, blockHead{}, fmt.Errorf("encode a block of events: %w", err)
	}
	h := headOf(b, nowNs)
	h.length, h.bodySum = uint32(len(data)-headBytes), crc32.Checksum(data[headBytes:], castagnoli)
	h.put(data[:headBytes])
	return data, h, nil
}

func headOf(b *borgpb.JournalBlock, nowNs int64) (h blockHead) {
	index := func(first, last uint64) {
		if h.firstIndex == 0 || first < h.firstIndex {
			h.firstIndex = first
		}
		h.lastIndex = max(h.lastIndex, last)
	}
	for _, e := range b.Entries {
		h.span = h.span.with(span{e.WallNs, e.WallNs})
		index(e.Index, e.Index)
	}
	for _, u := range b.Usage {
		h.span = h.span.with(span{u.FromNs, u.ToNs})
	}
	for _, g := range b.Gaps {
		// When the entries of a gap were is not known: not after now.
		h.span = h.span.with(span{1, nowNs})
		index(g.From, g.To)
	}
	if len(b.Picture) > 0 {
		h.span = h.span.with(span{nowNs, nowNs})
	}
	return h
}

func (h blockHead) put(to []byte) {
	copy(to, blockMagic)
	binary.BigEndian.PutUint32(to[4:], h.length)
	binary.BigEndian.PutUint64(to[8:], uint64(h.span.firstNs))
	binary.BigEndian.PutUint64(to[16:], uint64(h.span.lastNs))
	binary.BigEndian.PutUint64(to[24:], h.firstIndex)
	binary.BigEndian.PutUint64(to[32:], h.lastIndex)
	binary.BigEndian.PutUint32(to[40:], h.bodySum)
	binary.BigEndian.PutUint32(to[44:], crc32.Checksum(to[:44], castagnoli))
}

// parseHead reads a head; ok is false when it was not written so.
func parseHead(data []byte) (h blockHead, ok bool) {
	if len(data) < headBytes || string(data[:4]) != blockMagic || binary.BigEndian.Uint32(data[44:]) != crc32.Checksum(data[:44], castagnoli) {
		return h, false
	}
	h = blockHead{
		length: binary.BigEndian.Uint32(data[4:]), bodySum: binary.BigEndian.Uint32(data[40:]),
		span:       span{int64(binary.BigEndian.Uint64(data[8:])), int64(binary.BigEndian.Uint64(data[16:]))},
		firstIndex: binary.BigEndian.Uint64(data[24:]), lastIndex: binary.BigEndian.Uint64(data[32:]),
	}
	return h, h.length <= maxBlockBytes
}

// scanner goes over the blocks of a file. Where something is damaged it goes on at
// the next head that is whole.
type scanner struct {
	r    io.ReaderAt
	size int64
	// Where the next block is looked for, and where the present one began.
	at, began int64
	head      blockHead
	// Bytes that were passed over before the present block, or at the end.
	damaged int64
	err     error
	window  []byte
	pick    Pick
	// The bytes of the last block, whose room the next one has.
	data []byte
}

// next goes to the next head that is whole.
func (s *scanner) next() bool {
	s.damaged = 0
	head := make([]byte, headBytes)
	for s.at+headBytes <= s.size {
		if _, s.err = s.r.ReadAt(head, s.at); s.err != nil {
			return false
		}
		if h, ok := parseHead(head); ok && s.at+headBytes+int64(h.length) <= s.size {
			s.head, s.began = h, s.at
			s.at += headBytes + int64(h.length)
			return true
		}
		from := s.at
		if !s.seekHead() {
			break
		}
		s.damaged += s.at - from
	}
	s.damaged += max(s.size-s.at, 0)
	s.began, s.at = s.size-s.damaged, s.size
	return false
}

// seekHead goes on to the next place where a head may begin, after the present one.
func (s *scanner) seekHead() bool {
	if s.window == nil {
		s.window = make([]byte, 64<<10)
	}
	for at := s.at + 1; at+headBytes <= s.size; {
		n, err := s.r.ReadAt(s.window[:min(int64(len(s.window)), s.size-at)], at)
		if err != nil && err != io.EOF || n < len(blockMagic) {
			return false
		}
		if i := bytes.Index(s.window[:n], []byte(blockMagic)); i >= 0 {
			s.at = at + int64(i)
			return true
		}
		at += int64(n - len(blockMagic) + 1)
	}
	return false
}

// body reads the present block, as pick has it; nil: the reader does not want it. ok is false when it was not written
// so.
func (s *scanner) body() (b *borgpb.JournalBlock, ok bool, err error) {
	s.data = slices.Grow(s.data[:0], int(s.head.length))[:s.head.length]
	if _, err := s.r.ReadAt(s.data, s.began+headBytes); err != nil {
		return nil, false, fmt.Errorf("read a block of events: %w", err)
	}
	if crc32.Checksum(s.data, castagnoli) != s.head.bodySum {
		return nil, false, nil
	}
	if !s.pick.wants(s.data) {
		return nil, true, nil
	}
	b, ok = s.pick.decode(s.data)
	return b, ok, nil
}
