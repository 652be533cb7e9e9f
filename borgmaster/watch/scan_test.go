package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// copyOf is what a watcher knows of a cell.
type copyOf struct {
	t       *testing.T
	w       *Watch
	objects map[string]*borgrpc.WatchObject
	// What there was at the index of the state.
	then  map[string]*borgrpc.WatchObject
	index uint64
	// The state has come in full.
	listed bool
	pages  int
}

func shownNow(l *log, q Query) map[string]*borgrpc.WatchObject {
	all := map[string]*borgrpc.WatchObject{}
	for name, o := range Shown(l.c, q.Kind) {
		if meta, labels := Labels(o); q.Selector.Matches(labels) && (q.User == "" || q.User == meta.User) {
			all[name] = o
		}
	}
	return all
}

func (c *copyOf) begin(l *log, q Query) {
	c.w, c.objects, c.then, c.listed, c.index = l.watch(q, nil), map[string]*borgrpc.WatchObject{}, shownNow(l, q), false, l.c.Index()
}

// step takes at most n messages, and begins anew if it was cut off.
func (c *copyOf) step(l *log, q Query, n int) (idle bool) {
	c.t.Helper()
	for range n {
		m, again, err := c.w.Next()
		if err != nil {
			c.begin(l, q)
			return false
		}
		if m == nil {
			if again {
				continue
			}
			return true
		}
		c.take(m.Proto())
	}
	return false
}

func (c *copyOf) take(m *borgrpc.WatchResponse) {
	c.t.Helper()
	for _, one := range m.Changes {
		name := NameOf(one)
		if m.State && c.objects[name] != nil {
			c.t.Fatalf("the state has %s twice", name)
		}
		if c.objects[name] = one.Object; one.Gone {
			delete(c.objects, name)
		}
	}
	if !m.State {
		return
	}
	if c.pages++; m.Index != c.index {
		c.t.Fatalf("the state is of index %d, want %d", m.Index, c.index)
	}
	if !m.More {
		c.listed = true
		if wrong := differ(c.objects, c.then); wrong != "" {
			c.t.Fatalf("the state of index %d: %s", m.Index, wrong)
		}
	}
}

func differ(got, want map[string]*borgrpc.WatchObject) string {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] == nil {
			return "lacks " + name
		}
		if !proto.Equal(got[name], want[name]) {
			return fmt.Sprintf("%s is %v, want %v", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("has %d objects, want %d", len(got), len(want))
	}
	return ""
}

// anyChange is a random change of what the walk has.
func anyChange(r *rand.Rand, l *log) *borgpb.Op {
	name := fmt.Sprint("j", r.IntN(30))
	labels := map[string]string{"tier": []string{"web", "db"}[r.IntN(2)]}
	switch r.IntN(8) {
	case 0, 1, 2:
		return submit(name, uint32(1+r.IntN(12)), labels)
	case 3:
		return kill(name)
	case 4, 5:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: name, Tasks: uint32(1 + r.IntN(12))}}}
	case 6:
		return l.machine(fmt.Sprint("m", r.IntN(20)))
	}
	if j := l.c.Job(cell.JobKey{User: "alice", Name: name}); j != nil {
		return assign(j, uint32(r.IntN(int(j.NumTasks()))), fmt.Sprint("m", r.IntN(20)))
	}
	return label(name)
}

// TestSlowWatchersEndWithTheSameState has watchers take a state page by page while the cell
// changes at random. Each state is as the cell was at its index, and whoever was slow
// knows in the end what whoever was fast knows, and what there is.
func TestSlowWatchersEndWithTheSameState(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			l := newLog(t, Config{MessageChanges: 1 + r.IntN(5), QueueChanges: 20 + r.IntN(400)})
			l.h.looks, l.mayRefuse = 1+r.IntN(12), true
			for range 60 {
				l.apply(anyChange(r, l))
			}
			type pair struct {
				q          Query
				slow, fast *copyOf
			}
			var all []pair
			for _, kind := range Kinds {
				for _, text := range []string{"", "tier=web", "tier!=web"} {
					s, err := selector.Parse(text)
					if err != nil {
						t.Fatal(err)
					}
					p := pair{Query{Kind: kind, Selector: s}, &copyOf{t: t}, &copyOf{t: t}}
					p.slow.begin(l, p.q)
					p.fast.begin(l, p.q)
					all = append(all, p)
				}
			}
			for range 300 {
				l.apply(anyChange(r, l))
				for _, p := range all {
					p.fast.step(l, p.q, 1_000)
					if r.IntN(3) == 0 {
						p.slow.step(l, p.q, 1)
					}
				}
			}
			if err := l.h.Check(l.c); err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				for !p.slow.step(l, p.q, 1_000) {
				}
				p.fast.step(l, p.q, 1_000)
				for who, c := range map[string]*copyOf{"slow": p.slow, "fast": p.fast} {
					if wrong := differ(c.objects, shownNow(l, p.q)); wrong != "" || !c.listed {
						t.Errorf("%v: who is %s, after %d pages: %s", p.q.Kind, who, c.pages, wrong)
					}
				}
			}
		})
	}
}

// TestPlaces adds and removes groups at random.
func TestPlaces(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	all, want := newGroups(), map[cell.UID]*group{}
	for i := range 20_000 {
		g := &group{own: &object{head: &head{name: cell.JobKey{User: "u", Name: fmt.Sprint(r.IntN(3_000))}, uid: cell.UID{Index: uint64(i)}}}}
		all.add(g)
		want[g.own.head.uid] = g
		for r.IntN(2) == 0 {
			old := cell.UID{Index: uint64(r.IntN(i + 1))}
			if was := want[old]; was != nil {
				all.remove(was)
				delete(want, old)
			}
		}
	}
	again := newGroups()
	for _, g := range slices.SortedFunc(maps.Values(want), func(a, b *group) int { return a.place().compare(b.place()) }) {
		again.add(g)
	}
	if !all.like(&again) {
		t.Fatalf("there are %d groups, want %d in order", len(all.by), len(want))
	}
	middle := slices.Collect(again.from(place{}))[len(want)/2]
	if rest := slices.Collect(all.from(middle.place())); len(rest) != len(want)-len(want)/2 || rest[0] != middle {
		t.Errorf("from the middle on there are %d of %d groups", len(rest), len(want))
	}
	// One after the other fills the blocks.
	if most := len(want)/placesInBlock + 1; len(again.blocks) != most {
		t.Errorf("%d groups in order take %d blocks, want %d", len(want), len(again.blocks), most)
	}
}

// heldBy returns the heap that is held after f, beyond what was before.
func heldBy(f func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// TestWatchesThatAreNotReadHoldLittle: a watch holds no list of what there is, and after a
// change of everything no list of what there was: however many objects, it holds the same.
func TestWatchesThatAreNotReadHoldLittle(t *testing.T) {
	const watches, mostEach = 100, 64 << 10
	l := newLog(t, Config{QueueBytes: 1 << 30, Changes: 1 << 30, Bytes: 1 << 40})
	for i := range 200 {
		var ops []*borgpb.Op
		for j := range 50 {
			ops = append(ops, submit(fmt.Sprintf("small-%d-%d", i, j), 1, nil))
		}
		l.apply(ops...)
	}
	l.apply(submit("large", 100_000, nil))
	for _, kind := range []borgpb.ObjectKind{jobs, tasks} {
		var all []*Watch
		if held := heldBy(func() {
			for range watches {
				w := l.watch(Query{Kind: kind}, nil)
				all = append(all, w)
				if m, _, err := w.Next(); m == nil || !m.More || err != nil {
					t.Fatalf("the first page: %v, %v", m, err)
				}
			}
		}); held > watches*mostEach {
			t.Errorf("%d watches of %v that took a page hold %d KiB each", watches, kind, held/watches>>10)
		}
		before := len(l.h.ring)
		l.apply(kill("large"))
		if len(l.h.ring) != before+1 {
			t.Fatal("nothing was told of a job that was killed")
		}
		if held := heldBy(func() {
			for _, w := range all {
				if m, again, err := w.Next(); m == nil && !again || err != nil {
					t.Fatalf("the next page: %v", err)
				}
			}
		}); held > watches*mostEach {
			t.Errorf("%d watches of %v that took a page after a change of all hold %d KiB each", watches, kind, held/watches>>10)
		}
		for _, w := range all {
			l.h.Leave(w)
		}
		all = nil
		l.apply(submit("large", 100_000, nil))
	}
}
