package cell

import (
	"container/heap"
	"slices"
)

// due is an object and the time at which the cell must look at it.
type due[T any] struct {
	ns int64
	of T
}

// dues is a queue of dues, earliest first. The order of entries with the same time may differ
// between replicas: the caller must sort what it takes.
//
// An entry becomes stale when its object is gone or due at another time, and stays in the
// queue. When most entries may be stale all stale ones are dropped, so that a user who makes
// many, due in a week, does not fill the memory.
type dues[T comparable] struct {
	heap dueHeap[T]
	// Length at which stale entries are dropped.
	dropAt int
}

// minDropAt is the minimum of dropAt.
const minDropAt = 64

// nextNs returns the time of the earliest entry; maxTimeNs if the queue is empty.
func (d *dues[T]) nextNs() int64 {
	if len(d.heap) == 0 {
		return maxTimeNs
	}
	return d.heap[0].ns
}

// isDue reports whether an entry is due at a time.
func (d *dues[T]) isDue(ns int64) bool { return d.nextNs() <= ns }

// add adds an entry. isCurrent reports whether an entry is not stale.
func (d *dues[T]) add(ns int64, of T, isCurrent func(due[T]) bool) {
	if len(d.heap) >= max(d.dropAt, minDropAt) {
		d.heap = slices.DeleteFunc(d.heap, func(e due[T]) bool { return !isCurrent(e) })
		heap.Init(&d.heap)
		d.dropAt = 2*len(d.heap) + minDropAt
	}
	heap.Push(&d.heap, due[T]{ns, of})
}

// take removes and returns the earliest entry.
func (d *dues[T]) take() due[T] { return heap.Pop(&d.heap).(due[T]) }

// has reports whether the queue has an entry, stale or not.
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
