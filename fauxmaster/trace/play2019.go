package trace

import (
	"cmp"
	"maps"
	"slices"
)

// What an instance does.
const (
	gone2019 int8 = iota
	waits2019
	runs2019
)

// play replays what was read, in order of time.
func (o *Google2019) play() {
	slices.SortStableFunc(o.machines, func(a, b machineEvent2011) int {
		return cmp.Or(cmp.Compare(a.atUs, b.atUs), cmp.Compare(a.id, b.id))
	})
	for i := range o.machines {
		o.lastUs = max(o.lastUs, o.machines[i].atUs)
		if i > 0 && o.machines[i] == o.machines[i-1] {
			o.note(twice2019)
			continue
		}
		o.replay.machineEvent(&o.machines[i])
	}
	slices.SortFunc(o.events, event2019.compare)
	last := make(map[task2011ID]int64)
	for i := range o.events {
		last[o.events[i].id] = o.events[i].atUs
		o.lastUs = max(o.lastUs, o.events[i].atUs)
	}
	// In the order of their indexes, the same every time.
	instances := make(map[int64][]int32)
	for all := o.events; len(all) > 0; {
		n := 1
		for n < len(all) && all[n].id == all[0].id && all[n].atUs == all[0].atUs {
			n++
		}
		if first := &all[0]; first.id.index == wholeCollection {
			o.endCollection(first, instances[first.id.job], last)
		} else {
			if _, seen := o.live[first.id]; !seen {
				instances[first.id.job] = append(instances[first.id.job], first.id.index)
			}
			group := all[:n]
			if !o.possible(group) {
				group = o.inOrder(o.once(group))
			}
			for i := range group {
				o.event(&group[i])
			}
		}
		all = all[n:]
	}
	o.events, o.machines, o.live = nil, nil, nil
	if !o.replay.beyond {
		o.replay.stop()
	}
}

const twice2019 = "rows that come twice"

func (e event2019) compare(to event2019) int {
	return cmp.Or(cmp.Compare(e.atUs, to.atUs), cmp.Compare(e.id.job, to.id.job), cmp.Compare(e.id.index, to.id.index), cmp.Compare(e.seq, to.seq))
}

// possible reports whether the events of one instance and moment can have happened in the
// order of the file. Then equal rows are events that happened again: what was before a trace
// begins has one moment.
func (o *Google2019) possible(group []event2019) bool {
	state := o.live[group[0].id]
	for i := range group {
		var ok bool
		if state, ok = after2019(state, group[i].what); !ok {
			return false
		}
	}
	return true
}

// once leaves out what comes twice among the events of one instance and moment.
func (o *Google2019) once(group []event2019) []event2019 {
	kept := group[:0]
	for _, e := range group {
		if slices.ContainsFunc(kept, func(was event2019) bool { return e.same(&was) }) {
			o.note(twice2019)
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

func (e *event2019) same(o *event2019) bool {
	a, b := &e.said, &o.said
	return e.what == o.what && e.isSet == o.isSet && a.class == b.class && a.priority == b.priority && a.machine == b.machine &&
		a.cpu == b.cpu && a.mem == b.mem && a.alloc == b.alloc && a.allocIndex == b.allocIndex && constraintWords(a.constraints) == constraintWords(b.constraints)
}

// inOrder puts the events of one instance and moment into an order in which they
// can have happened. Mostly that is the order of the file, but exports of tables
// have none.
func (o *Google2019) inOrder(group []event2019) []event2019 {
	if o.possible(group) {
		return group
	}
	state := o.live[group[0].id]
	left, ordered := slices.Clone(group), make([]event2019, 0, len(group))
	for len(left) > 0 {
		next := 0
		for _, ends := range []bool{false, true} {
			if i := slices.IndexFunc(left, func(e event2019) bool {
				_, ok := after2019(state, e.what)
				return ok && isEnd2019(e.what) == ends
			}); i >= 0 {
				next = i
				break
			}
		}
		state, _ = after2019(state, left[next].what)
		ordered = append(ordered, left[next])
		left = slices.Delete(left, next, next+1)
	}
	return ordered
}

func isEnd2019(what int8) bool { return what >= evict2019 && what <= lost2019 }

// after2019 is what an instance does after an event, and whether it could happen.
func after2019(state, what int8) (int8, bool) {
	switch {
	case what == submit2019:
		return waits2019, state == gone2019
	case isEnd2019(what):
		return gone2019, state != gone2019
	case what == schedule2019:
		return runs2019, state == waits2019
	case what == updateRunning2019:
		return state, state == runs2019
	}
	return state, state == waits2019
}

// event replays one event, with what must have happened before it and is missing.
func (o *Google2019) event(e *event2019) {
	c := o.collection(e.id.job)
	if !c.begun {
		c.begun, c.isSet = true, c.isSet || e.isSet
	} else if c.isSet != e.isSet {
		o.note("instances of another kind than those of their collection before, taken as of the same")
	}
	e.said.alloc = cmp.Or(e.said.alloc, c.alloc)
	if c.told && e.said.priority == 0 {
		e.said.priority, e.said.class = c.priority, c.class
	}
	state := o.live[e.id]
	what := e.what
	switch _, possible := after2019(state, what); {
	case possible:
	case isEnd2019(what):
		o.note("ends of instances that were not there, left out")
		return
	case state == gone2019:
		o.note("instances first heard of without a SUBMIT, taken as submitted then")
		o.give(e, submit2019)
		if what == updateRunning2019 && e.said.machine != 0 {
			what = schedule2019
		}
	case state == waits2019 && what == submit2019:
		o.note("instances submitted while they waited, taken as updates")
		what = updatePending2019
	case state == waits2019:
		o.note("instances that run without a SCHEDULE, taken as scheduled then")
		what = schedule2019
	case what == submit2019:
		o.note("instances submitted while they ran, taken as lost before")
		o.give(e, lost2019)
	case what == schedule2019:
		o.note("instances scheduled while they ran, taken as lost before")
		o.give(e, lost2019)
		o.give(e, submit2019)
	default:
		o.note("instances updated as pending while they ran, taken as updates")
		what = updateRunning2019
	}
	o.give(e, what)
}

// give hands an event on that can have happened.
func (o *Google2019) give(e *event2019, what int8) {
	o.live[e.id], _ = after2019(o.live[e.id], what)
	if what == submit2019 {
		if _, seen := o.began[e.id.job]; !seen {
			o.began[e.id.job] = e.atUs
		}
	}
	if o.collection(e.id.job).isSet {
		o.sets.take(e, what)
		return
	}
	machine := e.said.machine
	if what == submit2019 {
		machine = 0
	}
	said := e.said
	said.machine = 0
	o.replay.take(e.atUs, e.id, as2011[what], machine, &said)
}

// endCollection ends what is left of a collection, where nothing says how it ended
// by itself.
func (o *Google2019) endCollection(e *event2019, instances []int32, last map[task2011ID]int64) {
	o.ended[e.id.job] = e.atUs
	for _, index := range instances {
		id := task2011ID{e.id.job, index}
		if o.live[id] == gone2019 || last[id] > e.atUs {
			continue
		}
		o.note("instances without an end of their own, taken as ended with their collection")
		o.give(&event2019{atUs: e.atUs, id: id, said: task2011{cpu: -1, mem: -1}}, e.what)
	}
}

// learn takes in what ReadLater read.
func (o *Google2019) learn() {
	slices.SortFunc(o.later, event2019.compare)
	for i := range o.later {
		o.replay.learn(o.later[i].id, &o.later[i].said)
	}
	o.later = nil
}

// unknown tells whether there are tasks of which nobody has said what they ask for.
func (o *Google2019) unknown() bool { return o.replay.unknown > 0 }

// there is when collections began, as far as they matter: what was there at the
// moment began with it.
func (o *Google2019) there() map[int64]int64 {
	began := maps.Clone(o.began)
	for id := range o.replay.tasks {
		began[id.job] = 0
	}
	return began
}
