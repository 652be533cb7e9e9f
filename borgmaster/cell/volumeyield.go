package cell

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"borg/proto/borgpb"
)

// FormatVolumesYield is the format from which on kept volumes give way to production.
const FormatVolumesYield = 12

// A kept volume yields to production if its owner, a job or alloc set below the production
// band, has ended: production is placed as if the volume's disk were free, and all other work
// as if it were used. If the disk is then too small for all, the machine's yielding volumes
// are given up, those that expire earliest first.

// held returns what a volume uses of its machine, for production and for others. A volume
// that was given up still uses it until the machine has removed it.
func (v *Volume) held() byView {
	if v.yields {
		return byView{others: *v.res()}
	}
	return inBoth(v.res())
}

// low reports whether what the volume belongs to is known to be below production.
func (v *Volume) low() bool {
	return v.band != borgpb.Band_BAND_UNSPECIFIED && v.band < borgpb.Band_BAND_PRODUCTION
}

// Yields reports whether production may take the volume's disk and has not yet done so.
func (v *Volume) Yields() bool { return v.yields && !v.givenUp }

// mayYield computes whether production may take the disk of a volume.
func (c *Cell) mayYield(v *Volume) bool {
	return c.format >= FormatVolumesYield && v.low() && !v.Used() && !c.ownerLives(v.of.Job)
}

// ownerLives reports whether a live job or alloc set has that name.
func (c *Cell) ownerLives(key JobKey) bool {
	if s := c.sets[key]; s != nil {
		return s.deathSeq == 0
	}
	j := c.Job(key)
	return j != nil && j.deathSeq == 0
}

// keptBytes returns the disk of a volume that is kept for its owner and not in use; 0 for
// any other.
func (v *Volume) keptBytes() int64 {
	if v.untilNs == 0 {
		return 0
	}
	return v.diskBytes
}

// checkKept refuses new work with volumes while the user's kept volumes use more disk than
// the user's budget, or those of all users more than the cell's total. Admins are exempt
// from the budget, not from the total.
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
	return limit("", "volumes in which nobody works keep %d bytes of disk for user %s, who may have %d so. Give some up (borgcfg volume list, borgcfg volume delete)%s",
		used, user, most, raiseAdvice(user, measureKeptDisk, used))
}

// checkVolumesOf refuses more volumes if the cell, the machine or the user would have too many.
func (c *Cell) checkVolumesOf(user string, m *Machine, priority int32, more int) *borgpb.Refusal {
	if !c.HasPlaces(m, priority, Places{Volumes: more}, Places{}) {
		return limit("", "%d of the %d volumes that band %s may fill %s up to are there; borgcfg volume list shows them, borgcfg volume delete gives some up",
			m.volumesFor(priority), c.share(maxVolumesOnMachine, priority), BandName(BandOf(priority)), m.name)
	}
	return c.checkVolumeBudget(user, priority, more)
}

// checkVolumeBudget refuses more volumes if the cell or the user would have too many on
// whatever machine. Schedulers ask it before they place a task. The last tenth of the cell's is
// for production.
func (c *Cell) checkVolumeBudget(user string, priority int32, more int) *borgpb.Refusal {
	most := maxVolumes
	if !isProd(priority) && c.format >= FormatPlaces {
		most -= maxVolumes * stateReserveMilli / 1000
	}
	if c.volumes.list.len()+more > most {
		return limit("", "the cell has %d of the %d volumes that band %s may fill it up to; borgcfg volume list shows them, borgcfg volume delete gives some up",
			c.volumes.list.len(), most, BandName(BandOf(priority)))
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

// reviewYield is called after each change of what mayYield or keptBytes depend on, but for the
// end of its owner.
func (c *Cell) reviewYield(v *Volume) {
	if c.beginsToYield(v) {
		c.emit(c.volumeEvent(v, borgpb.EventKind_EVENT_KIND_VOLUME_YIELDS, ""))
	}
}

// beginsToYield computes anew what is derived of a volume, and reports whether production may
// have its disk from now on.
func (c *Cell) beginsToYield(v *Volume) bool {
	kept := v.keptBytes()
	c.stateUse.countOne(v.of.Job.User, measureKeptDisk, kept-v.kept)
	v.kept = kept
	if was := v.yields; c.deriveYield(v) != was {
		v.machine.changes++
		return v.Yields()
	}
	return false
}

// deriveYield updates whether a volume yields, and how its machine counts it.
func (c *Cell) deriveYield(v *Volume) bool {
	if yields := c.mayYield(v); yields != v.yields {
		v.machine.room.sub(v.held())
		v.yields = yields
		v.machine.yielding += map[bool]int{true: 1, false: -1}[yields]
		v.machine.room.add(v.held())
	}
	return v.yields
}

// ownerEnds is called when a job or alloc set of a priority has ended, and tells with one event of
// all its volumes that yield from now on. It never raises the band of a volume: the quota of a
// higher one admitted only what was placed in it.
func (c *Cell) ownerEnds(key JobKey, priority int32) {
	if c.format < FormatVolumesYield || c.volumes.of[key] == 0 {
		return
	}
	band, yield := BandOf(priority), 0
	for v := range c.VolumesOf(key) {
		if band < v.band || v.band == borgpb.Band_BAND_UNSPECIFIED && !isProd(priority) {
			c.setCharged(v, band, 0)
			c.dirty(v)
		}
		if c.beginsToYield(v) {
			yield++
		}
	}
	c.chargeVolumesOf(key)
	if yield == 0 {
		return
	}
	var e Event
	if s := c.sets[key]; s != nil {
		e = setEvent(s, borgpb.EventKind_EVENT_KIND_VOLUME_YIELDS, stateNone, stateNone)
	} else {
		e = jobEvent(c.Job(key), borgpb.EventKind_EVENT_KIND_VOLUME_YIELDS, stateNone, stateNone)
	}
	e.Reason = fmt.Sprintf("kept volumes of it: %d", yield)
	c.emit(e)
}

// ownerBegins is called for a new job or alloc set. An earlier one of the same name may have
// left volumes.
func (c *Cell) ownerBegins(key JobKey) {
	if c.volumes.of[key] == 0 {
		return
	}
	owner := key // It is on the heap for the loop, and most submits have none.
	for v := range c.VolumesOf(owner) {
		c.beginsToYield(v)
	}
}

// VolumesOf yields the volumes of a job or alloc set, also those that earlier ones of its name
// have left.
func (c *Cell) VolumesOf(key JobKey) iter.Seq[*Volume] {
	return func(yield func(*Volume) bool) {
		for v := range c.volumes.list.from(volumeID{of: TaskID{Job: key}}) {
			if v.of.Job != key || !yield(v) {
				return
			}
		}
	}
}

// count follows volumes of a job or alloc set that come or go.
func (l *volumes) count(owner JobKey, n int) {
	if l.of == nil {
		l.of = make(map[JobKey]int)
	}
	if l.of[owner] += n; l.of[owner] == 0 {
		delete(l.of, owner)
	}
}

// giveUpYielding gives up yielding volumes of a machine until its disk and its places suffice
// for production that came or grew, with so much disk and so many new volumes; who names that
// work. What takes no disk, or no place of a volume, has none given up for it, however much of it
// others have taken.
func (c *Cell) giveUpYielding(m *Machine, priority int32, diskBytes int64, opened int, who func() string) {
	if !isProd(priority) || len(m.volumes) == 0 {
		return
	}
	held := m.room.held(false)
	over := held.DiskBytes - m.room.capacity.DiskBytes
	if diskBytes <= 0 {
		over = 0
	}
	beyond := len(m.volumes) - c.share(maxVolumesOnMachine, priority)
	if over <= 0 && min(beyond, opened) <= 0 {
		return
	}
	var kept []*Volume
	for _, v := range m.volumes {
		switch {
		case v.Yields():
			kept = append(kept, v)
		case v.yields:
			over -= v.diskBytes // it is being removed
			beyond--
		}
	}
	many := min(beyond, opened)
	slices.SortFunc(kept, func(a, b *Volume) int {
		return cmp.Or(cmp.Compare(a.untilNs, b.untilNs), a.orderKey().Compare(b.orderKey()))
	})
	for _, v := range kept {
		if over <= 0 && many <= 0 {
			return
		}
		what := "disk"
		if over <= 0 {
			what = "place"
		}
		over -= v.diskBytes
		many--
		c.giveUp(v, fmt.Sprintf("%s of production needed its %s, and %s has ended", who(), what, v.of.Job))
	}
}

// checkYield compares a volume's derived fields with what they are computed from.
func (c *Cell) checkYield(v *Volume) error {
	if v.kept != v.keptBytes() {
		return fmt.Errorf("volume %s on %s keeps %d bytes, counted as %d", v.FullName(), v.machine.name, v.keptBytes(), v.kept)
	}
	if v.yields != c.mayYield(v) {
		return fmt.Errorf("volume %s on %s gives way to production: %v", v.FullName(), v.machine.name, v.yields)
	}
	return nil
}
