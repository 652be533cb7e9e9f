package borgmaster

import (
	"slices"
	"sort"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Events kept for people; older ones are forgotten.
	maxEvents = 100_000
	// Events sent in one message.
	eventsPerMessage = 500
)

// eventRing keeps the latest events. A reader that is slower than the cell is
// told so; it never holds the cell up.
type eventRing struct {
	more pulse

	mu sync.Mutex
	// The latest events, by entry. Guarded by mu.
	entries []entryEvents
	// Sequence number of the next event, from 0. Guarded by mu.
	next uint64
	// Events up to this log index were never seen here. Guarded by mu.
	blindTo uint64
}

// entryEvents are the events of one entry, never none, and the sequence number of the
// first. They are as the cell made them: others keep them too.
type entryEvents struct {
	first  uint64
	events []cell.Event
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
	r.entries = append(r.entries, entryEvents{r.next, events})
	r.next += uint64(len(events))
	for r.held() > maxEvents {
		oldest := &r.entries[0]
		if over := r.held() - maxEvents; over < uint64(len(oldest.events)) {
			oldest.first, oldest.events = oldest.first+over, oldest.events[over:]
			break
		}
		*oldest = entryEvents{}
		r.entries = r.entries[1:]
	}
	r.mu.Unlock()
	r.more.Fire()
}

// restart forgets everything: the cell was replaced by one at index.
func (r *eventRing) restart(index uint64) {
	r.mu.Lock()
	// Sequence numbers go on, so that readers see that they were cut off.
	r.entries, r.blindTo = nil, index
	r.next++
	r.mu.Unlock()
	r.more.Fire()
}

// oldest returns the first sequence number that is held. The caller holds mu.
func (r *eventRing) oldest() uint64 {
	if len(r.entries) == 0 {
		return r.next
	}
	return r.entries[0].first
}

// held is how many events there are. The caller holds mu.
func (r *eventRing) held() uint64 { return r.next - r.oldest() }

// read returns at most max events from sequence number from on, and the number
// to go on from; ok is false when from is no longer held.
func (r *eventRing) read(from uint64, most int) (events []cell.Event, next uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if from < r.oldest() {
		return nil, from, false
	}
	at := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].first > from }) - 1
	for ; at >= 0 && at < len(r.entries) && len(events) < most; at++ {
		e := r.entries[at]
		rest := e.events[min(from+uint64(len(events))-e.first, uint64(len(e.events))):]
		events = append(events, rest[:min(len(rest), most-len(events))]...)
	}
	return events, from + uint64(len(events)), true
}

// seek returns the sequence number of the first held event at or after a log
// index, the number after the last one, and the first log index from which on
// all events are held.
func (r *eventRing) seek(index uint64) (from, end, oldestIndex uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, end = r.next, r.next
	oldestIndex = r.blindTo + 1
	if r.held() == maxEvents {
		// The first one may have had elder siblings at the same index.
		oldestIndex = r.entries[0].events[0].Index + 1
	}
	if at := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].events[0].Index >= index }); at < len(r.entries) {
		from = r.entries[at].first
	}
	return from, end, oldestIndex
}

// eventFilter picks the events that somebody asked for.
type eventFilter struct {
	job, machine string
	// A follower may know more of the log than this replica does yet.
	fromIndex uint64
	// Returns those events that who asks may see; it is asked for each batch. Nil: all.
	seen func([]*borgpb.Event) []*borgpb.Event
}

func (f eventFilter) match(e *cell.Event) bool {
	if e.Index < f.fromIndex {
		return false
	}
	if f.machine != "" && e.Machine != f.machine {
		return false
	}
	if f.job == "" {
		return true
	}
	if e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_FILE {
		// Its name may look like that of a task.
		return false
	}
	object := e.Object()
	return object == f.job || strings.HasPrefix(object, f.job+"/")
}

// Events tells what happened, from this replica's own memory.
func (a *masterAPI) Events(req *borgrpc.EventsRequest, stream borgrpc.MasterService_EventsServer) error {
	leave, err := a.m.enterStream(door.Caller(stream.Context()))
	if err != nil {
		return err
	}
	defer leave()
	ring := &a.m.events
	filter := eventFilter{job: req.GetJob(), machine: req.GetMachine(), fromIndex: req.GetFromIndex()}
	filter.seen = func(events []*borgpb.Event) []*borgpb.Event { return a.m.seenEvents(stream.Context(), events) }
	from, end, oldestIndex := ring.seek(req.GetFromIndex())
	past, err := ring.collect(from, end, filter, int(req.GetLast()))
	if err != nil {
		return err
	}
	if err := sendEvents(stream, past, oldestIndex); err != nil || !req.GetFollow() {
		return err
	}
	for from = end; ; {
		more := ring.more.Wait()
		events, next, ok := ring.read(from, eventsPerMessage)
		if !ok {
			return status.Errorf(codes.Aborted, "this watch fell behind by more than %d events; ask again", maxEvents)
		}
		from = next
		if picked := pick(events, filter); len(picked) > 0 {
			if err := stream.Send(&borgrpc.EventsResponse{Events: picked, OldestIndex: oldestIndex}); err != nil {
				return err
			}
		}
		if len(events) == eventsPerMessage {
			continue
		}
		select {
		case <-more:
		case <-a.m.stopping:
			return errStopping
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// collect returns the events in [from, end) that match, at most the last ones.
func (r *eventRing) collect(from, end uint64, filter eventFilter, last int) ([]*borgpb.Event, error) {
	var picked []*borgpb.Event
	for from < end {
		events, next, ok := r.read(from, eventsPerMessage)
		if !ok {
			return nil, status.Error(codes.Unavailable, "events are coming faster than they can be read; ask again")
		}
		picked = append(picked, pick(events[:min(len(events), int(end-from))], filter)...)
		if last > 0 && len(picked) > last {
			picked = slices.Clone(picked[len(picked)-last:])
		}
		from = next
	}
	return picked, nil
}

func pick(events []cell.Event, filter eventFilter) []*borgpb.Event {
	var picked []*borgpb.Event
	for i := range events {
		if filter.match(&events[i]) {
			picked = append(picked, events[i].Proto())
		}
	}
	if filter.seen == nil {
		return picked
	}
	return filter.seen(picked)
}

// sendEvents sends at least one message, so that even an empty history says
// from where on it is complete.
func sendEvents(stream borgrpc.MasterService_EventsServer, events []*borgpb.Event, oldestIndex uint64) error {
	for {
		n := min(len(events), eventsPerMessage)
		if err := stream.Send(&borgrpc.EventsResponse{Events: events[:n], OldestIndex: oldestIndex}); err != nil {
			return err
		}
		if events = events[n:]; len(events) == 0 {
			return nil
		}
	}
}
