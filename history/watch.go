package history

import (
	"bytes"
	"fmt"
	"slices"
)

// Object is an object that can be watched, at some index.
type Object struct {
	// As it is shown.
	Value []byte
	// By which it is picked.
	User, Name string
	Labels     map[string]string
}

// Past is all objects as they were at each index, by name. It knows it by looking at
// all of them each time, and so does not believe who says what changed.
type Past struct {
	versions map[string][]version
	now      map[string]Object
	// Indices at which something changed, ascending, and the names of what.
	changed []uint64
	names   map[uint64][]string
	// The index that was looked at last, and first.
	last, first uint64
}

type version struct {
	index uint64
	// Nil: it was gone.
	object *Object
}

// NewPast knows nothing yet.
func NewPast() *Past { return &Past{versions: map[string][]version{}, names: map[uint64][]string{}} }

// Look takes in all objects as they are at an index, in the order of indices.
func (p *Past) Look(index uint64, all map[string]Object) {
	if p.now == nil {
		p.first = index
	}
	var names []string
	for name, o := range all {
		if was, ok := p.now[name]; !ok || !bytes.Equal(was.Value, o.Value) {
			p.versions[name] = append(p.versions[name], version{index, &o})
			names = append(names, name)
		}
	}
	for name := range p.now {
		if _, ok := all[name]; !ok {
			p.versions[name] = append(p.versions[name], version{index, nil})
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		p.changed = append(p.changed, index)
		p.names[index] = names
	}
	p.now, p.last = all, index
}

// at is an object as it was when index was applied; nil: it was not there.
func (p *Past) at(index uint64, name string) *Object {
	v := p.versions[name]
	for i := len(v) - 1; i >= 0; i-- {
		if v[i].index <= index {
			return v[i].object
		}
	}
	return nil
}

// Change is a change as a watch told it. Nil values are of what was not there.
type Change struct {
	Name            string
	Value, Previous []byte
	Create, Gone    bool
}

// Watched holds what one watch tells against the past. Its errors name the property
// that does not hold.
type Watched struct {
	Past  *Past
	Picks func(*Object) bool
	// Shows reports whether who watches may read an object; nil: everything may be read.
	// One that may not be is told without its value, and only if it was picked before or is after.
	Shows func(*Object) bool
	// All up to this index was told, in full.
	Told uint64
}

func (w *Watched) picks(o *Object) bool { return w.shown(o) != nil && w.Picks(o) }

// shown is an object as it is told; nil when it may not be read.
func (w *Watched) shown(o *Object) *Object {
	if o == nil || w.Shows != nil && !w.Shows(o) {
		return nil
	}
	return o
}

// due are the names that a watch is told of at an index.
func (w *Watched) due(index uint64) (names []string) {
	for _, name := range w.Past.names[index] {
		if w.picks(w.Past.at(index-1, name)) || w.picks(w.Past.at(index, name)) {
			names = append(names, name)
		}
	}
	return names
}

// none: nothing was due after Told and before index.
func (w *Watched) none(property string, index uint64) error {
	at, _ := slices.BinarySearch(w.Past.changed, w.Told+1)
	for _, i := range w.Past.changed[at:] {
		if i >= index {
			break
		}
		if due := w.due(i); len(due) > 0 {
			return fmt.Errorf("%s: index %d came after %d, and at %d %v changed, which was not told", property, index, w.Told, i, due)
		}
	}
	return nil
}

// State takes in all objects of a state.
func (w *Watched) State(index uint64, got map[string][]byte) error {
	if index > w.Past.last || index < w.Past.first {
		return fmt.Errorf("state: it is of index %d, which was not applied", index)
	}
	want := 0
	for name := range w.Past.versions {
		o := w.Past.at(index, name)
		if !w.picks(o) {
			continue
		}
		if want++; !bytes.Equal(got[name], o.Value) {
			return fmt.Errorf("state: %s at index %d is told as %q, and was %q", name, index, got[name], o.Value)
		}
	}
	if len(got) != want {
		return fmt.Errorf("state: index %d is told with %d objects, and had %d", index, len(got), want)
	}
	w.Told = index
	return nil
}

// Bookmark takes in that nothing changed up to index.
func (w *Watched) Bookmark(index uint64) error {
	if index < w.Told || index > w.Past.last {
		return fmt.Errorf("bookmarkable: a bookmark of index %d after %d, with %d applied", index, w.Told, w.Past.last)
	}
	if err := w.none("bookmarkable", index+1); err != nil {
		return err
	}
	w.Told = index
	return nil
}

// Changes takes in all changes of an index.
func (w *Watched) Changes(index uint64, got []Change) error {
	if index <= w.Told {
		return fmt.Errorf("ordered: changes of index %d after %d", index, w.Told)
	}
	if err := w.none("reliable", index); err != nil {
		return err
	}
	due := w.due(index)
	told := map[string]bool{}
	for _, c := range got {
		if told[c.Name] {
			return fmt.Errorf("unique: %s is told twice at index %d", c.Name, index)
		}
		told[c.Name] = true
		before, after := w.Past.at(index-1, c.Name), w.Past.at(index, c.Name)
		switch {
		case !w.picks(before) && !w.picks(after):
			return fmt.Errorf("filter: %s is told at index %d, and does not match", c.Name, index)
		case !slices.Contains(due, c.Name):
			return fmt.Errorf("ordered: %s is told at index %d, and did not change there", c.Name, index)
		case !sameValue(c.Previous, w.shown(before)):
			return fmt.Errorf("prevKV: %s before index %d is told as %q, and was %v", c.Name, index, c.Previous, before)
		case !sameValue(c.Value, w.shown(after)):
			return fmt.Errorf("reliable: %s at index %d is told as %q, and was %v", c.Name, index, c.Value, after)
		case c.Create != (before == nil):
			return fmt.Errorf("isCreate: %s at index %d is told as made: %v, and was there before: %v", c.Name, index, c.Create, before != nil)
		case c.Gone == w.picks(after):
			return fmt.Errorf("filter: %s at index %d is told as gone: %v, and matches: %v", c.Name, index, c.Gone, w.picks(after))
		}
	}
	if len(told) != len(due) {
		return fmt.Errorf("atomic: %d changes are told of index %d, and there were %d: %v", len(told), index, len(due), due)
	}
	w.Told = index
	return nil
}

// Left says whether something is due after Told.
func (w *Watched) Left() error { return w.none("reliable", w.Past.last+1) }

func sameValue(got []byte, o *Object) bool {
	if o == nil {
		return got == nil
	}
	return got != nil && bytes.Equal(got, o.Value)
}
