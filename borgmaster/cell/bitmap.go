package cell

import (
	"iter"
	"math/bits"
)

// bitmap is a set of task indices.
type bitmap []uint64

func (b *bitmap) set(i uint32) {
	for int(i/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitmap) clear(i uint32) {
	if int(i/64) < len(b) {
		b[i/64] &^= 1 << (i % 64)
	}
}

func (b bitmap) has(i uint32) bool {
	return int(i/64) < len(b) && b[i/64]&(1<<(i%64)) != 0
}

// all yields the members upwards.
func (b bitmap) all() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for w, word := range b {
			for word != 0 {
				if !yield(uint32(w*64 + bits.TrailingZeros64(word))) {
					return
				}
				word &= word - 1
			}
		}
	}
}
