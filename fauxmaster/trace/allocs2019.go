package trace

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"borg/proto/borgpb"
)

// allocSets2019 are the alloc sets of a trace. What is there at the moment comes
// with its allocs where they are; a set that comes afterwards, with as many
// as it ever had.
type allocSets2019 struct {
	of  *Google2019
	all map[int64]*allocSet2019
}

type allocSet2019 struct {
	allocs map[int32]*alloc2019
	// here: some of it was there at the moment. Otherwise it came at sinceUs.
	here    bool
	sinceUs int64
	// endedUs is when the last of it ended; zero: it has not.
	endedUs int64
	// name is USER/NAME once it is in the cell.
	name string
}

type alloc2019 struct {
	task2011
	ended bool
	// ours is its index in the cell.
	ours int
	// found is how many tasks were found to be in it by their machine.
	found int
}

func newAllocSets2019(o *Google2019) *allocSets2019 {
	return &allocSets2019{of: o, all: make(map[int64]*allocSet2019)}
}

// take takes in an event of an alloc.
func (s *allocSets2019) take(e *event2019, what int8) {
	set := s.all[e.id.job]
	if set == nil {
		set = &allocSet2019{allocs: make(map[int32]*alloc2019), here: e.atUs <= s.of.replay.timeUs, sinceUs: e.atUs}
		s.all[e.id.job] = set
	}
	beyond := e.atUs > s.of.replay.timeUs
	a := set.allocs[e.id.index]
	switch {
	case isEnd2019(what) && !beyond:
		delete(set.allocs, e.id.index)
		if len(set.allocs) == 0 {
			delete(s.all, e.id.job)
		}
		return
	case isEnd2019(what):
		if a != nil {
			a.ended = true
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(set.allocs)), func(a *alloc2019) bool { return !a.ended }) {
			set.endedUs = e.atUs
		}
		return
	case a == nil && beyond && set.here:
		s.of.note("allocs that came to an alloc set of the moment later, left out")
		return
	case a == nil:
		a = &alloc2019{task2011: task2011{cpu: -1, mem: -1}}
		set.allocs[e.id.index] = a
	}
	a.ended, set.endedUs = false, 0
	a.hear(&e.said)
	if beyond && set.here {
		// Where it is then is the cell's to say.
		return
	}
	a.priority = e.said.priority
	a.obey(as2011[what], &e.said)
	switch what {
	case submit2019:
		a.machine = 0
	case schedule2019, updateRunning2019:
		a.machine = cmp.Or(e.said.machine, a.machine)
	}
}

// add puts the sets into the cell.
func (s *allocSets2019) add(c *Cell) {
	follow := s.of.replay.follow
	var coming, going []Arrival
	for _, id := range sortedIDs(s.all) {
		set := s.all[id]
		if set.name == "" {
			continue
		}
		made := s.make(c, id, set)
		if set.here {
			c.AllocSets = append(c.AllocSets, made)
		} else {
			coming = append(coming, Arrival{AtNs: (set.sinceUs - follow.fromUs) * 1000, Op: made.Op()})
		}
		if set.endedUs > 0 {
			going = append(going, Arrival{AtNs: (max(set.endedUs, follow.fromUs) - follow.fromUs) * 1000, Op: &borgpb.Op{
				Principal: &borgpb.Principal{User: made.User, Role: borgpb.Role_ROLE_USER},
				Op:        &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: made.User, Name: made.Name}},
			}})
		}
	}
	if len(coming)+len(going) > 0 {
		// Of one moment, sets come before the jobs in them and go after them.
		c.Arrivals = slices.Concat(coming, c.Arrivals, going)
		c.sortArrivals()
	}
}

// choose names the sets that become ours and numbers their allocs, before jobs are
// made that may run in them.
func (s *allocSets2019) choose() {
	for _, id := range sortedIDs(s.all) {
		set := s.all[id]
		if !slices.ContainsFunc(slices.Collect(maps.Values(set.allocs)), func(a *alloc2019) bool { return a.known() }) {
			s.of.note("alloc sets left out, as nobody says how large their allocs are; tasks in them are on machines")
			continue
		}
		user, name := s.of.jobs.key(id)
		set.name = user + "/" + name
		for i, index := range slices.Sorted(maps.Keys(set.allocs)) {
			set.allocs[index].ours = i
		}
	}
}

// make makes one. All allocs of a set are of one size: that of the largest.
func (s *allocSets2019) make(c *Cell, id int64, set *allocSet2019) AllocSet {
	user, name := s.of.jobs.key(id)
	k, g := s.of.collection(id), s.of.replay
	made := AllocSet{User: user, Name: name, Spec: &borgpb.AllocSetSpec{
		Allocs: uint32(len(set.allocs)), Priority: int32(k.priority), MaxPerMachine: k.perMachine, MaxPerRack: k.perRack, Resources: &borgpb.Resources{},
	}}
	smallest := int64(math.MaxInt64)
	var words string
	for i, index := range slices.Sorted(maps.Keys(set.allocs)) {
		a := set.allocs[index]
		if !a.known() {
			s.of.note("allocs of which nobody says how large they are, taken as large as the largest of their set")
		}
		cpu, mem := asked(max(a.cpu, 0), g.largest.CPUMilli), asked(max(a.mem, 0), g.largest.MemBytes)
		r := made.Spec.Resources
		r.CpuMilli, r.MemBytes = max(r.CpuMilli, cpu), max(r.MemBytes, mem)
		smallest = min(smallest, cpu)
		if i == 0 {
			made.Spec.Constraints, words = a.constraints, constraintWords(a.constraints)
			made.Spec.Priority = int32(a.priority)
		} else if constraintWords(a.constraints) != words {
			made.Spec.Constraints = nil
		}
		if set.here {
			made.Machines = append(made.Machines, g.place(c, &a.task2011))
		}
	}
	if smallest != made.Spec.Resources.CpuMilli {
		s.of.note("alloc sets with allocs of several sizes: all have that of the largest")
	}
	if words != "" && made.Spec.Constraints == nil {
		s.of.note("alloc sets whose allocs have several constraints: left out")
	}
	return made
}

// holds names the set that a job is in from some time on; empty: it is in none of
// the cell.
func (s *allocSets2019) holds(id int64, here bool, sinceUs int64) string {
	set := s.all[id]
	if set == nil || !set.here && (here || set.sinceUs > sinceUs) || set.endedUs > 0 && !here && set.endedUs < sinceUs {
		return ""
	}
	return set.name
}

// nameOf names the alloc that a task is in. Tables that the masters wrote of the past name
// the set alone: then it is the alloc of the set on the task's machine, of several the one
// with the fewest such tasks.
func (s *allocSets2019) nameOf(t *task2011) string {
	set := s.all[t.alloc]
	if set != nil && t.allocIndex < 0 && t.machine != 0 {
		if a := set.on(t.machine); a != nil {
			a.found++
			return fmt.Sprintf("%s/%d", set.name, a.ours)
		}
	}
	if set == nil || set.allocs[t.allocIndex] == nil {
		if t.machine != 0 {
			s.of.note("tasks that ran in an alloc that is not there: they wait")
		}
		return ""
	}
	return fmt.Sprintf("%s/%d", set.name, set.allocs[t.allocIndex].ours)
}

// on is an alloc of the set on a machine; nil if there is none.
func (set *allocSet2019) on(machine int64) (best *alloc2019) {
	for _, index := range slices.Sorted(maps.Keys(set.allocs)) {
		if a := set.allocs[index]; a.machine == machine && !a.ended && (best == nil || a.found < best.found) {
			best = a
		}
	}
	return best
}

func sortedIDs[T any](all map[int64]T) []int64 { return slices.Sorted(maps.Keys(all)) }
