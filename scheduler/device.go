package scheduler

import (
	"slices"

	"borg/borgmaster/cell"
)

// single is what is free of the single devices of one name on a machine: a
// share lies on one device, so that their sum does not tell.
type single struct {
	// whole devices that nobody has anything of, and the most that is free of any
	// one, in thousandths.
	whole, most int64
	// capacity is that of all of them.
	capacity int64
	// parts are what is free of those of which somebody has a part and not all,
	// ascending. Where they are many, some are left out.
	parts [8]uint16
}

// deviceNeed is what is asked for of a device: a share of one, or whole ones.
type deviceNeed struct {
	column       int
	milli, count int64
}

func newDeviceNeed(column int, d cell.Device) deviceNeed {
	count, each := d.Split()
	if each < wholeDevice {
		count = 0
	}
	return deviceNeed{column, d.Milli, count}
}

// wholeDevice is how many thousandths a device has.
const wholeDevice = 1000

func (d *deviceNeed) fits(s *single) bool {
	if d.count == 0 {
		return s.most >= d.milli
	}
	return s.whole >= d.count && d.count <= cell.MaxGrantedDevices
}

// readSingles computes anew what is free of single devices on a machine.
func (g *grid) readSingles(t *site) {
	if len(g.devices) == 0 {
		return
	}
	q := g.deviceRoom(t)
	for d, name := range g.devices {
		s := &g.singles[d][t.slot]
		s.whole, s.most = q.Able(name, wholeDevice)
		if s.capacity = t.machine.Capacity().Device(name); s.capacity == 0 {
			continue
		}
		// Scores see single devices.
		g.bump(t.slot)
		n := 0
		s.parts = [len(s.parts)]uint16{}
		for free := range q.Partly(name) {
			if n < len(s.parts) {
				s.parts[n] = uint16(free)
				n++
			}
		}
		slices.Sort(s.parts[:n])
	}
}

// deviceRoom is what is free of a machine's own devices, promises taken off.
func (g *grid) deviceRoom(t *site) cell.DeviceRoom {
	q := t.machine.DeviceRoom()
	q.Empty = g.empty
	if t.promises > 0 {
		q.Promised = t.promised.Devices
	}
	return q
}

// devicesAt is what is free of the devices of a place, promises taken off.
func (f *search) devicesAt(at spot) cell.DeviceRoom {
	if at.alloc == nil {
		return f.s.grid.deviceRoom(at.site)
	}
	q := at.alloc.DeviceRoom()
	q.Empty = f.s.dry
	if r := f.s.overlay.allocs[at.alloc]; r != nil {
		q.Promised = r.devices
	}
	return q
}

// chooseDevices names the devices that w gets in a place; ok is false when there
// are not enough.
func (f *search) chooseDevices(w *want, at spot, victims []unit) (gs []cell.DeviceGrant, ok bool) {
	need := w.need.Resources.Devices
	if len(need) == 0 || !f.c.NumbersDevices() && !f.s.dry {
		return nil, true
	}
	q := f.devicesAt(at)
	q.Freed = devicesOf(victims)
	gs = q.Choose(need)
	return gs, gs != nil
}

// devicesOf is what units have of single devices.
func devicesOf(units []unit) (gs []cell.DeviceGrant) {
	for i := range units {
		gs = append(gs, units[i].devices...)
	}
	return gs
}

// makesRoom tells whether need fits when some units are gone; room is what is
// free then. Devices, nil when none are asked for, is what is free of them now.
func makesRoom(need *cell.Resources, room cell.Resources, devices *cell.DeviceRoom, gone []unit) bool {
	if !need.Fits(room) {
		return false
	}
	if devices == nil {
		return true
	}
	q := *devices
	q.Freed = devicesOf(gone)
	return q.Fit(need.Devices)
}

// chosen are the units of a set.
func chosen(units []unit, set int) (out []unit) {
	for i := range units {
		if set&(1<<i) != 0 {
			out = append(out, units[i])
		}
	}
	return slices.Clip(out)
}
