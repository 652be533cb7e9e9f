package watch

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
)

// Config bounds a Hub. Zero fields take the defaults.
type Config struct {
	// Changes held, and bytes that they take; 200,000 and 64 MiB. Those of the last
	// index that changed something are held whatever they take.
	Changes, Bytes int
	// Changes older than that in cell time are forgotten; 0: of any age.
	KeepNs int64
	// Changes that wait for one Watch, and bytes that they take; 10,000 and 1 MiB.
	// Those of one index are always taken.
	QueueChanges, QueueBytes int
	// Changes in a Message, at most; 500.
	MessageChanges int
}

// What a Hub holds at most when its Config does not say.
const (
	DefaultChanges      = 200_000
	DefaultBytes        = 64 << 20
	DefaultQueueChanges = 10_000
	defaultQueueBytes   = 1 << 20
	// A message ends once it has so many changes or bytes.
	defaultMessageChanges = 500
	messageBytes          = 32 << 10
)

// Hub holds the recent changes of one replica's cell and its watches.
type Hub struct {
	cfg Config
	// lookedAtOnce, but in tests.
	looks int
	// Of the cell as it was seen last.
	epoch, index uint64
	seen         *seen
	look         cell.Looker
	// Room for what the next entry changes, and for a status.
	runs   []run
	jobs   []cell.ChangedJob
	status *borgpb.JobStatus
	// All changes of later indices than floor are held.
	floor uint64
	ring  []*batch
	held  struct{ changes, bytes int }
	// All watches, and those that are told of changes as they come.
	watches []*Watch
	live    map[anchor][]*Watch
	// Counts the runs that were offered, so that no watch is offered one twice.
	offered uint64
	// Watches that were looked at because of runs of changes.
	looked uint64
	// What the cell said last of who may read what.
	reading reading
	// Index at which that changed last: a watch is not resumed from before.
	readingSince uint64
}

// reading is what decides who may read what, in a form that is cheap to compare.
type reading struct {
	private         bool
	version, admins uint64
}

func readingOf(c *cell.Cell) reading {
	_, version := c.Visibility()
	return reading{c.Private(), version, c.AdminChanges()}
}

// New returns a Hub that has seen nothing: Reset must follow.
func New(cfg Config) *Hub {
	cfg.Changes, cfg.Bytes = cmp.Or(cfg.Changes, DefaultChanges), cmp.Or(cfg.Bytes, DefaultBytes)
	cfg.QueueChanges, cfg.QueueBytes = cmp.Or(cfg.QueueChanges, DefaultQueueChanges), cmp.Or(cfg.QueueBytes, defaultQueueBytes)
	cfg.MessageChanges = cmp.Or(cfg.MessageChanges, defaultMessageChanges)
	return &Hub{cfg: cfg, looks: lookedAtOnce, seen: newSeen(), live: map[anchor][]*Watch{}, status: new(borgpb.JobStatus)}
}

// Index is that of the cell as it was seen last, and Oldest the oldest one from which
// a watch can be resumed.
func (h *Hub) Index() uint64  { return h.index }
func (h *Hub) Oldest() uint64 { return h.floor }

// Looked counts the watches that were looked at because of changes; for all changes at
// one index that are found by the same, once.
func (h *Hub) Looked() uint64 { return h.looked }

// Watches is how many there are.
func (h *Hub) Watches() int { return len(h.watches) }

// Held is how many changes are held, and the bytes that they take, about.
func (h *Hub) Held() (changes, bytes int) { return h.held.changes, h.held.bytes }

// Reset begins with another cell, of which nothing was seen: what changed on the way
// to it is not known here, so every watch ends.
func (h *Hub) Reset(c *cell.Cell) {
	h.epoch, h.index, h.floor = c.Epoch(), c.Index(), c.Index()
	h.seen, h.ring, h.held.changes, h.held.bytes = newSeen(), nil, 0, 0
	h.look = cell.Looker{}
	f := feeding{c: c, seen: h.seen, status: h.status}
	f.all()
	h.reading, h.readingSince = readingOf(c), 0
	if mutant.Planted(mutant.WatchOverCheckpoint) {
		return
	}
	for _, w := range slices.Clone(h.watches) {
		w.end(&RelistError{From: w.told, Oldest: h.floor, Why: "a checkpoint took the place of the cell here, and what changed on the way to it is not known"})
	}
}

// Applied takes in what the last Apply of the cell changed. It is called after each.
func (h *Hub) Applied(c *cell.Cell) {
	f := feeding{c: c, seen: h.seen, look: h.look, runs: h.runs[:0], jobs: h.jobs[:0], status: h.status}
	f.changed()
	h.look, h.runs, h.jobs = f.look, f.runs, f.jobs
	// What is gone is not to be kept by them.
	clear(f.jobs)
	h.index = c.Index()
	h.judge(c)
	if len(f.runs) > 0 {
		b := newBatch(h.index, c.TimeNs(), slices.Clone(f.runs))
		clear(f.runs)
		h.ring = append(h.ring, b)
		h.held.changes += b.changes
		h.held.bytes += b.bytes
		for i := range b.runs {
			h.offer(b.index, &b.runs[i])
		}
	}
	h.trim(c.TimeNs())
}

// judge ends the watches of those who may not read the same any more: what they were told
// before may be hidden now, and what was hidden is not to be told as a change.
func (h *Hub) judge(c *cell.Cell) {
	now := readingOf(c)
	if now == h.reading || mutant.Planted(mutant.SightKept) {
		return
	}
	// While everything is open it does not matter who is an admin.
	if now.private || h.reading.private {
		h.readingSince = h.index
		for _, w := range slices.Clone(h.watches) {
			if sight := w.query.now(c); !sight.Equal(&w.query.sight) {
				w.end(&RelistError{From: w.told, Oldest: h.index, Why: "what you may read has changed"})
			}
		}
	}
	h.reading = now
}

// Check compares what was seen of a cell with the cell. It looks at all of it.
func (h *Hub) Check(c *cell.Cell) error {
	anew := newSeen()
	f := feeding{c: c, seen: anew, status: new(borgpb.JobStatus)}
	f.all()
	mine, theirs := h.seen, anew
	if h.index != c.Index() || !mine.jobs.like(&theirs.jobs) || !mine.sets.like(&theirs.sets) || !mine.machines.like(&theirs.machines) {
		return fmt.Errorf("what was seen is of index %d, with %d jobs, %d alloc sets and %d machines; the cell of index %d, with %d, %d and %d",
			h.index, len(mine.jobs.by), len(mine.sets.by), len(mine.machines.by), c.Index(), len(theirs.jobs.by), len(theirs.sets.by), len(theirs.machines.by))
	}
	differ := func(kind borgpb.ObjectKind, k key, a, b *object) error {
		if x, y := a.proto(kind, k.index), b.proto(kind, k.index); !proto.Equal(x, y) {
			return fmt.Errorf("%v %v/%d was seen as %v, and is %v", kind, k.uid, k.index, x, y)
		}
		return nil
	}
	compare := func(kind, members borgpb.ObjectKind) error {
		for uid, g := range theirs.of(kind).by {
			o := mine.of(kind).by[uid]
			if o == nil || len(o.members) != len(g.members) {
				return fmt.Errorf("%v %v is not seen with its %d members", kind, uid, len(g.members))
			}
			err := differ(kind, key{uid: uid}, o.own, g.own)
			for i := range g.members {
				err = cmp.Or(err, differ(members, key{uid, uint32(i)}, o.members[i], g.members[i]))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	err := compare(borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK)
	err = cmp.Or(err, compare(borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC))
	return cmp.Or(err, compare(borgpb.ObjectKind_OBJECT_KIND_MACHINE, borgpb.ObjectKind_OBJECT_KIND_UNSPECIFIED))
}

// trim forgets what is too much or too old.
func (h *Hub) trim(nowNs int64) {
	n := 0
	for ; n < len(h.ring); n++ {
		b := h.ring[n]
		old := h.cfg.KeepNs > 0 && nowNs-b.cellNs > h.cfg.KeepNs
		much := n+1 < len(h.ring) && (h.held.changes > h.cfg.Changes || h.held.bytes > h.cfg.Bytes)
		if !old && !much {
			break
		}
		h.held.changes -= b.changes
		h.held.bytes -= b.bytes
		h.floor = b.index
		h.ring[n] = nil
	}
	h.ring = h.ring[n:]
}

// Forget forgets what is held, as if it were too old.
func (h *Hub) Forget() {
	h.ring, h.held.changes, h.held.bytes, h.floor = nil, 0, 0, h.index
}

// From is where a watch is resumed: behind an index that was told in full.
type From struct{ Index, Epoch uint64 }

// Watch begins a watch, with the state or behind an index. wake is called when there
// is something to be had from Next that was not there before; it must not call back.
func (h *Hub) Watch(q Query, from *From, wake func()) (*Watch, error) {
	if q.Sight == nil {
		q.sight = cell.SightOfAll()
	}
	w := &Watch{hub: h, query: q, wake: wake}
	if from == nil {
		w.told = h.index
		w.begin()
	} else if err := h.resume(w, *from); err != nil {
		return nil, err
	}
	h.watches = append(h.watches, w)
	return w, nil
}

func (h *Hub) resume(w *Watch, from From) error {
	switch {
	case from.Epoch != 0 && from.Epoch != h.epoch:
		return &RelistError{From: from.Index, Oldest: h.floor, Why: fmt.Sprintf("it is of epoch %d, and the cell was restored and is of epoch %d", from.Epoch, h.epoch)}
	case from.Index > h.index:
		return &AheadError{From: from.Index, Index: h.index}
	case from.Index < h.readingSince:
		return &RelistError{From: from.Index, Oldest: h.readingSince, Why: "who may read what has changed since"}
	case h.forgot(from.Index):
		return &RelistError{From: from.Index, Oldest: h.floor, Why: "so far back changes are not held any more"}
	}
	w.told, w.behind = from.Index, true
	if mutant.Planted(mutant.WatchGoesBack) {
		w.told -= min(w.told, 3)
	}
	return nil
}

// forgot reports whether changes after index have been dropped.
func (h *Hub) forgot(index uint64) bool {
	return index < h.floor && !mutant.Planted(mutant.WatchOverCompaction)
}

// Leave ends a watch.
func (h *Hub) Leave(w *Watch) {
	h.unlist(w)
	if i := slices.Index(h.watches, w); i >= 0 {
		h.watches = slices.Delete(h.watches, i, i+1)
	}
}

// anchor is a property by which watches are found that an object could match. Each
// watch hangs on the one that is likely the rarest: the job, a label, the owner.
type anchor struct {
	kind borgpb.ObjectKind
	by   byte
	a, b string
}

const (
	byAll = iota
	byUser
	byName
	byLabel
)

// anchors of a query: what it can match has one of them.
func (q *Query) anchors() (all []anchor) {
	pairs := q.Selector.Pairs()
	switch {
	case q.Name != "":
		return []anchor{{q.Kind, byName, q.User, q.Name}}
	case len(pairs) > 0:
		for _, p := range pairs {
			if a := (anchor{q.Kind, byLabel, p.Key, p.Value}); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
		return all
	case q.User != "":
		return []anchor{{q.Kind, byUser, q.User, ""}}
	}
	return []anchor{{q.Kind, byAll, "", ""}}
}

func (h *Hub) list(w *Watch) {
	for _, a := range w.query.anchors() {
		h.live[a] = append(h.live[a], w)
	}
	w.listed = true
}

func (h *Hub) unlist(w *Watch) {
	if !w.listed {
		return
	}
	w.listed = false
	for _, a := range w.query.anchors() {
		if rest := slices.DeleteFunc(h.live[a], func(o *Watch) bool { return o == w }); len(rest) > 0 {
			h.live[a] = rest
		} else {
			delete(h.live, a)
		}
	}
}

// offer gives a run to the watches that it matches, and looks at few others.
func (h *Hub) offer(index uint64, r *run) {
	if len(h.live) == 0 {
		return
	}
	h.offered++
	c := &r.changes[0]
	at := func(a anchor) {
		// Backwards: a watch that is cut off leaves the list.
		for i, list := len(h.live[a])-1, h.live[a]; i >= 0; i-- {
			w := list[i]
			if w.offered == h.offered {
				continue
			}
			w.offered = h.offered
			h.looked++
			if w.query.matches(c.before) || w.query.matches(c.after) {
				w.deliver(index, r)
			}
		}
	}
	at(anchor{r.kind, byAll, "", ""})
	for _, o := range []*object{c.before, c.after} {
		if o == nil {
			continue
		}
		name := o.head.name
		at(anchor{r.kind, byUser, name.User, ""})
		at(anchor{r.kind, byName, name.User, name.Name})
		at(anchor{r.kind, byName, "", name.Name})
		for _, p := range o.head.pairs {
			at(anchor{r.kind, byLabel, p.Key, p.Value})
		}
		if c.before != nil && c.after != nil && c.before.head == c.after.head {
			return
		}
	}
}

// RelistError ends or refuses a watch that cannot be told all that changed.
type RelistError struct {
	// It was told all up to From; all later than Oldest is held.
	From, Oldest uint64
	Why          string
}

func (e *RelistError) Error() string {
	return fmt.Sprintf("the changes after index %d cannot be told: %s; the oldest index to watch from is %d. List again: watch from index 0, which sends the state first", e.From, e.Why, e.Oldest)
}

// CutOffError ends a watch whose changes were not taken fast enough.
type CutOffError struct {
	// It was told all up to that index; 0: not even the state.
	Resume uint64
}

func (e *CutOffError) Error() string {
	if e.Resume == 0 {
		return "this watch is too slow: the cell changed faster than its state was taken; begin again"
	}
	return fmt.Sprintf("this watch is too slow: too many changes wait for it; go on from index %d, here or at another replica", e.Resume)
}

// AheadError refuses a watch from an index that this replica has not come to.
type AheadError struct{ From, Index uint64 }

func (e *AheadError) Error() string {
	return fmt.Sprintf("index %d is still to come: this replica is at index %d", e.From, e.Index)
}
