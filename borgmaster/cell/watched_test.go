package cell_test

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/borgmaster/watch"
	"borg/history"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestWalkIsWatched holds what watches are told of a random walk against the cell:
// that its list of what changed leaves nothing out, and the nine properties.
func TestWalkIsWatched(t *testing.T) {
	hubs := []*watch.Hub{
		watch.New(watch.Config{}),
		watch.New(watch.Config{Changes: 200, QueueChanges: 10, MessageChanges: 3}),
	}
	r := rand.New(rand.NewPCG(7, 7))
	var watchers []*watcher
	for i := range 30 {
		watchers = append(watchers, newWatcher(t, r, watch.Kinds[i%len(watch.Kinds)]))
	}
	past := map[borgpb.ObjectKind]*history.Past{}
	for _, kind := range watch.Kinds {
		past[kind] = history.NewPast()
	}
	first := true
	cell.Walk(t, 11, 3000, func(c *cell.Cell) {
		for _, kind := range watch.Kinds {
			past[kind].Look(c.Index(), look(c, kind))
		}
		for _, h := range hubs {
			if first {
				h.Reset(c)
				continue
			}
			h.Applied(c)
			if c.Index()%8 != 0 {
				continue
			}
			if err := h.Check(c); err != nil {
				t.Fatalf("at index %d: %v", c.Index(), err)
			}
		}
		first = false
		for _, w := range watchers {
			w.step(past[w.query.Kind], hubs)
		}
	})
	told := map[string]int{}
	for _, w := range watchers {
		w.slow = 1
		for range 1_000_000 {
			if w.step(past[w.query.Kind], hubs); w.w != nil && w.idle {
				break
			}
		}
		if err := w.check.Left(); err != nil {
			t.Error(err)
		}
		for k, n := range w.told {
			told[k] += n
		}
	}
	t.Logf("%v", told)
	for _, what := range []string{"states", "changes", "bookmarks", "creates", "gone", "cut off", "relisted", "resumed", "parts"} {
		if told[what] == 0 {
			t.Errorf("no %s: the walk does not come there", what)
		}
	}
}

func look(c *cell.Cell, kind borgpb.ObjectKind) map[string]history.Object {
	all := map[string]history.Object{}
	for name, o := range watch.Shown(c, kind) {
		all[name] = object(c, o)
	}
	return all
}

func object(c *cell.Cell, o *borgrpc.WatchObject) history.Object {
	meta, labels := watch.Labels(o)
	return history.Object{Value: bytesOf(o), User: meta.User, Name: meta.Name, Labels: labels}
}

func bytesOf(m *borgrpc.WatchObject) []byte {
	if m == nil {
		return nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// watcher watches at one hub or the other, sometimes slowly.
type watcher struct {
	t     *testing.T
	r     *rand.Rand
	query watch.Query
	check history.Watched
	// Nothing was told yet, or it has to be told anew.
	blank bool
	w     *watch.Watch
	hub   *watch.Hub
	// It looks once in so many steps.
	slow  int
	idle  bool
	state map[string][]byte
	parts []history.Change
	told  map[string]int
}

func newWatcher(t *testing.T, r *rand.Rand, kind borgpb.ObjectKind) *watcher {
	texts := []string{"", "", "tier=web", "tier in (web,db)", "!tier", "tier!=web", "arch=x86", "arch"}
	s, err := selector.Parse(texts[r.IntN(len(texts))])
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{t: t, r: r, query: watch.Query{Kind: kind, Selector: s}, blank: true, slow: 1 + r.IntN(300), told: map[string]int{}}
	if r.IntN(4) == 0 && kind != borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		w.query.User = []string{"alice", "bob"}[r.IntN(2)]
	}
	w.check.Picks = func(o *history.Object) bool {
		return (w.query.User == "" || o.User == w.query.User) && w.query.Selector.Matches(o.Labels)
	}
	return w
}

func (w *watcher) step(past *history.Past, hubs []*watch.Hub) {
	w.check.Past, w.idle = past, false
	if w.r.IntN(w.slow) != 0 {
		return
	}
	if w.w == nil {
		w.hub = hubs[w.r.IntN(len(hubs))]
		w.state, w.parts = nil, nil
		var from *watch.From
		if !w.blank {
			from = &watch.From{Index: w.check.Told, Epoch: 1}
			w.told["resumed"]++
		}
		var err error
		if w.w, err = w.hub.Watch(w.query, from, func() {}); err != nil {
			w.ended(err)
			return
		}
		w.w.Sort()
	}
	for range 1 + w.r.IntN(20) {
		m, again, err := w.w.Next()
		if err != nil {
			w.ended(err)
			return
		}
		if m == nil && !again {
			if m = w.w.Bookmark(); m == nil {
				w.idle = true
				break
			}
		}
		if m != nil {
			w.take(m.Proto())
		}
	}
	if w.r.IntN(50) == 0 {
		w.hub.Leave(w.w)
		w.w = nil
	}
}

func (w *watcher) ended(err error) {
	w.w = nil
	switch err := err.(type) {
	case *watch.CutOffError:
		w.told["cut off"]++
		if err.Resume != 0 && !w.blank && err.Resume > w.check.Told {
			w.t.Fatalf("cut off: go on from %d, and was told up to %d", err.Resume, w.check.Told)
		}
	case *watch.RelistError:
		w.told["relisted"]++
		w.blank = true
	default:
		w.t.Fatal(err)
	}
}

func (w *watcher) take(m *borgrpc.WatchResponse) {
	var err error
	if m.More {
		w.told["parts"]++
	}
	switch {
	case m.State:
		if w.state == nil {
			w.state = map[string][]byte{}
		}
		for _, c := range m.Changes {
			w.state[watch.NameOf(c)] = bytesOf(c.Object)
		}
		if !m.More {
			w.told["states"]++
			err, w.state, w.blank = w.check.State(m.Index, w.state), nil, false
		}
	case len(m.Changes) == 0:
		w.told["bookmarks"]++
		err = w.check.Bookmark(m.Index)
	default:
		for _, c := range m.Changes {
			w.parts = append(w.parts, history.Change{Name: watch.NameOf(c), Value: bytesOf(c.Object), Previous: bytesOf(c.Previous), Create: c.IsCreate, Gone: c.Gone})
			if c.IsCreate {
				w.told["creates"]++
			}
			if c.Gone {
				w.told["gone"]++
			}
		}
		if !m.More {
			w.told["changes"] += len(w.parts)
			err, w.parts = w.check.Changes(m.Index, w.parts), nil
		}
	}
	if err != nil {
		w.t.Fatalf("%+v: %v; told %v", w.query, err, m)
	}
}
