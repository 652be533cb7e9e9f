package cell

import (
	"cmp"
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// FormatVolumesYield is the format from which on kept volumes give way to production.
const FormatVolumesYield = 12

// A volume that is kept for a job or alloc set that has ended gives way to production, if
// what ended was of a lower band. Production does not count its disk, and is placed as if
// it were free; if the disk then does not suffice for all, such volumes are given up, those
// first whose time is over first. All others count it as before.

// held is what a volume takes of its machine. What was given up takes it until it is gone.
func (v *Volume) held() byView {
	if v.yields {
		return byView{others: *v.res()}
	}
	return inBoth(v.res())
}

// Yields reports whether production may have its disk.
func (v *Volume) Yields() bool { return v.yields && !v.givenUp }

// mayYield derives whether production may have the disk of a volume.
func (c *Cell) mayYield(v *Volume) bool {
	return c.format >= FormatVolumesYield && v.low && !v.Used() && !c.ownerLives(v.of.Job)
}

// ownerLives reports whether a job or alloc set of that name has not ended.
func (c *Cell) ownerLives(key JobKey) bool {
	if s := c.sets[key]; s != nil {
		return s.deathSeq == 0
	}
	j := c.Job(key)
	return j != nil && j.deathSeq == 0
}

// keptBytes is the disk that a user is charged for a volume in which nobody works.
func (v *Volume) keptBytes() int64 {
	if v.untilNs == 0 {
		return 0
	}
	return v.diskBytes
}

// checkKept refuses new work with volumes of a user for whom more disk is kept in volumes
// than the user's budget, or for all than the cell's total. Admins are exempt from the
// user's budget, not from the total.
func (c *Cell) checkKept(user string) *borgpb.Refusal {
	var used int64
	if u := c.stateUse.byUser[user]; u != nil {
		used = u[measureKeptDisk]
	}
	most := c.StateBudget(user, measureKeptDisk)
	if all := c.stateUse.cell[measureKeptDisk]; all > maxKeptDisk && c.format >= FormatVolumesYield {
		return limit("", "volumes in which nobody works keep %d bytes of disk, and may keep %d; borgcfg volume list shows them, borgcfg volume delete gives some up", all, int64(maxKeptDisk))
	}
	if used <= most || c.format < FormatVolumesYield || c.askedByAdmin() {
		return nil
	}
	return limit("", "volumes in which nobody works keep %d bytes of disk for user %s, who may have %d so. Give some up (borgcfg volume list, borgcfg volume delete), or have an admin raise it: borgcfg quota state %s %s=%d",
		used, user, most, user, measures[measureKeptDisk].name, used)
}

// checkVolumesOf refuses more volumes than the cell, a machine or a user may have.
func (c *Cell) checkVolumesOf(user string, m *Machine, more int) *borgpb.Refusal {
	if c.volumes.list.len()+more > maxVolumes || len(m.volumes)+more > maxVolumesOnMachine {
		return limit("", "%d of %d volumes are in the cell, %d of %d on %s; borgcfg volume list shows them, borgcfg volume delete gives some up",
			c.volumes.list.len(), maxVolumes, len(m.volumes), maxVolumesOnMachine, m.name)
	}
	var has int64
	if u := c.stateUse.byUser[user]; u != nil {
		has = u[measureVolumes]
	}
	if most := c.StateBudget(user, measureVolumes); has+int64(more) > most && c.format >= FormatVolumesYield {
		return limit("", "user %s has %d volumes and may have %d; borgcfg volume list shows them, borgcfg volume delete gives some up", user, has, most)
	}
	return nil
}

// reviewYield follows a volume that is used, kept or given up by now.
func (c *Cell) reviewYield(v *Volume) {
	kept := v.keptBytes()
	c.stateUse.countOne(v.of.Job.User, measureKeptDisk, kept-v.kept)
	v.kept = kept
	if was := v.yields; c.deriveYield(v) != was {
		v.machine.changes++
		if v.Yields() {
			c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME_YIELDS, ""))
		}
	}
}

// deriveYield has a volume count on its machine for what it is.
func (c *Cell) deriveYield(v *Volume) bool {
	if yields := c.mayYield(v); yields != v.yields {
		v.machine.room.sub(v.held())
		v.yields = yields
		v.machine.room.add(v.held())
	}
	return v.yields
}

// ownerEnds follows a job or alloc set of a priority that has ended.
func (c *Cell) ownerEnds(key JobKey, priority int32) {
	if c.format < FormatVolumesYield {
		return
	}
	for v := range c.volumesOfOwner(key) {
		if low := !isProd(priority); low != v.low {
			v.low = low
			c.dirty(v)
		}
		c.reviewYield(v)
	}
}

// ownerBegins follows a job or alloc set whose name may have volumes from before.
func (c *Cell) ownerBegins(key JobKey) {
	if c.volumes.list.len() == 0 {
		return
	}
	owner := key // It is on the heap for the loop, and most submits have none.
	for v := range c.volumesOfOwner(owner) {
		c.reviewYield(v)
	}
}

// volumesOfOwner are all volumes of one name.
func (c *Cell) volumesOfOwner(key JobKey) func(yield func(*Volume) bool) {
	return func(yield func(*Volume) bool) {
		for v := range c.volumes.list.from(volumeID{of: TaskID{Job: key}}) {
			if v.of.Job != key || !yield(v) {
				return
			}
		}
	}
}

// reclaim gives up volumes of a machine that give way, if its disk does not suffice for
// them beside production that came or grew; who names it.
func (c *Cell) reclaim(m *Machine, priority int32, who func() string) {
	if !isProd(priority) || len(m.volumes) == 0 {
		return
	}
	held := m.room.held(false)
	over := held.DiskBytes - m.room.capacity.DiskBytes
	var kept []*Volume
	for _, v := range m.volumes {
		switch {
		case v.Yields():
			kept = append(kept, v)
		case v.yields:
			over -= v.diskBytes // it goes already
		}
	}
	slices.SortFunc(kept, func(a, b *Volume) int {
		return cmp.Or(cmp.Compare(a.untilNs, b.untilNs), a.orderKey().Compare(b.orderKey()))
	})
	for _, v := range kept {
		if over <= 0 {
			return
		}
		over -= v.diskBytes
		c.giveUp(v, fmt.Sprintf("%s of production needed its disk, and %s has ended", who(), v.of.Job))
	}
}

// checkYield checks what is derived of a volume.
func (c *Cell) checkYield(v *Volume) error {
	if v.kept != v.keptBytes() {
		return fmt.Errorf("volume %s on %s keeps %d bytes, counted as %d", v.FullName(), v.machine.name, v.keptBytes(), v.kept)
	}
	if v.yields != c.mayYield(v) {
		return fmt.Errorf("volume %s on %s gives way to production: %v", v.FullName(), v.machine.name, v.yields)
	}
	return nil
}
