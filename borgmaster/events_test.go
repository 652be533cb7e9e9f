package borgmaster

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// fill adds n events, one a log index from first on.
func fill(r *eventRing, first uint64, n int) {
	for i := range n {
		r.add([]cell.Event{{Index: first + uint64(i), Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB,
			Key: cell.JobKey{User: "a", Name: fmt.Sprintf("j%d", i%3)}}})
	}
}

func TestRingKeepsTheLatest(t *testing.T) {
	var r eventRing
	fill(&r, 11, 5)
	from, end, oldest := r.seek(13)
	if events, _, ok := r.read(from, 10); !ok || len(events) != 3 || events[0].Index != 13 || end-from != 3 || oldest != 11 {
		t.Errorf("from index 13: %d events (%v), oldest index %d, want 13, 14, 15 and oldest 11", len(events), ok, oldest)
	}
	slow := from
	fill(&r, 16, maxEvents)
	if _, _, ok := r.read(slow, 10); ok {
		t.Error("a reader that fell behind was not told")
	}
	from, end, oldest = r.seek(0)
	events, next, ok := r.read(from, 2)
	if !ok || end-from != maxEvents || events[0].Index != 16 || next != from+2 || oldest != 17 {
		t.Errorf("a full ring begins at index %d (%v) and is complete from %d, want 16 and 17", events[0].Index, ok, oldest)
	}
	if picked, err := r.collect(from, end, eventFilter{job: "a/j1"}, 4); err != nil || len(picked) != 4 || picked[3].Object != "a/j1" {
		t.Errorf("the last 4 of job a/j1 = %v, %v", picked, err)
	}
	// Asked for more than there is yet: what comes before it is not told.
	ahead := eventFilter{fromIndex: 20 + maxEvents}
	fill(&r, 16+maxEvents, 6)
	if events, _, ok := r.read(end, 10); !ok || len(events) != 6 || len(pick(events, ahead)) != 2 {
		t.Errorf("from index %d, ahead of the ring: %d of %d events (%v), want 2 of 6", ahead.fromIndex, len(pick(events, ahead)), len(events), ok)
	}
}

func TestRingAfterARestore(t *testing.T) {
	var r eventRing
	fill(&r, 1, 10)
	_, end, _ := r.seek(0)
	r.restart(500)
	if _, _, ok := r.read(end, 1); ok {
		t.Error("a reader of the cell before the restore goes on")
	}
	fill(&r, 501, 2)
	from, _, oldest := r.seek(0)
	if events, _, ok := r.read(from, 10); !ok || len(events) != 2 || events[0].Index != 501 || oldest != 501 {
		t.Errorf("after a restore at 500: %v (%v), oldest %d, want 501 and 502", events, ok, oldest)
	}
}
