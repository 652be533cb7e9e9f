package watch

import (
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// scan is how far a state was handed out. A watch keeps no list of what there was: a page
// is what the Hub has seen from a place on, with what waits in the queue undone. Nothing is
// taken from the queue before the state is told, so the queue has all that changed since.
type scan struct {
	// The next object: a place, and the index of a task or alloc there.
	at     place
	member int
}

// stretch is a group that a page looks at, or was one at the index of the state.
type stretch struct {
	place
	group *group
	// What changed since.
	since []run
}

// slot is an object as it was, of those that changed since.
type slot struct {
	changed bool
	was     *object
}

// begin begins with the state.
func (w *Watch) begin() {
	w.scan = new(scan)
	w.hub.list(w)
}

// Lists reports whether the next message is of the state or of what is held of changes, among
// which it is to be looked for.
func (w *Watch) Lists() bool { return w.scan != nil || w.behind && len(w.queue) == 0 }

// nextState hands out the next objects of the state; nil: it found none yet.
func (w *Watch) nextState() *Message {
	p := statePage{w: w, m: w.message(w.told), left: w.hub.looks}
	p.m.State = true
	if all, end, next := w.stretches(); !p.take(all) {
		p.m.More = true
	} else if w.scan = nil; !end {
		w.scan, p.m.More = &scan{at: next}, true
	}
	if p.m.More && len(p.m.changes) == 0 {
		return nil
	}
	return p.m
}

// stretches returns what the next page looks at, and where the one behind it begins, unless
// that is the end.
func (w *Watch) stretches() (all []stretch, end bool, next place) {
	end = true
	left := w.hub.looks
	for g := range w.hub.seen.of(w.query.Kind).from(w.scan.at) {
		if left <= 0 {
			end, next = false, g.place()
			break
		}
		all = append(all, stretch{place: g.place(), group: g})
		left--
		if w.query.matches(g.own) {
			left -= 3 + w.count(g)
		}
	}
	return w.withSince(all, end, next), end, next
}

// withSince adds what waits in the queue to the stretches, and those of groups that are gone.
func (w *Watch) withSince(all []stretch, end bool, next place) []stretch {
	if len(w.queue) == 0 {
		return all
	}
	by := make(map[cell.UID]int, len(all))
	for i := range all {
		by[all[i].uid] = i
	}
	seen := len(all)
	for _, d := range w.queue {
		for _, r := range d.runs {
			at := r.place()
			if at.compare(w.scan.at) < 0 || !end && at.compare(next) >= 0 {
				continue
			}
			i, ok := by[r.uid]
			if !ok {
				i = len(all)
				by[r.uid] = i
				all = append(all, stretch{place: at})
			}
			all[i].since = append(all[i].since, r)
		}
	}
	if len(all) > seen {
		slices.SortFunc(all, func(a, b stretch) int { return a.compare(b.place) })
	}
	return all
}

// members reports whether tasks or allocs are watched, not what they belong to.
func (w *Watch) members() bool {
	return w.query.Kind == borgpb.ObjectKind_OBJECT_KIND_TASK || w.query.Kind == borgpb.ObjectKind_OBJECT_KIND_ALLOC
}

// count is how many objects of a group are watched, which may be gone.
func (w *Watch) count(g *group) int {
	switch {
	case g == nil:
		return 0
	case w.members():
		return len(g.members)
	}
	return 1
}

// object is one of those of a group.
func (w *Watch) object(g *group, i int) *object {
	switch {
	case i >= w.count(g):
		return nil
	case w.members():
		return g.members[i]
	}
	return g.own
}

// statePage is a message of a state that is being made.
type statePage struct {
	w     *Watch
	m     *Message
	bytes int
	// Objects that it may look at yet.
	left int
}

// full reports whether nothing else is looked at for this page.
func (p *statePage) full() bool {
	return p.left <= 0 || len(p.m.changes) >= p.w.hub.cfg.MessageChanges || p.bytes >= messageBytes
}

// take takes objects until the page is full; false: the scan stands where that was.
func (p *statePage) take(all []stretch) bool {
	s := p.w.scan
	for i := range all {
		st := &all[i]
		if st.place != s.at {
			s.at, s.member = st.place, 0
		}
		if len(st.since) == 0 && !p.w.query.matches(st.own()) {
			p.left--
			continue
		}
		end, slots := st.undo(p.w.count(st.group), s.member, p.w.hub.looks)
		for first := s.member; s.member < end; s.member++ {
			if p.full() {
				return false
			}
			p.left--
			o := p.w.object(st.group, s.member)
			if n := s.member - first; n < len(slots) && slots[n].changed {
				o = slots[n].was
			} else if n >= len(slots) && len(slots) > 0 {
				// The rest of what changed is for the next page.
				return false
			}
			if p.w.query.matches(o) {
				p.m.changes = append(p.m.changes, told{st.uid, change{index: uint32(s.member), after: o}})
				p.bytes += o.bytes()
			}
		}
	}
	return true
}

// own is what the members of a group are found by; nil: the group is gone.
func (s *stretch) own() *object {
	if s.group == nil {
		return nil
	}
	return s.group.own
}

// undo returns how many objects there may have been, of which n are seen now, and from first
// on as they were, most at most.
func (s *stretch) undo(n, first, most int) (end int, slots []slot) {
	end = n
	if len(s.since) == 0 {
		return end, nil
	}
	for _, r := range s.since {
		for i := range r.changes {
			end = max(end, int(r.changes[i].index)+1)
		}
	}
	slots = make([]slot, max(0, min(end-first, most)))
	for _, r := range s.since {
		for i := range r.changes {
			// The first change since tells how it was.
			c := &r.changes[i]
			if at := int(c.index) - first; at >= 0 && at < len(slots) && !slots[at].changed {
				slots[at] = slot{true, c.before}
			}
		}
	}
	return end, slots
}

// place is that of the group or machine that a run is of.
func (r *run) place() place {
	o := r.changes[0].before
	if o == nil {
		o = r.changes[0].after
	}
	return place{o.head.name, r.uid}
}
