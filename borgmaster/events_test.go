package borgmaster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// fill adds n events, one a log index from first on.
func fill(r *eventRing, first uint64, n int) {
	for i := range n {
		r.add([]cell.Event{{Index: first + uint64(i), Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB,
			Key: cell.JobKey{User: "a", Name: fmt.Sprintf("j%d", i%3)}}})
	}
}

// readAll is what a follower of everything, or of an owner, gets at a look.
func readAll(r *eventRing, from uint64, most int, owner string) (events []*cell.Event, next uint64, ok bool) {
	held, next, ok := r.read(nil, from, most, owner)
	return slices.Collect(inRange(held, from, next)), next, ok
}

func TestRingKeepsTheLatest(t *testing.T) {
	var r eventRing
	fill(&r, 11, 5)
	from, end, oldest := r.seek(13, "")
	if events, _, ok := readAll(&r, from, 10, ""); !ok || len(events) != 3 || events[0].Index != 13 || end-from != 3 || oldest != 11 {
		t.Errorf("from index 13: %d events (%v), oldest index %d, want 13, 14, 15 and oldest 11", len(events), ok, oldest)
	}
	slow := from
	fill(&r, 16, maxEvents)
	if _, _, ok := readAll(&r, slow, 10, "a"); ok {
		t.Error("a reader that fell behind was not told")
	}
	from, end, oldest = r.seek(0, "a")
	events, next, ok := readAll(&r, from, 2, "a")
	if !ok || end-from < maxEvents-eventSlack || end-from > maxEvents || events[0].Index != oldest || next != from+2 {
		t.Errorf("a full ring begins at index %d (%v), is complete from %d and holds %d", events[0].Index, ok, oldest, end-from)
	}
	if picked, _ := heldOf(&r, from, end, eventFilter{job: "a/j1"}, 4); len(picked) != 4 || picked[3].Object != "a/j1" {
		t.Errorf("the last 4 of job a/j1 = %v", picked)
	}
	// Asked for more than there is yet: what comes before it is not told.
	ahead := eventFilter{fromIndex: 20 + maxEvents}
	fill(&r, 16+maxEvents, 6)
	if events, _, ok := readAll(&r, end, 10, ""); !ok || len(events) != 6 || len(ahead.pick(slices.Values(events))) != 2 {
		t.Errorf("from index %d, ahead of the ring: %d of %d events (%v), want 2 of 6", ahead.fromIndex, len(ahead.pick(slices.Values(events))), len(events), ok)
	}
}

// heldOf returns what sendHeld sends, and of how many events its largest message is.
func heldOf(r *eventRing, from, end uint64, filter eventFilter, last int) (all []*borgpb.Event, largest int) {
	messages := 0
	r.sendHeld(func() error { return nil }, func(resp *borgrpc.EventsResponse) error {
		messages++
		all, largest = append(all, resp.Events...), max(largest, len(resp.Events))
		return nil
	}, from, end, filter, last, 7)
	if messages == 0 {
		panic("no message says from where on the history is complete")
	}
	return all, largest
}

// TestHeldEventsAreSentInPages: a history is never built as a whole, so a client that reads
// nothing holds one page of it, and the last ones are the right ones over pages.
func TestHeldEventsAreSentInPages(t *testing.T) {
	var r eventRing
	fill(&r, 1, 5*eventsPerMessage+10)
	from, end, _ := r.seek(0, "")
	for _, last := range []int{0, 1, 4, eventsPerMessage, 2*eventsPerMessage + 3, 100 * eventsPerMessage} {
		for _, job := range []string{"", "a/j1", "nobody/x"} {
			filter := eventFilter{job: job}
			want, _, _ := readAll(&r, from, maxEvents, "")
			wanted := filter.pick(slices.Values(want))
			if last > 0 && len(wanted) > last {
				wanted = wanted[len(wanted)-last:]
			}
			got, largest := heldOf(&r, from, end, filter, last)
			if len(got) != len(wanted) || largest > eventsPerMessage || len(got) > 0 && got[0].Index != wanted[0].Index {
				t.Errorf("the last %d of %q: %d events, at most %d in a message; want %d", last, job, len(got), largest, len(wanted))
			}
		}
	}
	stop := errors.New("stop")
	sent := 0
	err := r.sendHeld(func() error { return nil }, func(*borgrpc.EventsResponse) error { sent++; return stop }, from, end, eventFilter{}, 0, 7)
	if !errors.Is(err, stop) || sent != 1 {
		t.Errorf("after a message that could not be sent: %v, %d messages", err, sent)
	}
}

func TestRingAfterARestore(t *testing.T) {
	var r eventRing
	fill(&r, 1, 10)
	_, end, _ := r.seek(0, "")
	r.restart(500)
	for _, owner := range []string{"", "a"} {
		if _, _, ok := readAll(&r, end, 1, owner); ok {
			t.Errorf("a reader of the cell before the restore goes on (owner %q)", owner)
		}
	}
	fill(&r, 501, 2)
	if _, _, ok := readAll(&r, end, 1, "a"); ok {
		t.Error("a reader of the cell before the restore goes on, after others began")
	}
	from, _, oldest := r.seek(0, "")
	if events, _, ok := readAll(&r, from, 10, ""); !ok || len(events) != 2 || events[0].Index != 501 || oldest != 501 {
		t.Errorf("after a restore at 500: %v (%v), oldest %d, want 501 and 502", events, ok, oldest)
	}
}

// TestFloodOfEventsDropsItsOwn has one user make far more events than the ring holds, in
// entries of his own and in entries with those of others, some of several pieces. The others
// lose nothing, and each is told rightly from where on all of his are there. No piece is
// large, so that to drop an event never copies the rest of a large entry.
func TestFloodOfEventsDropsItsOwn(t *testing.T) {
	var r eventRing
	event := func(index uint64, user string, n int) cell.Event {
		return cell.Event{Index: index, Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Key: cell.JobKey{User: user, Name: fmt.Sprint("j", n)}}
	}
	index, bob, machines := uint64(1), 0, 0
	follow := uint64(0)
	for n := 0; n < 3*maxEvents; index++ {
		var events []cell.Event
		for range 50 + index%3*100 {
			events = append(events, event(index, "mallory", n))
			n++
		}
		switch index % 100 {
		case 7:
			events = append(events, event(index, "bob", bob))
			bob++
		case 9:
			machines++
			r.add([]cell.Event{{Index: index, Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, Machine: "m1"}})
			index++
		}
		r.add(events)
		if r.held > maxEvents {
			t.Fatalf("%d events are held", r.held)
		}
	}
	// One who follows bob's has read nothing since the beginning, and has missed nothing.
	if events, _, ok := readAll(&r, follow, 1, "bob"); !ok || len(events) != 1 {
		t.Errorf("who follows bob is cut off by a flood of mallory's: %v, %v", events, ok)
	}
	if _, _, ok := readAll(&r, follow, 1, "mallory"); ok {
		t.Error("who follows mallory is not told that events are gone")
	}
	from, end, oldest := r.seek(0, "bob")
	if oldest != 1 {
		t.Errorf("bob's are said to be there from index %d on, want all", oldest)
	}
	seen, last := map[string]int{}, uint64(0)
	for from < end {
		held, next := r.look(nil, from, end, 700)
		for _, h := range held {
			if len(h.events) > maxPiece {
				t.Fatalf("%d events would be copied to drop one, want at most %d", len(h.events), maxPiece)
			}
			for i, e := range h.events {
				if seq := h.seq(i); seq < from || seq >= end {
					continue
				}
				if e.Index < last {
					t.Fatalf("index %d comes after %d", e.Index, last)
				}
				last = e.Index
				seen[ownerOf(&e)]++
			}
		}
		from = next
	}
	if seen["bob"] != bob || seen[""] != machines || seen["mallory"]+bob+machines != r.held || r.held < maxEvents-eventSlack {
		t.Errorf("held are %v, want %d of bob, %d of machines, and %d in all", seen, bob, machines, r.held)
	}
	if _, _, oldest := r.seek(0, "mallory"); oldest < 2 {
		t.Errorf("mallory's are said to be there from index %d on", oldest)
	}
}

// TestDroppedIsToldToWhomItConcerns: admins hear of everybody's, a user of his own.
func TestDroppedIsToldToWhomItConcerns(t *testing.T) {
	all := func() []*borgpb.AuditRecord {
		return []*borgpb.AuditRecord{{Who: "ann", WallNs: 10, LastWallNs: 20}, {Who: "bob", WallNs: 30, LastWallNs: 40}}
	}
	for _, tt := range []struct {
		f    historyFilter
		want int
	}{
		{historyFilter{&borgrpc.HistoryRequest{}, "root", true}, 2},
		{historyFilter{&borgrpc.HistoryRequest{}, "ann", false}, 1},
		{historyFilter{&borgrpc.HistoryRequest{}, "carol", false}, 0},
		{historyFilter{&borgrpc.HistoryRequest{User: "bob"}, "root", true}, 1},
		{historyFilter{&borgrpc.HistoryRequest{User: "bob"}, "ann", false}, 0},
		{historyFilter{&borgrpc.HistoryRequest{SinceWallNs: 21}, "root", true}, 1},
		{historyFilter{&borgrpc.HistoryRequest{UntilWallNs: 30}, "root", true}, 1},
	} {
		if got := tt.f.dropped(all()); len(got) != tt.want {
			t.Errorf("%v of %q is told %v, want %d", tt.f.HistoryRequest, tt.f.caller, got, tt.want)
		}
	}
}

// TestAskedOfAJob: what was asked for about a job is of that job, and not of its user, or
// of a secret or file that is named as the job.
func TestAskedOfAJob(t *testing.T) {
	for _, tt := range []struct {
		verb, object string
		job, task    bool
	}{
		{"submit-job", "ann/web", true, true},
		{"quarantine-task", "ann/web/3", true, true},
		{"quarantine-task", "ann/web/4", true, false},
		{"submit-job", "ann/web2", false, false},
		{"set-quota", "ann", false, false},
		{"set-task-limits", "ann", false, false},
		{"set-secret", "ann/web", false, false},
		{"write-file", "ann/web/3", false, false},
		{"drain-machine", "m1", false, false},
		{"time", "", false, false},
	} {
		r := &borgpb.AuditRecord{Verb: tt.verb, Object: tt.object}
		if got := (historyFilter{&borgrpc.HistoryRequest{Job: "ann/web"}, "root", true}).asked(r, true); got != tt.job {
			t.Errorf("%s %q among what was asked about job ann/web: %v", tt.verb, tt.object, got)
		}
		if got := (historyFilter{&borgrpc.HistoryRequest{Task: "ann/web/3"}, "root", true}).asked(r, true); got != tt.task {
			t.Errorf("%s %q among what was asked about task ann/web/3: %v", tt.verb, tt.object, got)
		}
	}
}

// TestTextOfAHistory: what a filter picks has its text in it, and so have records that name the job of a task.
func TestTextOfAHistory(t *testing.T) {
	for _, tt := range []struct {
		req  *borgrpc.HistoryRequest
		want string
	}{
		{&borgrpc.HistoryRequest{}, ""},
		{&borgrpc.HistoryRequest{Job: "ann/web"}, "ann/web"},
		{&borgrpc.HistoryRequest{Job: "ann", User: "ann"}, "ann"},
		{&borgrpc.HistoryRequest{Task: "ann/web/3", Machine: "m1"}, "ann/web"},
		{&borgrpc.HistoryRequest{User: "ann", Machine: "m1"}, "ann"},
		{&borgrpc.HistoryRequest{Machine: "m1"}, "m1"},
		{&borgrpc.HistoryRequest{Job: "ann/web", Facts: true}, ""},
	} {
		f := historyFilter{tt.req, "ann", true}
		if got := f.text(); got != tt.want {
			t.Errorf("%v has the text %q, want %q", tt.req, got, tt.want)
		}
		e := &borgpb.JournalEntry{
			Events: []*borgpb.Event{{Object: "ann/web/3", ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, User: "ann", Machine: "m1"}},
			Asked:  []*borgpb.AuditRecord{{Object: "ann/web", Role: borgpb.Role_ROLE_USER, Who: "ann", Verb: "submit"}},
		}
		if f.entry(e) != nil && !strings.Contains(e.String(), tt.want) {
			t.Errorf("%v picks what has not the text %q", tt.req, tt.want)
		}
	}
}
