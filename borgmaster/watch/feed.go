package watch

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// group is a job and its tasks, an alloc set and its allocs, or a machine, as they were
// shown last: the cell has no past.
type group struct {
	own *object
	// Tasks or allocs by index.
	members []*object

	// The own state is dead.
	dead bool

	// Of a job: the present spec, as committed and as shown; and the one of those who
	// are no canaries of it.
	present, stable *cell.Spec
	shown           *borgpb.JobSpec
	// What all tasks of a need are that were never placed and are pending, or dead, as
	// far as that was asked for since it was so: the first that was, and the others.
	first struct {
		of unplaced
		is *object
	}
	unplaced map[unplaced]*object
}

// unplaced is what tasks have in common that were never placed.
type unplaced struct {
	need *cell.Need
	dead bool
	// The machine of a task of a daemon job.
	seat *cell.Machine
}

// seen is all that was shown last.
type seen struct{ jobs, sets, machines groups }

// of returns where the objects of a kind are.
func (s *seen) of(kind borgpb.ObjectKind) *groups {
	switch kind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK:
		return &s.jobs
	case borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		return &s.sets
	}
	return &s.machines
}

// feeding collects what an entry changed.
type feeding struct {
	c    *cell.Cell
	seen *seen
	runs []run
	look cell.Looker
	// Room for the jobs that changed, and for what one is shown with.
	jobs   []cell.ChangedJob
	status *borgpb.JobStatus
	// Objects to be used, and how many are made of a piece; 0: each by itself.
	spare []object
	piece int
	// Room for the first changes of runs, of a piece: most have no other.
	firsts []change
}

// changesInRun is how many changes a run has at most: room for so many is taken at once.
// firstsInPiece are the first changes of so many runs.
const changesInRun, firstsInPiece = 512, 64

func newSeen() *seen {
	return &seen{newGroups(), newGroups(), newGroups()}
}

func (f *feeding) note(kind borgpb.ObjectKind, k key, before, after *object) {
	last := len(f.runs) - 1
	switch {
	case last < 0 || !f.runs[last].takes(kind, k.uid, before, after):
		if len(f.firsts) == cap(f.firsts) {
			f.firsts = make([]change, 0, min(max(1, len(f.runs)), firstsInPiece))
		}
		n := len(f.firsts)
		f.firsts = f.firsts[:n+1]
		f.runs = append(f.runs, run{kind: kind, uid: k.uid, changes: f.firsts[n : n : n+1]})
		last++
	case len(f.runs[last].changes) == changesInRun:
		f.runs = append(f.runs, run{kind: kind, uid: k.uid, changes: make([]change, 0, changesInRun)})
		last++
	}
	r, c := &f.runs[last], change{k.index, before, after}
	if len(r.changes) == 0 {
		r.bytes += int(c.keeps())
	}
	r.changes = append(r.changes, c)
	r.bytes += c.bytes()
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
	f.runs = nil
}

// changed takes in what the last Apply changed, in an order that is that of no
// replica in particular.
func (f *feeding) changed() {
	all := f.c.Changed()
	f.jobs = append(f.jobs, all.Jobs...)
	slices.SortFunc(f.jobs, func(a, b cell.ChangedJob) int {
		return compareObjects(a.Job.Key(), b.Job.Key(), a.Job.UID(), b.Job.UID())
	})
	for _, in := range f.jobs {
		g, scanned := f.job(in.Job)
		if scanned {
			continue
		}
		tasks := slices.Clone(in.Tasks)
		slices.Sort(tasks)
		for _, index := range slices.Compact(tasks) {
			f.task(g, in.Job, index)
		}
	}
	for _, s := range slices.SortedFunc(slices.Values(all.AllocSets), func(a, b *cell.AllocSet) int { return compareObjects(a.Key(), b.Key(), a.UID(), b.UID()) }) {
		f.set(s)
	}
	for _, a := range slices.SortedFunc(slices.Values(all.Allocs), func(a, b *cell.Alloc) int {
		return cmp.Or(compareObjects(a.Set().Key(), b.Set().Key(), a.Set().UID(), b.Set().UID()), cmp.Compare(a.Index(), b.Index()))
	}) {
		f.alloc(a)
	}
	for _, m := range slices.SortedFunc(slices.Values(all.Machines), func(a, b *cell.Machine) int { return cmp.Or(cmp.Compare(a.Name(), b.Name()), a.UID().Compare(b.UID())) }) {
		f.machine(m)
	}
}

func compareObjects(a, b cell.JobKey, x, y cell.UID) int { return cmp.Or(a.Compare(b), x.Compare(y)) }

// job looks at a job, and says whether it looked at all of its tasks too: those that
// it has no record of follow from it.
func (f *feeding) job(j *cell.Job) (g *group, scanned bool) {
	g = f.seen.jobs.by[j.UID()]
	if j.Gone() {
		f.gone(&f.seen.jobs, g, borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK)
		return nil, true
	}
	if g == nil {
		g = new(group)
	}
	was, spec := g.own, j.Spec()
	scanned = was == nil || g.present != j.PresentSpec() || g.stable != j.StableSpec() || len(g.members) != int(j.NumTasks())
	if was == nil || g.present != j.PresentSpec() || g.shown.Tasks != j.Size() {
		g.present, g.shown = j.PresentSpec(), spec
		if spec.Tasks != j.Size() {
			g.shown = proto.CloneOf(spec)
			g.shown.Tasks = j.Size()
		}
	}
	g.stable = j.StableSpec()
	var oldHead *head
	if was != nil {
		oldHead = was.head
	}
	j.PutStatus(f.status)
	is := head{name: j.Key(), uid: j.UID(), labels: j.Labels(), annotations: j.Annotations(), seen: j.Labels()}
	now := objectOf(headOf(oldHead, is), more{version: j.Version(), spec: g.shown, specBytes: g.present.MemoryBytes(), status: marshal(f.status)})
	if same(borgpb.ObjectKind_OBJECT_KIND_JOB, was, now) {
		now = was
	} else {
		if g.own = now; was == nil {
			f.seen.jobs.add(g)
		}
		f.note(borgpb.ObjectKind_OBJECT_KIND_JOB, key{uid: j.UID()}, was, now)
	}
	// What is never placed is dead when its job is, and not before.
	dead := j.State() == borgpb.State_STATE_DEAD
	if scanned = scanned || now.head != oldHead || dead != g.dead; scanned {
		g.dead = dead
		g.first.is, g.unplaced = nil, nil
		f.tasks(g, j)
	}
	return g, scanned
}

// tasks looks at all tasks of a job.
func (f *feeding) tasks(g *group, j *cell.Job) {
	all := max(len(g.members), int(j.NumTasks()))
	f.piece = min(objectsInPiece, all)
	for index := range all {
		f.task(g, j, uint32(index))
	}
	f.spare, f.piece = nil, 0
	g.members = slices.Clip(g.members[:j.NumTasks()])
}

// objectsInPiece is how many objects are made at once when all of a group are looked
// at. So many are kept when one is.
const objectsInPiece = 32

// object is room for one, that is not kept unless take follows.
func (f *feeding) object() *object {
	if f.piece == 0 {
		return new(object)
	}
	if len(f.spare) == cap(f.spare) {
		f.spare = make([]object, 0, f.piece)
	}
	return &f.spare[:len(f.spare)+1][len(f.spare)]
}

func (f *feeding) take() {
	if f.piece > 0 {
		f.spare = f.spare[:len(f.spare)+1]
	}
}

func (f *feeding) task(g *group, j *cell.Job, index uint32) {
	for int(index) >= len(g.members) {
		if index >= j.NumTasks() {
			return
		}
		g.members = append(g.members, nil)
	}
	was, now := g.members[index], (*object)(nil)
	t := j.Task(index)
	switch {
	case t == nil:
	case t.Attempt() == 0:
		now = f.unplaced(g, j, t)
	default:
		var seen *cell.TaskView
		if was != nil {
			seen = &was.task
		}
		now = f.object()
		now.head, now.task = g.own.head, f.look.Look(t, seen)
	}
	if same(borgpb.ObjectKind_OBJECT_KIND_TASK, was, now) {
		return
	}
	if t != nil && t.Attempt() != 0 {
		f.take()
	}
	g.members[index] = now
	f.note(borgpb.ObjectKind_OBJECT_KIND_TASK, key{j.UID(), index}, was, now)
}

// unplaced is what a task is that was never placed.
func (f *feeding) unplaced(g *group, j *cell.Job, t *cell.Task) *object {
	k := unplaced{j.Need(t.ID().Index), t.State() == borgpb.State_STATE_DEAD, j.Seat(t.ID().Index)}
	if g.first.is != nil && g.first.of == k {
		return g.first.is
	}
	o := g.unplaced[k]
	if o != nil {
		return o
	}
	o = &object{head: g.own.head, task: f.look.Look(t, nil)}
	switch {
	case g.first.is == nil:
		// Most jobs have no other.
		g.first.of, g.first.is = k, o
	case g.unplaced == nil:
		g.unplaced = map[unplaced]*object{k: o}
	default:
		g.unplaced[k] = o
	}
	return o
}

// gone: a group is not in the cell any more.
func (f *feeding) gone(all *groups, g *group, kind, members borgpb.ObjectKind) {
	if g == nil {
		// It came and went within one entry.
		return
	}
	uid := g.own.head.uid
	f.note(kind, key{uid: uid}, g.own, nil)
	for index, was := range g.members {
		if was != nil {
			f.note(members, key{uid, uint32(index)}, was, nil)
		}
	}
	all.remove(g)
}

func (f *feeding) set(s *cell.AllocSet) {
	g := f.seen.sets.by[s.UID()]
	if s.Gone() {
		f.gone(&f.seen.sets, g, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC)
		return
	}
	if g == nil {
		g = &group{members: make([]*object, s.NumAllocs())}
	}
	var oldHead *head
	var oldVersion uint64
	if g.own != nil {
		oldHead, oldVersion = g.own.head, g.own.more.version
	}
	p := f.c.AllocSetProto(s)
	is := head{name: s.Key(), uid: s.UID(), labels: p.Meta.Labels, annotations: p.Meta.Annotations, seen: p.Meta.Labels}
	now := objectOf(headOf(oldHead, is), more{version: p.Meta.Version, spec: p.Spec, specBytes: s.SpecMemoryBytes(), status: marshal(p.Status)})
	if !same(borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, g.own, now) {
		f.note(borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, key{uid: s.UID()}, g.own, now)
		if g.own = now; oldHead == nil {
			f.seen.sets.add(g)
		}
	}
	f.resizeSet(g, int(s.NumAllocs()))
	// Those that it has no record of follow from the set, and all show its version.
	if dead := p.Status.State == borgpb.State_STATE_DEAD; oldHead != now.head || dead != g.dead || oldVersion != p.Meta.Version {
		g.dead = dead
		for a := range s.Allocs() {
			f.alloc(a)
		}
	}
}

// resizeSet takes away the allocs that a set has no more, and makes room for new ones.
func (f *feeding) resizeSet(g *group, n int) {
	for len(g.members) > n {
		last := len(g.members) - 1
		if was := g.members[last]; was != nil {
			f.note(borgpb.ObjectKind_OBJECT_KIND_ALLOC, key{g.own.head.uid, uint32(last)}, was, nil)
		}
		g.members = g.members[:last]
	}
	g.members = append(g.members, make([]*object, n-len(g.members))...)
}

func (f *feeding) alloc(a *cell.Alloc) {
	g := f.seen.sets.by[a.Set().UID()]
	if g == nil || a.Gone() {
		return
	}
	view := a.View()
	was, now := g.members[a.Index()], objectOf(g.own.head, more{version: g.own.more.version, alloc: &view})
	if !same(borgpb.ObjectKind_OBJECT_KIND_ALLOC, was, now) {
		g.members[a.Index()] = now
		f.note(borgpb.ObjectKind_OBJECT_KIND_ALLOC, key{g.own.head.uid, a.Index()}, was, now)
	}
}

func (f *feeding) machine(m *cell.Machine) {
	g := f.seen.machines.by[m.UID()]
	if m.Gone() {
		if g != nil {
			f.seen.machines.remove(g)
			f.note(borgpb.ObjectKind_OBJECT_KIND_MACHINE, key{uid: m.UID()}, g.own, nil)
		}
		return
	}
	if g == nil {
		g = new(group)
	}
	was := g.own
	var oldHead *head
	if was != nil {
		oldHead = was.head
	}
	p := m.Alone()
	is := head{name: cell.JobKey{Name: m.Name()}, uid: m.UID(), labels: p.Meta.Labels, annotations: p.Meta.Annotations, seen: m.SelectorLabels()}
	now := objectOf(headOf(oldHead, is), more{version: p.Meta.Version, status: marshal(p)})
	if same(borgpb.ObjectKind_OBJECT_KIND_MACHINE, was, now) {
		return
	}
	if g.own = now; was == nil {
		f.seen.machines.add(g)
	}
	f.note(borgpb.ObjectKind_OBJECT_KIND_MACHINE, key{uid: m.UID()}, was, now)
}
