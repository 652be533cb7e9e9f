package borgmaster

import (
	"iter"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Events kept for people. Beyond it the user with the most loses his oldest.
	maxEvents = 100_000
	// Events sent in one message.
	eventsPerMessage = 500
)

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
	switch e.ObjectKind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		// Most events are of others; their names need not be made.
		if e.Key.User != f.owner() {
			return false
		}
	}
	object := e.Object()
	return object == f.job || strings.HasPrefix(object, f.job+"/")
}

// owner is whose events all that match are; empty: anybody's.
func (f eventFilter) owner() string {
	user, _, _ := strings.Cut(f.job, "/")
	return user
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
	from, end, oldestIndex := ring.seek(req.GetFromIndex(), filter.owner())
	w := a.m.walks(stream.Context())
	defer w.rest()
	send := func(resp *borgrpc.EventsResponse) error {
		w.rest()
		if err := stream.Send(resp); err != nil {
			return err
		}
		return a.m.written(stream.Context())
	}
	if err := ring.sendHeld(w.step, send, from, end, filter, int(req.GetLast()), oldestIndex); err != nil || !req.GetFollow() {
		return err
	}
	w.rest()
	var held []entryEvents
	for from = end; ; {
		more := ring.more.Wait()
		var next uint64
		var ok bool
		held, next, ok = ring.read(held, from, eventsPerMessage, filter.owner())
		if !ok {
			return status.Errorf(codes.Aborted, "this watch fell behind by more than %d events; ask again", maxEvents)
		}
		picked := filter.shown(filter.pick(inRange(held, from, next)))
		clear(held) // a follower that waits keeps no event from being freed
		if len(picked) > 0 {
			if err := send(&borgrpc.EventsResponse{Events: picked, OldestIndex: oldestIndex}); err != nil {
				return err
			}
		}
		if next > from {
			from = next
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

// sendHeld sends the events in [from, end) that match and are still held, a page at a time:
// a client that reads nothing holds one page. With last, only the last ones. It sends at
// least one message, so that even an empty history says from where on it is complete. Before
// it looks at more it calls step.
func (r *eventRing) sendHeld(step func() error, send func(*borgrpc.EventsResponse) error, from, end uint64, filter eventFilter, last int, oldestIndex uint64) error {
	skip := 0
	if last > 0 {
		if err := r.pages(step, from, end, filter, func(picked []*borgpb.Event) error {
			skip += len(picked)
			return nil
		}); err != nil {
			return err
		}
		skip = max(skip-last, 0)
	}
	sent := false
	err := r.pages(step, from, end, filter, func(picked []*borgpb.Event) error {
		n := min(skip, len(picked))
		skip -= n
		if picked = picked[n:]; len(picked) == 0 {
			return nil
		}
		sent = true
		return send(&borgrpc.EventsResponse{Events: picked, OldestIndex: oldestIndex})
	})
	if err != nil || sent {
		return err
	}
	return send(&borgrpc.EventsResponse{OldestIndex: oldestIndex})
}

// pages calls f with the events in [from, end) that match and are still held, in pieces,
// until it or step, which is called before each piece, returns an error.
func (r *eventRing) pages(step func() error, from, end uint64, filter eventFilter, f func([]*borgpb.Event) error) error {
	var held []entryEvents
	for from < end {
		if err := step(); err != nil {
			return err
		}
		var next uint64
		held, next = r.look(held, from, end, eventsPerMessage)
		all := filter.pick(inRange(held, from, end))
		clear(held)
		for picked := range slices.Chunk(all, eventsPerMessage) {
			if full := filter.shown(picked); len(full) > 0 {
				if err := f(full); err != nil {
					return err
				}
			}
		}
		from = max(next, from+1)
	}
	return nil
}

// shown are those of some events that the caller may see.
func (f eventFilter) shown(picked []*borgpb.Event) []*borgpb.Event {
	if f.seen == nil || len(picked) == 0 {
		return picked
	}
	return f.seen(picked)
}

// pick returns those of some events that match.
func (f eventFilter) pick(events iter.Seq[*cell.Event]) (picked []*borgpb.Event) {
	for e := range events {
		if f.match(e) {
			picked = append(picked, e.Proto())
		}
	}
	return picked
}
