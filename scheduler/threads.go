package scheduler

import "math/bits"

// The walk over all machines can be shared by threads: each walks a part of the
// slots, and what they found is put together by the order of one walk, so that the
// choice is that of one thread. A walk that ends after a few dozen machines takes
// about as long as handing it to another thread does, and is never shared.

// minShare is how many slots a thread has at least: below, starting it takes
// longer than its work. Tests make it smaller.
var minShare = 2048

// partsOf is among how many threads some slots are shared.
func partsOf(threads, slots int) int { return max(1, min(threads, slots/minShare)) }

// split runs work on each part of some words, the last one on this thread, and
// returns when all are done. Work on one part must not write what another one
// reads: words of bit sets are never cut.
func split(parts, words int, work func(part, low, high int)) {
	done := make(chan struct{}, parts)
	for part := range parts - 1 {
		go func() {
			work(part, words*part/parts, words*(part+1)/parts)
			done <- struct{}{}
		}()
	}
	work(parts-1, words*(parts-1)/parts, words)
	for range parts - 1 {
		<-done
	}
}

// walkShared is a walk that looks at all of the slots, by several threads.
func (f *search) walkShared(w *want, parts int, first int32, sets [4]bitset) {
	found := make([]search, parts)
	split(parts, len(sets[0]), func(part, low, high int) {
		own := &found[part]
		*own = *f
		own.checks, own.hits, own.misses = 0, 0, 0
		own.walkWords(w, low, high, first, sets)
	})
	n := int32(len(f.s.sites.walk))
	for i := range found {
		own := &found[i]
		f.checks += own.checks
		f.hits += own.hits
		f.misses += own.misses
		f.found += own.found
		for _, at := range [...]struct {
			slot   int32
			points int64
		}{{own.best, own.bestPoints}, {own.second, own.secondPoints}} {
			if at.slot >= 0 {
				f.offer(at.slot, at.points, first, n)
			}
		}
	}
}

// walkWords walks some of the words in the order of the whole walk: what lies
// before its start comes last.
func (f *search) walkWords(w *want, low, high int, first int32, sets [4]bitset) {
	start := min(max(first, int32(low)<<6), int32(high)<<6)
	for _, span := range [...][2]int32{{start, int32(high) << 6}, {int32(low) << 6, start}} {
		for at := int(span[0] >> 6); int32(at)<<6 < span[1]; at++ {
			word := sets[0][at] & sets[1][at] & sets[2][at] & sets[3][at]
			for word != 0 {
				i := int32(at<<6 | bits.TrailingZeros64(word))
				word &= word - 1
				if i >= span[0] && i < span[1] {
					f.consider(w, i)
				}
			}
		}
	}
}

// offer takes a slot for the best or second best if it is: of equals the first in
// the walk.
func (f *search) offer(i int32, points int64, first, n int32) {
	before := func(a, b int32) bool { return (a-first+n)%n < (b-first+n)%n }
	switch {
	case f.best < 0 || points > f.bestPoints || points == f.bestPoints && before(i, f.best):
		f.second, f.secondPoints = f.best, f.bestPoints
		f.best, f.bestPoints = i, points
	case f.second < 0 || points > f.secondPoints || points == f.secondPoints && before(i, f.second):
		f.second, f.secondPoints = i, points
	}
}
