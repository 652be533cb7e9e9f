package scheduler

import (
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
// of it. The batch may be read until it is settled; then its memory is used
// again.
func (s *Scheduler) Pass(c *cell.Cell) Batch {
	s.attend(c)
	s.spareNoLonger(c)
	s.retry(c)
	if b, ok := s.nextReady(); ok {
		return b
	}
	if !s.stirred || s.overlay.promises >= s.cfg.MaxInFlight {
		return Batch{}
	}
	s.refresh(c)
	s.hopeless.forget()
	p := s.begin(c)
	s.waitsForTime = false
	at := s.changes.now()
	// What was found to have no place, at these very changes, need not be looked at.
	s.queue.suits = s.grid.suits
	s.queue.begin(s.futile && s.futileAt == at && len(s.refusals) == 0 && len(s.queue.held) == 0)
	more := p.run()
	s.queue.end()
	s.futile, s.futileAt = !more && !p.unsure && !s.waitsForTime && s.changes.now() == at, at
	// What is held back after refusals waits for cell time alone.
	s.stirred = more || len(s.refusals) > 0 || s.waitsForTime
	s.note(p)
	s.emit(p, more)
	b, _ := s.nextReady()
	return b
}

// pass is one run through the queue.
type pass struct {
	search
	// out is what was decided, with its promises; bytes is its size in an op.
	out      []*borgpb.Assignment
	promises []*promise
	bytes    int
	// unsure: something found no place for another reason than that its class has
	// none.
	unsure bool
	// before is how much was promised when the pass began.
	before int
	// parcel is where out and promises lie.
	parcel *parcel
	// asked are the classes of the gang that has its turn.
	asked []*class
}

// begin makes s.work a new pass.
func (s *Scheduler) begin(c *cell.Cell) *pass {
	p := &s.work
	*p = pass{search: search{s: s, c: c, unitSpace: p.unitSpace}, before: s.overlay.promises, parcel: s.spare.parcel(), asked: p.asked}
	p.out, p.promises = p.parcel.out, p.parcel.promises
	return p
}

// run places what it can, in the order of the queue, and reports whether a
// bound cut it short.
func (p *pass) run() (more bool) {
	s := p.s
	for {
		l := s.queue.take()
		if l == nil {
			return false
		}
		if len(p.out) >= s.cfg.BatchCount || p.bytes >= s.cfg.BatchBytes || p.checks >= s.cfg.PassChecks {
			return true
		}
		if s.overlay.promises >= s.cfg.MaxInFlight {
			// Settle stirs the next pass.
			return true
		}
		if l.gang {
			if n := len(p.out); n > 0 && n+len(l.rest()) > s.cfg.BatchCount {
				// It goes into one op when it fits into one at all.
				return true
			}
			p.placeGang(l)
			continue
		}
		index := l.rest()[0]
		if w := l.known(index); w != nil && (p.blocked(w) || p.ruledOut(w)) {
			// Whoever is kept away from a machine has even less to choose from.
			n := l.skip(w.last)
			if w.class.unsuited == s.grid.suits {
				l.unsuited += n
			}
			continue
		}
		w := s.want(p.c, l, index)
		switch {
		case p.ruledOut(w):
			l.skip(w.last)
		case p.place(w, index):
			l.placed()
			s.queue.advance()
		case p.blocked(w):
			l.skip(w.last)
		default:
			p.unsure = true
			l.keep(1)
		}
	}
}

// blocked tells whether nothing of the class has a place, as things are.
func (p *pass) blocked(w *want) bool {
	return w.class.blocked && w.class.seen == p.s.changes.now() && !p.s.cfg.NoClasses
}

// place finds a place for index of w and promises it.
func (p *pass) place(w *want, index uint32) bool {
	var victims []unit
	var fought *fight
	at, ok := p.find(w, index)
	if !ok {
		if w.class.blocked && w.class.seen == p.s.changes.now() {
			return false
		}
		if at, victims, ok = p.preempt(w, index); !ok {
			p.block(w.class)
			return false
		}
		fought = p.fight(w, at, victims)
	}
	l := w.line
	a := p.s.spare.assignment()
	a.Uid, a.Index, a.Version = l.name(), index, l.version
	if l.job != nil {
		a.LastAttempt = l.job.Task(index).Attempt()
	} else {
		a.LastAttempt = l.set.Alloc(index).Attempt()
	}
	if at.alloc != nil {
		a.Alloc = p.s.roomsOf(at.alloc.Set()).name(at.alloc)
	} else {
		a.Machine = at.site.name
	}
	if p.s.dry {
		w.ports = 0
	}
	a.Ports = choosePorts(a.Ports, at.site, w.ports, p.s.cfg.Seed^mix(l.uid.Index)^uint64(index)^a.LastAttempt<<32, victims)
	if len(a.Ports) < w.ports {
		p.s.spare.assignments = append(p.s.spare.assignments, a)
		return false
	}
	devices, ok := p.chooseDevices(w, at, victims)
	if !ok {
		p.s.spare.assignments = append(p.s.spare.assignments, a)
		return false
	}
	a.Devices = cell.GrantsProto(devices)
	pr := p.s.spare.promise()
	*pr = promise{id: ID{l.uid, index}, line: l, site: at.site, alloc: at.alloc, version: l.version, res: w.need.Resources, reserved: w.need.Resources, ports: a.Ports, devices: devices, places: w.places(), prod: w.prod}
	if p.s.dry && l.job != nil {
		pr.reserved = p.s.reserved(l.job, index)
		if !w.prod {
			pr.res = pr.reserved
		}
	}
	if len(victims) > 0 {
		p.name(a, pr, victims)
	}
	p.remember(w, pr.id, a.LastAttempt, at, fought)
	if fought != nil && p.c.Format() >= cell.FormatPreemption {
		a.VictimsWhy = fought.told()
	}
	p.promise(w, pr)
	p.out, p.promises = append(p.out, a), append(p.promises, pr)
	p.bytes += opBytes(a)
	return true
}

// name writes down who gives way. What they free counts once.
func (p *pass) name(a *borgpb.Assignment, pr *promise, victims []unit) {
	var freed, other cell.Resources
	for i := range victims {
		u := &victims[i]
		a.Victims = append(a.Victims, &borgpb.Victim{JobUid: u.id.Job.String(), Index: u.id.Index, Attempt: u.id.Attempt})
		pr.victims = append(pr.victims, u.id)
		pr.hurts = append(pr.hurts, u.hurts...)
		freed, other = freed.Add(u.res), other.Add(u.other)
		p.s.stats.Preempted += u.tasks
	}
	if pr.line.priority < prodPriority {
		freed, other = other, freed
	}
	pr.res, pr.reserved = pr.res.Sub(freed.Min(pr.res)), pr.reserved.Sub(other.Min(pr.reserved))
	p.s.grid.recount(pr.site.slot)
}

// promise keeps a promise in the overlay and in the arrays.
func (p *pass) promise(w *want, pr *promise) {
	s := p.s
	s.overlay.add(pr)
	s.promiseChurn(pr)
	s.join(w.line, pr.site.slot)
	if r := s.rooms[w.line.set]; r != nil && s.dry {
		s.readAlloc(r, w.line.set.Alloc(pr.id.Index))
	}
	if pr.alloc == nil {
		s.grid.take(pr.site, &pr.res, &pr.reserved, pr.prod)
	} else {
		s.grid.crowd(pr.site)
		s.readAllocAt(s.roomsOf(pr.alloc.Set()), pr.alloc, pr.site)
	}
}

// placeGang places all that waits of l, or nothing.
func (p *pass) placeGang(l *line) {
	s := p.s
	if seen, blocked := s.gangs[l.uid]; blocked && seen == s.changes.now() {
		l.keep(len(l.rest()))
		return
	}
	if w := l.known(l.rest()[0]); w != nil && (p.blocked(w) || p.ruledOut(w)) {
		// It is not placed without its first.
		l.keep(len(l.rest()))
		return
	}
	p.unsure = true
	if !l.whole {
		// The rest of it is on its way, or waits after a refusal.
		l.keep(len(l.rest()))
		return
	}
	if !p.placeWhole(l) {
		l.keep(len(l.rest()))
		return
	}
	for range len(l.rest()) {
		l.placed()
	}
	s.queue.advance()
}

// placeWhole places all that waits of l, or takes back what it placed.
func (p *pass) placeWhole(l *line) bool {
	s := p.s
	count, bytes := len(p.out), p.bytes
	// Not only what the line keeps: what has volumes is asked for anew each time.
	p.asked = p.asked[:0]
	for _, index := range l.rest() {
		w := s.want(p.c, l, index)
		if n := len(p.asked); n == 0 || p.asked[n-1] != w.class {
			p.asked = append(p.asked, w.class)
		}
		if p.place(w, index) && p.bytes-bytes <= maxBatchBytes {
			continue
		}
		s.gangs[l.uid] = s.changes.now()
		if len(p.promises) == count {
			return false
		}
		for _, pr := range p.promises[count:] {
			s.drop(pr)
			s.read(pr.site)
		}
		s.disperse(l)
		s.spare.take(p.out[count:], p.promises[count:])
		p.out, p.promises, p.bytes = p.out[:count], p.promises[:count], bytes
		// Its classes were found blocked, and machines full, over promises that
		// are taken back now.
		for _, class := range p.asked {
			class.forget()
		}
		s.hopeless.forget()
		return false
	}
	delete(s.gangs, l.uid)
	return true
}
