package watch

import (
	"cmp"
	"slices"

	"borg/mutant"
)

// lookedAtOnce is how many objects or changes one Next looks at while other watches wait.
const lookedAtOnce = 2_000

// Watch is one subscription. It yields a state, if it began with one, then what it
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
	w.queue[last].take(w, r)
	w.wake()
}

func (d *delivery) take(w *Watch, r *run) {
	own := *r
	if len(own.changes) == 1 {
		// It lies in a piece with the changes of other runs, which the queue must not keep.
		own.changes = []change{own.changes[0]}
	}
	d.runs = append(d.runs, own)
	w.waiting.changes += len(r.changes)
	w.waiting.bytes += r.bytes + runBytes
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
			w.waiting.bytes -= r.bytes + runBytes
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
