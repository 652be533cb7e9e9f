package scheduler

import "math/bits"

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

// ring goes through the members of two sets in common, from a start upwards and
// then from the bottom up to it.
type ring struct {
	a, b bitset
	// left is what has not been given out of word at; last is the word after
	// which the walk ends, with what of it is left for the end.
	left uint64
	at   int
	wrap uint64
	rest int
}

func newRing(a, b bitset, start int32) ring {
	r := ring{a: a, b: b, at: int(start >> 6), rest: len(a)}
	if len(a) == 0 {
		return r
	}
	word := a[r.at] & b[r.at]
	below := uint64(1)<<(start&63) - 1
	r.left, r.wrap = word&^below, word&below
	return r
}

// next returns -1 at the end. The caller may take members out of the sets that
// were given out already.
func (r *ring) next() int32 {
	for r.left == 0 {
		if r.rest--; r.rest < 0 {
			return -1
		}
		if r.at++; r.at == len(r.a) {
			r.at = 0
		}
		if r.rest == 0 {
			// Back in the word where the walk began: its lower part.
			r.left = r.wrap
		} else {
			r.left = r.a[r.at] & r.b[r.at]
		}
	}
	i := bits.TrailingZeros64(r.left)
	r.left &= r.left - 1
	return int32(r.at<<6 | i)
}
