package cell

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// diagram is the paper's figure 2, written down a second time: by event, from
// which state to which. TestRandomWalk holds the cell's events against it.
var diagram = map[borgpb.EventKind][][2]borgpb.State{
	borgpb.EventKind_EVENT_KIND_SUBMIT:         {{0, 1}},
	borgpb.EventKind_EVENT_KIND_SEAT:           {{0, 1}},
	borgpb.EventKind_EVENT_KIND_SCHEDULE:       {{1, 2}},
	borgpb.EventKind_EVENT_KIND_RETURN:         {{1, 2}},
	borgpb.EventKind_EVENT_KIND_EVICT:          {{2, 1}},
	borgpb.EventKind_EVENT_KIND_QUARANTINE:     {{2, 1}},
	borgpb.EventKind_EVENT_KIND_FAIL:           {{2, 1}, {2, 3}},
	borgpb.EventKind_EVENT_KIND_FINISH:         {{2, 3}},
	borgpb.EventKind_EVENT_KIND_KILL:           {{1, 3}, {2, 3}},
	borgpb.EventKind_EVENT_KIND_LOST:           {{2, 3}},
	borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING: {{2, 2}, {2, 1}},
	borgpb.EventKind_EVENT_KIND_UPDATE_PENDING: {{1, 1}},
}

// refusalsOfFormat1 are those that can happen: quota and permission come with
// later formats, and INTERNAL would be a bug.
var refusalsOfFormat1 = []borgpb.RefusalKind{
	borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, borgpb.RefusalKind_REFUSAL_KIND_INVALID,
	borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS,
	borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, borgpb.RefusalKind_REFUSAL_KIND_STALE,
	borgpb.RefusalKind_REFUSAL_KIND_NO_FIT, borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT,
	borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD, borgpb.RefusalKind_REFUSAL_KIND_LIMIT,
	borgpb.RefusalKind_REFUSAL_KIND_STATE,
}

// walk is one random walk: the cell, a second one that is written down and read
// again at random points, and what is known from the events alone.
type walk struct {
	generator
	seed uint64
	ops  int
	// Fed with the same entries, restored at random points.
	other *Cell
	// Called after every entry; nil: nobody looks.
	each func(c *Cell)
	// What Flush wrote.
	store map[string]string
	// State of each task as its events tell; and copies that have ended.
	tasks map[taskOf]borgpb.State
	ended map[CopyID]bool
	// The alloc that each copy was placed in, as its event tells.
	placedIn map[CopyID]string

	edges    map[string]int
	refusals map[borgpb.RefusalKind]int
	items    int
	refused  int
	restored int
}

type taskOf struct {
	uid   UID
	index uint32
}

// TestRandomWalk makes BORG_WALK_OPS random ops (30,000 unless said) from seed
// BORG_WALK_SEED (1) and holds after each that the cell is sound.
func TestRandomWalk(t *testing.T) {
	ops := envInt(t, "BORG_WALK_OPS", 30_000)
	seed := uint64(envInt(t, "BORG_WALK_SEED", 1))
	w := &walk{
		seed: seed, other: New("test-cell", 1), store: make(map[string]string),
		tasks: make(map[taskOf]borgpb.State), ended: make(map[CopyID]bool), placedIn: make(map[CopyID]string),
		edges: make(map[string]int), refusals: make(map[borgpb.RefusalKind]int),
	}
	w.testLog = newTestLog(t)
	w.r = rand.New(rand.NewPCG(seed, 42))
	defer func() {
		if t.Failed() {
			t.Logf("repeat with: BORG_WALK_OPS=%d BORG_WALK_SEED=%d go test ./borgmaster/cell -run TestRandomWalk (failed at op %d, index %d)",
				ops, seed, w.ops, w.c.Index())
		}
	}()
	for w.ops < ops {
		w.step()
	}
	w.restore()
	w.report(ops)
}

func envInt(t *testing.T, name string, otherwise int) int {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%q: %v", name, s, err)
	}
	return n
}

// step applies one entry of one to three ops to both cells.
func (w *walk) step() {
	w.stamps()
	e := &borgpb.Entry{CellTimeNs: w.cellNs, WallTimeNs: w.wallNs}
	for range 1 + w.r.IntN(3) {
		e.Ops = append(e.Ops, w.next())
	}
	data := marshal(w.t, e)
	if w.one(200) {
		data = nil
	}
	index := w.c.Index() + 1 + uint64(w.r.IntN(2))
	results, events := w.c.Apply(index, w.term, data)
	if w.each != nil {
		w.each(w.c)
	}
	again, events2 := w.other.Apply(index, w.term, data)
	w.ops += len(results)
	if len(results) != len(again) || len(events) != len(events2) {
		w.t.Fatalf("two cells answer with %d and %d results, %d and %d events", len(results), len(again), len(events), len(events2))
	}
	for i, r := range results {
		if !proto.Equal(r, again[i]) {
			w.t.Fatalf("two cells answer %v and %v", r, again[i])
		}
		w.count(r, e.Ops, i)
	}
	for i, ev := range events {
		w.hear(ev, events[i+1:])
	}
	w.verify(index)
}

// stamps moves the clocks: most times a little, sometimes oddly.
func (w *walk) stamps() {
	d := int64(w.r.IntN(2000)) * second / 1000
	w.cellNs += d
	w.wallNs += d
	switch {
	case w.one(400):
		w.term++
		w.wallNs += int64(w.r.IntN(3600)) * second
	case w.one(2000):
		w.wallNs += 3600 * second
	case w.one(2000):
		w.wallNs -= 1800 * second
	case w.one(3000):
		w.cellNs += 25 * 3600 * second
		w.wallNs += 25 * 3600 * second
	case w.one(3000):
		w.cellNs -= 5 * second
	}
}

// count notes what was refused.
func (w *walk) count(r *borgpb.Result, ops [][]byte, i int) {
	w.items++
	refused := false
	if r.Refusal != nil {
		w.refusals[r.Refusal.Kind]++
		refused = true
		if r.Refusal.Message == "" || r.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_INTERNAL {
			w.t.Fatalf("op %x: %v", ops[i], r.Refusal)
		}
	}
	for _, item := range r.Items {
		if item.Kind != 0 {
			w.refusals[item.Kind]++
			refused = true
			if item.Message == "" || item.Kind == borgpb.RefusalKind_REFUSAL_KIND_INTERNAL {
				w.t.Fatalf("op %x: %v", ops[i], item)
			}
		}
	}
	w.gangs(ops[i], r)
	if refused {
		w.refused++
	} else if r.Repeated {
		w.edges["repeated"]++
	}
}

// gangs holds that what follows one another of a gang is done as one.
func (w *walk) gangs(data []byte, r *borgpb.Result) {
	op := new(borgpb.Op)
	if proto.Unmarshal(data, op) != nil || op.GetAssign() == nil || r.Refusal != nil || w.c.Format() < formatGangs {
		return
	}
	as := op.GetAssign().Assignments
	done := func(i int) bool { return len(r.Items) == 0 || r.Items[i].Kind == 0 }
	for i := range as {
		uid, _ := ParseUID(as[i].Uid)
		if !w.c.isGang(uid) {
			continue
		}
		if i > 0 && as[i-1].Uid == as[i].Uid {
			if done(i) != done(i-1) {
				w.t.Fatalf("of the gang %s one assignment is done and another is not: %v", as[i].Uid, r)
			}
			if done(i) {
				w.edges["gang of more than one placed"]++
			}
		}
	}
}

// hear follows the life of each task by the events alone.
func (w *walk) hear(e Event, later []Event) {
	if e.From != e.To || e.Kind == borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING {
		legal := slices.Contains(diagram[e.Kind], [2]borgpb.State{e.From, e.To})
		if !legal {
			w.t.Fatalf("%v of %s goes from %v to %v", e.Kind, e.Object(), e.From, e.To)
		}
	}
	kind := e.Kind.String()[len("EVENT_KIND_"):]
	if e.Cause == borgpb.StopCause_STOP_CAUSE_PREEMPTION && e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
		w.gaveWay(e, later)
	}
	if e.Cause != 0 {
		w.edges["cause "+e.Cause.String()[len("STOP_CAUSE_"):]+" "+kind]++
	}
	w.edges[fmt.Sprintf("%v %s %d-%d", e.ObjectKind.String()[len("OBJECT_KIND_"):], kind, e.From, e.To)]++
	if e.Kind == borgpb.EventKind_EVENT_KIND_RESIZE && e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_JOB {
		w.forget(e)
	}
	if e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
		return
	}
	id := CopyID{e.UID, e.Task, e.Attempt}
	if e.Kind == borgpb.EventKind_EVENT_KIND_STOPPED {
		w.ended[id] = true
		return
	}
	if e.Kind == borgpb.EventKind_EVENT_KIND_RELEASE {
		// Of a copy that is not its task's any more.
		return
	}
	t := taskOf{e.UID, e.Task}
	was := w.tasks[t]
	if was == 0 {
		was = borgpb.State_STATE_PENDING
	}
	if e.Kind == borgpb.EventKind_EVENT_KIND_SEAT {
		// As submitted anew: the machine before has gone.
		if was == borgpb.State_STATE_RUNNING {
			w.t.Fatalf("%v of %s, which runs", e.Kind, e.Object())
		}
	} else if e.From != was {
		w.t.Fatalf("%v of %s starts from %v, the task was %v", e.Kind, e.Object(), e.From, was)
	}
	w.tasks[t] = e.To
	if e.Cause == borgpb.StopCause_STOP_CAUSE_CRASHED && e.Kind == borgpb.EventKind_EVENT_KIND_EVICT {
		w.triedElsewhere(e, later)
	}
	switch e.Kind {
	case borgpb.EventKind_EVENT_KIND_FAIL, borgpb.EventKind_EVENT_KIND_FINISH:
		w.ended[id] = true
	case borgpb.EventKind_EVENT_KIND_SCHEDULE, borgpb.EventKind_EVENT_KIND_RETURN:
		if w.ended[id] {
			w.t.Fatalf("%v of %s: attempt %d had ended", e.Kind, e.Object(), e.Attempt)
		}
		w.fits(e, later)
		w.savesAlone(e)
		if e.Alloc != "" {
			w.placedIn[id] = e.Alloc
		}
	}
}

// forget drops the tasks that a resize cut off, or the end of an update's extra ones;
// those of the same indices that may come later start anew.
func (w *walk) forget(e Event) {
	words := e.Reason
	if _, after, ok := strings.Cut(words, " to "); ok && !strings.Contains(words, ":") {
		words = after
	}
	var left uint32
	if _, err := fmt.Sscanf(words, "%d tasks", &left); err != nil {
		w.t.Fatalf("resize %q: %v", e.Reason, err)
	}
	maps.DeleteFunc(w.tasks, func(t taskOf, _ borgpb.State) bool { return t.uid == e.UID && t.index >= left })
}

// refilled tells whether what came later in the entry may have put a machine over
// in one view: a placement in the other view, reservations, or a copy in quarantine,
// which holds its limit instead of what it was estimated to use.
func refilled(later []Event, machine string) bool {
	return slices.ContainsFunc(later, func(e Event) bool {
		return e.Machine == machine && (e.Kind == borgpb.EventKind_EVENT_KIND_RESERVE || e.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE ||
			e.Kind == borgpb.EventKind_EVENT_KIND_QUARANTINE || e.Kind == borgpb.EventKind_EVENT_KIND_RESIZE ||
			// In place: its estimate was for another limit and is gone.
			e.Kind == borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING)
	})
}

// fits holds S6: at the index of an assignment its machine is not over in the
// view in which it was placed, once the victims that are promised have gone.
func (w *walk) fits(e Event, later []Event) {
	m, j := w.c.Machine(e.Machine), w.c.JobByUID(e.UID)
	if m == nil || j == nil || e.Kind != borgpb.EventKind_EVENT_KIND_SCHEDULE {
		return
	}
	if j.saving != nil {
		// It goes where its files are, whatever is free there.
		w.edges["saver started"]++
		return
	}
	p := m.find(CopyID{e.UID, e.Task, e.Attempt})
	if p == nil || m.version != 1 {
		return
	}
	for _, g := range p.Devices() {
		q := DeviceRoom{room: p.room()}
		for _, o := range m.copies {
			if o.stop != nil && o.stop.promised != nil && o.room() == p.room() {
				q.Freed = append(q.Freed, o.Devices()...)
			}
		}
		if q.free(g.Name, g.Number) < 0 {
			w.t.Fatalf("%s was placed on %s, whose %s %d is over: %v", e.Object(), e.Machine, g.Name, g.Number, p.room().devices)
		}
		w.edges["device granted"]++
		if g.Milli < wholeDevice {
			w.edges["share granted"]++
		}
	}
	room := p.room()
	prod := isProd(p.priority)
	held := room.taken.of(prod)
	for _, o := range m.copies {
		if o.stop != nil && o.stop.promised != nil && o.room() == room {
			held = held.Sub(o.Held(prod))
			if o.estimate != nil {
				w.edges["place of a reservation"]++
			}
		}
	}
	if limits := m.Limits(); !limits.Fits(m.room.capacity) {
		w.edges["reclaimed"]++
	}
	if p.res.Ports == 0 {
		// Other programs may hold more ports than are left beside the allocs: it asks for none.
		held.Ports = 0
	}
	if p.res.DiskBytes == 0 && !slices.ContainsFunc(m.volumes, func(v *Volume) bool { return v.of == p.TaskID() && v.madeWallNs == w.c.clock.wallNs }) {
		// A volume that was found may take more disk than is left: it asks for none.
		held.DiskBytes = 0
	}
	if !held.Fits(room.capacity) && !refilled(later, m.name) {
		w.t.Fatalf("%s was placed on %s, which is over: %+v of %+v", e.Object(), e.Machine, held, room.capacity)
	}
}

// verify holds the invariants, and now and then that what is written down is
// what is.
func (w *walk) verify(index uint64) {
	if err := w.c.Check(); err != nil {
		w.t.Fatalf("after index %d: %v", index, err)
	}
	if w.one(64) {
		if a, b := w.c.Digest(), w.other.Digest(); a != b {
			w.t.Fatalf("after index %d: digests %x and %x", index, a, b)
		}
	}
	if w.one(300) {
		w.c.Flush(func(k, v []byte) {
			if v == nil {
				delete(w.store, string(k))
			} else {
				w.store[string(k)] = string(v)
			}
		})
	}
	if w.one(100) {
		w.restore()
	}
	if w.c.Diverged() != nil || w.other.Diverged() != nil {
		w.t.Fatalf("after index %d: %v, %v", index, w.c.Diverged(), w.other.Diverged())
	}
}

// restore replaces the second cell by what the first one wrote down, in one of
// two ways.
func (w *walk) restore() {
	w.restored++
	want := w.c.Digest()
	if w.one(2) {
		w.other = reload(w.t, w.other)
	} else {
		w.c.Flush(func(k, v []byte) {
			if v == nil {
				delete(w.store, string(k))
			} else {
				w.store[string(k)] = string(v)
			}
		})
		keys := slices.Sorted(maps.Keys(w.store))
		var err error
		w.other, err = Load(func(yield func(k, v []byte) bool) {
			for _, k := range keys {
				if !yield([]byte(k), []byte(w.store[k])) {
					return
				}
			}
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if got := w.other.Digest(); got != want {
		w.t.Fatalf("restored digest %x, want %x", got, want)
	}
	var a, b bytes.Buffer
	for k, v := range w.c.Records() {
		fmt.Fprintf(&a, "%x %x\n", k, v)
	}
	for k, v := range w.other.Records() {
		fmt.Fprintf(&b, "%x %x\n", k, v)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		w.t.Fatal("the records of the restored cell differ")
	}
	for field, said := range differences(w.c, w.other) {
		w.t.Errorf("after index %d: %s: %s", w.c.Index(), field, said)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// report prints the counts and holds that the walk went everywhere.
func (w *walk) report(ops int) {
	w.t.Logf("%d ops, %d with a refusal (%d %%), restored %d times, %d jobs and %d machines at the end",
		w.ops, w.refused, 100*w.refused/w.items, w.restored, w.c.NumJobs(), w.c.NumMachines())
	for _, e := range slices.Sorted(maps.Keys(w.edges)) {
		w.t.Logf("edge %-40s %d", e, w.edges[e])
	}
	least := ops / 10_000
	if n := w.edges["cause CRASHED EVICT"]; n < least {
		w.t.Errorf("services were tried elsewhere %d times, want %d", n, least)
	}
	for _, k := range refusalsOfFormat1 {
		w.t.Logf("refusal %-40v %d", k, w.refusals[k])
		if w.refusals[k] < least {
			w.t.Errorf("%v happened %d times, want %d", k, w.refusals[k], least)
		}
	}
	if 10*w.refused < 3*w.items {
		w.t.Errorf("%d of %d ops were refused, want 30 %%", w.refused, w.items)
	}
	for kind, pairs := range diagram {
		for _, p := range pairs {
			n := 0
			for _, object := range []string{"JOB", "TASK", "ALLOC", "ALLOC_SET"} {
				n += w.edges[fmt.Sprintf("%s %s %d-%d", object, kind.String()[len("EVENT_KIND_"):], p[0], p[1])]
			}
			if n < least {
				w.t.Errorf("%v from %v to %v happened %d times, want %d", kind, p[0], p[1], n, least)
			}
		}
	}
}

func mustUnmarshal(t testing.TB, b []byte, m proto.Message) {
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
}

func slicesBinary(ports []uint16, n uint32) (int, bool) {
	return slices.BinarySearch(ports, uint16(n))
}
