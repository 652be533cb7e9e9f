package scheduler

import (
	"iter"
	"slices"
)

// changes is the order in which places changed so that something could fit
// that did not: a log that classes remember their place in.
type changes struct {
	// base is the number of changes before those in log.
	base uint64
	// log holds slots.
	log []int32
	// lists are the slots that changed since some numbers of changes, up to listedAt
	// changes: nearly all classes ask since the same number.
	lists    map[uint64][]int32
	listedAt uint64
}

// maxLists bounds lists.
const maxLists = 64

// now is the number of changes so far.
func (ch *changes) now() uint64 { return ch.base + uint64(len(ch.log)) }

// add notes a change on a slot. Past limit entries, what was noted counts as
// "all of them may have changed".
func (ch *changes) add(slot int32, limit int) {
	if len(ch.log) >= limit {
		ch.all()
		return
	}
	ch.log = append(ch.log, slot)
}

// all notes that anything may have changed.
func (ch *changes) all() {
	ch.base = ch.now() + 1
	ch.log = ch.log[:0]
}

// since returns the slots that changed after seen, ascending and each once; ok is
// false when it could be any. The caller only reads them.
func (ch *changes) since(seen uint64) (changed []int32, ok bool) {
	if seen < ch.base {
		return nil, false
	}
	if now := ch.now(); ch.listedAt != now || len(ch.lists) >= maxLists {
		clear(ch.lists)
		ch.listedAt = now
	}
	if changed, ok = ch.lists[seen]; ok {
		return changed, true
	}
	changed = slices.Clone(ch.log[seen-ch.base:])
	slices.Sort(changed)
	changed = slices.Compact(changed)
	if ch.lists == nil {
		ch.lists = make(map[uint64][]int32)
	}
	ch.lists[seen] = changed
	return changed, true
}

// from goes through ascending slots in the order of a walk that begins at start.
func from(slots []int32, start int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		at, _ := slices.BinarySearch(slots, start)
		for _, i := range slots[at:] {
			if !yield(i) {
				return
			}
		}
		for _, i := range slots[:at] {
			if !yield(i) {
				return
			}
		}
	}
}
