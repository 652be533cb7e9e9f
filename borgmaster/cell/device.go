package cell

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// formatDevices is the format from which on devices have numbers: an assignment
// names those that it takes, and a share lies on one of them. Before it there
// were counts alone.
const formatDevices = 3

// wholeDevice is how many thousandths a device has.
const wholeDevice = 1000

// DeviceGrant is a device, or a share of one, that somebody holds.
type DeviceGrant struct {
	Name string
	// Which of that name, from 0.
	Number uint32
	Milli  int64
}

func compareGrants(a, b DeviceGrant) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Milli, b.Milli))
}

// Split says how an amount lies: on how many devices, and how much of each.
func (d Device) Split() (devices, each int64) {
	if d.Milli < wholeDevice {
		return 1, d.Milli
	}
	return d.Milli / wholeDevice, wholeDevice
}

// DeviceText says an amount of devices for people: "2", "0.46".
func DeviceText(milli int64) string {
	sign := ""
	if milli < 0 {
		sign, milli = "-", -milli
	}
	text := fmt.Sprintf("%s%d.%03d", sign, milli/wholeDevice, milli%wholeDevice)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// holdDevices and dropDevices keep what is held of a room's devices.
func (r *room) holdDevices(gs []DeviceGrant) {
	for _, g := range gs {
		at, _ := slices.BinarySearchFunc(r.devices, g, compareGrants)
		r.devices = slices.Insert(r.devices, at, g)
	}
}

func (r *room) dropDevices(gs []DeviceGrant) {
	for _, g := range gs {
		if at, ok := slices.BinarySearchFunc(r.devices, g, compareGrants); ok {
			r.devices = slices.Delete(r.devices, at, at+1)
		}
	}
}

// DeviceRoom is what is free of the devices in one place: the machine's own, or
// those of an alloc.
type DeviceRoom struct {
	room *room
	// Promised counts as held; Freed, of victims, as free.
	Promised, Freed []DeviceGrant
	// Empty: what is held does not count.
	Empty bool
}

// DeviceRoom of the machine's own room.
func (m *Machine) DeviceRoom() DeviceRoom { return DeviceRoom{room: &m.room} }

// DeviceRoom of the alloc.
func (a *Alloc) DeviceRoom() DeviceRoom { return DeviceRoom{room: &a.room} }

// whole is how much of a device there is when nobody has it.
func (q *DeviceRoom) whole(name string, number uint32) int64 {
	if q.room.parts == nil || q.Empty {
		if int64(number) < (q.room.capacity.Device(name)+wholeDevice-1)/wholeDevice {
			return min(wholeDevice, q.room.capacity.Device(name))
		}
		return 0
	}
	for _, g := range q.room.parts {
		if g.Name == name && g.Number == number {
			return g.Milli
		}
	}
	return 0
}

// free is what is left of one device; it may be negative.
func (q *DeviceRoom) free(name string, number uint32) int64 {
	return q.left(name, number, heldOf(q.heldDevices(name), name, number))
}

func (q *DeviceRoom) left(name string, number uint32, held int64) int64 {
	if mutant.Planted(mutant.DeviceSharedTwice) || mutant.Planted(mutant.CoreTakenTwice) && name == borgpb.ExclusiveCPU {
		held = 0
	}
	return q.whole(name, number) - held - heldOf(q.Promised, name, number) + heldOf(q.Freed, name, number)
}

func heldOf(gs []DeviceGrant, name string, number uint32) (milli int64) {
	for i := range gs {
		if gs[i].Number == number && gs[i].Name == name {
			milli += gs[i].Milli
		}
	}
	return milli
}

// heldDevices are the grants of that name.
func (q *DeviceRoom) heldDevices(name string) []DeviceGrant {
	if q.Empty {
		return nil
	}
	all := q.room.devices
	first, _ := slices.BinarySearchFunc(all, name, func(g DeviceGrant, name string) int { return strings.Compare(g.Name, name) })
	last := first
	for last < len(all) && all[last].Name == name {
		last++
	}
	return all[first:last]
}

// inUse yields each device of the room that anybody has, or was promised, a
// part of, and what is free of it.
func (q *DeviceRoom) inUse(name string) iter.Seq2[uint32, int64] {
	return func(yield func(number uint32, free int64) bool) {
		held, sum := q.heldDevices(name), int64(0)
		for i, g := range held {
			sum += g.Milli
			if i+1 < len(held) && held[i+1].Number == g.Number {
				continue
			}
			if !yield(g.Number, q.left(name, g.Number, sum)) {
				return
			}
			sum = 0
		}
		for i, g := range q.Promised {
			if g.Name == name && heldOf(held, name, g.Number) == 0 && heldOf(q.Promised[:i], name, g.Number) == 0 {
				if !yield(g.Number, q.left(name, g.Number, 0)) {
					return
				}
			}
		}
	}
}

// Able counts the devices of a name of which at least each thousandths are
// free, and says how much is free of the one with the most. It allocates
// nothing.
func (q *DeviceRoom) Able(name string, each int64) (devices, most int64) {
	look := func(free int64) {
		most = max(most, free)
		if free >= each {
			devices++
		}
	}
	if q.room.parts != nil && !q.Empty {
		for _, g := range q.room.parts {
			if g.Name == name {
				look(q.free(name, g.Number))
			}
		}
		return devices, most
	}
	all := q.room.capacity.Device(name)
	untouched := (all + wholeDevice - 1) / wholeDevice
	for number, free := range q.inUse(name) {
		if q.whole(name, number) > 0 {
			untouched--
			look(free)
		}
	}
	if untouched > 0 {
		free := min(all, wholeDevice)
		most = max(most, free)
		if free >= each {
			devices += untouched
		}
	}
	return devices, most
}

// Partly yields what is free of each device of which somebody has a part and not
// all.
func (q *DeviceRoom) Partly(name string) iter.Seq[int64] {
	return func(yield func(free int64) bool) {
		if q.room.parts != nil && !q.Empty {
			for _, g := range q.room.parts {
				if g.Name != name {
					continue
				}
				if free := q.free(name, g.Number); free > 0 && free < g.Milli && !yield(free) {
					return
				}
			}
			return
		}
		for number, free := range q.inUse(name) {
			if free > 0 && free < q.whole(name, number) && !yield(free) {
				return
			}
		}
	}
}

// Fit tells whether there are devices for all that is asked for.
func (q *DeviceRoom) Fit(need []Device) bool {
	for _, d := range need {
		n, each := d.Split()
		if n > MaxGrantedDevices {
			return false
		}
		if able, _ := q.Able(d.Name, each); able < n {
			return false
		}
	}
	return true
}

// Choose returns devices for all that is asked for: for a share the one of
// which least is left that suffices, whole ones with the lowest numbers. Nil:
// there are not enough.
func (q *DeviceRoom) Choose(need []Device) []DeviceGrant {
	if !q.Fit(need) {
		return nil
	}
	var out []DeviceGrant
	for _, d := range need {
		n, each := d.Split()
		if n == 1 && each < wholeDevice {
			out = append(out, DeviceGrant{d.Name, q.tightest(d.Name, each), each})
			continue
		}
		for number := uint32(0); n > 0; number++ {
			if q.free(d.Name, number) >= each {
				out = append(out, DeviceGrant{d.Name, number, each})
				n--
			}
		}
	}
	return out
}

// tightest is the device of which least is free, but at least milli, and of
// those the first.
func (q *DeviceRoom) tightest(name string, milli int64) (best uint32) {
	least := int64(0)
	look := func(number uint32, free int64) {
		if free >= milli && (least == 0 || free < least || free == least && number < best) {
			best, least = number, free
		}
	}
	if q.room.parts != nil && !q.Empty {
		for _, g := range q.room.parts {
			if g.Name == name {
				look(g.Number, q.free(name, g.Number))
			}
		}
		return best
	}
	for number, free := range q.inUse(name) {
		look(number, free)
	}
	if least == 0 {
		for q.free(name, best) < milli {
			best++
		}
	}
	return best
}

// Holds tells whether all of some grants are free.
func (q *DeviceRoom) Holds(gs []DeviceGrant) bool {
	for _, g := range gs {
		if q.free(g.Name, g.Number) < g.Milli {
			return false
		}
	}
	return true
}

// fitDevices tests the devices one by one. That they are as many as are asked
// for is made sure before.
func (c *Cell) fitDevices(p *Placement, need *Need, o *Overlay, v *victims) Fit {
	if c.format < formatDevices || len(need.Resources.Devices) == 0 {
		return FitOK
	}
	q := DeviceRoom{room: p.room()}
	if o != nil {
		q.Promised = o.Devices
	}
	if v != nil {
		q.Freed = v.devices
	}
	if p.AnyPorts && !q.Fit(need.Resources.Devices) || !p.AnyPorts && !q.Holds(p.Devices) {
		return FitDevices
	}
	return FitOK
}

// sumDevices is what grants come to.
func sumDevices(gs []DeviceGrant) *Resources {
	r := new(Resources)
	for _, g := range gs {
		*r = r.Add(Resources{Devices: []Device{{g.Name, g.Milli}}})
	}
	return r
}

// readGrants wants an assignment to name as many devices as are asked for.
func (c *Cell) readGrants(p *Placement, need *Need, named []*borgpb.DeviceGrant) *borgpb.Refusal {
	if c.format < formatDevices {
		return nil
	}
	asked := need.Resources.Devices
	if len(named) != len(asked) {
		return about(p.name(), invalid("devices", "it names %d kinds of devices, %d are asked for", len(named), len(asked)))
	}
	for i, d := range asked {
		g := named[i]
		n, each := d.Split()
		if g.Name != d.Name || int64(len(g.Numbers)) != n || n > MaxGrantedDevices {
			return about(p.name(), invalid("devices", "it names %d of %q, want %d of %s", len(g.Numbers), clip(g.Name, 64), n, d.Name))
		}
		for k, number := range g.Numbers {
			if k > 0 && g.Numbers[k-1] >= number {
				return about(p.name(), invalid("devices", "the numbers of %s do not ascend", d.Name))
			}
			p.Devices = append(p.Devices, DeviceGrant{d.Name, number, each})
		}
	}
	return nil
}

// GrantsProto shows grants, which are sorted, one message per name.
func GrantsProto(gs []DeviceGrant) []*borgpb.DeviceGrant {
	var out []*borgpb.DeviceGrant
	for i, g := range gs {
		if i == 0 || gs[i-1].Name != g.Name {
			out = append(out, &borgpb.DeviceGrant{Name: g.Name})
		}
		last := out[len(out)-1]
		last.Numbers = append(last.Numbers, g.Number)
	}
	return out
}

// grantWords names devices for people, at most the first few.
func grantWords(gs []DeviceGrant) string {
	text := ""
	for i, g := range gs {
		if i == 4 {
			return text + " ..."
		}
		text += fmt.Sprintf(" %s/%d", g.Name, g.Number)
	}
	return text
}

// numberDevices gives numbers to all that holds devices by count, when the
// format begins that knows numbers. Who waits for victims gets theirs.
func (c *Cell) numberDevices() {
	for _, m := range c.machineList {
		for _, waits := range []bool{false, true} {
			for _, a := range m.allocs {
				if (a.wait != nil) == waits {
					a.takeDevices(m, m.room.number(a.set.need.Resources.Devices, a.wait))
					c.dirtyIf(len(a.devices) > 0, a)
				}
			}
			for _, p := range m.copies {
				if p.alloc == nil && (p.wait != nil) == waits {
					c.numberCopy(p)
				}
			}
		}
		for _, p := range m.copies {
			if p.alloc != nil {
				c.numberCopy(p)
			}
		}
	}
}

func (c *Cell) numberCopy(p *Copy) {
	gs := p.room().number(p.res.Devices, p.wait)
	if len(gs) > 0 {
		p.rare().devices = gs
		p.room().holdDevices(gs)
		c.dirtyCopy(p)
	}
}

func (c *Cell) dirtyIf(is bool, r record) {
	if is {
		c.dirty(r)
	}
}

// number picks devices of which as little as possible is held: there may be
// more holders than devices, when there were more of them once.
func (r *room) number(need []Device, w *waiting) []DeviceGrant {
	q := DeviceRoom{room: r}
	if w != nil {
		for _, v := range w.victims {
			if v.room() == r {
				q.Freed = append(q.Freed, v.Devices()...)
			}
		}
	}
	var out []DeviceGrant
	for _, d := range need {
		n, each := d.Split()
		var numbers []uint32
		if r.parts != nil {
			for _, g := range r.parts {
				if g.Name == d.Name {
					numbers = append(numbers, g.Number)
				}
			}
		} else {
			for number := range uint32(max(n, r.capacity.Device(d.Name)/wholeDevice)) {
				numbers = append(numbers, number)
			}
		}
		slices.SortStableFunc(numbers, func(a, b uint32) int { return cmp.Compare(q.free(d.Name, b), q.free(d.Name, a)) })
		numbers = numbers[:n]
		slices.Sort(numbers)
		for _, number := range numbers {
			out = append(out, DeviceGrant{d.Name, number, each})
		}
	}
	return out
}

// NumbersDevices tells whether assignments name devices by now.
func (c *Cell) NumbersDevices() bool { return c.format >= formatDevices }
