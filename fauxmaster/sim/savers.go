package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S37: what an alloc left on a machine is saved by a saver that ended well there, or given
// up when its time is over or its machine has gone, and one or the other by then; never do
// two work on the place of one alloc at once.

// left names what an alloc left, or is to leave, on a machine.
type left struct {
	set     cell.UID
	index   uint32
	attempt uint64
	machine string
}

// leaving is what was left, and the cell time by which it is saved or given up.
type leaving struct {
	at      left
	untilNs int64
}

// saversModel is what is known of allocs with a saver from the events alone.
type saversModel struct {
	epoch uint64
	// Allocs that have a machine, or left one that is down, with for how long what they
	// leave is tried to be saved.
	placed map[left]int64
	// What has just been left, and nothing saves yet.
	leaves []leaving
	// What is neither saved nor given up, by the job that is to save it.
	left map[cell.UID]leaving
}

// saved now and then asks for something about an alloc set with a saver instead of what
// was to be asked.
func (c *client) saved(op *borgpb.Op) *borgpb.Op {
	r := c.rand
	if !c.w.swarm.savers || c.i == operatorClient || c.w.truth.cell.Format() < cell.FormatSetUpdates || r.IntN(100) >= 40 {
		return op
	}
	user := c.user()
	set := &borgpb.AllocSetSpec{
		Allocs: uint32(1 + r.IntN(3)), Priority: 200,
		Resources: &borgpb.Resources{CpuMilli: 500 + 500*r.Int64N(4), MemBytes: 512 << 20, DiskBytes: 64 << 20, Ports: 4},
		Saver: &borgpb.Saver{TimeNs: saveTimeNs, Task: &borgpb.TaskSpec{
			Args: []string{"/bin/task", "300", "0"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}}},
	}
	if c.i%4 == 0 {
		// It never ends well.
		set.Saver.Task.Args[2] = "1"
	}
	switch n := r.IntN(10); {
	case n < 3:
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: allocSetName, Spec: encode(set)}}}
	case n < 4:
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: allocSetName}}}
	case n < 6:
		return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: user, Name: allocSetName, Allocs: uint32(1 + r.IntN(4))}}}
	case n < 8:
		return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: user, Name: allocSetName, Spec: encode(set), Merge: r.IntN(2) == 0}}}
	}
	spec := c.drawSpec()
	spec.AllocSet, spec.Gang, spec.BatchQueue = user+"/"+allocSetName, false, false
	spec.AllocByIndex = c.byIndex()
	return c.submit("j0", c.budgeted("j0", spec))
}

// saveTimeNs is for how long savers are tried.
const saveTimeNs = 12 * second

// saves follows one entry and holds the cell against it.
func (t *truth) saves(e borgmaster.CommittedEntry, events []cell.Event) {
	m := &t.saving
	if m.epoch != t.cell.Epoch() {
		// The cell is new, or another one since it was restored.
		*m = saversModel{epoch: t.cell.Epoch(), placed: map[left]int64{}, left: map[cell.UID]leaving{}}
		t.placedNow()
		return
	}
	if !t.w.swarm.savers {
		return
	}
	t.leave()
	wells := t.endedWell(e)
	for i := range events {
		ev := &events[i]
		if ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_JOB && ev.Kind == borgpb.EventKind_EVENT_KIND_SUBMIT {
			t.begins(ev)
			continue
		}
		v, known := m.left[ev.UID]
		if !known && ev.Kind == borgpb.EventKind_EVENT_KIND_SAVE_GIVEN_UP && t.tooMany(ev) {
			continue
		}
		at := left{set: v.at.set, index: ev.Task, attempt: ev.Attempt, machine: ev.Machine}
		switch ev.Kind {
		case borgpb.EventKind_EVENT_KIND_SAVED:
			t.w.mark("what an alloc left is saved")
			// An alloc that came and went within one entry was never seen here.
			if known && v.at != at || !wells[ev.UID] {
				t.w.fail("S37: what %s left on %s counts as saved at index %d; left there: %v, its saver ended well: %v", ev.Object(), ev.Machine, ev.Index, v.at == at, wells[ev.UID])
			}
			delete(m.left, ev.UID)
		case borgpb.EventKind_EVENT_KIND_SAVE_GIVEN_UP:
			t.w.mark("what an alloc left is given up")
			if v.at == at && t.cell.Machine(ev.Machine) != nil && t.cell.TimeNs() < v.untilNs && !removes(e, ev.Machine) {
				t.w.fail("S37: what %s left on %s is given up at index %d, %d ms too early: %s", ev.Object(), ev.Machine, ev.Index, (v.untilNs-t.cell.TimeNs())/millisecond, ev.Reason)
			}
			delete(m.left, ev.UID)
		}
	}
	for _, v := range m.leaves {
		t.w.fail("S37: nothing saves what alloc %d of %v left on %s with attempt %d at index %d", v.at.index, t.setKeys[v.at.set], v.at.machine, v.at.attempt, t.index)
	}
	for job, v := range m.left {
		if t.cell.TimeNs() >= v.untilNs {
			t.w.fail("S37: job %v has neither saved nor given up what was left on %s at index %d, %d ms after its time", job, v.at.machine, t.index, (t.cell.TimeNs()-v.untilNs)/millisecond)
		}
	}
	t.placedNow()
	t.alone()
}

// begins takes in a job: is it the saver of what has just been left?
func (t *truth) begins(ev *cell.Event) {
	m := &t.saving
	for i, v := range m.leaves {
		name := fmt.Sprintf("%s-save-%d-%d", t.setKeys[v.at.set].Name, v.at.index, v.at.attempt)
		if ev.Key.User == t.setKeys[v.at.set].User && (ev.Key.Name == name || strings.HasPrefix(ev.Key.Name, name+"-")) {
			m.left[ev.UID] = v
			m.leaves = slices.Delete(m.leaves, i, i+1)
			return
		}
	}
}

// tooMany takes in that nothing can save what was left: the cell has as many savers as
// it may, or as many of that name.
func (t *truth) tooMany(ev *cell.Event) bool {
	if !strings.Contains(ev.Reason, "savers are under way") && !strings.Contains(ev.Reason, "other jobs of the name of its saver") {
		return false
	}
	t.saving.leaves = slices.DeleteFunc(t.saving.leaves, func(v leaving) bool {
		return v.at.set == ev.UID && v.at.index == ev.Task && v.at.attempt == ev.Attempt
	})
	return true
}

// placedNow notes the allocs that have places and a saver.
func (t *truth) placedNow() {
	if t.setKeys == nil {
		t.setKeys = map[cell.UID]cell.JobKey{}
	}
	for s := range t.cell.AllocSets() {
		saver := s.Spec().GetSaver()
		if saver == nil {
			continue
		}
		t.setKeys[s.UID()] = s.Key()
		for a := range s.Allocs() {
			if m := a.Machine(); m != nil {
				t.saving.placed[left{set: s.UID(), index: a.Index(), attempt: a.Attempt(), machine: m.Name()}] = saver.TimeNs
			}
		}
	}
}

// leave finds the allocs that have left their machines, also those that were left on one
// that is down.
func (t *truth) leave() {
	for one, timeNs := range t.saving.placed {
		there := false
		if m := t.cell.Machine(one.machine); m != nil {
			for a := range m.Allocs() {
				there = there || a.Set().UID() == one.set && a.Index() == one.index && a.Attempt() == one.attempt
			}
		}
		if !there {
			t.w.mark("alloc with a saver left")
			t.saving.leaves = append(t.saving.leaves, leaving{one, t.cell.TimeNs() + timeNs})
			delete(t.saving.placed, one)
		}
	}
	slices.SortFunc(t.saving.leaves, func(a, b leaving) int {
		return cmp.Or(a.at.set.Compare(b.at.set), cmp.Compare(a.at.index, b.at.index))
	})
}

// endedWell are the jobs of which a borglet says in an entry that a task ended with 0.
func (t *truth) endedWell(e borgmaster.CommittedEntry) map[cell.UID]bool {
	wells := map[cell.UID]bool{}
	for _, op := range opsOf(e.Data) {
		for _, m := range op.GetReports().GetMachines() {
			for _, r := range m.Tasks {
				uid, err := cell.ParseUID(r.JobUid)
				if id := (borglet.ID{JobUID: r.JobUid, Index: r.Index, Attempt: r.Attempt}); err == nil && r.Exit != nil && r.Exit.Code == 0 && t.assigned[id] == m.Machine {
					wells[uid] = true
				}
			}
		}
	}
	return wells
}

// removes tells whether an entry takes a machine out of the cell.
func removes(e borgmaster.CommittedEntry, machine string) bool {
	for _, op := range opsOf(e.Data) {
		if op.GetRemoveMachine().GetName() == machine {
			return true
		}
	}
	return false
}

// alone: on the place of one alloc at most one saver works at a time.
func (t *truth) alone() {
	for m := range t.cell.Machines() {
		var works map[string]cell.TaskID
		for p := range m.Copies() {
			name := p.Saves()
			if name == "" {
				continue
			}
			if other, two := works[name]; two {
				t.w.fail("S37: %v and %v both save what %s left on %s at index %d", other, p.TaskID(), name, m.Name(), t.index)
			}
			if works == nil {
				works = map[string]cell.TaskID{}
			}
			works[name] = p.TaskID()
		}
	}
}
