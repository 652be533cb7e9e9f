package watch

import (
	"cmp"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
)

// lookedAtOnce is how many objects or changes one Next looks at: so long others wait.
const lookedAtOnce = 2_000

// Watch is one who watches. It yields a state, if it began with one, then what it
// missed, and then changes as they come.
type Watch struct {
	hub   *Hub
	query Query
	wake  func()
	// All up to this index was handed out.
	told uint64
	// The state that is still to be handed out; nil: none is.
	scan *scan
	// It has to find in the ring what is later than told.
	behind bool
	// It hangs on its anchors; the last change that it was offered.
	listed  bool
	offered uint64
	// What waits for it.
	queue   []delivery
	waiting struct{ changes, bytes int }
	// Why it has ended; nil: it has not.
	err error
}

// delivery is what changed at one index.
type delivery struct {
	index uint64
	// What is left of them.
	runs []run
}

// scan is a state being handed out, of the index that told is while it lasts.
type scan struct {
	// What there was at that index.
	parts []part
	// Sorted: it takes its time, see Sort.
	sorted bool
	// Where it is.
	at, member int
	// What changed since and is not in undo yet; the log does not wait for that.
	since []run
	// Objects that changed since, as they were; nil: they did not match.
	undo map[key]*object
}

// part is an object, or a group of which the first n members are looked at.
type part struct {
	name  cell.JobKey
	uid   cell.UID
	own   *object
	group *group
	n     int
}

// begin takes down what there is. What of it changes before it is handed out is
// taken from the changes, so that all is of one index.
func (w *Watch) begin() {
	s := &scan{undo: map[key]*object{}}
	groups := func(all map[cell.UID]*group, members bool) {
		for _, g := range all {
			// Members are found by what their group is found by.
			if !w.query.matches(g.own) {
				continue
			}
			p := part{name: g.own.head.name, uid: g.own.head.uid, own: g.own}
			if members {
				p.group, p.n = g, len(g.members)
			}
			s.parts = append(s.parts, p)
		}
	}
	switch w.query.Kind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK:
		groups(w.hub.seen.jobs, w.query.Kind == borgpb.ObjectKind_OBJECT_KIND_TASK)
	case borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		groups(w.hub.seen.sets, w.query.Kind == borgpb.ObjectKind_OBJECT_KIND_ALLOC)
	default:
		for uid, o := range w.hub.seen.machines {
			if !w.query.matches(o) {
				continue
			}
			s.parts = append(s.parts, part{name: o.head.name, uid: uid, own: o})
		}
	}
	w.scan = s
	w.hub.list(w)
}

// Sort must be called once before Next, and may be without the lock.
func (w *Watch) Sort() {
	if w.scan == nil {
		return
	}
	slices.SortFunc(w.scan.parts, func(a, b part) int {
		return cmp.Or(strings.Compare(a.name.User, b.name.User), strings.Compare(a.name.Name, b.name.Name), a.uid.Compare(b.uid))
	})
	w.scan.sorted = true
}

// deliver queues a run that matches, or cuts the watch off.
func (w *Watch) deliver(index uint64, r *run) {
	if w.err != nil {
		return
	}
	last := len(w.queue) - 1
	if last < 0 || w.queue[last].index != index {
		if last >= 0 && (w.waiting.changes >= w.hub.cfg.QueueChanges || w.waiting.bytes >= w.hub.cfg.QueueBytes) {
			w.cutOff()
			return
		}
		w.queue = append(w.queue, delivery{index: index})
		last++
	}
	if w.scan != nil {
		w.scan.since = append(w.scan.since, *r)
	}
	w.queue[last].take(w, r)
	w.wake()
}

func (d *delivery) take(w *Watch, r *run) {
	d.runs = append(d.runs, *r)
	w.waiting.changes += len(r.changes)
	w.waiting.bytes += r.bytes
}

// undoSome takes down what changed since the state, a while at a time; false: there
// is more.
func (w *Watch) undoSome() bool {
	s := w.scan
	for left := lookedAtOnce; len(s.since) > 0; {
		if left == 0 {
			return false
		}
		r := &s.since[0]
		n := min(left, len(r.changes))
		matched := w.query.matches(r.changes[0].before)
		for _, c := range r.changes[:n] {
			k := key{r.uid, c.index}
			if _, ok := s.undo[k]; ok {
				continue
			}
			if s.undo[k] = nil; matched {
				s.undo[k] = c.before
			}
		}
		left -= n
		if r.changes = r.changes[n:]; len(r.changes) == 0 {
			s.since = s.since[1:]
		}
	}
	return true
}

func (w *Watch) cutOff() {
	if w.scan != nil {
		w.end(&CutOffError{})
		return
	}
	w.end(&CutOffError{Resume: w.told})
}

// end lets go of everything.
func (w *Watch) end(err error) {
	if w.err != nil {
		return
	}
	w.err = err
	w.queue, w.scan, w.behind = nil, nil, false
	w.hub.Leave(w)
	w.wake()
}

// Next hands out what comes next. No message and again: there may be one, and others
// should have their turn first; neither: nothing is to be had until wake is called.
func (w *Watch) Next() (m *Message, again bool, err error) {
	if w.scan != nil {
		m := w.nextState()
		return m, m == nil, nil
	}
	if w.err == nil && w.behind && len(w.queue) == 0 {
		w.catchUp()
	}
	if w.err != nil {
		return nil, false, w.err
	}
	if len(w.queue) == 0 {
		return nil, w.behind, nil
	}
	return w.nextChanges(), false, nil
}

func (w *Watch) message(index uint64) *Message {
	return &Message{Index: index, Epoch: w.hub.epoch, kind: w.query.Kind, query: &w.query}
}

// nextState hands out the next objects of the state; nil: it found none yet.
func (w *Watch) nextState() *Message {
	s, m, bytes := w.scan, w.message(w.told), 0
	m.State = true
	if !s.sorted {
		w.Sort()
	}
	if !w.undoSome() {
		return nil
	}
	take := func(k key, o *object) {
		if was, ok := s.undo[k]; ok {
			o = was
		}
		if w.query.matches(o) {
			m.changes = append(m.changes, told{k.uid, change{index: k.index, after: o}})
			bytes += o.bytes()
		}
	}
	for range lookedAtOnce {
		if s.at == len(s.parts) {
			w.scan = nil
			return m
		}
		if len(m.changes) == w.hub.cfg.MessageChanges || bytes >= messageBytes {
			m.More = true
			return m
		}
		p := &s.parts[s.at]
		if p.group == nil {
			take(key{uid: p.uid}, p.own)
			s.at++
			continue
		}
		if s.member < p.n {
			var o *object
			if s.member < len(p.group.members) {
				o = p.group.members[s.member]
			}
			take(key{p.uid, uint32(s.member)}, o)
			s.member++
		}
		if s.member >= p.n {
			s.at, s.member = s.at+1, 0
		}
	}
	if len(m.changes) == 0 {
		return nil
	}
	m.More = true
	return m
}

// catchUp looks for the next changes in the ring that match, a while at a time.
func (w *Watch) catchUp() {
	h := w.hub
	if h.forgot(w.told) {
		// It was forgotten meanwhile.
		w.end(&RelistError{From: w.told, Oldest: h.floor, Why: "so far back changes are not held any more"})
		return
	}
	at, _ := slices.BinarySearchFunc(h.ring, w.told+1, func(b *batch, index uint64) int { return cmp.Compare(b.index, index) })
	if at < len(h.ring) && mutant.Planted(mutant.WatchLosesOnResume) {
		at++
	}
	for looked := 0; at < len(h.ring) && looked < lookedAtOnce; at++ {
		b := h.ring[at]
		looked += len(b.runs)
		d := delivery{index: b.index}
		for i := range b.runs {
			r := &b.runs[i]
			if c := &r.changes[0]; r.kind == w.query.Kind && (w.query.matches(c.before) || w.query.matches(c.after)) {
				d.take(w, r)
			}
		}
		if len(d.runs) > 0 {
			w.queue = append(w.queue, d)
			return
		}
		w.told = b.index
	}
	if at == len(h.ring) {
		w.behind = false
		w.hub.list(w)
	}
}

// nextChanges hands out what is first in the queue, or a part of it.
func (w *Watch) nextChanges() *Message {
	d := &w.queue[0]
	m, bytes := w.message(d.index), 0
	for len(d.runs) > 0 && len(m.changes) < w.hub.cfg.MessageChanges && bytes < messageBytes {
		r := &d.runs[0]
		n := r.changes[0].bytes()
		bytes += n
		r.bytes -= n
		w.waiting.bytes -= n
		m.changes = append(m.changes, told{r.uid, r.changes[0]})
		if r.changes = r.changes[1:]; len(r.changes) == 0 {
			// What the run kept beside its changes.
			w.waiting.bytes -= r.bytes
			d.runs = d.runs[1:]
		}
	}
	w.waiting.changes -= len(m.changes)
	if len(d.runs) > 0 {
		m.More = true
		return m
	}
	w.told = d.index
	w.queue[0] = delivery{}
	if w.queue = w.queue[1:]; len(w.queue) == 0 {
		w.queue = nil
	}
	return m
}

// Bookmark is a message without changes, if there is an index to be told by it.
func (w *Watch) Bookmark() *Message {
	if w.err != nil || w.scan != nil || w.behind || len(w.queue) > 0 || w.told >= w.hub.index {
		return nil
	}
	w.told = w.hub.index
	return w.message(w.told)
}
