package scheduler

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Batch is what one pass decided, as one op.
type Batch struct {
	// ID names the batch to Settle.
	ID uint64
	// Assign has no assignments when there is nothing to propose.
	Assign *borgpb.Assign
	// More: the pass was cut short by a bound and another would go on.
	More bool
}

// Pass looks for places for what waits and returns what to propose. Everything
// in the batch is promised from now on, until Settle or Observe say what became
// of it.
func (s *Scheduler) Pass(c *cell.Cell) Batch {
	s.attend(c)
	if b, ok := s.nextReady(); ok {
		return b
	}
	if !s.stirred || len(s.overlay.byID) >= s.cfg.MaxInFlight {
		return Batch{}
	}
	p := &pass{
		search: search{s: s, c: c, crowds: make(map[cell.UID]*crowd)},
		wants:  make(map[cell.UID]*want),
		before: len(s.overlay.byID),
	}
	more := p.run()
	// What is held back after refusals waits for cell time alone.
	s.stirred = more || len(s.refusals) > 0
	s.emit(p, more)
	b, _ := s.nextReady()
	return b
}

// pass is one run through the queue.
type pass struct {
	search
	// wants remembers, by job, what its present run of indices asks for.
	wants map[cell.UID]*want
	// out is what was decided; bytes is its size in an op.
	out   []*borgpb.Assignment
	bytes int
	// before is how much was promised when the pass began.
	before int
}

// run places what it can, in the order of the queue, and reports whether a
// bound cut it short.
func (p *pass) run() (more bool) {
	s := p.s
	q := newQueue(p.lines())
	for {
		l := q.take()
		if l == nil {
			return false
		}
		if len(p.out) >= s.cfg.BatchCount || p.bytes >= s.cfg.BatchBytes || p.checks >= s.cfg.PassChecks {
			return true
		}
		if len(s.overlay.byID) >= s.cfg.MaxInFlight {
			// Settle stirs the next pass.
			return true
		}
		if l.gang() {
			if n := len(p.out); n > 0 && n+len(l.rest()) > s.cfg.BatchCount {
				// It goes into one op when it fits into one at all.
				return true
			}
			p.placeGang(l)
			continue
		}
		index := l.rest()[0]
		w := p.want(l, index)
		if p.place(w, index) == nil && w.class.blocked {
			l.skip(w.last)
			continue
		}
		l.next++
	}
}

// lines collects what waits and is not promised or held back.
func (p *pass) lines() []*line {
	s := p.s
	var lines []*line
	var l *line
	ready := func(id ID) bool {
		return !s.overlay.has(id) && !s.heldBack(p.c, id)
	}
	for j, index := range p.c.Pending() {
		if l == nil || l.job != j {
			l = &line{uid: j.UID(), key: j.Key(), priority: j.Priority(), job: j}
			if j.Spec().GetScheduler() == s.cfg.Name {
				lines = append(lines, l)
			}
		}
		if ready(ID{l.uid, index}) {
			l.indices = append(l.indices, index)
		}
	}
	if s.cfg.Name != "" {
		return lines
	}
	for a := range p.c.PendingAllocs() {
		if set := a.Set(); l == nil || l.set != set {
			l = &line{uid: set.UID(), key: set.Key(), priority: set.Priority(), set: set}
			lines = append(lines, l)
		}
		if ready(ID{l.uid, a.Index()}) {
			l.indices = append(l.indices, a.Index())
		}
	}
	return lines
}

// want returns what index of l asks for.
func (p *pass) want(l *line, index uint32) *want {
	w := p.wants[l.uid]
	if w == nil || index > w.last || (l.job != nil && index < w.need.First) {
		w = p.s.classes.wants(p.c, l, index)
		p.wants[l.uid] = w
	}
	return w
}

// place finds a place for index of w and promises it; nil when there is none.
func (p *pass) place(w *want, index uint32) *borgpb.Assignment {
	at, _, ok := p.find(w, index)
	if !ok {
		return nil
	}
	l := w.line
	a := &borgpb.Assignment{Uid: l.uid.String(), Index: index, Version: l.version()}
	if l.job != nil {
		a.LastAttempt = l.job.Task(index).Attempt()
	} else {
		a.LastAttempt = l.set.Alloc(index).Attempt()
	}
	if at.alloc != nil {
		a.Alloc = at.alloc.Name()
	} else {
		a.Machine = at.site.machine.Name()
	}
	a.Ports = choosePorts(at.site, w.ports, p.s.cfg.Seed^mix(l.uid.Index)^uint64(index)^a.LastAttempt<<32)
	if len(a.Ports) < w.ports {
		return nil
	}
	p.promise(w, &promise{
		id: ID{l.uid, index}, site: at.site, alloc: at.alloc, res: w.need.Resources, ports: a.Ports,
	})
	p.out = append(p.out, a)
	// A field of an op costs a tag and a length beside its bytes.
	p.bytes += proto.Size(a) + 4
	return a
}

// skip takes the indices up to last out of the line.
func (l *line) skip(last uint32) {
	at, found := slices.BinarySearch(l.rest(), last)
	if found {
		at++
	}
	l.next += at
}

// placeGang places all that waits of l, or nothing.
func (p *pass) placeGang(l *line) {
	s := p.s
	indices := l.rest()
	l.drop()
	if seen, blocked := s.gangs[l.uid]; blocked && seen == s.changes.now() {
		return
	}
	count, bytes := len(p.out), p.bytes
	for _, index := range indices {
		if p.place(p.want(l, index), index) != nil {
			continue
		}
		for _, a := range p.out[count:] {
			p.takeBack(p.want(l, index), s.overlay.byID[ID{l.uid, a.GetIndex()}])
		}
		p.out, p.bytes = p.out[:count], bytes
		// The class was found blocked over promises that are taken back now.
		p.want(l, index).class.blocked = false
		s.gangs[l.uid] = s.changes.now()
		return
	}
	delete(s.gangs, l.uid)
}
