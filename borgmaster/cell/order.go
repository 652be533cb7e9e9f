package cell

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"sort"
)

// maxRun is how many objects lie side by side in an order: what one more of them moves,
// at most. While garbage is collected each pointer that moves is looked at.
const maxRun = 128

// order is objects in the order of their keys. It is cut into runs, so that one that comes
// or goes does not move all those behind it: in a cell of many jobs that would cost more
// than all else that a submit does.
type order[K orderKey[K], V keyed[K]] struct {
	// None is empty, none is longer than maxRun, each ends before the next one begins.
	runs  []run[K, V]
	count int
}

// orderKey orders objects, and has a head.
type orderKey[K any] interface {
	Compare(K) int
	head() keyHead
}

// keyed has the key by which it is ordered, which never changes.
type keyed[K any] interface{ orderKey() K }

// run is objects side by side, with the heads of their keys: most comparisons need no
// more, while a key itself is far away in memory from the next one.
type run[K orderKey[K], V keyed[K]] struct {
	heads []keyHead
	all   []V
}

// keyHead is the first bytes of a key, which compare as the key does.
type keyHead [2]uint64

// head is of a job's user, a zero, and its name.
func (k JobKey) head() (h keyHead) {
	var b [16]byte
	if n := copy(b[:], k.User); n < len(b) {
		copy(b[n+1:], k.Name)
	}
	return keyHead{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// compare tells whether the object at a place comes before a key, is it, or comes after it.
func (r *run[K, V]) compare(at int, head keyHead, key K) int {
	switch h := &r.heads[at]; {
	case h[0] != head[0]:
		return cmp.Compare(h[0], head[0])
	case h[1] != head[1]:
		return cmp.Compare(h[1], head[1])
	}
	return r.all[at].orderKey().Compare(key)
}

func runOf[K orderKey[K], V keyed[K]](all []V) run[K, V] {
	r := run[K, V]{heads: make([]keyHead, len(all)), all: slices.Clone(all)}
	for i, v := range all {
		r.heads[i] = v.orderKey().head()
	}
	return r
}

// find tells where a key is, or would be put: in which run, and where in it. Behind all
// objects that is the end of the last run.
func (o *order[K, V]) find(key K) (in, at int, found bool) {
	head := key.head()
	in = sort.Search(len(o.runs), func(i int) bool {
		r := &o.runs[i]
		return r.compare(len(r.all)-1, head, key) >= 0
	})
	if in == len(o.runs) {
		if in == 0 {
			return 0, 0, false
		}
		return in - 1, len(o.runs[in-1].all), false
	}
	at, found = sort.Find(len(o.runs[in].all), func(i int) int { return -o.runs[in].compare(i, head, key) })
	return in, at, found
}

// get is the object of a key; nil: there is none.
func (o *order[K, V]) get(key K) (v V) {
	if in, at, found := o.find(key); found {
		v = o.runs[in].all[at]
	}
	return v
}

// add puts in an object whose key is not there.
func (o *order[K, V]) add(v V) {
	o.count++
	if len(o.runs) == 0 {
		o.runs = []run[K, V]{runOf[K]([]V{v})}
		return
	}
	key := v.orderKey()
	in, at, _ := o.find(key)
	if whole := &o.runs[in]; len(whole.all) == maxRun {
		half := runOf[K](whole.all[maxRun/2:])
		clear(whole.all[maxRun/2:])
		whole.heads, whole.all = whole.heads[:maxRun/2], whole.all[:maxRun/2]
		o.runs = slices.Insert(o.runs, in+1, half)
		if at > maxRun/2 {
			in, at = in+1, at-maxRun/2
		}
	}
	r := &o.runs[in]
	r.heads, r.all = slices.Insert(r.heads, at, key.head()), slices.Insert(r.all, at, v)
}

// remove takes out the object of a key, if it is there.
func (o *order[K, V]) remove(key K) {
	in, at, found := o.find(key)
	if !found {
		return
	}
	o.count--
	r := &o.runs[in]
	if r.heads, r.all = slices.Delete(r.heads, at, at+1), slices.Delete(r.all, at, at+1); len(r.all) == 0 {
		o.runs = slices.Delete(o.runs, in, in+1)
	}
}

func (o *order[K, V]) len() int { return o.count }

// each yields all objects. The order must not be changed meanwhile.
func (o *order[K, V]) each() iter.Seq[V] { return o.walk(0, 0) }

// from yields the objects from a key on.
func (o *order[K, V]) from(key K) iter.Seq[V] {
	in, at, _ := o.find(key)
	return o.walk(in, at)
}

// after yields the objects behind a key.
func (o *order[K, V]) after(key K) iter.Seq[V] {
	in, at, found := o.find(key)
	if found {
		at++
	}
	return o.walk(in, at)
}

func (o *order[K, V]) walk(in, at int) iter.Seq[V] {
	return func(yield func(V) bool) {
		skip := at
		for i := in; i < len(o.runs); i++ {
			for _, v := range o.runs[i].all[skip:] {
				if !yield(v) {
					return
				}
			}
			skip = 0
		}
	}
}

// wellFormed verifies what the fields promise, but for the order, which Check looks at.
func (o *order[K, V]) wellFormed() bool {
	n := 0
	for _, r := range o.runs {
		if len(r.all) == 0 || len(r.all) > maxRun || len(r.heads) != len(r.all) {
			return false
		}
		for i, v := range r.all {
			if r.heads[i] != v.orderKey().head() {
				return false
			}
		}
		n += len(r.all)
	}
	return n == o.count
}
