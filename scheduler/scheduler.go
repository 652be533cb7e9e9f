package scheduler

import (
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Scheduler is the search with what it has to remember between two passes over
// one copy of the cell. It belongs to one goroutine. A copy that is loaded anew
// gets a new Scheduler.
type Scheduler struct {
	cfg        Config
	configHash uint64
	// drainWork is maxDrainWork, or less in tests.
	drainWork int
	// sites and grid are nil until the first look at the copy.
	sites   *sites
	grid    *grid
	overlay *overlay
	classes *classes
	queue   queue
	changes changes
	tally   tally
	rooms   map[*cell.AllocSet]*rooms
	// rarities are what live jobs ask of machines; dearer: prices are to be made
	// anew.
	rarities *rarities
	dearer   bool
	// unread are sites on which something happened in the entry that is being
	// observed.
	unread []*site
	// offered are allocs that were placed in it.
	offered []ID
	// mostStatics is how much the arrays may hold of constraints until what is in use is
	// counted again.
	mostStatics int
	// renumbered: slots have changed, and the arrays are to be made anew.
	renumbered bool
	stats      Stats
	// dry: nothing goes into a log, and what the copy says of places does not
	// count; see Packing. What tasks reserve is then as reserved says, and whose
	// constraints do not bind as soft says.
	dry      bool
	reserved Reserved
	soft     func(*cell.Job) bool
	softened map[*cell.Need]*cell.Need
	// resize is Packing's; nil: nobody asks for anything else.
	resize  func(priority int32, asked cell.Resources) cell.Resources
	resized map[*cell.Need]*cell.Need
	// gangs remembers, by job, at how many changes it did not fit as a whole.
	gangs map[cell.UID]uint64
	// silent are the machines that do not answer at the moment, by name.
	silent map[string]bool
	// stirred: something happened since the last whole pass.
	stirred bool
	// Users whose work preempts none of their own for now, as too much of it stops.
	ownHeld map[string]bool
	// futile: at futileAt changes all classes of what waited had no place.
	futile   bool
	futileAt uint64
	// waitsForTime: in the present pass something was found to wait for time.
	waitsForTime bool

	// work is the pass; kept for its memory.
	work pass
	// spare is memory for what passes decide.
	spare spare
	// decisions are kept for Explain.
	decisions decisions
	// ready are batches of the last pass that were not handed out yet.
	ready []readyBatch
	// sent are the batches that wait for Settle.
	sent      map[uint64]promised
	lastBatch uint64
	// settled are batches that the log has answered at an index that the copy
	// has not reached, in no order.
	settled []settledBatch
	// coveted is the highest priority for which nobody was found who could give way,
	// while promises were on their way, up to the number covetedUpTo. Only what is
	// placed can give way.
	coveted     int32
	covetedUpTo uint64
	// refusals are tasks that the cell would not have where we wanted them.
	refusals map[ID]refusal
	// hopeless is of the present pass.
	hopeless hopeless
	mover    mover
	churn    churn
}

// readyBatch is a batch with its promises.
type readyBatch struct {
	Batch
	promised
}

// Stats counts what the search did since the Scheduler was made.
type Stats struct {
	// Placed counts promises, Searches the tasks that were searched for, Looked
	// the places that were looked at, Feasible those of them that had room.
	Placed, Searches, Looked, Feasible int
	// CacheHits and CacheMisses are those of the score cache.
	CacheHits, CacheMisses int
	// Preempted counts the tasks named as victims.
	Preempted int
	// Moved counts the tasks that plans moved, Unproved the plans that were
	// dropped because the cell's own test would have refused them.
	Moved, Unproved int
	// Transactions are what batches held of one job each, as far as the log has
	// answered; Conflicts those of them of which the cell refused something.
	Transactions, Conflicts int
}

// ConflictFraction is conflicts for each transaction that went through, in
// thousandths.
func (s Stats) ConflictFraction() int {
	return 1000 * s.Conflicts / max(s.Transactions-s.Conflicts, 1)
}

// settledBatch waits for the copy to come to index; until then its promises
// stand for what the copy does not show yet.
type settledBatch struct {
	index uint64
	promised
}

// refusal makes one task wait when it is refused again and again, so that a
// disagreement between copy and cell does not become a busy loop.
type refusal struct {
	count int
	// notBeforeNs is cell time.
	notBeforeNs int64
	// The last refusal in the cell's words, where it was one by a limit.
	why string
}

const (
	// maxRemembered bounds what is kept of tasks and jobs that may be gone.
	maxRemembered = 1 << 16
	// maxWhyBytes bounds what is kept of the words of one refusal.
	maxWhyBytes = 256
	// A task refused for the second time in a row waits so long since it was placed,
	// then twice as long, up to the most.
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
		drainWork:  maxDrainWork,
		overlay:    newOverlay(),
		classes:    newClasses(),
		queue:      queue{byUID: make(map[cell.UID]*line), followers: make(map[cell.UID]bool), held: make(map[cell.UID]bool), retries: make(map[cell.UID]int64)},
		rooms:      make(map[*cell.AllocSet]*rooms),
		rarities:   newRarities(),
		gangs:      make(map[cell.UID]uint64),
		sent:       make(map[uint64]promised),
		refusals:   make(map[ID]refusal),
		stirred:    true,
	}, nil
}

// Ready tells that a batch of the last pass waits to be returned by Pass.
func (s *Scheduler) Ready() bool { return len(s.ready) > 0 }

// InFlight is the number of promises.
func (s *Scheduler) InFlight() int { return s.overlay.promises }

// note adds up what a pass did.
func (s *Scheduler) note(p *pass) {
	s.stats.Placed += len(p.out)
	s.stats.Looked += p.checks
	s.stats.CacheHits += p.hits
	s.stats.CacheMisses += p.misses
}

// Stats returns the counters.
func (s *Scheduler) Stats() Stats { return s.stats }

// Observe takes in what an Apply to the copy did. It is called after each, with
// what it returned.
func (s *Scheduler) Observe(c *cell.Cell, events []cell.Event) {
	if len(events) == 0 {
		return
	}
	if s.sites == nil {
		// The first look at the copy will see it all.
		return
	}
	s.mover.events += len(events)
	for i := range events {
		e := &events[i]
		s.gaveWay(c, e)
		if e.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_PACKAGES {
			// It makes a place better, and no room.
			if t := s.sites.byName[e.Machine]; t != nil && t.slot >= 0 && !s.renumbered {
				s.grid.stock(t)
			}
			continue
		}
		if idle(e.Kind) {
			continue
		}
		s.stirred = true
		switch e.Kind {
		case borgpb.EventKind_EVENT_KIND_FORMAT:
			// Machines may be read by other rules.
			s.renumbered = true
		case borgpb.EventKind_EVENT_KIND_RESERVE:
			if t := s.sites.byName[e.Machine]; t != nil {
				s.reread(t)
				s.changed(t)
			}
			continue
		}
		s.mover.stirs++
		switch e.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_MACHINE:
			s.observeMachine(c, e)
		case borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
			s.observeTask(c, e)
		case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_UPDATE:
			s.observeJob(c, e)
			s.observeOwner(c, e)
		case borgpb.ObjectKind_OBJECT_KIND_PACKAGE:
			s.rethink(c)
		case borgpb.ObjectKind_OBJECT_KIND_VOLUME:
			s.observeVolume(c, e)
		default:
			s.changes.all()
		}
	}
	// Not before all of the entry is seen: the copy shows the end of it, and
	// what is promised has to be of the same moment.
	for _, t := range s.unread {
		t.unread = false
		if !s.renumbered && t.slot >= 0 {
			s.read(t)
		}
	}
	clear(s.unread)
	s.unread = s.unread[:0]
	for _, id := range s.offered {
		set := c.AllocSetByUID(id.UID)
		if r := s.rooms[set]; r != nil && !s.renumbered && set.Alloc(id.Index) != nil {
			s.readAlloc(r, set.Alloc(id.Index))
		}
	}
	s.offered = s.offered[:0]
}

// idle tells whether events of that kind neither make anything wait nor make
// room for it. They are by far the most.
func idle(k borgpb.EventKind) bool {
	switch k {
	case borgpb.EventKind_EVENT_KIND_START,
		borgpb.EventKind_EVENT_KIND_RESTART,
		borgpb.EventKind_EVENT_KIND_NOT_STARTED,
		borgpb.EventKind_EVENT_KIND_REFUSE,
		borgpb.EventKind_EVENT_KIND_WALL_STEP:
		return true
	}
	return false
}

// rethink forgets what everything that waits asks for: packages are banned or no
// more.
func (s *Scheduler) rethink(c *cell.Cell) {
	for uid, l := range s.queue.byUID {
		l.wants = nil
		s.touch(c, uid)
	}
	s.changes.all()
}

// observeMachine takes in what happened to a machine.
func (s *Scheduler) observeMachine(c *cell.Cell, e *cell.Event) {
	t, moved := s.sites.update(c, e.Machine)
	if t != nil {
		t.silent = s.silent[e.Machine]
	}
	switch {
	case moved, t != nil && s.grid.names(t.machine):
		s.renumbered = true
	case t == nil:
		s.changes.all()
	case !s.renumbered:
		s.tally.unload(s.grid)
		s.grid.suits++
		s.grid.locate(t)
		s.grid.describe(t)
		s.dearer = true
		s.reread(t)
		s.changed(t)
	}
}

// observeJob takes in what happened to a job or alloc set as a whole.
func (s *Scheduler) observeJob(c *cell.Cell, e *cell.Event) {
	note := func(uid cell.UID) {
		s.touch(c, uid)
		s.ask(c, uid)
	}
	note(e.UID)
	// An update has a uid of its own, and a key may have gone to another.
	if j := c.Job(e.Key); j != nil && j.UID() != e.UID {
		note(j.UID())
	}
	if set := c.AllocSet(e.Key); set != nil {
		if set.UID() != e.UID {
			note(set.UID())
		}
		delete(s.rooms, set)
		s.changes.all()
		// Its priority, and what each alloc holds, may be another.
		for a := range set.Allocs() {
			if m := a.Machine(); m != nil {
				s.reread(s.sites.byName[m.Name()])
			}
		}
	}
	if len(s.queue.followers) > 0 {
		for uid := range s.queue.followers {
			s.touch(c, uid)
		}
		clear(s.queue.followers)
	}
}

// observeTask takes in what happened to a task or an alloc.
func (s *Scheduler) observeTask(c *cell.Cell, e *cell.Event) {
	isAlloc := e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_ALLOC
	if isAlloc && e.Kind != borgpb.EventKind_EVENT_KIND_SCHEDULE {
		if set := c.AllocSetByUID(e.UID); set != nil {
			delete(s.rooms, set)
		}
	}
	switch e.Kind {
	case borgpb.EventKind_EVENT_KIND_SUBMIT, borgpb.EventKind_EVENT_KIND_SEAT:
		s.touch(c, e.UID)
		return
	case borgpb.EventKind_EVENT_KIND_SCHEDULE:
		id := ID{e.UID, e.Task}
		if len(s.refusals) > 0 {
			delete(s.refusals, id)
		}
		p := s.promiseOf(id)
		if p == nil || p.site.slot < 0 || p.site.name != e.Machine {
			// Somebody else placed it.
			if p != nil {
				s.drop(p)
				s.reread(p.site)
			}
			s.touch(c, e.UID)
			t := s.sites.byName[e.Machine]
			s.reread(t)
			if isAlloc && t != nil {
				s.changed(t)
			}
			return
		}
		s.drop(p)
		s.dismiss(p.line)
		switch {
		case len(p.victims) > 0 || !isAlloc && p.line.job.Version() != p.version || p.line.hasVolumes(e.Task):
			// What works in a volume takes over what its last copy there holds.
			s.reread(p.site)
		case !s.renumbered:
			// What was promised is held now: as much is free as before.
			s.grid.recount(p.site.slot)
			s.recountIn(p.alloc)
		}
		if isAlloc {
			// It offers room of its own.
			s.offered = append(s.offered, id)
		}
		if isAlloc || p.number <= s.covetedUpTo && cell.MayPreempt(s.coveted, p.line.priority) {
			s.changed(p.site)
		}
		if s.overlay.promises == 0 {
			s.coveted = 0
		}
		return
	}
	s.touch(c, e.UID)
	if t := s.sites.byName[e.Machine]; t != nil {
		s.reread(t)
		s.changed(t)
	} else {
		s.changes.all()
	}
}

// reread brings the arrays up to the copy, once the entry is observed.
func (s *Scheduler) reread(t *site) {
	if t != nil && t.slot >= 0 && !t.unread {
		t.unread = true
		s.unread = append(s.unread, t)
	}
}

// changed notes that t may have room for what found none.
func (s *Scheduler) changed(t *site) {
	if t.slot < 0 {
		s.changes.all()
		return
	}
	s.changes.add(t.slot, 4*len(s.sites.walk)+1024)
}

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
	sent := s.sent[batch]
	promises := sent.promises
	delete(s.sent, batch)
	r := Refused{Of: len(promises)}
	if result != nil {
		for _, p := range promises {
			if p.line.settled != batch {
				p.line.settled = batch
				s.stats.Transactions++
			}
		}
	}
	refuse := func(p *promise, why *borgpb.Refusal) {
		if r.Count == 0 {
			r.First = why
		}
		r.Count++
		if p.line.refused != batch {
			p.line.refused = batch
			s.stats.Conflicts++
		}
		s.noteRefusal(sent.atNs, p.id, why)
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
	s.settled = append(s.settled, settledBatch{result.GetIndex(), sent})
	s.open(c)
	s.attend(c)
	return r
}

// noteRefusal remembers that the cell refused a task. Stale ones have been
// placed or changed meanwhile and need no patience. The wait counts from when it was
// decided: the log tells that, and not when the answer came, so that a pass that is
// made again holds back the same tasks.
func (s *Scheduler) noteRefusal(atNs int64, id ID, why *borgpb.Refusal) {
	if why.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_STALE {
		return
	}
	if len(s.refusals) >= maxRemembered {
		clear(s.refusals)
	}
	r := s.refusals[id]
	r.count++
	// A limit is of the cell or of the job's own user; other refusals may name others' work.
	if r.why = ""; why.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
		r.why = strings.ToValidUTF8(why.Message[:min(len(why.Message), maxWhyBytes)], "")
	}
	if r.count > 1 {
		wait := int64(refusalWaitNs) << min(r.count-2, 10)
		r.notBeforeNs = atNs + min(wait, int64(maxRefusalWaitNs))
	}
	s.refusals[id] = r
}

// heldBack tells whether id has to wait after refusals.
func (s *Scheduler) heldBack(c *cell.Cell, id ID) bool {
	r, ok := s.refusals[id]
	return ok && c.TimeNs() < r.notBeforeNs
}

// open looks at the copy for the first time, or makes the arrays anew after
// machines came or went.
func (s *Scheduler) open(c *cell.Cell) {
	switch {
	case s.sites == nil:
		s.sites = newSites(c, s.cfg.Seed)
		for name := range s.silent {
			if t := s.sites.byName[name]; t != nil {
				t.silent = true
			}
		}
		s.grid = newGrid(s.sites, &s.cfg, false)
		s.dearer = true
		s.askAll(c)
		s.enroll(c)
	case s.renumbered || s.remembersTooMuch():
		s.tally = tally{}
		s.grid.rebuild()
		s.changes.all()
		s.renumbered, s.dearer = false, true
	}
	if s.dearer {
		s.reprice()
	}
}

// maxStatics is how much is remembered of constraints, beside twice what is in use.
const maxStatics = 1 << 14

// remembersTooMuch reports whether most of what the arrays hold of constraints is in use no more.
// What is in use is counted only when much has come since the last time.
func (s *Scheduler) remembersTooMuch() bool {
	held := len(s.grid.statics) + len(s.grid.facts) + len(s.grid.columns)
	if held <= max(s.mostStatics, maxStatics) {
		return false
	}
	inUse := 0
	for _, r := range s.rarities.byContent {
		inUse += 1 + len(r.hard)
	}
	for _, l := range s.queue.byUID {
		if len(l.wants) == 0 {
			// What has volumes is asked for by index, and not kept.
			inUse += len(l.indices)
		}
		for _, w := range l.wants {
			inUse += 1 + len(w.soft) + len(w.packages) + len(w.limits.Keys)
		}
	}
	s.mostStatics = maxStatics + 2*inUse
	return held > s.mostStatics
}

// attend drops the promises that the copy has caught up with, and bounds what
// is remembered.
func (s *Scheduler) attend(c *cell.Cell) {
	s.open(c)
	s.reviewOwnHeld(c)
	s.settled = slices.DeleteFunc(s.settled, func(b settledBatch) bool {
		if b.index > c.Index() {
			return false
		}
		for _, p := range b.promises {
			if s.release(c, p) {
				// It was refused, or undone since: its room is free again.
				s.changed(p.site)
				s.stirred = true
			}
		}
		s.spare.recover(b.parcel)
		return true
	})
	s.classes.trim(s.grid)
	if len(s.gangs) > maxRemembered {
		clear(s.gangs)
	}
	if len(s.rooms) > maxRemembered {
		clear(s.rooms)
	}
}

// release takes a promise back that the copy does not show.
func (s *Scheduler) release(c *cell.Cell, p *promise) bool {
	if !s.drop(p) {
		return false
	}
	if p.site.slot >= 0 {
		s.read(p.site)
	}
	s.touch(c, p.id.UID)
	s.disperse(p.line)
	return true
}

// emit makes ops of what a pass decided, none above the bounds of a batch.
func (s *Scheduler) emit(p *pass, more bool) {
	out, promises := p.out, p.promises
	p.parcel.out, p.parcel.promises = out, promises
	if len(out) == 0 {
		s.spare.parcels = append(s.spare.parcels, p.parcel)
	}
	for len(out) > 0 {
		n, bytes := 0, 0
		for n < len(out) {
			// A gang is not split.
			next := n
			for next == n || next < len(out) && promises[n].line.gang && promises[next].line == promises[n].line {
				bytes += opBytes(out[next])
				next++
			}
			if n > 0 && (next > s.cfg.BatchCount || bytes > s.cfg.BatchBytes) {
				break
			}
			n = next
		}
		s.lastBatch++
		assign := p.parcel.assign()
		assign.Assignments = out[:n:n]
		assign.CopyIndex, assign.InFlight, assign.ConfigHash = p.c.Index(), uint32(p.before), s.configHash
		assign.Enable = enabled(promises[:n])
		s.ready = append(s.ready, readyBatch{
			Batch{ID: s.lastBatch, More: more, Assign: assign},
			promised{promises[:n:n], p.parcel, p.c.TimeNs()},
		})
		out, promises = out[n:], promises[n:]
	}
	if len(p.out) == 0 && more {
		s.ready = append(s.ready, readyBatch{Batch: Batch{More: true}})
	}
}

// enabled are the jobs that leave the batch queue with what is placed of them.
func enabled(promises []*promise) (uids []string) {
	for _, p := range promises {
		if p.line.enable && !slices.Contains(uids, p.line.name()) {
			uids = append(uids, p.line.name())
		}
	}
	return uids
}

// opBytes is at least what an assignment takes in an op.
func opBytes(a *borgpb.Assignment) int {
	// Each field has a tag and a length or a number beside its text.
	n := 52 + len(a.Uid) + len(a.Machine) + len(a.Alloc) + 3*len(a.Ports) + len(a.VictimsWhy)
	for _, g := range a.Devices {
		n += 8 + len(g.Name) + 3*len(g.Numbers)
	}
	for _, v := range a.Victims {
		n += 32 + len(v.JobUid)
	}
	return n
}

// nextReady hands out a batch that was made before.
func (s *Scheduler) nextReady() (Batch, bool) {
	if len(s.ready) == 0 {
		return Batch{}, false
	}
	b := s.ready[0]
	s.ready = slices.Delete(s.ready, 0, 1)
	if len(s.ready) > 0 {
		b.More = true
	}
	if b.ID != 0 {
		s.sent[b.ID] = b.promised
	}
	return b.Batch, true
}
