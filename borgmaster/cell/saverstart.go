package cell

import (
	"fmt"

	"borg/mutant"
	"borg/proto/borgpb"
)

// saverReading is the spec that savers of an alloc set share, or why it is refused. One entry may
// end many allocs of a set, and reading a large spec takes milliseconds.
type saverReading struct {
	// specBytes of the set.
	set     []byte
	spec    *reading
	refusal *borgpb.Refusal
}

// is reports whether the reading is of the very bytes of a spec. They never change.
func (r *saverReading) is(set []byte) bool { return len(r.set) > 0 && &r.set[0] == &set[0] }

// newSaverSpec returns a spec for one more saver of a set, which shares the reading of the last one
// in this entry if that is of the same set.
func (c *Cell) newSaverSpec(key JobKey, set *AllocSet) (*Spec, *borgpb.Refusal) {
	last := &c.now.saver
	if !last.is(set.specBytes) {
		*last = saverReading{set: set.specBytes}
		var spec *Spec
		if spec, last.refusal = c.saverSpec(key, set.spec.Priority, set.specBytes); last.refusal == nil {
			last.spec = spec.reading
		}
	}
	return &Spec{reading: last.spec}, last.refusal
}

// saveLeft begins to save what an alloc leaves on a machine.
func (c *Cell) saveLeft(a *Alloc, m *Machine) {
	set := a.set
	if set.spec.Saver == nil || a.state == stateDead && mutant.Planted(mutant.DeadLeaveNothing) {
		return
	}
	key, spec, r := c.saverOf(a)
	if r != nil {
		e := allocEvent(a, m, borgpb.EventKind_EVENT_KIND_SAVE_GIVEN_UP, stateNone, stateNone)
		e.Reason = r.Message
		c.emit(e)
		return
	}
	j := c.submit(key, spec, nil, nil)
	time := set.spec.Saver.TimeNs
	if time == 0 {
		time = saveNs
	}
	j.saving = &saving{
		set: set.key, index: a.index, attempt: a.attempt, machine: m.name, untilNs: min(c.clock.cellNs+time, maxTimeNs), beside: a.state != stateDead,
	}
	c.addSaver(j)
	m.changes++
}

// saverOf returns the key and the spec of the saver of an alloc. It looks at the limits first,
// because one op may end 100,000 allocs.
func (c *Cell) saverOf(a *Alloc) (JobKey, *Spec, *borgpb.Refusal) {
	user := a.set.key.User
	switch {
	case len(c.savers) >= maxSavers || c.counts.liveTasks() >= maxLiveTasks:
		return JobKey{}, nil, limit("", "%d savers are under way", len(c.savers))
	case c.saversOf[user] >= maxSaversOfUser:
		return JobKey{}, nil, limit("", "%d savers of user %s are under way", maxSaversOfUser, user)
	}
	key, r := c.saverKey(a)
	if r != nil {
		return JobKey{}, nil, r
	}
	spec, r := c.newSaverSpec(key, a.set)
	if r == nil {
		r = c.checkSaverState(user, spec)
	}
	return key, spec, r
}

// checkSaverState refuses a saver whose spec is over the user's budget of bytes or the total of the
// cell, whoever ended the alloc. The limits of savers bound their jobs and tasks.
func (c *Cell) checkSaverState(user string, spec *Spec) *borgpb.Refusal {
	more, most := spec.bytesOf(), c.StateBudget(user, measureBytes)
	if u := c.stateUse.byUser[user]; u != nil && u[measureBytes]+more > most {
		return c.overBudget(user, measureBytes, u[measureBytes], more, most)
	}
	return c.checkStateTotal(measureBytes, spec.Proto.Priority, c.stateUse.cell[measureBytes], more)
}

// maxSaverSuffixBytes is more than saverKey adds to the name of a set: three numbers and "-save---".
const maxSaverSuffixBytes = 8 + 10 + 20 + 2

// saverKey names the job that saves what an alloc left: SET-save-INDEX-ATTEMPT, and a
// number where that is taken, by a set of that name that is there again.
func (c *Cell) saverKey(a *Alloc) (JobKey, *borgpb.Refusal) {
	set := a.set.key
	for n := 1; n <= maxSaverNames; n++ {
		suffix := fmt.Sprintf("-save-%d-%d", a.index, a.attempt)
		if n > 1 {
			suffix += fmt.Sprintf("-%d", n)
		}
		key := JobKey{set.User, set.Name[:min(len(set.Name), maxNameBytes-len(suffix))] + suffix}
		if st := c.stateOfKey(key); (st == stateNone || st == stateDead) && !c.endingOf(key) {
			return key, nil
		}
	}
	return JobKey{}, badState(TaskID{set, a.index}.String(), "there are %d other jobs of the name of its saver", maxSaverNames)
}
