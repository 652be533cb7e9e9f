package cell

import "slices"

// room is a capacity and what is held of it: a machine's own, or an alloc's.
//
// What is there counts for production otherwise than for others (byView), so
// both sums are kept. A copy that waits for victims and the victims themselves never run together; of both sums only the
// larger counts. discount is what that saves.
type room struct {
	capacity        Resources
	taken, discount byView
	// What is held of single devices, sorted. As with ports, what is promised is
	// there twice until the victim is gone.
	devices []DeviceGrant
	// Of an alloc, the devices that it has; nil: it has none, or the room is a
	// machine's.
	parts []DeviceGrant
}

// held is what counts as taken in the view of production or of others.
func (r *room) held(prod bool) Resources {
	return r.taken.of(prod).Sub(r.discount.of(prod))
}

// add takes room, sub gives it back.
func (r *room) add(h byView) { r.taken = r.taken.add(h) }
func (r *room) sub(h byView) { r.taken = r.taken.sub(h) }

// waiting is a claim on the room of victims by the one who waits for them: a
// copy, or an alloc. While it lasts nobody else may name them.
type waiting struct {
	room *room
	// What the one who waits holds, in both views: it has used nothing yet.
	res *Resources
	// Victims that still hold a place, in the order named. Never empty.
	victims  []*Copy
	discount byView
}

func (w *waiting) ids(out []CopyID) []CopyID {
	for _, v := range w.victims {
		if id := v.ID(); !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// await makes a claim; victims are STOPPING by now.
func await(r *room, res *Resources, victims []*Copy) *waiting {
	if len(victims) == 0 {
		return nil
	}
	w := &waiting{room: r, res: res, victims: victims}
	for _, v := range victims {
		v.stop.promised = w
	}
	w.reckon()
	return w
}

// reckon computes the discount anew. Victims that hold their place in another
// room (their alloc ended) free nothing here.
func (w *waiting) reckon() {
	w.room.discount = w.room.discount.sub(w.discount)
	var freed byView
	for _, v := range w.victims {
		if v.room() == w.room {
			freed = freed.add(v.held())
		}
	}
	w.discount = freed.min(inBoth(w.res))
	w.room.discount = w.room.discount.add(w.discount)
}

// drop ends the claim.
func (w *waiting) drop() {
	w.room.discount = w.room.discount.sub(w.discount)
	w.discount = byView{}
	for _, v := range w.victims {
		v.stop.promised = nil
	}
	w.victims = nil
}

// ended takes a victim that is gone out of the claim and tells whether that
// was the last one.
func (w *waiting) ended(v *Copy) bool {
	v.stop.promised = nil
	w.victims = slices.DeleteFunc(w.victims, func(o *Copy) bool { return o == v })
	w.reckon()
	return len(w.victims) == 0
}

// room is where the copy holds its place.
func (p *Copy) room() *room {
	if p.alloc != nil {
		return &p.alloc.room
	}
	return &p.machine.room
}

// hold gives a copy its place.
func (c *Cell) hold(p *Copy) {
	m := p.machine
	m.changes++
	m.copies = insertCopy(m.copies, p)
	for _, n := range p.ports {
		at, _ := slices.BinarySearch(m.ports, n)
		m.ports = slices.Insert(m.ports, at, n)
		if len(m.heldPorts) > 0 {
			// A copy that was found running has what others were thought to hold.
			c.keepHeldPorts(m, func(h heldPort) bool { return h.number != n })
		}
	}
	if p.alloc != nil {
		p.alloc.copies = insertCopy(p.alloc.copies, p)
	}
	p.room().add(p.held())
	p.room().holdDevices(p.Devices())
	c.reviewVolumesOf(p)
}

// release takes a copy's place away.
func (c *Cell) release(p *Copy) {
	c.setStopCharge(p, notStopCharged)
	c.setNote(p, nil)
	if p.wait != nil {
		p.wait.drop()
		p.wait = nil
	}
	if p.stop != nil && p.stop.promised != nil {
		c.victimEnded(p)
	}
	m := p.machine
	m.changes++
	m.copies = removeCopy(m.copies, p)
	c.lastToLeave(m)
	c.lookAtSavers()
	for _, n := range p.ports {
		if at, ok := slices.BinarySearch(m.ports, n); ok {
			m.ports = slices.Delete(m.ports, at, at+1)
		}
	}
	p.room().sub(p.held())
	p.estimate = nil
	p.room().dropDevices(p.Devices())
	if p.alloc != nil {
		p.alloc.copies = removeCopy(p.alloc.copies, p)
		p.alloc = nil
	}
	if p.few != nil {
		p.few.left = nil
	}
	c.reviewVolumesOf(p)
}

// victimEnded tells the one who waits for p. It stays in the machine's list
// until release is done, so the claimant is found there.
func (c *Cell) victimEnded(p *Copy) {
	w := p.stop.promised
	last := w.ended(p)
	for _, o := range p.machine.copies {
		if o.wait == w {
			if last {
				o.wait = nil
			}
			c.dirtyCopy(o)
			return
		}
	}
	for _, a := range p.machine.allocs {
		if a.wait == w {
			if last {
				a.wait = nil
			}
			c.dirty(a)
			return
		}
	}
}

// detach moves the place of a copy that stops out of its alloc into the machine's own room. The
// copy works in the directory of the alloc until it has ended.
func (c *Cell) detach(p *Copy) {
	c.setStopCharge(p, notStopCharged)
	a := p.alloc
	a.room.sub(p.held())
	a.room.dropDevices(p.Devices())
	a.copies = removeCopy(a.copies, p)
	if p.wait != nil {
		p.wait.room.discount = p.wait.room.discount.sub(p.wait.discount)
		p.wait.discount = byView{}
	}
	p.alloc = nil
	p.rare().left = &TaskID{a.set.key, a.index}
	p.machine.room.add(p.held())
	p.machine.room.holdDevices(p.Devices())
	if p.wait != nil {
		p.wait.room = &p.machine.room
		p.wait.reckon()
	}
	if p.stop != nil && p.stop.promised != nil {
		p.stop.promised.reckon()
	}
	c.reviewStopCharge(p)
	c.dirtyCopy(p)
}

func insertCopy(list []*Copy, p *Copy) []*Copy {
	id := p.ID()
	at, _ := slices.BinarySearchFunc(list, id, compareCopy)
	return slices.Insert(list, at, p)
}

func removeCopy(list []*Copy, p *Copy) []*Copy {
	at, ok := slices.BinarySearchFunc(list, p.ID(), compareCopy)
	if !ok || list[at] != p {
		panic("copy " + p.ID().String() + " is not where it holds a place")
	}
	return slices.Delete(list, at, at+1)
}

func compareCopy(p *Copy, id CopyID) int { return p.ID().Compare(id) }

// find returns the copy of that id that holds a place here.
func (m *Machine) find(id CopyID) *Copy {
	if at, ok := slices.BinarySearchFunc(m.copies, id, compareCopy); ok {
		return m.copies[at]
	}
	return nil
}
