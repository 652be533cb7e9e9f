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
	line *line
	site *site
	// number counts the promises that were made.
	number uint64
	// alloc is the one whose room it is in; nil: the machine's own.
	alloc *cell.Alloc
	// version of the spec that res is of.
	version uint64
	// res is what it takes of the room beyond what its victims free, in the view of
	// production, reserved the same in that of others.
	res, reserved cell.Resources
	ports         []uint32
	devices       []cell.DeviceGrant
	// places of the machine that it takes.
	places cell.Places
	// prod: it is production's.
	prod bool
	// victims are named by it; nobody else may name them. hurts has the jobs of the
	// tasks that are evicted with them; only where churn is bounded.
	victims []cell.CopyID
	hurts   []cell.UID
}

// overlay is everything promised. It is laid over the copy by the search and
// never written into it.
type overlay struct {
	// promises counts them; each is kept by its line.
	promises int
	// made counts those that were ever made.
	made uint64
	// allocs holds what is promised in the rooms of allocs. No entry is empty.
	allocs map[*cell.Alloc]*room
}

// room is what is promised of an alloc.
type room struct {
	promises         int
	limits, reserved cell.Resources
	devices          []cell.DeviceGrant
}

func newOverlay() *overlay {
	return &overlay{allocs: make(map[*cell.Alloc]*room)}
}

// promiseOf is what is promised to a task or alloc; nil: nothing is.
func (s *Scheduler) promiseOf(id ID) *promise {
	if l := s.queue.byUID[id.UID]; l != nil {
		return l.promise(id.Index)
	}
	return nil
}

// add makes a promise. There is none yet for its id.
func (o *overlay) add(p *promise) {
	o.promises++
	o.made++
	p.number = o.made
	l, t := p.line, p.site
	if need := int(p.id.Index) + 1; need > len(l.promises) {
		// Others of its job are promised soon.
		l.promises = append(l.promises, make([]*promise, max(need, int(l.tasks))-len(l.promises))...)
	}
	l.promises[p.id.Index] = p
	l.promised++
	t.promises++
	t.places = t.places.Add(p.places)
	t.promised.Ports = append(t.promised.Ports, p.ports...)
	t.promised.Victims = append(t.promised.Victims, p.victims...)
	if p.alloc == nil {
		t.promised.Limits = t.promised.Limits.Add(p.res)
		t.promised.Reserved = t.promised.Reserved.Add(p.reserved)
		t.promised.Devices = append(t.promised.Devices, p.devices...)
		if p.prod {
			t.promisedProdCPU += p.res.CPUMilli
		}
		return
	}
	r := o.allocs[p.alloc]
	if r == nil {
		r = &room{}
		o.allocs[p.alloc] = r
	}
	r.promises++
	r.limits, r.reserved = r.limits.Add(p.res), r.reserved.Add(p.reserved)
	r.devices = append(r.devices, p.devices...)
}

// withdraw takes grants out of a list of them.
func withdraw(from, gs []cell.DeviceGrant) []cell.DeviceGrant {
	for _, g := range gs {
		if i := slices.Index(from, g); i >= 0 {
			from = slices.Delete(from, i, i+1)
		}
	}
	return from
}

// drop takes a promise back; it reports false when that was done before.
func (o *overlay) drop(p *promise) bool {
	if p == nil || p.line == nil || p.line.promise(p.id.Index) != p {
		return false
	}
	o.promises--
	l, t := p.line, p.site
	l.promises[p.id.Index] = nil
	if l.promised--; l.promised == 0 && len(l.indices) == 0 {
		l.promises = nil
	}
	t.promises--
	t.places = t.places.Sub(p.places)
	if t.promises == 0 {
		ports, victims := t.promised.Ports[:0], t.promised.Victims[:0]
		t.promised = cell.Overlay{Ports: ports, Victims: victims}
		t.promisedProdCPU = 0
	} else {
		for _, port := range p.ports {
			if i := slices.Index(t.promised.Ports, port); i >= 0 {
				t.promised.Ports = slices.Delete(t.promised.Ports, i, i+1)
			}
		}
		for _, v := range p.victims {
			if i := slices.Index(t.promised.Victims, v); i >= 0 {
				t.promised.Victims = slices.Delete(t.promised.Victims, i, i+1)
			}
		}
		if p.alloc == nil {
			t.promised.Limits = t.promised.Limits.Sub(p.res)
			t.promised.Reserved = t.promised.Reserved.Sub(p.reserved)
			t.promised.Devices = withdraw(t.promised.Devices, p.devices)
			if p.prod {
				t.promisedProdCPU -= p.res.CPUMilli
			}
		}
	}
	if r := o.allocs[p.alloc]; r != nil {
		r.promises--
		r.limits, r.reserved = r.limits.Sub(p.res), r.reserved.Sub(p.reserved)
		r.devices = withdraw(r.devices, p.devices)
		if r.promises == 0 {
			delete(o.allocs, p.alloc)
		}
	}
	return true
}
