package borgmaster

import (
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// eventSlack is how many more are dropped, so that it is not looked for the user with the
// most each time.
const eventSlack = 256

// maxPiece is the most events of one entry that are kept together, and so the most that are
// copied when one of them is dropped.
const maxPiece = 64

// eventRing keeps the latest events of each user. When there are too many, the user of
// whom there are the most loses his oldest ones, so that a flood of events displaces no
// others. A reader that is slower than the cell is told so; it never holds the cell up.
type eventRing struct {
	more pulse

	mu sync.Mutex
	// The latest events, in pieces of entries; those of which nothing is left are removed now and
	// then. Guarded by mu, as is all that follows.
	entries []*entryEvents
	// Sequence number of the next event, from 0.
	next uint64
	// Events that are held, and those of each owner.
	held    int
	byOwner map[string]*ownEvents
	// Pieces of which nothing is left.
	empty int
	// The newest that was dropped, of each owner and of all.
	cuts map[string]eventCut
	cut  eventCut
	// Where the cell was replaced last: nothing before it is held.
	base eventCut
	// Events up to this log index were never seen here.
	blindTo uint64
}

// entryEvents are the events of one piece of an entry that are held. They are as the cell
// made them: others keep them too.
type entryEvents struct {
	index uint64
	// Sequence number of the first, and the one after the last.
	first, end uint64
	events     []cell.Event
	// Sequence numbers of the events; nil: they have none between them.
	seqs []uint64
}

// ownEvents are the pieces in which there are events of one owner, oldest first.
type ownEvents struct {
	held    int
	entries []*entryEvents
}

// eventCut says up to where events are missing: nothing after it is.
type eventCut struct {
	// The sequence number after it.
	seq   uint64
	index uint64
}

// ownerOf is the user of whose events it is; empty: the cell's own, and machines'.
func ownerOf(e *cell.Event) string {
	switch e.ObjectKind {
	case borgpb.ObjectKind_OBJECT_KIND_MACHINE, borgpb.ObjectKind_OBJECT_KIND_CELL, borgpb.ObjectKind_OBJECT_KIND_PACKAGE:
		return ""
	case borgpb.ObjectKind_OBJECT_KIND_UNSPECIFIED:
		// What was refused is charged to who asked for it.
		return e.User
	}
	if e.Key.User != "" {
		return e.Key.User
	}
	user, _, _ := strings.Cut(e.Name, "/")
	return user
}

// add keeps events, which must not be changed afterwards.
func (r *eventRing) add(events []cell.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	if r.next == 0 && r.blindTo == 0 {
		r.blindTo = events[0].Index - 1
	}
	if r.byOwner == nil {
		r.byOwner, r.cuts = map[string]*ownEvents{}, map[string]eventCut{}
	}
	copied := isMixed(events)
	for piece := range slices.Chunk(events, maxPiece) {
		if copied {
			piece = slices.Clone(piece)
		}
		r.addPiece(piece)
	}
	if r.held > maxEvents {
		for r.held > maxEvents-eventSlack {
			r.dropOldest(r.held - maxEvents + eventSlack)
		}
	}
	r.mu.Unlock()
	r.more.Fire()
}

// isMixed reports whether an entry of several pieces has several owners. Its pieces are
// copied, or those of one owner would keep the memory of all after the others are dropped.
func isMixed(events []cell.Event) bool {
	if len(events) <= maxPiece {
		return false
	}
	first := ownerOf(&events[0])
	return slices.ContainsFunc(events, func(e cell.Event) bool { return ownerOf(&e) != first })
}

// addPiece keeps a piece of an entry. The caller holds mu.
func (r *eventRing) addPiece(events []cell.Event) {
	e := &entryEvents{index: events[0].Index, first: r.next, end: r.next + uint64(len(events)), events: events}
	r.entries = append(r.entries, e)
	r.next, r.held = e.end, r.held+len(events)
	for i := range events {
		owner := ownerOf(&events[i])
		own := r.byOwner[owner]
		if own == nil {
			own = &ownEvents{}
			r.byOwner[owner] = own
		}
		own.held++
		if n := len(own.entries); n == 0 || own.entries[n-1] != e {
			own.entries = append(own.entries, e)
		}
	}
}

// dropOldest drops at most so many events of the owner with the most, his oldest. The
// caller holds mu.
func (r *eventRing) dropOldest(most int) {
	var owner string
	var own *ownEvents
	for name, o := range r.byOwner {
		if own == nil || o.held > own.held || o.held == own.held && name < owner {
			owner, own = name, o
		}
	}
	for most > 0 && own.held > 0 {
		before := own.held
		r.thin(owner, own, most)
		most -= before - own.held
	}
	if own.held == 0 {
		delete(r.byOwner, owner)
	}
}

// thin drops at most so many events of an owner from the oldest piece in which there are
// some. The caller holds mu.
func (r *eventRing) thin(owner string, own *ownEvents, most int) {
	e := own.entries[0]
	var kept []cell.Event
	var seqs []uint64
	cut := r.cuts[owner]
	left := false
	for i := range e.events {
		seq := e.seq(i)
		if ownerOf(&e.events[i]) != owner || most == 0 {
			left = left || ownerOf(&e.events[i]) == owner
			kept, seqs = append(kept, e.events[i]), append(seqs, seq)
			continue
		}
		most--
		own.held--
		r.held--
		cut = eventCut{seq + 1, e.index}
	}
	e.events, e.seqs = kept, seqs
	r.cuts[owner] = cut
	if cut.seq > r.cut.seq {
		r.cut = cut
	}
	if !left {
		own.entries[0] = nil
		own.entries = own.entries[1:]
	}
	if len(kept) == 0 {
		r.removeEmpty()
	}
}

// removeEmpty notes that nothing is left of a piece, and removes such ones when they are
// the first or every second one. The caller holds mu.
func (r *eventRing) removeEmpty() {
	r.empty++
	for len(r.entries) > 0 && len(r.entries[0].events) == 0 {
		r.entries[0] = nil
		r.entries = r.entries[1:]
		r.empty--
	}
	if r.empty <= len(r.entries)/2 {
		return
	}
	all := make([]*entryEvents, 0, len(r.entries)-r.empty)
	for _, e := range r.entries {
		if len(e.events) > 0 {
			all = append(all, e)
		}
	}
	r.entries, r.empty = all, 0
}

// seq is the sequence number of the event at i.
func (e *entryEvents) seq(i int) uint64 {
	if e.seqs != nil {
		return e.seqs[i]
	}
	return e.first + uint64(i)
}

// restart forgets everything: the cell was replaced by one at index.
func (r *eventRing) restart(index uint64) {
	r.mu.Lock()
	r.entries, r.byOwner, r.cuts, r.held, r.empty, r.blindTo = nil, nil, nil, 0, 0, index
	// Sequence numbers go on, so that readers see that they were cut off.
	r.next++
	r.base = eventCut{r.next, index}
	r.cut = r.base
	r.mu.Unlock()
	r.more.Fire()
}

// cutOf is up to where events of an owner are missing; empty: of anybody. The caller holds
// mu.
func (r *eventRing) cutOf(owner string) eventCut {
	if owner == "" {
		return r.cut
	}
	if cut := r.cuts[owner]; cut.seq > r.base.seq {
		return cut
	}
	return r.base
}

// read is look from a sequence number on; ok is false when some of the owner's from there on
// are no longer held, or with no owner, some of anybody's.
func (r *eventRing) read(room []entryEvents, from uint64, most int, owner string) (held []entryEvents, next uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if from < r.cutOf(owner).seq {
		return nil, from, false
	}
	held, next = r.pieces(room, from, r.next, most)
	return held, next, true
}

// look puts into room the pieces that have events in [from, end) and are still held, until
// they have so many events, and returns the number to go on from. It copies no events: the
// ring drops some by taking another slice, and never changes one. So it holds up the log for
// microseconds.
func (r *eventRing) look(room []entryEvents, from, end uint64, most int) (held []entryEvents, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pieces(room, from, end, most)
}

// pieces is look. The caller holds mu.
func (r *eventRing) pieces(room []entryEvents, from, end uint64, most int) (held []entryEvents, next uint64) {
	held = room[:0]
	end = min(end, r.next)
	at := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].end > from })
	for ; at < len(r.entries) && r.entries[at].first < end; at++ {
		e := r.entries[at]
		if most <= 0 {
			return held, e.first
		}
		if len(e.events) > 0 {
			held = append(held, *e)
		}
		most -= max(len(e.events), 1)
	}
	return held, max(from, end)
}

// inRange yields the events of pieces whose sequence numbers are in [from, end).
func inRange(held []entryEvents, from, end uint64) iter.Seq[*cell.Event] {
	return func(yield func(*cell.Event) bool) {
		for _, e := range held {
			for i := range e.events {
				if seq := e.seq(i); seq >= from && seq < end && !yield(&e.events[i]) {
					return
				}
			}
		}
	}
}

// seek returns the sequence number of the first held event at or after a log index, the
// number after the last one, and the first log index from which on all events of the
// owner are held; with no owner, all of everybody.
func (r *eventRing) seek(index uint64, owner string) (from, end, oldestIndex uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, end = r.next, r.next
	oldestIndex = max(r.blindTo, r.cutOf(owner).index) + 1
	if at := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].index >= index }); at < len(r.entries) {
		from = r.entries[at].first
	}
	return from, end, oldestIndex
}
