package scheduler

import (
	"math"
	"math/bits"
	"slices"
)

// bitset is a set of slots.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(i int32) bool { return b[i>>6]&(1<<(i&63)) != 0 }

func (b bitset) set(i int32, on bool) {
	if on {
		b[i>>6] |= 1 << (i & 63)
	} else {
		b[i>>6] &^= 1 << (i & 63)
	}
}

// any reports whether the set has a member.
func (b bitset) any() bool {
	return slices.ContainsFunc(b, func(word uint64) bool { return word != 0 })
}

// fill puts the first n into a set that is made for as many.
func (b bitset) fill(n int) {
	for i := range b {
		b[i] = math.MaxUint64
	}
	if extra := len(b)*64 - n; extra > 0 {
		b[len(b)-1] >>= extra
	}
}

// ring goes through the members of four sets in common, from a start upwards and
// then from the bottom up to it.
type ring struct {
	sets [4]bitset
	// unsure are members of the last two of the sets too; nil: there are none.
	unsure bitset
	// left is what has not been given out of word at; last is the word after
	// which the walk ends, with what of it is left for the end.
	left uint64
	at   int
	wrap uint64
	rest int
}

func newRing(sets [4]bitset, start int32) ring { return newUnsureRing(sets, nil, start) }

func newUnsureRing(sets [4]bitset, unsure bitset, start int32) ring {
	r := ring{sets: sets, unsure: unsure, at: int(start >> 6), rest: len(sets[0])}
	if r.rest == 0 {
		return r
	}
	word := r.word()
	below := uint64(1)<<(start&63) - 1
	r.left, r.wrap = word&^below, word&below
	return r
}

// word is 64 slots of what the sets have in common.
func (r *ring) word() uint64 {
	some := r.sets[2][r.at] & r.sets[3][r.at]
	if r.unsure != nil {
		some |= r.unsure[r.at]
	}
	return r.sets[0][r.at] & r.sets[1][r.at] & some
}

// pair is a ring of two sets.
func pair(a, b bitset, start int32) ring { return newRing([4]bitset{a, b, a, b}, start) }

// next returns -1 at the end. The caller may take members out of the sets that
// were given out already.
func (r *ring) next() int32 {
	for r.left == 0 {
		if r.rest--; r.rest < 0 {
			return -1
		}
		if r.at++; r.at == len(r.sets[0]) {
			r.at = 0
		}
		if r.rest == 0 {
			// Back in the word where the walk began: its lower part.
			r.left = r.wrap
		} else {
			r.left = r.word()
		}
	}
	i := bits.TrailingZeros64(r.left)
	r.left &= r.left - 1
	return int32(r.at<<6 | i)
}
