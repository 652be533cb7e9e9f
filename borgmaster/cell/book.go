package cell

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math/bits"
)

// record is one object as it is written down. Its value is empty when the
// object is gone, or is what the key alone already says.
type record interface {
	marker() *mark
	appendKey(b []byte) []byte
	// exists tells whether there is anything to write.
	exists() bool
	appendValue(b []byte) []byte
}

// mark is what every object carries for the bookkeeping of its record.
type mark struct {
	// What the record adds to the cell's digest; zero: nothing.
	hash Digest
	// In the list of what Flush writes; in the list of what the digest has not
	// seen yet; in a list of Changed.
	unflushed, unsettled, changed bool
}

func (m *mark) marker() *mark { return m }

// recorded tells whether the record was ever counted or is about to be.
func (m *mark) recorded() bool { return m.unflushed || m.unsettled || m.hash != Digest{} }

// recordBook keeps what changed since the last Flush, and the digest. Both are
// lazy: a record that changes a hundred times is encoded once.
type recordBook struct {
	unflushed, unsettled []record
	// By the last Apply.
	changed Changed
	sum     digestSum
	// The last few digests at indices that are multiples of digestEvery.
	past [digestsKept]pastDigest
	// Reused for encoding, and for hashing.
	key, value []byte
	hasher     recordHasher
}

const (
	digestEvery = 1024
	digestsKept = 16
)

type pastDigest struct {
	index  uint64
	digest Digest
}

// Digest is the sum, modulo 2^128, of a hash of each record. Two cells with the
// same digest hold the same records.
type Digest [16]byte

type digestSum struct{ hi, lo uint64 }

func (s *digestSum) add(d Digest) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, binary.BigEndian.Uint64(d[8:]), 0)
	s.hi, _ = bits.Add64(s.hi, binary.BigEndian.Uint64(d[:8]), carry)
}

func (s *digestSum) sub(d Digest) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, binary.BigEndian.Uint64(d[8:]), 0)
	s.hi, _ = bits.Sub64(s.hi, binary.BigEndian.Uint64(d[:8]), borrow)
}

func (s digestSum) digest() (d Digest) {
	binary.BigEndian.PutUint64(d[:8], s.hi)
	binary.BigEndian.PutUint64(d[8:], s.lo)
	return d
}

// dirty notes that an object changed, was made, or went.
func (c *Cell) dirty(r record) {
	m := r.marker()
	c.records.changed.note(r)
	if !m.unflushed {
		m.unflushed = true
		c.records.unflushed = append(c.records.unflushed, r)
	}
	if !m.unsettled {
		m.unsettled = true
		c.records.unsettled = append(c.records.unsettled, r)
	}
	switch o := r.(type) {
	case *Machine:
		o.changes++
	case *Task:
		if o.cur != nil {
			o.cur.machine.changes++
		}
	case *Copy:
		o.machine.changes++
	case *Volume:
		o.machine.changes++
	case *Alloc:
		for _, p := range o.copies {
			p.machine.changes++
		}
	}
}

// encode writes a record into the book's buffers; value is nil when there is
// none.
func (b *recordBook) encode(r record) (key, value []byte) {
	b.key = r.appendKey(b.key[:0])
	b.value = b.value[:0]
	if r.exists() {
		b.value = r.appendValue(b.value)
		return b.key, b.value
	}
	return b.key, nil
}

// settle brings the digest up to a record whose encoding is given.
func (b *recordBook) settle(m *mark, key, value []byte) {
	m.unsettled = false
	b.sum.sub(m.hash)
	m.hash = Digest{}
	if value != nil {
		m.hash = b.hasher.of(key, value)
		b.sum.add(m.hash)
	}
}

// recordHasher hashes records, one after the other: a new hash for each would be most of
// the garbage that a flush makes.
type recordHasher struct {
	sha  hash.Hash
	head [2]byte
	sum  [sha256.Size]byte
}

// of is pinned: the first 16 bytes of the SHA-256 of the key's length as one byte pair,
// the key, and the value.
func (h *recordHasher) of(key, value []byte) (d Digest) {
	if h.sha == nil {
		h.sha = sha256.New()
	}
	h.sha.Reset()
	binary.BigEndian.PutUint16(h.head[:], uint16(len(key)))
	// A hash takes all that it is given.
	_, _ = h.sha.Write(h.head[:])
	_, _ = h.sha.Write(key)
	_, _ = h.sha.Write(value)
	copy(d[:], h.sha.Sum(h.sum[:0]))
	return d
}

func (c *Cell) settleAll() {
	b := &c.records
	for i, r := range b.unsettled {
		if m := r.marker(); m.unsettled {
			key, value := b.encode(r)
			b.settle(m, key, value)
		}
		b.unsettled[i] = nil
	}
	b.unsettled = b.unsettled[:0]
}

// Digest settles what changed and returns the digest at Index. It belongs to
// the cell's owner, like Apply: readers use DigestAt.
func (c *Cell) Digest() Digest {
	c.settleAll()
	return c.records.sum.digest()
}

// DigestAt returns the digest as of an index that is one of the last 16
// multiples of 1,024 applied by this Cell; ok is false for any other.
func (c *Cell) DigestAt(index uint64) (d Digest, ok bool) {
	p := c.records.past[index/digestEvery%digestsKept]
	if index == 0 || p.index != index {
		return Digest{}, false
	}
	return p.digest, true
}

// LastDigest returns the newest digest that DigestAt knows; ok is false when
// there is none yet.
func (c *Cell) LastDigest() (index uint64, d Digest, ok bool) {
	index = c.index - c.index%digestEvery
	d, ok = c.DigestAt(index)
	return index, d, ok
}

func (c *Cell) rememberDigest() {
	if c.index%digestEvery == 0 {
		c.records.past[c.index/digestEvery%digestsKept] = pastDigest{c.index, c.Digest()}
	}
}

// Flush gives every record that changed since the last Flush to put; a nil
// value means that the record is gone. Key and value are only good during the
// call. A nil put is for who writes nothing down: it only forgets what changed.
func (c *Cell) Flush(put func(key, value []byte)) {
	b := &c.records
	for i, r := range b.unflushed {
		m := r.marker()
		m.unflushed = false
		b.unflushed[i] = nil
		if put == nil {
			continue
		}
		key, value := b.encode(r)
		if m.unsettled {
			b.settle(m, key, value)
		}
		put(key, value)
	}
	b.unflushed = b.unflushed[:0]
	if put != nil {
		c.settleAll()
	}
}

// Dirty is how many records Flush would write.
func (c *Cell) Dirty() int { return len(c.records.unflushed) }
