package watch

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// group is a job and its tasks, or an alloc set and its allocs, as they were shown
// last: the cell has no past.
type group struct {
	key cell.JobKey
	uid cell.UID
	own *object
	// Tasks or allocs by index.
	members []*object

	// The own state is dead.
	dead bool

	// Of a job: the present spec, as committed and as shown.
	present *cell.Spec
	shown   *borgpb.JobSpec
	// What all tasks are that were never placed and are pending, or dead; nil: not
	// needed so far, or not as it should be any more.
	unplaced [2]*object
}

// seen is all that was shown last.
type seen struct {
	jobs, sets map[cell.UID]*group
	machines   map[cell.UID]*object
}

// feeding collects what an entry changed.
type feeding struct {
	c       *cell.Cell
	seen    *seen
	changes []change
}

func newSeen() *seen {
	return &seen{jobs: map[cell.UID]*group{}, sets: map[cell.UID]*group{}, machines: map[cell.UID]*object{}}
}

func (f *feeding) note(kind borgpb.ObjectKind, k key, before, after *object) {
	f.changes = append(f.changes, change{kind, k, before, after})
}

// all takes in a cell of which nothing was seen yet.
func (f *feeding) all() {
	for j := range f.c.Jobs() {
		f.job(j)
	}
	for s := range f.c.AllocSets() {
		f.set(s)
	}
	for m := range f.c.Machines() {
		f.machine(m)
	}
	f.changes = nil
}

// changed takes in what the last Apply changed, in an order that is that of no
// replica in particular.
func (f *feeding) changed() {
	all := f.c.Changed()
	slices.SortFunc(all.Jobs, func(a, b *cell.Job) int { return compareObjects(a.Key(), b.Key(), a.UID(), b.UID()) })
	scanned := make(map[cell.UID]bool)
	for _, j := range all.Jobs {
		scanned[j.UID()] = f.job(j)
	}
	slices.SortFunc(all.Tasks, func(a, b *cell.Task) int {
		return cmp.Or(compareObjects(a.ID().Job, b.ID().Job, a.Job().UID(), b.Job().UID()), cmp.Compare(a.ID().Index, b.ID().Index))
	})
	for _, t := range all.Tasks {
		if g := f.seen.jobs[t.Job().UID()]; g != nil && !scanned[t.Job().UID()] {
			f.task(g, t.Job(), t.ID().Index)
		}
	}
	slices.SortFunc(all.AllocSets, func(a, b *cell.AllocSet) int { return compareObjects(a.Key(), b.Key(), a.UID(), b.UID()) })
	for _, s := range all.AllocSets {
		f.set(s)
	}
	slices.SortFunc(all.Allocs, func(a, b *cell.Alloc) int {
		return cmp.Or(compareObjects(a.Set().Key(), b.Set().Key(), a.Set().UID(), b.Set().UID()), cmp.Compare(a.Index(), b.Index()))
	})
	for _, a := range all.Allocs {
		f.alloc(a)
	}
	slices.SortFunc(all.Machines, func(a, b *cell.Machine) int { return cmp.Or(cmp.Compare(a.Name(), b.Name()), a.UID().Compare(b.UID())) })
	for _, m := range all.Machines {
		f.machine(m)
	}
}

func compareObjects(a, b cell.JobKey, x, y cell.UID) int { return cmp.Or(a.Compare(b), x.Compare(y)) }

// job looks at a job, and says whether it looked at all of its tasks too: those that
// it has no record of follow from it.
func (f *feeding) job(j *cell.Job) (scanned bool) {
	g := f.seen.jobs[j.UID()]
	if j.Gone() {
		f.gone(f.seen.jobs, g, borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK)
		return true
	}
	if g == nil {
		g = &group{key: j.Key(), uid: j.UID()}
		f.seen.jobs[j.UID()] = g
	}
	was := g.own
	p := j.Alone()
	scanned = was == nil || g.present != j.PresentSpec() || len(g.members) != int(j.NumTasks())
	if was == nil || g.present != j.PresentSpec() || int(g.shown.Tasks) != int(j.NumTasks()) {
		g.present, g.shown = j.PresentSpec(), p.Spec
		if int(p.Spec.Tasks) != int(j.NumTasks()) {
			g.shown = proto.CloneOf(p.Spec)
			g.shown.Tasks = j.NumTasks()
		}
	}
	var oldHead *head
	if was != nil {
		oldHead = was.head
	}
	now := &object{head: headOf(oldHead, p.Meta, p.Meta.Labels), version: p.Meta.Version, spec: g.shown, status: marshal(p.Status)}
	if same(was, now) {
		now = was
	} else {
		g.own = now
		f.note(borgpb.ObjectKind_OBJECT_KIND_JOB, key{uid: g.uid}, was, now)
	}
	// What is never placed is dead when its job is, and not before.
	dead := j.State() == borgpb.State_STATE_DEAD
	if scanned = scanned || now.head != oldHead || dead != g.dead; scanned {
		g.dead = dead
		g.unplaced = [2]*object{}
		f.tasks(g, j)
	}
	return scanned
}

// tasks looks at all tasks of a job.
func (f *feeding) tasks(g *group, j *cell.Job) {
	for index := range max(len(g.members), int(j.NumTasks())) {
		f.task(g, j, uint32(index))
	}
	g.members = slices.Clip(g.members[:j.NumTasks()])
}

func (f *feeding) task(g *group, j *cell.Job, index uint32) {
	for int(index) >= len(g.members) {
		if index >= j.NumTasks() {
			return
		}
		g.members = append(g.members, nil)
	}
	was, now := g.members[index], (*object)(nil)
	if t := j.Task(index); t != nil {
		now = f.taskOf(g, j, t)
	}
	if same(was, now) {
		return
	}
	g.members[index] = now
	f.note(borgpb.ObjectKind_OBJECT_KIND_TASK, key{g.uid, index}, was, now)
}

func (f *feeding) taskOf(g *group, j *cell.Job, t *cell.Task) *object {
	which := 0
	if t.State() == borgpb.State_STATE_DEAD {
		which = 1
	}
	if t.Attempt() == 0 && g.unplaced[which] != nil {
		return g.unplaced[which]
	}
	p := f.c.TaskProto(j, t.ID().Index, false)
	o := &object{head: g.own.head, version: p.Meta.Version, spec: p.Spec, status: marshal(p.Status)}
	if t.Attempt() == 0 {
		o.spec, o.rows = nil, j.PresentSpec()
		g.unplaced[which] = o
	}
	return o
}

// gone: a group is not in the cell any more.
func (f *feeding) gone(groups map[cell.UID]*group, g *group, kind, members borgpb.ObjectKind) {
	if g == nil {
		// It came and went within one entry.
		return
	}
	f.note(kind, key{uid: g.uid}, g.own, nil)
	for index, was := range g.members {
		if was != nil {
			f.note(members, key{g.uid, uint32(index)}, was, nil)
		}
	}
	delete(groups, g.uid)
}

func (f *feeding) set(s *cell.AllocSet) {
	g := f.seen.sets[s.UID()]
	if s.Gone() {
		f.gone(f.seen.sets, g, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC)
		return
	}
	if g == nil {
		g = &group{key: s.Key(), uid: s.UID(), members: make([]*object, s.NumAllocs())}
		f.seen.sets[s.UID()] = g
	}
	var oldHead *head
	if g.own != nil {
		oldHead = g.own.head
	}
	p := f.c.AllocSetProto(s)
	now := &object{head: headOf(oldHead, p.Meta, p.Meta.Labels), version: p.Meta.Version, spec: p.Spec, status: marshal(p.Status)}
	if !same(g.own, now) {
		f.note(borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, key{uid: g.uid}, g.own, now)
		g.own = now
	}
	// Those that it has no record of follow from the set.
	if dead := p.Status.State == borgpb.State_STATE_DEAD; oldHead != now.head || dead != g.dead {
		g.dead = dead
		for a := range s.Allocs() {
			f.alloc(a)
		}
	}
}

func (f *feeding) alloc(a *cell.Alloc) {
	g := f.seen.sets[a.Set().UID()]
	if g == nil {
		return
	}
	p := a.Alone()
	was, now := g.members[a.Index()], &object{head: g.own.head, version: p.Meta.Version, status: marshal(p.Status)}
	if !same(was, now) {
		g.members[a.Index()] = now
		f.note(borgpb.ObjectKind_OBJECT_KIND_ALLOC, key{g.uid, a.Index()}, was, now)
	}
}

func (f *feeding) machine(m *cell.Machine) {
	was := f.seen.machines[m.UID()]
	if m.Gone() {
		if was != nil {
			delete(f.seen.machines, m.UID())
			f.note(borgpb.ObjectKind_OBJECT_KIND_MACHINE, key{uid: m.UID()}, was, nil)
		}
		return
	}
	var oldHead *head
	if was != nil {
		oldHead = was.head
	}
	p := m.Alone()
	now := &object{head: headOf(oldHead, p.Meta, m.SelectorLabels()), version: p.Meta.Version, status: marshal(p)}
	if !same(was, now) {
		f.seen.machines[m.UID()] = now
		f.note(borgpb.ObjectKind_OBJECT_KIND_MACHINE, key{uid: m.UID()}, was, now)
	}
}
