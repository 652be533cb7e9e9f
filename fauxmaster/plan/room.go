package plan

import (
	"cmp"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Room is what one machine has, and what is free of it for a task of one view.
type Room struct {
	Machine        string
	Capacity, Free cell.Resources
}

// First priority of production (paper §2.5).
const productionPriority = 120

// Rooms lists what is free on the machines that are up, for production (by
// limits) or for others (by reservations).
func Rooms(c *cell.Cell, prod bool) (all []Room) {
	for m := range c.Machines() {
		if m.Up() && !m.Draining() && !m.Closed() {
			all = append(all, Room{m.Name(), m.Capacity(), m.Capacity().Sub(m.Held(prod))})
		}
	}
	return all
}

// byCount sorts the largest first, then by name as people count: r2 before r10.
func byCount(a, b Count) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
}

// suits tells whether a task may be on a machine at all.
func suits(t *borgpb.TaskSpec, m *cell.Machine) bool {
	if !m.Up() || m.Draining() || m.Closed() || cell.Untolerated(t.GetTolerations(), m) != nil {
		return false
	}
	for _, k := range t.GetConstraints() {
		if !k.GetSoft() && !cell.Holds(k, m) {
			return false
		}
	}
	return true
}

// Largest tasks. A shape is scaled in thousandths up to so many times what was
// asked for.
const maxPermille = 1 << 20

// largest is, for each number of copies, the largest task of the shape asked for
// that fits so many times into what is free now: nobody gives way, and limits per
// failure domain and devices are not looked at.
func (f *fitting) largest() (all []Scaled) {
	w := f.q.Jobs[0]
	need := cell.FromProto(w.Spec.Task.GetResources())
	prod := w.Spec.Priority >= productionPriority
	var free []cell.Resources
	for m := range f.base.cell.Machines() {
		if suits(w.Spec.Task, m) {
			free = append(free, m.Capacity().Sub(m.Held(prod)))
		}
	}
	return scaled(free, need, f.q.Scales)
}

func scaled(free []cell.Resources, need cell.Resources, copies []int) (all []Scaled) {
	fits := func(permille int64, copies int) bool {
		task := cell.Resources{
			CPUMilli: part(need.CPUMilli, permille), MemBytes: part(need.MemBytes, permille), DiskBytes: part(need.DiskBytes, permille),
		}
		if task.IsZero() {
			return false
		}
		n := int64(0)
		for _, room := range free {
			if n += times(room, task); n >= int64(copies) {
				return true
			}
		}
		return false
	}
	for _, k := range slices.Sorted(slices.Values(copies)) {
		// Invariant: low fits or is nothing, high does not fit.
		low, high := int64(0), int64(maxPermille)
		for low+1 < high {
			mid := (low + high) / 2
			if fits(mid, k) {
				low = mid
			} else {
				high = mid
			}
		}
		all = append(all, Scaled{Copies: k, Permille: low, CPUMilli: part(need.CPUMilli, low), MemBytes: part(need.MemBytes, low)})
	}
	return all
}

// part is so many thousandths of an amount, without overflow.
func part(amount, permille int64) int64 {
	return amount/1000*permille + amount%1000*permille/1000
}
