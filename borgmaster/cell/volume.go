package cell

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatVolumes is the format in which tasks and allocs began to have volumes.
const FormatVolumes = 10

// Volume is a directory on the disk of a machine that outlives who works in it. It
// belongs to a task by its job's name and index, or to an alloc by its set's, and so to
// the next copy too, also of a job that was submitted anew. It holds its disk from the
// first placement until its machine says that it is gone.
//
// Of one name a task has at most one that counts: it is placed nowhere else. Those that
// were given up, and those that were found on a machine while it has another, count for
// nothing but the disk that they hold.
type Volume struct {
	mark
	of        TaskID
	name      string
	machine   *Machine
	diskBytes int64
	keepNs    int64
	// Cell time at which it is given up; zero: somebody works in it, or it was given up.
	untilNs int64
	// When it is looked at whether that is over; zero: it is not; derived.
	dueNs      int64
	madeWallNs int64
	givenUp    bool
	// It was found, and what it belongs to has another one.
	spare bool
	// Band of the last task or alloc that was placed with it, or of its job if that ended in a
	// lower one. Unspecified of one that was found: it gives way to nobody.
	band borgpb.Band
	// Production may have its disk; derived.
	yields bool
	// What its user is charged for, because nobody works in it; derived. Bytes.
	kept int64
	// What the quota of its user for band is charged for it, beside tasks and allocs; derived.
	// Bytes.
	charged int64
	reason  string
	gone    bool
}

// Of is the task or alloc that it belongs to.
func (v *Volume) Of() TaskID { return v.of }

// Name is that in its spec.
func (v *Volume) Name() string { return v.name }

// Machine where it is.
func (v *Volume) Machine() *Machine { return v.machine }

// GivenUp tells that its machine is to delete it.
func (v *Volume) GivenUp() bool { return v.givenUp }

// Used tells that somebody works in it.
func (v *Volume) Used() bool { return v.untilNs == 0 && !v.givenUp }

// DiskBytes that it holds on its machine.
func (v *Volume) DiskBytes() int64 { return v.diskBytes }

// FullName is "<user>/<name>/<index>/<volume>".
func (v *Volume) FullName() string { return v.of.String() + "/" + v.name }

// counts: it says where what it belongs to is placed.
func (v *Volume) counts() bool { return !v.givenUp && !v.spare }

func (v *Volume) res() *Resources { return &Resources{DiskBytes: v.diskBytes} }

// volumeID orders volumes, and tells those of one name on several machines apart.
type volumeID struct {
	of            TaskID
	name, machine string
}

func (v *Volume) orderKey() volumeID { return volumeID{v.of, v.name, v.machine.name} }

func (k volumeID) head() keyHead { return k.of.Job.head() }

func (k volumeID) Compare(o volumeID) int {
	return cmp.Or(k.of.Job.Compare(o.of.Job), cmp.Compare(k.of.Index, o.of.Index), strings.Compare(k.name, o.name), strings.Compare(k.machine, o.machine))
}

func compareVolume(v *Volume, id volumeID) int { return v.orderKey().Compare(id) }

// volumes are those of the cell.
type volumes struct {
	list order[volumeID, *Volume]
	// How many there are by the job or alloc set that they belong to; derived.
	of map[JobKey]int
	// What those of each user are charged beside tasks and allocs; derived.
	charged map[string]charge
	// When those that are kept are looked at; derived.
	dues dues[*Volume]
}

// Volumes yields all volumes, by whose they are, name and machine.
func (c *Cell) Volumes() iter.Seq[*Volume] { return c.volumes.list.each() }

// VolumesAfter yields those behind a key of VolumeKey; false: it is none.
func (c *Cell) VolumesAfter(key string) (iter.Seq[*Volume], bool) {
	if key == "" {
		return c.Volumes(), true
	}
	id, ok := readVolumeKey(key)
	return c.volumes.list.after(id), ok
}

// VolumeKey orders volumes.
func VolumeKey(v *Volume) string { return v.orderKey().text() }

// Volumes yields those on the machine, those that it is to delete among them.
func (m *Machine) Volumes() iter.Seq[*Volume] { return slices.Values(m.volumes) }

// NumVolumes counts Volumes.
func (m *Machine) NumVolumes() int { return len(m.volumes) }

// volumesNamed are those of one name of a task or alloc, whatever their machine.
func (c *Cell) volumesNamed(of TaskID, name string) iter.Seq[*Volume] {
	return func(yield func(*Volume) bool) {
		if c.volumes.list.len() == 0 {
			return
		}
		for v := range c.volumes.list.from(volumeID{of: of, name: name}) {
			if v.of != of || v.name != name || !yield(v) {
				return
			}
		}
	}
}

// volumeNamed is the one that counts of a name; nil: there is none.
func (c *Cell) volumeNamed(of TaskID, name string) *Volume {
	for v := range c.volumesNamed(of, name) {
		if v.counts() {
			return v
		}
	}
	return nil
}

// volumeOn is the one of a name on a machine, whether it counts or not; nil: none.
func (m *Machine) volumeOn(of TaskID, name string) *Volume {
	if at, found := slices.BinarySearchFunc(m.volumes, volumeID{of, name, m.name}, compareVolume); found {
		return m.volumes[at]
	}
	return nil
}

func (c *Cell) addVolume(v *Volume) {
	c.volumes.list.add(v)
	c.volumes.count(v.of.Job, 1)
	at, _ := slices.BinarySearchFunc(v.machine.volumes, v.orderKey(), compareVolume)
	v.machine.volumes = slices.Insert(v.machine.volumes, at, v)
	v.machine.room.add(v.held())
	c.stateUse.countOne(v.of.Job.User, measureVolumes, 1)
}

func (c *Cell) removeVolume(v *Volume) {
	c.volumes.list.remove(v.orderKey())
	c.volumes.count(v.of.Job, -1)
	at, _ := slices.BinarySearchFunc(v.machine.volumes, v.orderKey(), compareVolume)
	v.machine.volumes = slices.Delete(v.machine.volumes, at, at+1)
	v.machine.room.sub(v.held())
	if v.yields {
		v.machine.yielding--
	}
	c.stateUse.countOne(v.of.Job.User, measureVolumes, -1)
	c.stateUse.countOne(v.of.Job.User, measureKeptDisk, -v.kept)
	v.gone, v.kept = true, 0
	c.setCharged(v, v.band, 0)
	c.chargeVolumes(v.of)
	c.dirty(v)
}

// keepVolume has a volume in which nobody works given up when its time is over.
func (c *Cell) keepVolume(v *Volume) {
	v.untilNs = min(c.clock.cellNs+v.keepNs, maxTimeNs)
	c.setVolumeDue(v)
	c.reviewYield(v)
}

// setVolumeDue has a volume looked at in time. Of one only the entry of the heap counts
// that its dueNs names, and it may be too early, never too late.
func (c *Cell) setVolumeDue(v *Volume) {
	if v.untilNs != 0 && (v.dueNs == 0 || v.untilNs < v.dueNs) {
		v.dueNs = v.untilNs
		c.volumes.dues.add(v.dueNs, v, volumeDueCounts)
	}
}

// volumeDueCounts reports whether an entry of dues still counts.
func volumeDueCounts(d due[*Volume]) bool { return !d.of.gone && d.of.dueNs == d.ns }

// openVolumes gives a copy or alloc that is placed on m the volumes that its spec names:
// those that are there, as large as the spec says now, and new ones, which it counts. The
// priority is that of the task or alloc set.
func (c *Cell) openVolumes(of TaskID, m *Machine, named []*borgpb.Volume, priority int32) (opened int) {
	for _, want := range named {
		v := m.volumeOn(of, want.Name)
		if v == nil || !v.counts() {
			if v != nil {
				// It was placed beside it by nobody: it ran, and was adopted.
				c.removeVolume(v)
			}
			v = &Volume{of: of, name: want.Name, machine: m, madeWallNs: c.clock.wallNs}
			if o := c.volumeNamed(of, want.Name); o != nil {
				o.spare = true
				c.dirty(o)
			}
			v.diskBytes = want.DiskBytes
			c.addVolume(v)
			opened++
			c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME, ""))
		} else if v.diskBytes != want.DiskBytes {
			m.room.sub(v.held())
			v.diskBytes = want.DiskBytes
			m.room.add(v.held())
			c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME, ""))
		}
		v.keepNs, v.untilNs = keepOf(want), 0
		c.setCharged(v, c.volumeBand(priority), 0)
		c.reviewYield(v)
		c.dirty(v)
	}
	c.chargeVolumes(of)
	return opened
}

// useVolumes gives a copy that has just got its place the volumes of its task, and counts those
// that are new, or notes which of those of its alloc it works in.
func (c *Cell) useVolumes(p *Copy) (opened int) {
	named := p.TaskSpec().GetVolumes()
	if len(named) == 0 {
		return 0
	}
	u := &uses{of: p.TaskID()}
	if p.alloc != nil {
		u.of = TaskID{p.alloc.set.key, p.alloc.index}
	}
	for _, v := range named {
		u.names = append(u.names, v.Name)
	}
	p.rare().uses = u
	if p.alloc == nil {
		return c.openVolumes(u.of, p.machine, named, p.priority)
	}
	return 0
}

// used derives whether anybody works in a volume, or may come to: who is on a machine
// that is down does not hold it.
func (c *Cell) used(v *Volume) bool {
	for _, p := range v.machine.copies {
		if p.works(v) && p.state != attemptUnreachable {
			return true
		}
	}
	for _, a := range v.machine.allocs {
		if a.machine == v.machine && a.set.key == v.of.Job && a.index == v.of.Index {
			return namesVolume(a.set.spec.Volumes, v.name) && !mutant.Planted(mutant.AllocNotInVolume)
		}
	}
	return false
}

// works tells whether a copy works in a volume, if it is on its machine.
func (p *Copy) works(v *Volume) bool {
	return p.worksOf(v.of) && slices.Contains(p.few.uses.names, v.name)
}

// worksOf tells whether a copy works in volumes of a task or alloc.
func (p *Copy) worksOf(of TaskID) bool {
	return p.few != nil && p.few.uses != nil && p.few.uses.of == of
}

func namesVolume(named []*borgpb.Volume, name string) bool {
	return slices.ContainsFunc(named, func(v *borgpb.Volume) bool { return v.Name == name })
}

// reviewVolumesOf follows the coming and going of a copy that may work in volumes.
func (c *Cell) reviewVolumesOf(p *Copy) {
	if p.few != nil && p.few.uses != nil {
		c.reviewVolumes(p.machine, p.few.uses.of)
	}
}

// reviewAlloc follows the coming and going of an alloc.
func (c *Cell) reviewAlloc(a *Alloc, m *Machine) {
	if len(a.set.spec.Volumes) > 0 {
		c.reviewVolumes(m, TaskID{a.set.key, a.index})
	}
}

// reviewVolumes follows the coming and going of whoever works in volumes of one task or
// alloc on a machine.
func (c *Cell) reviewVolumes(m *Machine, of TaskID) {
	first, _ := slices.BinarySearchFunc(m.volumes, volumeID{of: of}, compareVolume)
	for _, v := range m.volumes[first:] {
		if v.of != of {
			return
		}
		if v.givenUp {
			continue
		}
		switch used := c.used(v); {
		case used && v.untilNs != 0:
			v.untilNs = 0
			c.reviewYield(v)
			c.dirty(v)
		case !used && v.untilNs == 0:
			c.keepVolume(v)
			c.dirty(v)
			if m.givesUp() {
				c.giveUp(v, m.drainWords())
			}
		}
	}
}

// givesUp tells that the machine is emptied of volumes too.
func (m *Machine) givesUp() bool { return m.drain != nil && m.drain.giveUp }

// volumesOn gives up what was kept for long enough.
func (c *Cell) volumesOn() {
	var over []*Volume
	for c.volumes.dues.isDue(c.clock.cellNs) {
		next := c.volumes.dues.take()
		if !volumeDueCounts(next) {
			continue
		}
		v := next.of
		v.dueNs = 0
		if v.untilNs > c.clock.cellNs {
			c.setVolumeDue(v)
		} else if v.untilNs != 0 {
			over = append(over, v)
		}
	}
	slices.SortFunc(over, func(a, b *Volume) int { return a.orderKey().Compare(b.orderKey()) })
	for _, v := range over {
		c.giveUp(v, "nobody has worked in it for "+spanWords(v.keepNs))
	}
}

// giveUp has the machine of a volume delete it, and lets its task go elsewhere. A copy
// that may still work in it on a machine that is down must stop when that is back.
func (c *Cell) giveUp(v *Volume, reason string) {
	const cause = borgpb.StopCause_STOP_CAUSE_KILL
	why := "its volume " + v.name + " was given up"
	for _, a := range slices.Clone(v.machine.allocs) {
		if a.lostOn == v.machine && a.set.key == v.of.Job && a.index == v.of.Index {
			c.dropLost(a, cause, why)
		}
	}
	for _, p := range v.machine.copies {
		if p.works(v) && p.state == attemptUnreachable && p.stop == nil {
			c.order(p, cause, why, p.grace())
		}
	}
	v.givenUp, v.untilNs, v.spare, v.reason = true, 0, false, clip(reason, maxReasonBytes)
	c.chargeVolumes(v.of)
	c.reviewYield(v)
	c.dirty(v)
	c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME_GIVEN_UP, reason))
}

// leaveVolumes takes those out of the cell that are on a machine which goes.
func (c *Cell) leaveVolumes(m *Machine, reason string) {
	for _, v := range slices.Clone(m.volumes) {
		if !v.givenUp {
			c.giveUp(v, reason)
		}
		c.removeVolume(v)
	}
}

// setVolumes takes in what a machine says of its volumes.
func (c *Cell) setVolumes(m *Machine, o *borgpb.MachineReport) {
	if m == nil || len(o.VolumesGone)+len(o.VolumesFound) == 0 {
		return
	}
	for _, name := range o.VolumesGone {
		v := m.volumeOn(taskIDOf(name), name.GetVolume())
		if v != nil && v.givenUp && !c.workedIn(v) {
			c.removeVolume(v)
			c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME_GONE, v.reason))
		}
	}
	for _, f := range o.VolumesFound {
		of, name := taskIDOf(f.Name), f.Name.GetVolume()
		if checkKey(of.Job) != nil || !validName(name) || f.DiskBytes < 0 || f.DiskBytes > maxDiskBytes ||
			m.volumeOn(of, name) != nil || len(m.volumes) >= maxVolumesOnMachine || c.volumes.list.len() >= maxVolumes {
			continue
		}
		v := &Volume{of: of, name: name, machine: m, diskBytes: f.DiskBytes, keepNs: volumeKeepNs, madeWallNs: c.clock.wallNs}
		v.spare = c.volumeNamed(of, name) != nil
		c.addVolume(v)
		c.keepVolume(v)
		c.dirty(v)
		c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME_FOUND, ""))
		if m.givesUp() {
			c.giveUp(v, m.drainWords())
		}
	}
}

// workedIn tells whether there is a copy that may write to a volume, on a machine that
// is down too.
func (c *Cell) workedIn(v *Volume) bool {
	return slices.ContainsFunc(v.machine.copies, func(p *Copy) bool { return p.works(v) })
}

func taskIDOf(n *borgpb.VolumeName) TaskID {
	return TaskID{JobKey{n.GetUser(), n.GetJob()}, n.GetIndex()}
}

// Deletable tells whether the machine of a volume that was given up may delete it now.
func (c *Cell) Deletable(v *Volume) bool { return v.givenUp && !c.workedIn(v) }

// NameProto names a volume.
func (v *Volume) NameProto() *borgpb.VolumeName {
	return &borgpb.VolumeName{User: v.of.Job.User, Job: v.of.Job.Name, Index: v.of.Index, Volume: v.name}
}

// VolumeProto shows a volume.
func (c *Cell) VolumeProto(v *Volume) *borgpb.VolumeStatus {
	s := &borgpb.VolumeStatus{
		User: v.of.Job.User, Job: v.of.Job.Name, Index: v.of.Index, Volume: v.name, Machine: v.machine.name,
		DiskBytes: v.diskBytes, Reason: v.reason, MadeWallNs: v.madeWallNs, Yields: v.Yields(),
	}
	switch {
	case v.givenUp:
		s.State = borgpb.VolumeState_VOLUME_STATE_GIVEN_UP
	case v.spare:
		s.State = borgpb.VolumeState_VOLUME_STATE_FOUND
	case v.untilNs != 0:
		s.State = borgpb.VolumeState_VOLUME_STATE_KEPT
	default:
		s.State = borgpb.VolumeState_VOLUME_STATE_USED
	}
	if v.untilNs != 0 {
		s.KeptNs = max(v.untilNs-c.clock.cellNs, 1)
	}
	return s
}

// volumeEvent tells of a volume, and of whose it is.
func (c *Cell) volumeEvent(v *Volume, kind borgpb.EventKind, why string) Event {
	e := Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_VOLUME, Name: v.FullName(), Key: v.of.Job, Task: v.of.Index, Machine: v.machine.name,
		Reason: clip(why, maxReasonBytes)}
	if s := c.sets[v.of.Job]; s != nil {
		e.UID = s.uid
	} else if j := c.Job(v.of.Job); j != nil {
		e.UID = j.uid
	}
	return e
}

func (c *Cell) checkDeleteVolume(o *borgpb.DeleteVolume) (commit, *borgpb.Refusal) {
	key := JobKey{o.User, o.Name}
	if r := checkKey(key); r != nil {
		return nil, r
	}
	of := TaskID{key, o.Index}
	var found *Volume
	for v := range c.volumesNamed(of, o.Volume) {
		if !v.givenUp && (found == nil || v.counts()) {
			found = v
		}
	}
	name := of.String() + "/" + clip(o.Volume, 64)
	switch {
	case found == nil:
		return nil, notFound(name, "there is no such volume; borgcfg volume list shows those that are there")
	case found.Used() && !mutant.Planted(mutant.VolumeGivenUpInUse):
		return nil, badState(name, "%s", worksIn(found))
	}
	return func(res *borgpb.Result) {
		why := "deleted by " + c.now.user
		if c.now.reason != "" {
			why += ": " + c.now.reason
		}
		c.giveUp(found, why)
	}, nil
}
