package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// FormatPlaces is the format from which on each band leaves places to those above it.
const FormatPlaces = 12

// A machine has places for copies and for volumes, however small these are. The free band fills
// them up to half, and each band above up to an eighth more. So work always finds places that no
// lower band can fill, although nobody is evicted for one.

// share returns how many of the places of a machine may be used when work of a priority comes.
func (c *Cell) share(places int, priority int32) int {
	if c.format < FormatPlaces {
		return places
	}
	const half, all = 4, 8 // in eighths
	return places * (half + int(BandOf(priority)-borgpb.Band_BAND_FREE)) / all
}

// HasPlaces reports whether a machine takes so many more copies and volumes of work of a
// priority. Without new volumes it does not matter how many there are.
func (c *Cell) HasPlaces(m *Machine, priority int32, copies, volumes int) bool {
	return copies <= c.share(maxCopiesOnMachine, priority)-len(m.copies) &&
		(volumes == 0 || volumes <= c.share(maxVolumesOnMachine, priority)-m.volumesFor(priority))
}

// NearShare reports whether a machine, with so many copies more, has so many copies or volumes
// that some band may find no place.
func (m *Machine) NearShare(copies int) bool {
	return len(m.copies)+copies >= maxCopiesOnMachine/2 || len(m.volumes)+maxVolumesOfTask > maxVolumesOnMachine/2
}

// volumesFor counts the volumes of a machine as work of a priority has to see them: those that
// yield to production take no place from it.
func (m *Machine) volumesFor(priority int32) int {
	if isProd(priority) {
		return len(m.volumes) - m.yielding
	}
	return len(m.volumes)
}

// checkCopies refuses a copy if the machine has no place for it beside so many.
func (c *Cell) checkCopies(m *Machine, priority int32, copies int) *borgpb.Refusal {
	most := c.share(maxCopiesOnMachine, priority)
	if copies < most {
		return nil
	}
	if most == maxCopiesOnMachine {
		return limit("", "%s holds %d copies", m.name, copies)
	}
	return limit("", "%s holds %d copies; band %s may fill %d of its %d places", m.name, copies, BandName(BandOf(priority)), most, maxCopiesOnMachine)
}

// places returns what a placement adds to its machine.
func (p *Placement) places(site *VolumeSite) (copies, volumes int) {
	if p.Set == nil {
		copies = 1
	}
	return copies, site.New
}

// PlacesWords says how many places of a machine are taken, and how many work of a priority may
// fill.
func (c *Cell) PlacesWords(m *Machine, priority int32) string {
	return fmt.Sprintf("%s holds %d copies and %d volumes; band %s may fill %d and %d places",
		m.name, len(m.copies), m.volumesFor(priority), BandName(BandOf(priority)), c.share(maxCopiesOnMachine, priority), c.share(maxVolumesOnMachine, priority))
}
