package scheduler

import (
	"slices"

	"borg/borgmaster/cell"
)

// ID names what waits for a place: a task of a job, or an alloc of an alloc
// set.
type ID struct {
	UID   cell.UID
	Index uint32
}

// promise is a tentative assignment: proposed, or about to be, and not yet
// seen in the copy.
type promise struct {
	id   ID
	site *site
	// alloc is the one whose room it is in; nil: the machine's own.
	alloc *cell.Alloc
	res   cell.Resources
	ports []uint32
	// rack and power are the site's when the promise was made.
	rack, power int32
}

// overlay is everything promised. It is laid over the copy by the search and
// never written into it.
type overlay struct {
	byID map[ID]*promise
	// allocs holds what is promised in the rooms of allocs. No entry is empty.
	allocs map[*cell.Alloc]*room
	// crowds counts promises by job and failure domain. No entry is empty.
	crowds map[cell.UID]*crowd
}

// room is what is promised of an alloc.
type room struct {
	promises int
	promised cell.Resources
}

func newOverlay() *overlay {
	return &overlay{
		byID:   make(map[ID]*promise),
		allocs: make(map[*cell.Alloc]*room),
		crowds: make(map[cell.UID]*crowd),
	}
}

func (o *overlay) has(id ID) bool {
	_, ok := o.byID[id]
	return ok
}

// add makes a promise. There is none yet for its id.
func (o *overlay) add(p *promise) {
	o.byID[p.id] = p
	t := p.site
	t.promises++
	t.promised.Ports = append(t.promised.Ports, p.ports...)
	if p.alloc == nil {
		t.promised.Limits = t.promised.Limits.Add(p.res)
		t.promised.Reserved = t.promised.Limits
	} else {
		r := o.allocs[p.alloc]
		if r == nil {
			r = &room{}
			o.allocs[p.alloc] = r
		}
		r.promises++
		r.promised = r.promised.Add(p.res)
	}
	c := o.crowds[p.id.UID]
	if c == nil {
		c = newCrowd()
		o.crowds[p.id.UID] = c
	}
	p.rack, p.power = t.rack, t.power
	c.add(t, p.rack, p.power, 1)
}

// drop takes a promise back; it reports false when that was done before.
func (o *overlay) drop(p *promise) bool {
	if p == nil || o.byID[p.id] != p {
		return false
	}
	delete(o.byID, p.id)
	t := p.site
	t.promises--
	if t.promises == 0 {
		t.promised = cell.Overlay{}
	} else {
		for _, port := range p.ports {
			if i := slices.Index(t.promised.Ports, port); i >= 0 {
				t.promised.Ports = slices.Delete(t.promised.Ports, i, i+1)
			}
		}
		if p.alloc == nil {
			t.promised.Limits = t.promised.Limits.Sub(p.res)
			t.promised.Reserved = t.promised.Limits
		}
	}
	if r := o.allocs[p.alloc]; r != nil {
		r.promises--
		r.promised = r.promised.Sub(p.res)
		if r.promises == 0 {
			delete(o.allocs, p.alloc)
		}
	}
	c := o.crowds[p.id.UID]
	c.add(t, p.rack, p.power, -1)
	if c.total == 0 {
		delete(o.crowds, p.id.UID)
	}
	return true
}

// crowd counts tasks of one job (or allocs of one set) by failure domain.
type crowd struct {
	total           int64
	onMachine       map[*site]int64
	inRack, inPower map[int32]int64
}

func newCrowd() *crowd {
	return &crowd{
		onMachine: make(map[*site]int64),
		inRack:    make(map[int32]int64),
		inPower:   make(map[int32]int64),
	}
}

// add counts n more, or fewer, on a machine. Rack or power domain zero is
// shared with nobody.
func (c *crowd) add(t *site, rack, power int32, n int64) {
	c.total += n
	count(c.onMachine, t, n)
	if rack != 0 {
		count(c.inRack, rack, n)
	}
	if power != 0 {
		count(c.inPower, power, n)
	}
}

func count[K comparable](m map[K]int64, key K, n int64) {
	if m[key] += n; m[key] == 0 {
		delete(m, key)
	}
}

// around counts the neighbours that one more on t would have.
func (c *crowd) around(t *site) (onMachine, inRack, inPower int64) {
	if c == nil || c.total == 0 {
		return 0, 0, 0
	}
	onMachine = c.onMachine[t]
	if t.rack != 0 {
		inRack = c.inRack[t.rack]
	}
	if t.power != 0 {
		inPower = c.inPower[t.power]
	}
	return onMachine, inRack, inPower
}

// include adds up the counts of o. The order does not matter to sums.
func (c *crowd) include(o *crowd) {
	c.total += o.total
	for k, n := range o.onMachine {
		c.onMachine[k] += n
	}
	for k, n := range o.inRack {
		c.inRack[k] += n
	}
	for k, n := range o.inPower {
		c.inPower[k] += n
	}
}
