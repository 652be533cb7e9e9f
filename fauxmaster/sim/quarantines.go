package sim

import (
	"fmt"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S36: a copy that is put in quarantine stays where it is and is no order's to stop,
// until its time is over or something else ends that, and not for longer; its task is
// placed elsewhere as long as another machine takes it.

// kept is until when copies are in quarantine, by what the ops said. Cell time.
type kept map[cell.CopyID]int64

// quarantined now and then has a copy taken out of service, or let go, instead of what
// was to be asked.
func (c *client) quarantined(op *borgpb.Op) *borgpb.Op {
	r := c.rand
	if !c.w.swarm.quarantine || c.i == operatorClient || c.w.truth.cell.Format() < cell.FormatQuarantine || r.IntN(100) >= 35 {
		return op
	}
	user, name, index := c.user(), fmt.Sprintf("j%d", r.IntN(c.w.swarm.jobs)), uint32(r.IntN(4))
	if r.IntN(4) == 0 {
		return &borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: &borgpb.ReleaseTask{User: user, Name: name, Index: index}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{
		User: user, Name: name, Index: index, ForNs: between(r, second/2, 3*second)}}}
}

// quarantines follows one entry and holds the cell against it.
func (t *truth) quarantines(e borgmaster.CommittedEntry, events []cell.Event) {
	if t.keptEpoch != t.cell.Epoch() {
		// The cell is new, or another one since it was restored. Of what it has kept
		// nothing is known but that it is.
		t.kept, t.keptEpoch = kept{}, t.cell.Epoch()
		for p := range t.cell.Quarantined() {
			t.kept[p.ID()] = t.cell.TimeNs() + 3*second
		}
		return
	}
	for i := range events {
		id := cell.CopyID{Job: events[i].UID, Index: events[i].Task, Attempt: events[i].Attempt}
		switch events[i].Kind {
		case borgpb.EventKind_EVENT_KIND_QUARANTINE:
			t.w.mark("quarantine begun")
			t.kept[id] = t.cell.TimeNs() + t.keptFor(e, &events[i])
		case borgpb.EventKind_EVENT_KIND_RELEASE, borgpb.EventKind_EVENT_KIND_STOPPED:
			delete(t.kept, id)
		case borgpb.EventKind_EVENT_KIND_SCHEDULE:
			if placesOnly(e.Data) {
				t.placedElsewhere(&events[i])
			}
		case borgpb.EventKind_EVENT_KIND_MACHINE_REMOVE:
			for id := range t.kept {
				if t.copyAnywhere(id) == nil {
					delete(t.kept, id)
				}
			}
		}
	}
	n := 0
	for p := range t.cell.Quarantined() {
		n++
		until, known := t.kept[p.ID()]
		switch {
		case !known:
			t.w.fail("S36: %v is in quarantine, and nobody put it there, or it was over", p.ID())
		case t.cell.TimeNs() >= until:
			t.w.fail("S36: %v is in quarantine for %d ms too long", p.ID(), (t.cell.TimeNs()-until)/millisecond)
		}
	}
	if n != len(t.kept) {
		t.w.fail("S36: %d copies are in quarantine, and %d were put there and not let go", n, len(t.kept))
	}
}

// keptFor is for how long the op behind an event has a copy kept. Several of one entry
// may be of one task, one after the other; the longest counts.
func (t *truth) keptFor(e borgmaster.CommittedEntry, ev *cell.Event) (ns int64) {
	for _, op := range opsOf(e.Data) {
		if o := op.GetQuarantineTask(); o != nil && o.User == ev.Key.User && o.Name == ev.Key.Name && o.Index == ev.Task {
			ns = max(ns, o.ForNs)
		}
	}
	return ns
}

func (t *truth) copyAnywhere(id cell.CopyID) *cell.Copy {
	for m := range t.cell.Machines() {
		if p := m.Copy(id); p != nil {
			return p
		}
	}
	return nil
}

// placedElsewhere: a task is not placed beside its copy in quarantine if another
// machine takes it, room apart.
func (t *truth) placedElsewhere(ev *cell.Event) {
	j, m := t.cell.JobByUID(ev.UID), t.cell.Machine(ev.Machine)
	if j == nil || m == nil || ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK || j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON || j.AllocByIndex() {
		return // Of the last two each task has one place alone.
	}
	p := m.Copy(cell.CopyID{Job: ev.UID, Index: ev.Task, Attempt: ev.Attempt})
	if p == nil || !p.Current() {
		return
	}
	newest := ""
	for o := range j.Task(ev.Task).Past() {
		if o.Quarantined() {
			newest = o.Machine().Name()
			break
		}
	}
	if newest == "" {
		return
	}
	t.w.mark("placed with a copy in quarantine")
	if newest != m.Name() {
		return
	}
	for o := range t.cell.Machines() {
		if o != m && t.takesOf(j, p.TaskSpec(), o) {
			t.w.fail("S36: %v is placed on %s, where a copy of it is in quarantine, and %s takes it too", p.TaskID(), m.Name(), o.Name())
		}
	}
}

// takes tells whether a machine takes a task, room apart.
func (t *truth) takes(task *borgpb.TaskSpec, m *cell.Machine) bool {
	if !m.Up() || m.Draining() || m.Closed() {
		return false
	}
	for _, k := range task.GetConstraints() {
		if v, _ := m.Attribute(k.GetKey()); !k.GetSoft() && (k.GetRelation() != borgpb.Relation_RELATION_EQUAL || v != k.GetValue()) {
			return false
		}
	}
	for _, x := range m.Taints() {
		if forgiven, ok := forgiveness(task, x); !x.PreferNot && (!ok || x.Evict && forgiven > 0) {
			return false
		}
	}
	return true
}
