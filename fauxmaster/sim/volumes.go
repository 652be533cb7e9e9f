package sim

import (
	"fmt"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S39: a task whose volume counts is placed where that is and nowhere else; a volume is
// given up by somebody's word or when its time is over, and never while a copy that can be
// reached works in it; no machine deletes what was not given up, or what a process works
// in; and what was given up is gone when all has settled.

// volumeAt names a volume on a machine.
type volumeAt struct {
	id      borglet.VolumeID
	machine string
}

// volumesModel is what is known of volumes from the events alone.
type volumesModel struct {
	epoch uint64
	// The machine of each one that counts.
	home map[borglet.VolumeID]string
	// Those that are not given up.
	kept map[volumeAt]bool
	// Of these, those in which a process has begun to work, so that they are on a disk.
	opened map[volumeAt]bool
}

// volumeJobs are jobs with volumes that each user has.
const volumeJobs = 2

// volumeOp asks for something about jobs with volumes.
func (c *client) volumeOp() *borgpb.Op {
	r := c.rand
	user, name := c.user(), fmt.Sprintf("v%d", r.IntN(volumeJobs))
	spec := c.drawSpec()
	spec.AllocSet, spec.Gang = "", false
	for i := range 1 + r.IntN(2) {
		spec.Task.Volumes = append(spec.Task.Volumes, &borgpb.Volume{
			Name: []string{"data", "log"}[i], Path: []string{"/data", "/log"}[i],
			DiskBytes: (1 + r.Int64N(4)) << 20, KeepNs: between(r, second, 6*second),
		})
	}
	switch n := r.IntN(20); {
	case n < 7:
		return c.submit(name, c.budgeted(name, spec))
	case n < 10:
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: encode(c.budgeted(name, spec))}}}
	case n < 13:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}
	case n < 14 && user == adminUser:
		op := c.drainOp(c.w.machines[r.IntN(min(2, len(c.w.machines)))])
		op.GetDrainMachine().GiveUpVolumes = op.GetDrainMachine().Drain
		return op
	case n < 15:
		// Another's.
		user = userOf(c.i + 1)
	}
	return &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{
		User: user, Name: name, Index: uint32(r.IntN(4)), Volume: []string{"data", "data", "log"}[r.IntN(3)],
	}}}
}

// volumes follows one entry and holds the cell against it.
func (t *truth) volumes(e borgmaster.CommittedEntry, events []cell.Event) {
	if m := &t.volume; m.epoch != t.cell.Epoch() {
		// The cell is new, or another one since it was restored.
		*m = volumesModel{epoch: t.cell.Epoch(), home: map[borglet.VolumeID]string{}, kept: map[volumeAt]bool{}, opened: map[volumeAt]bool{}}
		for v := range t.cell.Volumes() {
			id := borglet.VolumeID{User: v.Of().Job.User, Job: v.Of().Job.Name, Index: v.Of().Index, Name: v.Name()}
			state := t.cell.VolumeProto(v).State
			if state != borgpb.VolumeState_VOLUME_STATE_GIVEN_UP {
				m.kept[volumeAt{id, v.Machine().Name()}] = true
				if state != borgpb.VolumeState_VOLUME_STATE_FOUND {
					m.home[id] = v.Machine().Name()
				}
			}
		}
		return
	}
	for i := range events {
		switch ev := &events[i]; ev.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_VOLUME:
			t.volumeEvent(e, ev)
		case borgpb.ObjectKind_OBJECT_KIND_TASK:
			if ev.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE {
				t.placedByVolumes(ev)
			}
		case borgpb.ObjectKind_OBJECT_KIND_ALLOC:
			if ev.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE {
				t.placedAlloc(ev)
			}
		}
	}
}

// volumeOf is whose volume an event is about, and where it is.
func volumeOf(ev *cell.Event) volumeAt {
	name := ev.Name[len(cell.TaskID{Job: ev.Key, Index: ev.Task}.String())+1:]
	return volumeAt{borglet.VolumeID{User: ev.Key.User, Job: ev.Key.Name, Index: ev.Task, Name: name}, ev.Machine}
}

func (t *truth) volumeEvent(e borgmaster.CommittedEntry, ev *cell.Event) {
	m, at := &t.volume, volumeOf(ev)
	home, has := m.home[at.id]
	switch ev.Kind {
	case borgpb.EventKind_EVENT_KIND_VOLUME:
		// An operator adopts what runs, wherever that is.
		if has && home != at.machine && m.epoch == 1 {
			t.w.fail("S39: volume %s is opened on %s at index %d, and is on %s", at.id, at.machine, ev.Index, home)
		}
		m.home[at.id], m.kept[at] = at.machine, true
	case borgpb.EventKind_EVENT_KIND_VOLUME_FOUND:
		if m.kept[at] = true; !has {
			m.home[at.id] = at.machine
		}
	case borgpb.EventKind_EVENT_KIND_VOLUME_GIVEN_UP:
		t.w.mark("volume given up")
		t.givenUp(e, at)
		delete(m.kept, at)
		delete(m.opened, at)
		if home == at.machine {
			delete(m.home, at.id)
		}
	case borgpb.EventKind_EVENT_KIND_VOLUME_GONE:
		t.w.mark("volume deleted")
		if m.kept[at] {
			t.w.fail("S39: volume %s on %s counts as gone at index %d, and was not given up", at.id, at.machine, ev.Index)
		}
	}
}

// givenUp: nobody works in it who can be reached.
func (t *truth) givenUp(e borgmaster.CommittedEntry, at volumeAt) {
	x := t.cell.Machine(at.machine)
	if x == nil || !x.Up() {
		return
	}
	for p := range x.Copies() {
		if s := p.State(); s != borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED && s != borgpb.AttemptState_ATTEMPT_STATE_STARTING && s != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			continue
		}
		if worksIn(p, at.id) {
			t.w.fail("S39: volume %s on %s is given up at index %d, and attempt %d works in it", at.id, at.machine, e.Index, p.Attempt())
		}
	}
	t.allocKeeps(e, at)
}

// worksFor is whose volumes a copy works in: its own, or those of its alloc.
func worksFor(p *cell.Copy) cell.TaskID {
	if a := p.Alloc(); a != nil {
		return cell.TaskID{Job: a.Set().Key(), Index: a.Index()}
	}
	return p.TaskID()
}

// worksIn tells whether a copy has a volume.
func worksIn(p *cell.Copy, id borglet.VolumeID) bool {
	if of := worksFor(p); of.Job.User != id.User || of.Job.Name != id.Job || of.Index != id.Index {
		return false
	}
	for _, v := range p.TaskSpec().GetVolumes() {
		if v.Name == id.Name {
			return true
		}
	}
	return false
}

// placedByVolumes: a task is placed where its volumes are.
func (t *truth) placedByVolumes(ev *cell.Event) {
	x := t.cell.Machine(ev.Machine)
	if x == nil {
		return
	}
	p := x.Copy(cell.CopyID{Job: ev.UID, Index: ev.Task, Attempt: ev.Attempt})
	if p == nil || ev.Alloc != "" && p.Alloc() == nil {
		return
	}
	t.atHome(ev, worksFor(p), p.TaskSpec().GetVolumes(), "placed where its volume is")
}

// atHome: who is placed where its volumes are comes to a mark.
func (t *truth) atHome(ev *cell.Event, of cell.TaskID, volumes []*borgpb.Volume, mark string) {
	for _, v := range volumes {
		id := borglet.VolumeID{User: of.Job.User, Job: of.Job.Name, Index: of.Index, Name: v.Name}
		switch home, has := t.volume.home[id]; {
		case has && home != ev.Machine:
			t.w.fail("S39: %s is placed on %s at index %d, and its volume %s is on %s", ev.Object(), ev.Machine, ev.Index, v.Name, home)
		case has && t.volume.opened[volumeAt{id, home}]:
			t.w.mark(mark)
		}
	}
}

// opens takes in that a process begins to run in its volumes: they are there.
func (t *truth) opens(m *machine, r borglet.Record) {
	for _, v := range borglet.VolumesOf(r.Desired) {
		if !m.HasVolume(v.ID) {
			t.w.fail("S39: copy %s starts on %s, and its volume %s is not there", r.ID, m.name, v.ID)
		}
		if at := (volumeAt{v.ID, m.name}); t.volume.kept[at] {
			t.volume.opened[at] = true
		}
	}
}

// deletes: a machine deletes what was given up, and nothing that a process works in.
func (t *truth) deletes(m *machine, id borglet.VolumeID) {
	if m.WorksIn(id) {
		t.w.fail("S39: %s deletes volume %s, and a process works in it", m.name, id)
	}
	// What was given up may be lost with the log.
	if t.volume.kept[volumeAt{id, m.name}] && t.w.restore.lost == nil {
		t.w.fail("S39: %s deletes volume %s, and it was not given up", m.name, id)
	}
}

// volumesUnsettled says what was given up and is still there; empty: nothing.
func (w *World) volumesUnsettled() string {
	for v := range w.truth.cell.Volumes() {
		if v.GivenUp() {
			return fmt.Sprintf("S39: volume %s on %s was given up and is not gone", v.FullName(), v.Machine().Name())
		}
	}
	return ""
}

// volumesAre: when all has settled, what is kept is on its machine, and nothing else is.
func (w *World) volumesAre() {
	m := &w.truth.volume
	for at := range m.opened {
		if !w.machineNamed(at.machine).HasVolume(at.id) {
			w.fail("S39: volume %s is not on %s, where it is kept", at.id, at.machine)
		}
	}
	for _, x := range w.machines {
		for _, id := range x.VolumesHere() {
			if !m.kept[volumeAt{id, x.name}] {
				w.fail("S39: volume %s is on %s, where nothing keeps it", id, x.name)
			}
		}
	}
}
