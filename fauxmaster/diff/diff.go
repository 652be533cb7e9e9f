// Package diff says what is different between two moments of a cell: jobs, alloc
// sets, tasks, machines, users, and what else has a name.
//
// # What it guarantees
//
// Nothing is guessed from names where the cell knows better: a job that was killed
// and submitted again under its name is another job (uids differ), and why a task
// lost its place is what the later cell remembers of the copy. What it does not
// remember any more is left empty. Both cells are only read, and the answer is
// in order of names.
//
// # What it does not tell
//
// What came and went between the two moments, and what moves all the time:
// reservations, clocks, remembered requests.
package diff

import (
	"maps"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Kind is what became of an object.
type Kind string

// Kinds of changes. Replaced is another object under the same name.
const (
	Added    Kind = "added"
	Removed  Kind = "removed"
	Replaced Kind = "replaced"
	Changed  Kind = "changed"
)

// Object is an object that is not as it was.
type Object struct {
	Name string `json:"name"`
	Kind Kind   `json:"change"`
	// Fields that differ, of what is changed or replaced.
	Fields []Field `json:"fields,omitempty"`
}

// Named is an object of a kind of which only the presence and version are compared.
type Named struct {
	Of   string `json:"of"`
	Name string `json:"name"`
	Kind Kind   `json:"change"`
}

// Count is how many tasks shared a fate for a reason.
type Count struct {
	Fate  Fate   `json:"fate"`
	Why   string `json:"why,omitempty"`
	Count int    `json:"count"`
}

// Moment is what a cell is at one moment, in sums.
type Moment struct {
	Index    uint64 `json:"index"`
	WallNs   int64  `json:"wallNs"`
	Machines int    `json:"machines"`
	Up       int    `json:"machinesUp"`
	Jobs     int    `json:"jobs"`
	Running  int    `json:"running"`
	Pending  int    `json:"pending"`
	Dead     int    `json:"dead"`
}

// Diff is everything that is different.
type Diff struct {
	// OtherCell: the two are not moments of one cell (or of one epoch of it);
	// then objects are compared by their names alone,
	// and nobody knows why a task left its place.
	OtherCell bool   `json:"otherCell,omitempty"`
	A         Moment `json:"a"`
	B         Moment `json:"b"`
	// Counts sum up Tasks, the most first.
	Counts    []Count  `json:"taskCounts,omitempty"`
	Jobs      []Object `json:"jobs,omitempty"`
	AllocSets []Object `json:"allocSets,omitempty"`
	Machines  []Object `json:"machines,omitempty"`
	Users     []Object `json:"users,omitempty"`
	// Others are secrets, files and bans.
	Others []Named `json:"others,omitempty"`
	Tasks  []Task  `json:"tasks,omitempty"`
}

// Empty tells that nothing is different that a Diff knows of.
func (d *Diff) Empty() bool {
	return len(d.Jobs)+len(d.AllocSets)+len(d.Machines)+len(d.Users)+len(d.Others)+len(d.Tasks) == 0
}

// Of compares two cells, a being the earlier one.
func Of(a, b *cell.Cell) *Diff {
	d := &Diff{OtherCell: a.ID() != b.ID() || a.Epoch() != b.Epoch(), A: momentOf(a), B: momentOf(b)}
	d.jobs(a, b)
	d.allocSets(a, b)
	d.machines(a, b)
	d.users(a, b)
	d.others(a, b)
	d.count()
	return d
}

func momentOf(c *cell.Cell) Moment {
	m := Moment{Index: c.Index(), WallNs: c.WallNs(), Machines: c.NumMachines(), Jobs: c.NumJobs()}
	for at := range c.Machines() {
		if at.Up() {
			m.Up++
		}
	}
	for j := range c.Jobs() {
		pending, running, dead := j.Counts()
		m.Running, m.Pending, m.Dead = m.Running+int(running), m.Pending+int(pending), m.Dead+int(dead)
	}
	return m
}

// pair is an object at both moments; nil: it was not there.
type pair[T any] struct {
	name string
	a, b *T
}

// pairs puts together what has the same name, in order of names.
func pairs[T any](a, b map[string]*T) (all []pair[T]) {
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if a[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, pair[T]{name, a[name], b[name]})
	}
	return all
}

// here tells what became of an object by its being there; empty: it was at both
// moments.
func (p pair[T]) here() Kind {
	switch {
	case p.a == nil:
		return Added
	case p.b == nil:
		return Removed
	}
	return ""
}

func (d *Diff) jobs(a, b *cell.Cell) {
	byName := func(c *cell.Cell) map[string]*cell.Job {
		all := make(map[string]*cell.Job, c.NumJobs())
		for j := range c.Jobs() {
			all[j.Key().String()] = j
		}
		return all
	}
	for _, p := range pairs(byName(a), byName(b)) {
		o := Object{Name: p.name, Kind: p.here()}
		same := false
		if o.Kind == "" {
			same = d.OtherCell || p.a.UID() == p.b.UID()
			if o.Kind = Changed; !same {
				o.Kind = Replaced
			}
			o.Fields = fieldsOf(p.a.Spec(), p.b.Spec())
			o.note("labels", mapText(p.a.Labels()), mapText(p.b.Labels()))
			o.note("state", stateWord(p.a.State()), stateWord(p.b.State()))
		}
		if o.Kind != Changed || len(o.Fields) > 0 {
			d.Jobs = append(d.Jobs, o)
		}
		if same {
			d.tasks(p.a, p.b, b)
			continue
		}
		d.tasks(p.a, nil, b)
		d.tasks(nil, p.b, b)
	}
}

func (d *Diff) allocSets(a, b *cell.Cell) {
	byName := func(c *cell.Cell) map[string]*cell.AllocSet {
		all := make(map[string]*cell.AllocSet)
		for s := range c.AllocSets() {
			all[s.Key().String()] = s
		}
		return all
	}
	for _, p := range pairs(byName(a), byName(b)) {
		o := Object{Name: p.name, Kind: p.here()}
		if o.Kind == "" {
			if o.Kind = Changed; !d.OtherCell && p.a.UID() != p.b.UID() {
				o.Kind = Replaced
			}
			o.Fields = fieldsOf(p.a.Spec(), p.b.Spec())
			o.note("labels", mapText(p.a.Labels()), mapText(p.b.Labels()))
			o.note("state", stateWord(p.a.State()), stateWord(p.b.State()))
		}
		if o.Kind != Changed || len(o.Fields) > 0 {
			d.AllocSets = append(d.AllocSets, o)
		}
	}
}

func (d *Diff) machines(a, b *cell.Cell) {
	byName := func(c *cell.Cell) map[string]*cell.Machine {
		all := make(map[string]*cell.Machine, c.NumMachines())
		for m := range c.Machines() {
			all[m.Name()] = m
		}
		return all
	}
	for _, p := range pairs(byName(a), byName(b)) {
		o := Object{Name: p.name, Kind: p.here()}
		if o.Kind == "" {
			if o.Kind = Changed; !d.OtherCell && p.a.UID() != p.b.UID() {
				o.Kind = Replaced
			}
			o.Fields = fieldsOf(a.MachineProto(p.a).GetSpec(), b.MachineProto(p.b).GetSpec())
			o.note("labels", mapText(p.a.Labels()), mapText(p.b.Labels()))
			o.note("state", machineWord(p.a), machineWord(p.b))
		}
		if o.Kind != Changed || len(o.Fields) > 0 {
			d.Machines = append(d.Machines, o)
		}
	}
}

// users compares what users may do. A user who was granted nothing is not there.
func (d *Diff) users(a, b *cell.Cell) {
	byName := func(c *cell.Cell) map[string]*cell.User {
		all := make(map[string]*cell.User)
		for u := range c.Users() {
			all[u.Name()] = u
		}
		return all
	}
	words := func(u *cell.User) string {
		var all []string
		for _, k := range u.Capabilities() {
			all = append(all, string(k))
		}
		return strings.Join(all, ", ")
	}
	for _, p := range pairs(byName(a), byName(b)) {
		o := Object{Name: p.name, Kind: p.here()}
		switch o.Kind {
		case Added:
			o.note("capabilities", "", words(p.b))
		case Removed:
			o.note("capabilities", words(p.a), "")
		default:
			o.Kind = Changed
			o.note("capabilities", words(p.a), words(p.b))
			o.note("revoked", wallText(p.a.RevokedWallNs()), wallText(p.b.RevokedWallNs()))
		}
		if o.Kind != Changed || len(o.Fields) > 0 {
			d.Users = append(d.Users, o)
		}
	}
}

// others compares what has a name and a version. Contents are not shown.
func (d *Diff) others(a, b *cell.Cell) {
	versions := func(c *cell.Cell) map[string]map[string]*uint64 {
		all := map[string]map[string]*uint64{"secret": {}, "file": {}, "ban": {}}
		for s := range c.Secrets() {
			v := s.Version()
			all["secret"][s.User()+"/"+s.Name()] = &v
		}
		for f := range c.AllFiles() {
			v := f.Version()
			all["file"][f.User()+"/"+f.Name()] = &v
		}
		for k := range c.Bans() {
			v := uint64(k.ExpiresWallNs())
			all["ban"][k.Words()] = &v
		}
		return all
	}
	was, is := versions(a), versions(b)
	for _, of := range []string{"secret", "file", "ban"} {
		for _, p := range pairs(was[of], is[of]) {
			kind := p.here()
			if kind == "" && *p.a != *p.b {
				kind = Changed
			}
			if kind != "" {
				d.Others = append(d.Others, Named{of, p.name, kind})
			}
		}
	}
}

func stateWord(s borgpb.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

func machineWord(m *cell.Machine) string {
	words := "up"
	if !m.Up() {
		words = "down"
	}
	if m.Draining() {
		words += ", draining"
	}
	return words
}
