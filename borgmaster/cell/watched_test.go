package cell_test

import (
	"math/rand/v2"
	"testing"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/borgmaster/watch"
	"borg/history/told"
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
	past := told.NewPast()
	var watchers []*watcher
	for i := range 30 {
		watchers = append(watchers, newWatcher(t, r, past, watch.Kinds[i%len(watch.Kinds)]))
	}
	first := true
	cell.Walk(t, 11, 3000, func(c *cell.Cell) {
		past.Look(c)
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
			w.step(hubs)
		}
	})
	did := map[string]int{}
	for _, w := range watchers {
		w.slow = 1
		for range 1_000_000 {
			if w.step(hubs); w.w != nil && w.idle {
				break
			}
		}
		if err := w.check.Left(); err != nil {
			t.Error(err)
		}
		for k, n := range w.did {
			did[k] += n
		}
	}
	t.Logf("%v", did)
	for _, what := range []string{"states", "changes", "bookmarks", "creates", "gone", "cut off", "relisted", "resumed", "parts"} {
		if did[what] == 0 {
			t.Errorf("no %s: the walk does not come there", what)
		}
	}
}

// watcher watches at one hub or the other, sometimes slowly.
type watcher struct {
	t     *testing.T
	r     *rand.Rand
	query watch.Query
	check *told.Watcher
	// Nothing was told yet, or it has to be told anew.
	blank bool
	w     *watch.Watch
	hub   *watch.Hub
	// It looks once in so many steps.
	slow int
	idle bool
	did  map[string]int
}

func newWatcher(t *testing.T, r *rand.Rand, past *told.Past, kind borgpb.ObjectKind) *watcher {
	texts := []string{"", "", "tier=web", "tier in (web,db)", "!tier", "tier!=web", "arch=x86", "arch"}
	s, err := selector.Parse(texts[r.IntN(len(texts))])
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{t: t, r: r, query: watch.Query{Kind: kind, Selector: s}, blank: true, slow: 1 + r.IntN(300), did: map[string]int{}}
	if r.IntN(4) == 0 && kind != borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		w.query.User = []string{"alice", "bob"}[r.IntN(2)]
	}
	w.check = past.Watcher(w.query)
	return w
}

func (w *watcher) step(hubs []*watch.Hub) {
	w.idle = false
	if w.r.IntN(w.slow) != 0 {
		return
	}
	if w.w == nil {
		w.hub = hubs[w.r.IntN(len(hubs))]
		w.check.Again()
		var from *watch.From
		if !w.blank {
			from = &watch.From{Index: w.check.Told(), Epoch: 1}
			w.did["resumed"]++
		}
		var err error
		if w.w, err = w.hub.Watch(w.query, from, func() {}); err != nil {
			w.ended(err)
			return
		}
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
		w.did["cut off"]++
		// What it would pass over by going on there must be nothing that it watches.
		if err.Resume > w.check.Told() && !w.blank {
			if wrong := w.check.Bookmark(err.Resume); wrong != nil {
				w.t.Fatalf("cut off: go on from %d, and was told up to %d: %v", err.Resume, w.check.Told(), wrong)
			}
		}
	case *watch.RelistError:
		w.did["relisted"]++
		w.blank = true
	default:
		w.t.Fatal(err)
	}
}

func (w *watcher) take(m *borgrpc.WatchResponse) {
	if m.More {
		w.did["parts"]++
	}
	switch {
	case m.State && !m.More:
		w.did["states"]++
		w.blank = false
	case m.State:
	case len(m.Changes) == 0:
		w.did["bookmarks"]++
	default:
		w.did["changes"] += len(m.Changes)
		for _, c := range m.Changes {
			if c.IsCreate {
				w.did["creates"]++
			}
			if c.Gone {
				w.did["gone"]++
			}
		}
	}
	if err := w.check.Take(m); err != nil {
		w.t.Fatalf("%+v: %v; told %v", w.query, err, m)
	}
}
