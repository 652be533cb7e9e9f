package cell

import (
	"fmt"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// asksVolumes is what a placement asks for in volumes, and whose they are: those of a
// task in an alloc are the alloc's, and are where it is.
func (p *Placement) asksVolumes() (of TaskID, named []*borgpb.Volume) {
	switch {
	case p.Set != nil:
		return TaskID{p.Set.key, p.Index}, p.Set.spec.Volumes
	case !p.Job.specOf(p.Index).volumes:
		// As most: it is asked of every placement.
	case p.Job.latest().Proto.AllocSet == "":
		return TaskID{p.Job.key, p.Index}, p.Job.Need(p.Index).Task.Volumes
	}
	return TaskID{}, nil
}

// newVolumes counts the volumes that a placement makes: those of an earlier one are there.
func (p *Placement) newVolumes() (n int) {
	of, named := p.asksVolumes()
	for _, v := range named {
		if p.Machine.volumeOn(of, v.Name) == nil {
			n++
		}
	}
	return n
}

// VolumeSite is what the volumes of a task or alloc say of where it can be placed.
type VolumeSite struct {
	// At is the only machine where it can be; nil and Bound: there is none.
	At    *Machine
	Bound bool
	// Not are machines where it cannot be, as something of an earlier volume of the same
	// name is still there.
	Not []*Machine
	// DiskBytes that its new volumes, and those that grow, need beside what it asks for.
	DiskBytes int64
	// New is how many volumes it has yet to get.
	New int
}

// VolumeSiteOf tells it of a task of j, or of an alloc of set; one of both is nil.
func (c *Cell) VolumeSiteOf(j *Job, set *AllocSet, index uint32) (site VolumeSite) {
	p := Placement{Job: j, Set: set, Index: index}
	of, named := p.asksVolumes()
	if len(named) == 0 {
		return site
	}
	for _, want := range named {
		have, found := int64(0), false
		for v := range c.volumesNamed(of, want.Name) {
			switch {
			case mutant.Planted(mutant.KeptVolumeElsewhere) && !v.Used():
			case j != nil && j.daemon != nil && v.machine != j.Seat(index):
				// Of a machine that this index belonged to before.
			case !v.counts():
				site.Not = append(site.Not, v.machine)
			case site.Bound && site.At != v.machine:
				site.At = nil
				have, found = v.diskBytes, true
			default:
				site.At, site.Bound = v.machine, true
				have, found = v.diskBytes, true
			}
		}
		site.DiskBytes += max(want.DiskBytes-have, 0)
		if !found {
			site.New++
		}
	}
	if site.New > 0 && c.checkVolumeBudget(of.Job.User, p.asker().by.Priority, site.New) != nil {
		// Each placement would be refused until some are deleted.
		site.At, site.Bound = nil, true
	}
	if site.At != nil && (c.keptInQuarantine(site.At, of) || j != nil && site.At.promisedAway(of)) {
		site.At = nil
	}
	return site
}

// promisedAway tells whether a copy that still stops in the volumes leaves its place to
// another: whoever comes next in them would wait for that place too.
func (m *Machine) promisedAway(of TaskID) bool {
	var own []*Copy
	for _, p := range m.copies {
		if p.state == attemptStopping && p.worksOf(of) {
			own = append(own, p)
		}
	}
	return slices.ContainsFunc(own, func(o *Copy) bool { return o.stop.promised != nil && !claims(own, o.stop.promised) })
}

// VolumesNeed is the disk that volumes of a task of j, or of an alloc of set, need where
// none of them is.
func VolumesNeed(j *Job, set *AllocSet, index uint32) int64 {
	p := Placement{Job: j, Set: set, Index: index}
	_, named := p.asksVolumes()
	return volumeBytes(named)
}

// keptInQuarantine tells whether a copy in quarantine works in the volumes.
func (c *Cell) keptInQuarantine(m *Machine, of TaskID) bool {
	if len(c.quarantined) == 0 {
		return false
	}
	for _, p := range m.copies {
		if p.state == attemptQuarantined && p.worksOf(of) {
			return true
		}
	}
	return false
}

// Fits tells whether a machine is where the volumes of a placement are, or can be.
func (s *VolumeSite) Fits(m *Machine) bool {
	if s.Bound && s.At != m {
		return false
	}
	return !slices.Contains(s.Not, m)
}

// site is that of the volumes of a placement.
func (c *Cell) site(p *Placement) VolumeSite {
	if c.format < FormatVolumes {
		return VolumeSite{}
	}
	return c.VolumeSiteOf(p.Job, p.Set, p.Index)
}

// asked is what a placement asks of its room: what its spec says, and its new volumes.
func asked(n *Need, s *VolumeSite) *Resources {
	if s.DiskBytes == 0 {
		return &n.Resources
	}
	r := n.Resources
	r.DiskBytes += s.DiskBytes
	return &r
}

// addOwn has a placement wait for who is still stopping in its volumes: two never work
// in one.
func (c *Cell) addOwn(v *victims, p *Placement) *victims {
	of, named := p.asksVolumes()
	if p.Job == nil || len(named) == 0 {
		return v
	}
	for _, o := range p.Machine.copies {
		if o.state != attemptStopping || !o.worksOf(of) || o.room() != p.room() {
			continue
		}
		if v == nil {
			v = new(victims)
		}
		if !v.has(o) {
			v.copies = append(v.copies, o)
			v.freed = v.freed.add(o.held())
			v.devices = append(v.devices, o.Devices()...)
		}
	}
	return v
}

func (v *victims) has(p *Copy) bool {
	return slices.Contains(v.copies, p)
}

// VolumeBudgetWords says that no budget allows the new volumes that a task or alloc needs;
// empty if one does, or if it needs none.
func (c *Cell) VolumeBudgetWords(j *Job, set *AllocSet, index uint32) string {
	p := Placement{Job: j, Set: set, Index: index}
	of, named := p.asksVolumes()
	missing := 0
	for _, want := range named {
		if c.volumeNamed(of, want.Name) == nil {
			missing++
		}
	}
	if missing == 0 {
		return ""
	}
	return c.checkVolumeBudget(of.Job.User, p.asker().by.Priority, missing).GetMessage()
}

// VolumeWords says why volumes keep a task or alloc from machines; empty: none do.
func (c *Cell) VolumeWords(j *Job, set *AllocSet, index uint32) string {
	p := Placement{Job: j, Set: set, Index: index}
	of, named := p.asksVolumes()
	if words := c.VolumeBudgetWords(j, set, index); words != "" {
		return words
	}
	for _, want := range named {
		v := c.volumeNamed(of, want.Name)
		if v == nil {
			continue
		}
		words := fmt.Sprintf("its volume %s is on machine %s", v.name, v.machine.name)
		switch m := v.machine; {
		case m.down:
			words += ", which is down"
		case m.draining:
			words += ", which is draining: borgcfg machine undrain " + m.name + " has it run there again"
		case c.keptInQuarantine(m, of):
			return words + ", where a copy in quarantine works in it; borgcfg release ends that"
		case j != nil && m.promisedAway(of):
			return words + ", where its last copy has yet to stop and leaves its place to another"
		}
		return words + "; borgcfg volume delete " + v.FullName() + " deletes it, and the task can run elsewhere"
	}
	if site := c.VolumeSiteOf(j, set, index); len(site.Not) > 0 {
		return fmt.Sprintf("an earlier volume of it is still being deleted on machine %s", site.Not[0].name)
	}
	return ""
}

// OfVolume reports whether a hold is of a task that works in a volume: it goes nowhere else as
// long as there is the volume.
func (h *Hold) OfVolume() bool { return h != nil && h.Volume != "" && h.UntilNs == 0 }

// holdVolumes is why a copy is not taken off its machine of the cell's own accord: what
// it works in stays there.
func (p *Copy) holdVolumes() *Hold {
	if p.few == nil || p.few.uses == nil || p.machine.givesUp() || p.alloc != nil {
		return nil
	}
	return holdOfVolume(p.TaskID(), p.few.uses.names[0])
}

// HoldVolumes is the same of an alloc.
func (a *Alloc) HoldVolumes() *Hold {
	if len(a.set.spec.Volumes) == 0 || a.machine == nil || a.machine.givesUp() {
		return nil
	}
	return holdOfVolume(TaskID{a.set.key, a.index}, a.set.spec.Volumes[0].Name)
}

func holdOfVolume(of TaskID, name string) *Hold {
	return &Hold{Job: of.Job, Task: of, Volume: of.String() + "/" + name,
		Reason: "its volume stays there; with --now or a deadline the task stops, and waits for its volume until the machine is undrained; --give-up-volumes deletes the volume"}
}

// KeptVolumes are why a machine is not to be taken away although nobody runs there any
// more: volumes that are kept.
func (c *Cell) KeptVolumes(m *Machine) (holds []Hold) {
	for _, v := range m.volumes {
		if v.untilNs == 0 {
			continue
		}
		holds = append(holds, Hold{Job: v.of.Job, Task: v.of, Volume: v.FullName(), UntilNs: v.untilNs,
			Reason: "it is kept there for its task; borgcfg volume delete " + v.FullName() + " deletes it"})
	}
	return holds
}

// worksIn says who works in a volume, and what ends that.
func worksIn(v *Volume) string {
	var stops *stopping
	for _, p := range v.machine.copies {
		switch {
		case p.TaskID() != v.of:
		case p.state != attemptStopping || p.stop == nil:
			return fmt.Sprintf("somebody works in it on %s; stop %s first", v.machine.name, v.of.Job)
		default:
			stops = p.stop
		}
	}
	if stops == nil {
		return fmt.Sprintf("somebody works in it on %s; stop %s first", v.machine.name, v.of.Job)
	}
	return fmt.Sprintf("task %s was told to stop and still works in it on %s; it has %s for that before it is killed. Try again when it is gone",
		v.of, v.machine.name, spanWords(stops.noticeNs+stops.graceNs))
}
