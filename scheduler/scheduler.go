package scheduler

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Scheduler is the search with what it has to remember between two passes over
// one copy of the cell. It belongs to one goroutine. A copy that is loaded anew
// gets a new Scheduler.
type Scheduler struct {
	cfg        Config
	configHash uint64
	// sites is nil until the first look at the copy.
	sites   *sites
	overlay *overlay
	classes *classes
	changes changes
	// gangs remembers, by job, at how many changes it did not fit as a whole.
	gangs map[cell.UID]uint64
	// stirred: something happened since the last whole pass.
	stirred bool

	// ready are batches of the last pass that were not handed out yet.
	ready []Batch
	// sent are the batches that wait for Settle.
	sent      map[uint64][]*promise
	lastBatch uint64
	// settled are batches that the log has answered at an index that the copy
	// has not reached, in no order.
	settled []settledBatch
	// refusals are tasks that the cell would not have where we wanted them.
	refusals map[ID]refusal
}

// settledBatch waits for the copy to come to index; until then its promises
// stand for what the copy does not show yet.
type settledBatch struct {
	index    uint64
	promises []*promise
}

// refusal makes one task wait when it is refused again and again, so that a
// disagreement between copy and cell does not become a busy loop.
type refusal struct {
	count int
	// notBeforeNs is cell time.
	notBeforeNs int64
}

const (
	// maxRemembered bounds what is kept of tasks and jobs that may be gone.
	maxRemembered = 1 << 16
	// A task refused for the second time in a row waits so long, then twice as
	// long, up to the most.
	refusalWaitNs    = 1e9
	maxRefusalWaitNs = 64e9
)

// New makes a Scheduler for one copy.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Scheduler{
		cfg:        cfg,
		configHash: cfg.Hash(),
		overlay:    newOverlay(),
		classes:    newClasses(),
		gangs:      make(map[cell.UID]uint64),
		sent:       make(map[uint64][]*promise),
		refusals:   make(map[ID]refusal),
		stirred:    true,
	}, nil
}

// InFlight is the number of promises.
func (s *Scheduler) InFlight() int { return len(s.overlay.byID) }

// Observe takes in what an Apply to the copy did. It is called after each, with
// what it returned.
func (s *Scheduler) Observe(c *cell.Cell, events []cell.Event) {
	if len(events) == 0 {
		return
	}
	s.open(c)
	for i := range events {
		e := &events[i]
		if idle(e.Kind) {
			continue
		}
		s.stirred = true
		switch e.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_MACHINE:
			if t := s.sites.update(c, e.Machine); t != nil {
				s.changed(t)
			} else {
				s.changes.all()
			}
		case borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
			s.observeTask(e)
		case borgpb.ObjectKind_OBJECT_KIND_CELL:
			s.changes.all()
		}
	}
}

// idle tells whether events of that kind neither make anything wait nor make
// room for it. They are by far the most.
func idle(k borgpb.EventKind) bool {
	switch k {
	case borgpb.EventKind_EVENT_KIND_START,
		borgpb.EventKind_EVENT_KIND_RESTART,
		borgpb.EventKind_EVENT_KIND_REFUSE,
		borgpb.EventKind_EVENT_KIND_WALL_STEP:
		return true
	}
	return false
}

// observeTask takes in what happened to a task or an alloc.
func (s *Scheduler) observeTask(e *cell.Event) {
	switch e.Kind {
	case borgpb.EventKind_EVENT_KIND_SUBMIT:
		return
	case borgpb.EventKind_EVENT_KIND_SCHEDULE:
		id := ID{e.UID, e.Task}
		s.overlay.drop(s.overlay.byID[id])
		delete(s.refusals, id)
		if e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
			// It only takes room; an alloc also offers some.
			return
		}
	}
	if t := s.sites.byName[e.Machine]; t != nil {
		s.changed(t)
	} else {
		s.changes.all()
	}
}

// changed notes that t may have room for what found none.
func (s *Scheduler) changed(t *site) { s.changes.add(t, 4*len(s.sites.walk)+1024) }

// Refused counts what the log refused of a batch.
type Refused struct {
	Count, Of int
	// First is one of them, for people.
	First *borgpb.Refusal
}

// Settle takes in what the log answered to a batch; nil when nobody knows. What
// was done or refused stays promised until the copy has come to the index of
// the answer, then it shows there or is looked at anew.
func (s *Scheduler) Settle(c *cell.Cell, batch uint64, result *borgpb.Result) Refused {
	promises := s.sent[batch]
	delete(s.sent, batch)
	r := Refused{Of: len(promises)}
	refuse := func(p *promise, why *borgpb.Refusal) {
		if r.Count == 0 {
			r.First = why
		}
		r.Count++
		s.noteRefusal(c, p.id, why)
	}
	if whole := result.GetRefusal(); whole != nil {
		for _, p := range promises {
			refuse(p, whole)
		}
	} else {
		for i, item := range result.GetItems() {
			if item.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED && i < len(promises) {
				refuse(promises[i], item)
			}
		}
	}
	s.settled = append(s.settled, settledBatch{index: result.GetIndex(), promises: promises})
	s.open(c)
	s.attend(c)
	return r
}

// noteRefusal remembers that the cell refused a task. Stale ones have been
// placed or changed meanwhile and need no patience.
func (s *Scheduler) noteRefusal(c *cell.Cell, id ID, why *borgpb.Refusal) {
	if why.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_STALE {
		return
	}
	if len(s.refusals) >= maxRemembered {
		clear(s.refusals)
	}
	r := s.refusals[id]
	r.count++
	if r.count > 1 {
		wait := int64(refusalWaitNs) << min(r.count-2, 10)
		r.notBeforeNs = c.TimeNs() + min(wait, int64(maxRefusalWaitNs))
	}
	s.refusals[id] = r
}

// heldBack tells whether id has to wait after refusals.
func (s *Scheduler) heldBack(c *cell.Cell, id ID) bool {
	r, ok := s.refusals[id]
	return ok && c.TimeNs() < r.notBeforeNs
}

// open looks at the copy for the first time.
func (s *Scheduler) open(c *cell.Cell) {
	if s.sites == nil {
		s.sites = newSites(c, s.cfg.Seed)
	}
}

// attend drops the promises that the copy has caught up with, and bounds what
// is remembered.
func (s *Scheduler) attend(c *cell.Cell) {
	s.open(c)
	s.settled = slices.DeleteFunc(s.settled, func(b settledBatch) bool {
		if b.index > c.Index() {
			return false
		}
		for _, p := range b.promises {
			if s.overlay.drop(p) {
				// It was refused, or undone since: its room is free again.
				s.changed(p.site)
				s.stirred = true
			}
		}
		return true
	})
	s.classes.trim()
	if len(s.gangs) > maxRemembered {
		clear(s.gangs)
	}
}

// emit makes ops of what a pass decided, none above the bounds of a batch.
func (s *Scheduler) emit(p *pass, more bool) {
	for out := p.out; len(out) > 0; {
		n, bytes := 0, 0
		for n < len(out) && n < s.cfg.BatchCount {
			if bytes += proto.Size(out[n]) + 4; n > 0 && bytes > s.cfg.BatchBytes {
				break
			}
			n++
		}
		s.lastBatch++
		s.ready = append(s.ready, Batch{
			ID:   s.lastBatch,
			More: more,
			Assign: &borgpb.Assign{
				Assignments: out[:n:n],
				CopyIndex:   p.c.Index(),
				InFlight:    uint32(p.before),
				ConfigHash:  s.configHash,
			},
		})
		out = out[n:]
	}
	if len(p.out) == 0 && more {
		s.ready = append(s.ready, Batch{More: true})
	}
}

// nextReady hands out a batch that was made before.
func (s *Scheduler) nextReady() (b Batch, ok bool) {
	if len(s.ready) == 0 {
		return Batch{}, false
	}
	b, s.ready = s.ready[0], s.ready[1:]
	if len(s.ready) > 0 {
		b.More = true
	}
	if b.ID == 0 {
		return b, true
	}
	promises := make([]*promise, len(b.Assign.Assignments))
	for i, a := range b.Assign.Assignments {
		promises[i] = s.overlay.byID[idOf(a)]
	}
	s.sent[b.ID] = promises
	return b, true
}

// idOf reads the id back from an assignment that we made.
func idOf(a *borgpb.Assignment) ID {
	uid, err := cell.ParseUID(a.GetUid())
	if err != nil {
		panic("scheduler: an assignment of ours names no uid: " + err.Error())
	}
	return ID{uid, a.GetIndex()}
}
