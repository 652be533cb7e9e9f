package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// FormatPlaces is the format from which on each band leaves places to those above it.
const FormatPlaces = 12

// A machine has places for copies, allocs and volumes, however small these are. The free band
// fills them up to half, and each band above up to an eighth more. So work always finds places
// that no lower band can fill, although nobody is evicted for one.

// Places is how many places of a machine something takes.
type Places struct{ Copies, Allocs, Volumes int }

// Add returns the sum of both.
func (p Places) Add(o Places) Places {
	return Places{p.Copies + o.Copies, p.Allocs + o.Allocs, p.Volumes + o.Volumes}
}

// Sub returns what is left of p without o.
func (p Places) Sub(o Places) Places {
	return Places{p.Copies - o.Copies, p.Allocs - o.Allocs, p.Volumes - o.Volumes}
}

// share returns how many of the places of a machine may be used when work of a priority comes.
func (c *Cell) share(places int, priority int32) int {
	if c.format < FormatPlaces {
		return places
	}
	const half, all = 4, 8 // in eighths
	return places * (half + int(BandOf(priority)-borgpb.Band_BAND_FREE)) / all
}

// HasPlaces reports whether a machine takes so much more work of a priority beside what it holds
// and what is promised there. What takes no places of a kind does not depend on how many of that
// kind are taken.
func (c *Cell) HasPlaces(m *Machine, priority int32, more, promised Places) bool {
	has := func(most, taken, promised, more int) bool {
		return more == 0 || taken+promised+more <= c.share(most, priority)
	}
	return has(maxCopiesOnMachine, len(m.copies), promised.Copies, more.Copies) &&
		(c.format < FormatPlaces || has(maxAllocsOnMachine, len(m.allocs), promised.Allocs, more.Allocs)) &&
		has(maxVolumesOnMachine, m.volumesFor(priority), promised.Volumes, more.Volumes)
}

// NearShare reports whether a machine holds so much, with what is promised there, that some band
// may find no place.
func (m *Machine) NearShare(promised Places) bool {
	return len(m.copies)+promised.Copies >= maxCopiesOnMachine/2 || len(m.allocs)+promised.Allocs >= maxAllocsOnMachine/2 ||
		len(m.volumes)+promised.Volumes+maxVolumesOfTask > maxVolumesOnMachine/2
}

// volumesFor counts the volumes of a machine as work of a priority has to see them: those that
// yield to production take no place from it.
func (m *Machine) volumesFor(priority int32) int {
	if isProd(priority) {
		return len(m.volumes) - m.yielding
	}
	return len(m.volumes)
}

// checkPlaces refuses a task or alloc if its machine has no place for it beside what it holds and
// what comes with it. Volumes are checked by checkVolumesOf.
func (c *Cell) checkPlaces(p *Placement, with Places) *borgpb.Refusal {
	m, priority := p.Machine, p.asker().by.Priority
	what, taken, all := "copies", len(m.copies)+with.Copies, maxCopiesOnMachine
	if p.Set != nil && c.format >= FormatPlaces {
		what, taken, all = "allocs", len(m.allocs)+with.Allocs, maxAllocsOnMachine
	}
	most := c.share(all, priority)
	switch {
	case taken < most:
		return nil
	case most == all:
		return about(p.name(), limit("", "%s holds %d %s", m.name, taken, what))
	}
	return about(p.name(), limit("", "%s holds %d %s; band %s may fill %d of its %d places", m.name, taken, what, BandName(BandOf(priority)), most, all))
}

// places returns what a placement adds to its machine.
func (p *Placement) places(site *VolumeSite) Places {
	if p.Set != nil {
		return Places{Allocs: 1, Volumes: site.New}
	}
	return Places{Copies: 1, Volumes: site.New}
}

// PlacesWords says how many places of a machine are taken, and how many work of a priority may
// fill.
func (c *Cell) PlacesWords(m *Machine, priority int32) string {
	return fmt.Sprintf("%s holds %d copies, %d allocs and %d volumes; band %s may fill %d, %d and %d places",
		m.name, len(m.copies), len(m.allocs), m.volumesFor(priority), BandName(BandOf(priority)),
		c.share(maxCopiesOnMachine, priority), c.share(maxAllocsOnMachine, priority), c.share(maxVolumesOnMachine, priority))
}
