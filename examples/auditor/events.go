package main

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxEventsInAnswer is what proto/borgrpc/master.proto says of EventsResponse.
const maxEventsInAnswer = 500

// stream is one stream of all events of a replica, as it comes.
type stream struct {
	from      source
	fromIndex uint64
	last      *borgpb.Event
	unready   map[string]bool // machines that drain or are down, as told so far
	attempts  map[string]uint64
	dead      map[string]bool // uids of jobs
	// made, killed: index of each event of that kind by uid of the job;
	// drained: by machine.
	made, killed map[string][]uint64
	drained      map[string][]order
	oldest       uint64
	indexes      []uint64 // of each event
}

func newStream(from source, fromIndex uint64) *stream {
	return &stream{
		from: from, fromIndex: fromIndex, unready: make(map[string]bool), attempts: make(map[string]uint64), dead: make(map[string]bool),
		made: make(map[string][]uint64), killed: make(map[string][]uint64), drained: make(map[string][]order),
	}
}

// sawEvents judges the next events of a stream.
func (b *book) sawEvents(s *stream, resp *borgrpc.EventsResponse) {
	b.check("events", len(resp.GetEvents()) <= maxEventsInAnswer, "%s sent %d events at once", s.from, len(resp.GetEvents()))
	s.oldest = max(s.oldest, resp.GetOldestIndex())
	for _, e := range resp.GetEvents() {
		b.sawEvent(s, e)
	}
}

func (b *book) sawEvent(s *stream, e *borgpb.Event) {
	who := fmt.Sprintf("%s of %s at index %d.%d by %s", e.GetKind(), e.GetObject(), e.GetIndex(), e.GetN(), s.from)
	b.floor = max(b.floor, e.GetIndex())
	b.check("events", e.GetIndex() >= s.fromIndex, "%s; events were asked for from %d on", who, s.fromIndex)
	if l := s.last; l != nil {
		next := e.GetIndex() > l.GetIndex() && e.GetN() == 0 || e.GetIndex() == l.GetIndex() && e.GetN() == l.GetN()+1
		b.check("events", next, "%s comes after %d.%d", who, l.GetIndex(), l.GetN())
	}
	s.last, s.indexes = e, append(s.indexes, e.GetIndex())
	b.same(s.from, fmt.Sprintf("event %d", e.GetN()), e.GetIndex(), e)

	switch e.GetKind() {
	case borgpb.EventKind_EVENT_KIND_MACHINE_DRAIN, borgpb.EventKind_EVENT_KIND_MACHINE_UNDRAIN:
		drain := e.GetKind() == borgpb.EventKind_EVENT_KIND_MACHINE_DRAIN
		s.unready["drain "+e.GetObject()] = drain
		s.drained[e.GetObject()] = append(s.drained[e.GetObject()], order{e.GetIndex(), drain})
	case borgpb.EventKind_EVENT_KIND_MACHINE_DOWN, borgpb.EventKind_EVENT_KIND_MACHINE_UP:
		s.unready["down "+e.GetObject()] = e.GetKind() == borgpb.EventKind_EVENT_KIND_MACHINE_DOWN
	}
	switch e.GetObjectKind() {
	case borgpb.ObjectKind_OBJECT_KIND_JOB:
		b.sawJobEvent(s, who, e)
	case borgpb.ObjectKind_OBJECT_KIND_TASK:
		if e.GetKind() != borgpb.EventKind_EVENT_KIND_SCHEDULE {
			return
		}
		b.check("drain", !s.unready["drain "+e.GetMachine()] && !s.unready["down "+e.GetMachine()], "%s: placed on %s, which drains or is down", who, e.GetMachine())
		slot := e.GetUid() + " " + e.GetObject()
		b.check("attempts", e.GetAttempt() > s.attempts[slot], "%s: attempt %d after %d", who, e.GetAttempt(), s.attempts[slot])
		b.check("one-place", e.GetFrom() == borgpb.State_STATE_PENDING && e.GetTo() == borgpb.State_STATE_RUNNING, "%s: given a machine while %s", who, e.GetFrom())
		s.attempts[slot] = e.GetAttempt()
	}
}

func (b *book) sawJobEvent(s *stream, who string, e *borgpb.Event) {
	if e.GetKind() == borgpb.EventKind_EVENT_KIND_SUBMIT {
		s.made[e.GetUid()] = append(s.made[e.GetUid()], e.GetIndex())
	}
	if e.GetKind() == borgpb.EventKind_EVENT_KIND_KILL {
		s.killed[e.GetUid()] = append(s.killed[e.GetUid()], e.GetIndex())
	}
	if e.GetTo() != borgpb.State_STATE_UNSPECIFIED {
		dead := e.GetTo() == borgpb.State_STATE_DEAD
		b.check("dead", dead || !s.dead[e.GetUid()], "%s: %s after it was dead", who, e.GetTo())
		s.dead[e.GetUid()] = dead
	}
}

// endStream judges that what was acknowledged up to an index was told of, in a
// stream that began with the oldest event and came at least to that index.
func (b *book) endStream(s *stream, upTo uint64) {
	inside := func(index uint64) bool { return index >= s.oldest && index <= upTo }
	for uid, l := range b.lives {
		if inside(l.submit) {
			b.check("told", slices.Equal(s.made[uid], []uint64{l.submit}), "%s: the submit of %s (%s) at index %d has events at %v", s.from, l.key, uid, l.submit, s.made[uid])
		}
		if l.killed > 0 && inside(l.killed) {
			b.check("told", slices.Equal(s.killed[uid], []uint64{l.killed}), "%s: the kill of %s (%s) at index %d has events at %v", s.from, l.key, uid, l.killed, s.killed[uid])
		}
	}
	for machine, orders := range b.orders {
		for _, o := range orders {
			if inside(o.index) {
				b.check("told", slices.Contains(s.drained[machine], o), "%s: draining %v of %s at index %d has no event", s.from, o.drain, machine, o.index)
			}
		}
	}
}
