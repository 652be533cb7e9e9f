package scheduler

import (
	"cmp"
	"slices"
)

// A packing from nothing has no arrivals, so the order in which tasks are placed is ours to
// choose: largest first, since what comes last has to fit into what is left. Which measure of
// size is best depends on the cell. Small cells are packed in many orders, in which tasks that
// found no place before come earlier and earlier.

// packOrder is one order after another.
type packOrder struct {
	// attempt numbers the orders, most is how many there are.
	attempt, most int
	// prodFirst: production reserves less than its limits, so that placing it first leaves
	// others more.
	prodFirst bool
	// tasks is how many there are, about.
	tasks int
	// average is the size of a machine.
	average [numSizes]int64
	// failed is in how many orders a task or alloc found no place.
	failed map[ID]int64
}

// numSizes are CPU, memory and disk.
const numSizes = 3

// The first orders. In all that come later, tasks that found no place come earlier.
const (
	// The largest share of a machine that a request has; production first.
	byDominantShare = iota
	// The order of a live scheduler.
	byArrival
	// Like the first, whatever the priority.
	byDominantShareOfAll
	bySum
	byMemory
	byCPU
	numFirstOrders
)

const (
	// maxPackWork bounds the tasks that are placed in all orders together, beyond the
	// first two.
	maxPackWork = 50_000
	// maxOrders bounds the orders.
	maxOrders = 256
	// An order that leaves more than one task in so many is far from fitting; others are not
	// tried then.
	farFromFitting = 3
)

func (k Packing) orders() *packOrder {
	o := &packOrder{failed: make(map[ID]int64)}
	n := int64(0)
	for m := range k.Machines.Machines() {
		c := m.Capacity()
		for i, v := range sizesOf(c.CPUMilli, c.MemBytes, c.DiskBytes) {
			o.average[i] += v
		}
		n++
	}
	for i := range o.average {
		o.average[i] /= max(n, 1)
	}
	for j := range k.Workload.Jobs() {
		if !isDaemon(j) {
			o.tasks += int(j.NumTasks())
		}
	}
	o.most = min(max(maxPackWork/max(o.tasks, 1), 2), maxOrders)
	if o.most > 2 {
		o.prodFirst = k.reclaims()
	}
	return o
}

// reclaims reports whether any task of production reserves less than its limit.
func (k Packing) reclaims() bool {
	for j := range k.Workload.Jobs() {
		if j.Priority() < prodPriority {
			continue
		}
		for i := range j.Tasks() {
			limit, reserved := j.Need(i).Resources, k.Reserved(j, i)
			if reserved.CPUMilli < limit.CPUMilli || reserved.MemBytes < limit.MemBytes {
				return true
			}
		}
	}
	return false
}

// sizesOf are amounts in units of which a machine has not too many.
func sizesOf(cpuMilli, memBytes, diskBytes int64) [numSizes]int64 {
	return [numSizes]int64{cpuMilli, memBytes >> 20, diskBytes >> 20}
}

// next goes on to the next order after one in which not all found a place. It returns false when
// there is none, or no hope.
func (o *packOrder) next(p *packing) bool {
	for _, id := range p.left {
		o.failed[id]++
	}
	o.attempt++
	return o.attempt < min(o.most, 2) || o.attempt < o.most && len(p.left) <= 1+o.tasks/farFromFitting
}

// item is a task or alloc, a run of those that ask for the same, or a whole gang.
type item struct {
	line *line
	// indices are some of the line's.
	indices []uint32
	prod    bool
	size    int64
}

// items are all that waits in the present order.
func (o *packOrder) items(p *pass) (all []item) {
	for _, l := range p.s.queue.list {
		for rest := l.rest(); len(rest) > 0; {
			w := p.s.want(p.c, l, rest[0])
			n := 1
			switch {
			case l.gang:
				n = len(rest)
			case o.most == 2:
				// They may as well stay together, and need no memory each.
				for n < len(rest) && rest[n] <= w.last {
					n++
				}
			}
			all = append(all, item{l, rest[:n], w.prod, o.size(w, rest[0])})
			rest = rest[n:]
		}
	}
	prodFirst := o.attempt == byDominantShare || o.prodFirst && o.attempt%2 == 0
	slices.SortStableFunc(all, func(a, b item) int {
		if prodFirst && a.prod != b.prod {
			if a.prod {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.size, a.size)
	})
	return all
}

// size is what a task is ordered by.
func (o *packOrder) size(w *want, index uint32) (size int64) {
	r := &w.need.Resources
	shares := sizesOf(r.CPUMilli, r.MemBytes, r.DiskBytes)
	sum := int64(0)
	for i := range shares {
		shares[i] = shares[i] * 4096 / max(o.average[i], 1)
		sum += shares[i]
	}
	switch o.attempt {
	case bySum:
		return sum
	case byMemory:
		return shares[1]
	case byCPU:
		return shares[0]
	}
	if size = slices.Max(shares[:]); o.attempt < numFirstOrders {
		return size
	}
	// Both measures in turn, twice each, so that each is used with production first and without.
	if o.attempt>>1&1 == 1 {
		size = sum
	}
	// Who found no place comes earlier. A little chance leads out of orders that repeat
	// themselves.
	chance := mix(uint64(o.attempt)<<32 ^ w.line.uid.Index<<8 ^ uint64(index))
	return size + size*o.failed[ID{w.line.uid, index}]/8 + int64(chance%uint64(size/8+1))
}

// runItems places what it can, item by item.
func (p *pass) runItems(items []item) {
	placed := make(map[*line][]uint32)
	for _, it := range items {
		l := it.line
		if l.gang {
			if p.placeWhole(l) {
				placed[l] = it.indices
			}
			continue
		}
		for _, index := range it.indices {
			if w := p.s.want(p.c, l, index); !p.blocked(w) && p.place(w, index) {
				placed[l] = append(placed[l], index)
			}
		}
	}
	for l, gone := range placed {
		slices.Sort(gone)
		var left []uint32
		for _, index := range l.indices {
			if _, is := slices.BinarySearch(gone, index); !is {
				left = append(left, index)
			}
		}
		l.indices = left
	}
}
