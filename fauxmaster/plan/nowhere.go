package plan

import (
	"fmt"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// nowhere is what no machine of a cell could hold, even if it were empty.
type nowhere struct {
	tasks map[taskKey]bool
	// sets are alloc sets with such allocs: all tasks in them are left out too.
	sets map[cell.JobKey]bool
	// gangs are jobs with such tasks that are placed whole or not at all.
	gangs map[cell.UID]bool
}

func newNowhere() *nowhere {
	return &nowhere{make(map[taskKey]bool), make(map[cell.JobKey]bool), make(map[cell.UID]bool)}
}

func (n *nowhere) take(j *cell.Job, set *cell.AllocSet, index uint32) {
	switch {
	case j == nil:
		n.sets[set.Key()] = true
	case j.Spec().GetGang():
		n.gangs[j.UID()] = true
	default:
		n.tasks[taskKey{j.UID(), index}] = true
	}
}

// has reports whether a task is left out.
func (n *nowhere) has(j *cell.Job, index uint32) bool {
	key, in := j.AllocSet()
	return n.tasks[taskKey{j.UID(), index}] || n.gangs[j.UID()] || in && n.sets[key]
}

// leaveOut leaves out of the workload what no machine could hold, and names it. It reports
// whether there was any.
func (k *Compaction) leaveOut(n *nowhere) bool {
	if len(n.tasks)+len(n.sets)+len(n.gangs) == 0 {
		return false
	}
	before, setsBefore := k.packing.Left, k.packing.LeftSet
	for j := range k.packing.Workload.Jobs() {
		count := 0
		for i, t := range j.Tasks() {
			if t.State() != borgpb.State_STATE_DEAD && !isDaemonJob(j) && !before(j, i) && n.has(j, i) {
				count++
			}
		}
		if count > 0 {
			k.Nowhere = append(k.Nowhere, fmt.Sprintf("%v (%d of %d tasks)", j.Key(), count, j.NumTasks()))
			k.NowhereTasks += count
			k.Tasks -= count
		}
	}
	for s := range k.packing.Workload.AllocSets() {
		if n.sets[s.Key()] && !setsBefore(s) {
			k.Nowhere = append(k.Nowhere, fmt.Sprintf("%v (an alloc set)", s.Key()))
		}
	}
	slices.Sort(k.Nowhere)
	k.packing.Left = func(j *cell.Job, index uint32) bool { return before(j, index) || n.has(j, index) }
	k.packing.LeftSet = func(s *cell.AllocSet) bool { return setsBefore(s) || n.sets[s.Key()] }
	return true
}
