package scheduler

import "math"

// hopeless remembers requests for which no machine has the headroom, so that in a long
// backlog most classes need no look at any machine. It holds within one pass, until
// promises are taken back.
type hopeless struct {
	groups map[hopelessKey]*hopelessGroup
}

// hopelessKey is what classes have in common that are asked about the same machines.
type hopelessKey struct {
	static *static
	room   *headroom
	// since is the number of changes after which machines changed that are asked about;
	// anyTime: all of them are.
	since uint64
}

const anyTime = math.MaxUint64

// nothing is less than any machine has.
var nothing = row{math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64}

// maxFront bounds hopelessGroup.least.
const maxFront = 32

// hopelessGroup is what is known of the machines of a key.
type hopelessGroup struct {
	// least are requests that no machine has the headroom for, none of them as large as
	// another.
	least []row
	// slots are those that changed and suit the key; nil when all are asked about. most is
	// at least what any of them has of each amount.
	slots []int32
	most  row
}

// forget drops everything, when headrooms may have grown.
func (h *hopeless) forget() { clear(h.groups) }

// ruledOut reports whether no machine that changed since w's class was blocked has the
// headroom for it. If so, it blocks the class again. A class that suits no machine is ruled
// out before anybody searches for it.
func (p *pass) ruledOut(w *want) bool {
	cl, s := w.class, p.s
	if !cl.blocked && cl.finds > 0 || cl.seated || s.dry || s.cfg.NoHeadroom || s.cfg.NoClasses {
		return false
	}
	if w.inSet {
		return cl.blocked && p.ruledOutInAllocs(w)
	}
	if cl.generation != s.grid.generation {
		s.classes.attune(w, s.grid, &s.changes)
	}
	if cl.unsuited == s.grid.suits || !cl.weighed && !cl.static.fits.any() {
		cl.unsuited = s.grid.suits
		p.block(cl)
		return true
	}
	if !cl.blocked {
		return false
	}
	room := s.headroomOf(p.c, cl)
	g := p.hopelessGroup(cl, room)
	if !g.includes(&cl.request) {
		if p.anyMayHold(cl, room, g) {
			return false
		}
		if cl.devices == nil {
			g.add(cl.request)
		}
	}
	p.block(cl)
	return true
}

// hopelessGroup returns the group of a class.
func (p *pass) hopelessGroup(cl *class, room *headroom) *hopelessGroup {
	s := p.s
	key := hopelessKey{cl.static, room, anyTime}
	var changed []int32
	if !cl.whole {
		if slots, known := s.changes.since(cl.seen); known {
			key.since, changed = cl.seen, slots
		}
	}
	if g := s.hopeless.groups[key]; g != nil {
		return g
	}
	g := &hopelessGroup{}
	if key.since != anyTime {
		g.slots, g.most = []int32{}, nothing
		for _, i := range changed {
			if cl.static.fits.has(i) && s.grid.usable.has(i) {
				s.grid.refreshHeadroom(i)
				g.slots = append(g.slots, i)
				g.most.raise(&room.rows[i])
			}
		}
	}
	if s.hopeless.groups == nil {
		s.hopeless.groups = make(map[hopelessKey]*hopelessGroup)
	}
	s.hopeless.groups[key] = g
	return g
}

// anyMayHold reports whether a machine of the group may have the headroom for a class.
func (p *pass) anyMayHold(cl *class, room *headroom, g *hopelessGroup) bool {
	if g.slots != nil {
		most := g.most
		if !cl.fitsRow(&most) {
			return false
		}
		// What was promised in this pass is taken off.
		g.most = nothing
		for _, i := range g.slots {
			p.checks++
			p.s.grid.refreshHeadroom(i)
			if room.mayHold(cl, i) {
				g.most = most
				return true
			}
			g.most.raise(&room.rows[i])
		}
		return false
	}
	r := p.s.grid.roomy(room, cl, 0)
	for i := r.next(); i >= 0; i = r.next() {
		p.checks++
		if p.s.grid.refreshHeadroom(i); room.mayHold(cl, i) {
			return true
		}
	}
	return false
}

// includes reports whether a request is at least as large as one that is hopeless.
func (g *hopelessGroup) includes(q *row) bool {
	for k := range g.least {
		if g.least[k].within(q) {
			return true
		}
	}
	return false
}

// add notes that a request is hopeless.
func (g *hopelessGroup) add(q row) {
	kept := g.least[:0]
	for k := range g.least {
		if !q.within(&g.least[k]) {
			kept = append(kept, g.least[k])
		}
	}
	if g.least = kept; len(g.least) < maxFront {
		g.least = append(g.least, q)
	}
}

// within reports whether nothing of r is more than in q.
func (r *row) within(q *row) bool {
	return r.cpuMilli <= q.cpuMilli && r.memBytes <= q.memBytes && r.diskBytes <= q.diskBytes &&
		r.diskBytesPerS <= q.diskBytesPerS && r.ports <= q.ports
}

// raise makes r at least as large as q in everything.
func (r *row) raise(q *row) {
	r.cpuMilli, r.memBytes, r.diskBytes = max(r.cpuMilli, q.cpuMilli), max(r.memBytes, q.memBytes), max(r.diskBytes, q.diskBytes)
	r.diskBytesPerS, r.ports = max(r.diskBytesPerS, q.diskBytesPerS), max(r.ports, q.ports)
}
