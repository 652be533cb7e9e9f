package watch

import (
	"cmp"
	"iter"
	"slices"

	"borg/borgmaster/cell"
)

// place is where a group or a machine stands among those of its kind, for good.
type place struct {
	name cell.JobKey
	uid  cell.UID
}

func (p place) compare(o place) int { return cmp.Or(p.name.Compare(o.name), p.uid.Compare(o.uid)) }

// placesInBlock is how many groups a block of places has at most.
const placesInBlock = 512

// places are all groups of a kind in the order of their places, in blocks: one that comes or
// goes moves few others, and a scan goes on from any place.
type places struct{ blocks [][]*group }

// find returns the first group that is not before p, which may be behind the last one.
func (l *places) find(p place) (block, at int, found bool) {
	block, _ = slices.BinarySearchFunc(l.blocks, p, func(b []*group, p place) int { return b[len(b)-1].place().compare(p) })
	if block == len(l.blocks) {
		return block, 0, false
	}
	at, found = slices.BinarySearchFunc(l.blocks[block], p, func(g *group, p place) int { return g.place().compare(p) })
	return block, at, found
}

// add puts in a group whose place is free.
func (l *places) add(g *group) {
	block, at, _ := l.find(g.place())
	if block == len(l.blocks) {
		last := len(l.blocks) - 1
		if last < 0 || len(l.blocks[last]) == placesInBlock {
			l.blocks = append(l.blocks, []*group{g})
			return
		}
		block, at = last, len(l.blocks[last])
	}
	all := slices.Insert(l.blocks[block], at, g)
	l.blocks[block] = all
	if half := len(all) / 2; len(all) > placesInBlock {
		l.blocks = slices.Insert(l.blocks, block+1, slices.Clone(all[half:]))
		clear(all[half:])
		l.blocks[block] = all[:half]
	}
}

// remove takes out the group of a place.
func (l *places) remove(p place) {
	block, at, found := l.find(p)
	if !found {
		return
	}
	if l.blocks[block] = slices.Delete(l.blocks[block], at, at+1); len(l.blocks[block]) == 0 {
		l.blocks = slices.Delete(l.blocks, block, block+1)
	}
}

// from yields the groups from a place on. None may come or go meanwhile.
func (l *places) from(p place) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		block, at, _ := l.find(p)
		for ; block < len(l.blocks); block, at = block+1, 0 {
			for _, g := range l.blocks[block][at:] {
				if !yield(g) {
					return
				}
			}
		}
	}
}

// groups are those of a kind, by uid and in the order of their places.
type groups struct {
	by map[cell.UID]*group
	places
}

func newGroups() groups { return groups{by: make(map[cell.UID]*group)} }

// add puts in a group that is not there, and that has its own object.
func (l *groups) add(g *group) {
	l.by[g.own.head.uid] = g
	l.places.add(g)
}

func (l *groups) remove(g *group) {
	delete(l.by, g.own.head.uid)
	l.places.remove(g.place())
}

func (g *group) place() place { return place{g.own.head.name, g.own.head.uid} }

// like reports whether other has groups of the same places, and both have each in its order.
func (l *groups) like(other *groups) bool {
	if len(l.by) != len(other.by) {
		return false
	}
	mine, theirs := slices.Collect(l.from(place{})), slices.Collect(other.from(place{}))
	return len(mine) == len(l.by) && slices.IsSortedFunc(mine, func(a, b *group) int { return a.place().compare(b.place()) }) &&
		slices.EqualFunc(mine, theirs, func(a, b *group) bool { return a.place() == b.place() })
}
