// Package told holds what watches of a cell tell, message by message, against the
// cell as it was at each index: what history knows of watches in general, for
// the messages of WatchService.
package told

import (
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/watch"
	"borg/history"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Past is all that can be watched of a cell, as it was at each index.
type Past struct {
	kinds map[borgpb.ObjectKind]*history.Past
}

// NewPast is that of a cell of which nothing has been applied.
func NewPast() *Past {
	p := &Past{kinds: map[borgpb.ObjectKind]*history.Past{}}
	for _, kind := range watch.Kinds {
		p.kinds[kind] = history.NewPast()
		p.kinds[kind].Look(0, map[string]history.Object{})
	}
	return p
}

// Look takes down all objects as an entry has left them. It comes after each.
func (p *Past) Look(c *cell.Cell) {
	for kind, past := range p.kinds {
		all := map[string]history.Object{}
		for name, o := range watch.Shown(c, kind) {
			meta, labels := watch.Labels(o)
			all[name] = history.Object{Value: bytesOf(o), User: meta.User, Name: meta.Name, Labels: labels}
		}
		past.Look(c.Index(), all)
	}
}

func bytesOf(o *borgrpc.WatchObject) []byte {
	if o == nil {
		return nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		panic(err)
	}
	return b
}

// Watcher holds what one who watches is told against the past. Errors name the
// property of docs/watch.md that does not hold.
type Watcher struct {
	check history.Watched
	// What came in part.
	state map[string][]byte
	parts []history.Change
}

// Watcher is one who watches that.
func (p *Past) Watcher(q watch.Query) *Watcher {
	return &Watcher{check: history.Watched{Past: p.kinds[q.Kind], Picks: func(o *history.Object) bool {
		return (q.User == "" || q.User == o.User) && (q.Name == "" || q.Name == o.Name) && q.Selector.Matches(o.Labels)
	}}}
}

// Only narrows what is told to the objects that may be read at the moment.
func (w *Watcher) Only(shows func(user string, labels map[string]string) bool) {
	w.check.Shows = func(o *history.Object) bool { return shows(o.User, o.Labels) }
}

// Told is up to where all was told, in full.
func (w *Watcher) Told() uint64 { return w.check.Told }

// Left says whether something is due that was not told.
func (w *Watcher) Left() error { return w.check.Left() }

// Again: a replica is asked anew, and what came in part comes again as a whole.
func (w *Watcher) Again() { w.state, w.parts = nil, nil }

// Bookmark takes in that nothing changed up to index.
func (w *Watcher) Bookmark(index uint64) error { return w.check.Bookmark(index) }

// Take takes in the next message.
func (w *Watcher) Take(m *borgrpc.WatchResponse) (err error) {
	switch {
	case m.State:
		if w.state == nil {
			w.state = map[string][]byte{}
		}
		for _, c := range m.Changes {
			w.state[watch.NameOf(c)] = bytesOf(c.Object)
		}
		if !m.More {
			err, w.state = w.check.State(m.Index, w.state), nil
		}
	case len(m.Changes) == 0:
		err = w.check.Bookmark(m.Index)
	default:
		for _, c := range m.Changes {
			w.parts = append(w.parts, history.Change{Name: watch.NameOf(c), Value: bytesOf(c.Object), Previous: bytesOf(c.Previous), Create: c.IsCreate, Gone: c.Gone})
		}
		if !m.More {
			err, w.parts = w.check.Changes(m.Index, w.parts), nil
		}
	}
	return err
}
