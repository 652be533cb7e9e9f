package cell

// due is when something is looked at because of the time.
type due[T any] struct {
	ns int64
	of T
}

// dues is a heap of them, the earliest first. What is due at once comes in no order that
// is the same in every copy of the cell: who takes it out orders it.
type dues[T any] []due[T]

// nextNs is the time of the earliest; maxTimeNs: there is none.
func (h dues[T]) nextNs() int64 {
	if len(h) == 0 {
		return maxTimeNs
	}
	return h[0].ns
}

// over tells whether one of them is due.
func (h dues[T]) over(ns int64) bool { return len(h) > 0 && h[0].ns <= ns }

func (h dues[T]) Len() int           { return len(h) }
func (h dues[T]) Less(a, b int) bool { return h[a].ns < h[b].ns }
func (h dues[T]) Swap(a, b int)      { h[a], h[b] = h[b], h[a] }
func (h *dues[T]) Push(x any)        { *h = append(*h, x.(due[T])) }
func (h *dues[T]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = due[T]{}
	*h = (*h)[:last]
	return x
}
