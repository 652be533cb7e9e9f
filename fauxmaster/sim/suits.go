package sim

import (
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S20: what is placed suits its machine at the index at which it is. The cell and
// the scheduler test that in code that they share in part, so it is said here a
// second time, in the plainest way.

// suits looks at what one entry placed, and at who was to leave.
func (t *truth) suits(e borgmaster.CommittedEntry, events []cell.Event) {
	if t.cell.Format() >= cell.BuildFormat {
		t.tainted()
	}
	t.updated(events)
	grew := t.reserves(e)
	if !placesOnly(e.Data) {
		return
	}
	others := map[cell.UID]bool{}
	for i := range events {
		if events[i].ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK && events[i].Kind != borgpb.EventKind_EVENT_KIND_SCHEDULE {
			others[events[i].UID] = true
		}
	}
	for i := range events {
		ev := &events[i]
		if ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_ALLOC && ev.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE {
			t.allocPlaced(ev)
		}
		if ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
			continue
		}
		j, m := t.cell.JobByUID(ev.UID), t.cell.Machine(ev.Machine)
		if j == nil || m == nil {
			continue
		}
		p := m.Copy(cell.CopyID{Job: ev.UID, Index: ev.Task, Attempt: ev.Attempt})
		switch {
		case ev.Cause == borgpb.StopCause_STOP_CAUSE_PREEMPTION && p != nil:
			t.gaveWay(ev, p)
		case ev.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE && p != nil && p.Current():
			t.placed(p, j, m)
			t.hurries(taskWaits(p, j), m)
			if p.Saves() == "" {
				t.inView(p, m, grew)
			}
			if j.Spec().GetGang() && !others[ev.UID] && t.cell.Format() >= cell.BuildFormat {
				if ev.Task > 0 {
					t.w.mark("gang placed")
				}
				for index := range t.cell.PendingOf(j) {
					t.w.fail("S20: %v of a gang is placed, and %d of it waits", p.TaskID(), index)
				}
			}
		}
	}
}

// allocPlaced looks at an alloc that has a machine.
func (t *truth) allocPlaced(ev *cell.Event) {
	set := t.cell.AllocSet(ev.Key)
	if set == nil || set.UID() != ev.UID {
		return
	}
	if a := set.Alloc(ev.Task); a != nil && a.Machine() != nil && a.Attempt() == ev.Attempt {
		t.hurries(allocWaits(a), a.Machine())
	}
}

// placesOnly tells whether an entry does nothing that changes what a machine or
// a job is.
func placesOnly(data []byte) bool {
	entry := new(borgpb.Entry)
	if proto.Unmarshal(data, entry) != nil {
		return false
	}
	for _, data := range entry.Ops {
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil {
			return false
		}
		switch op.Op.(type) {
		case *borgpb.Op_Assign, *borgpb.Op_MoveTasks, *borgpb.Op_Reports, *borgpb.Op_Time, *borgpb.Op_Digest:
		default:
			return false
		}
	}
	return true
}

// placed holds of a copy that has just been given its machine.
func (t *truth) placed(p *cell.Copy, j *cell.Job, m *cell.Machine) {
	if p.Saves() != "" {
		// The cell starts it where it has to be, whatever is said of that machine.
		return
	}
	task := p.TaskSpec()
	switch {
	case !m.Up():
		t.w.fail("S20: %v is placed on %s, which is down", p.TaskID(), m.Name())
	case m.Draining():
		t.w.fail("S20: %v is placed on %s, which is draining", p.TaskID(), m.Name())
	}
	for _, k := range task.GetConstraints() {
		if v, _ := m.Attribute(k.GetKey()); !k.GetSoft() && k.GetRelation() == borgpb.Relation_RELATION_EQUAL && v != k.GetValue() {
			t.w.fail("S20: %v is placed on %s, where %s is %q, not %q", p.TaskID(), m.Name(), k.GetKey(), v, k.GetValue())
		}
	}
	for _, x := range m.Taints() {
		if x.PreferNot {
			continue
		}
		if forgiven, ok := forgiveness(task, x); !ok || x.Evict && forgiven > 0 && t.cell.Format() >= cell.BuildFormat {
			t.w.fail("S20: %v is placed on %s, which has the taint %s", p.TaskID(), m.Name(), x.Key)
		}
	}
	if most := j.Spec().GetMaxPerMachine(); most > 0 {
		n := uint32(0)
		for _, task := range j.Tasks() {
			if o := task.Current(); o != nil && o.Machine() == m {
				n++
			}
		}
		if n > most {
			t.w.fail("S20: with %v there are %d of its job on %s, at most %d are allowed", p.TaskID(), n, m.Name(), most)
		}
	}
	t.limited(p, j, m)
	t.banned(p, m)
	t.devices(p, m)
}

// limited: no more of a job are on machines with one value of an attribute than it
// allows.
func (t *truth) limited(p *cell.Copy, j *cell.Job, m *cell.Machine) {
	for key, most := range j.Spec().GetMaxPer() {
		value, has := m.Attribute(key)
		n := uint32(0)
		for _, task := range j.Tasks() {
			o := task.Current()
			if o == nil {
				continue
			}
			if other, ok := o.Machine().Attribute(key); ok == has && other == value && (has || o.Machine() == m) {
				n++
			}
		}
		if n > most {
			t.w.fail("S20: with %v on %s there are %d of its job where %s is %q, at most %d are allowed", p.TaskID(), m.Name(), n, key, value, most)
		}
		t.w.mark("task limited by an attribute")
	}
}

// banned: nothing is started that has a package which is banned.
func (t *truth) banned(p *cell.Copy, m *cell.Machine) {
	for range t.cell.Bans() {
		t.w.mark("placed beside a ban")
	}
	if b := t.banOf(p.TaskSpec(), m); b != nil {
		t.w.fail("S20: %v is placed on %s, and %s", p.TaskID(), m.Name(), b.Words())
	}
}

// banOf is what keeps a package of a task from being started on a machine; nil: nothing.
func (t *truth) banOf(task *borgpb.TaskSpec, m *cell.Machine) *cell.Ban {
	for b := range t.cell.Bans() {
		for _, k := range task.GetPackages() {
			if k.GetName() == b.Name() && (b.Digest() == "" || b.Digest() == k.GetDigest()) && (b.Machine() == "" || b.Machine() == m.Name()) {
				return b
			}
		}
	}
	return nil
}

// devices: nobody has more of a device than there is, but for those who wait for
// its present holders to end.
func (t *truth) devices(p *cell.Copy, m *cell.Machine) {
	capacity, milli := m.Capacity(), map[cell.DeviceGrant]int64{}
	for o := range m.Copies() {
		for _, g := range o.Devices() {
			if o.Current() {
				milli[cell.DeviceGrant{Name: g.Name, Number: g.Number}] += g.Milli
			}
		}
	}
	for _, g := range p.Devices() {
		if n := milli[cell.DeviceGrant{Name: g.Name, Number: g.Number}]; n > 1000 || int64(g.Number) >= capacity.Device(g.Name)/1000 {
			t.w.fail("S20: with %v there are %d thousandths of %s %d on %s in use", p.TaskID(), n, g.Name, g.Number, m.Name())
		}
		t.w.mark("device granted")
	}
}

// forgiveness is what a task has to say of a taint: for how long it forgives it;
// ok is false when it says nothing.
func forgiveness(task *borgpb.TaskSpec, x cell.Taint) (ns int64, ok bool) {
	for _, k := range task.GetTolerations() {
		if k.GetKey() == x.Key && (k.GetValue() == "" || k.GetValue() == x.Value) {
			return k.GetForgivenessNs(), true
		}
	}
	return 0, false
}

// tainted: nobody is left where a taint wanted him gone.
func (t *truth) tainted() {
	for m := range t.cell.Machines() {
		for _, x := range m.Taints() {
			if !x.Evict || !m.Up() {
				continue
			}
			for p := range m.Copies() {
				if !p.Current() || p.Saves() != "" {
					continue
				}
				forgiven, ok := forgiveness(p.TaskSpec(), x)
				if !ok || forgiven > 0 && t.cell.TimeNs() >= x.SinceNs+forgiven {
					t.w.fail("S20: %v stays on %s, which has the taint %s since %d ms", p.TaskID(), m.Name(), x.Key, (t.cell.TimeNs()-x.SinceNs)/millisecond)
				}
				t.w.mark("taint forgiven")
			}
		}
	}
}
