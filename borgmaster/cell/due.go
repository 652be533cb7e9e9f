package cell

import (
	"container/heap"
	"slices"
)

// due is when something is looked at because of the time.
type due[T any] struct {
	ns int64
	of T
}

// dues orders them by time. Entries at the same time come in no order that is the same
// in every copy of the cell: the caller who takes them out orders them.
//
// An entry is not removed when it no longer counts, because its object is gone or due at
// another time. Such entries are dropped in bulk when they may be most of the heap, so
// that a user who makes many, due in a week, does not fill the memory with them.
type dues[T comparable] struct {
	heap dueHeap[T]
	// Length at which entries that no longer count are dropped.
	thinAt int
}

// minThinAt is the least of thinAt.
const minThinAt = 64

// nextNs returns the time of the earliest; maxTimeNs if there is none.
func (d *dues[T]) nextNs() int64 {
	if len(d.heap) == 0 {
		return maxTimeNs
	}
	return d.heap[0].ns
}

// over reports whether one of them is due.
func (d *dues[T]) over(ns int64) bool { return d.nextNs() <= ns }

// add puts in another entry. counts reports whether an entry still counts.
func (d *dues[T]) add(ns int64, of T, counts func(due[T]) bool) {
	if len(d.heap) >= max(d.thinAt, minThinAt) {
		d.heap = slices.DeleteFunc(d.heap, func(e due[T]) bool { return !counts(e) })
		heap.Init(&d.heap)
		d.thinAt = 2*len(d.heap) + minThinAt
	}
	heap.Push(&d.heap, due[T]{ns, of})
}

// take removes and returns the earliest.
func (d *dues[T]) take() due[T] { return heap.Pop(&d.heap).(due[T]) }

// has reports whether there is such an entry.
func (d *dues[T]) has(ns int64, of T) bool { return slices.Contains(d.heap, due[T]{ns, of}) }

// dueHeap implements heap.Interface.
type dueHeap[T comparable] []due[T]

func (h dueHeap[T]) Len() int           { return len(h) }
func (h dueHeap[T]) Less(a, b int) bool { return h[a].ns < h[b].ns }
func (h dueHeap[T]) Swap(a, b int)      { h[a], h[b] = h[b], h[a] }
func (h *dueHeap[T]) Push(x any)        { *h = append(*h, x.(due[T])) }
func (h *dueHeap[T]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = due[T]{}
	*h = (*h)[:last]
	return x
}
