package scheduler

import (
	"encoding/binary"
	"math"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Production is placed by limits, everything below by reservations (§5.5).
const prodPriority = 120

// want is what one line asks for at one run of indices: everything that the
// search needs to know of a task or alloc besides its index.
type want struct {
	line *line
	need *cell.Need
	// first and last are the lowest and the highest index that ask for the same.
	first, last uint32
	class       *class
	prod        bool
	batch       bool
	soft        []*borgpb.Constraint
	// packages are better there already.
	packages []*borgpb.Package
	// ports is how many ports each is granted.
	ports int
	// set is where the tasks run; nil: on machines.
	set *cell.AllocSet
	// inSet: the job names an alloc set, which may not exist (any more).
	inSet bool
	// byIndex: it runs in the one alloc of its index; such a want is of one index.
	byIndex bool
	// away are the machines that it is kept away from, as it crashed there; such
	// a want is of one index.
	away cell.Away
	// volumes say where it can be, and how much disk those need that are not there. A
	// want with volumes is of one index.
	volumes cell.VolumeSite
	// seated: there is one machine at most that it may run on, of a daemon job or with
	// volumes that are somewhere. The cell's own test answers for it: a task has the room
	// of its last copy, which still stops in its volumes, and no other of the class has.
	seated bool
	// limited: the job limits its tasks per failure domain, as limits says.
	limited bool
	limits  *cell.Limits
	// bans of its packages, on a machine or on all; nil nearly always.
	bans []*cell.Ban
}

// byView is the one of two amounts that counts for w.
func (w *want) byView(limits, reserved *cell.Resources) cell.Resources {
	if w.prod {
		return *limits
	}
	return *reserved
}

// places are those of a machine that one of w takes.
func (w *want) places() cell.Places {
	if w.line.set != nil {
		return cell.Places{Allocs: 1, Volumes: w.volumes.New}
	}
	return cell.Places{Copies: 1, Volumes: w.volumes.New}
}

// class is an equivalence class: everything that passes and fails the same
// tests everywhere. What is found out about a machine for one of it holds for
// all of it.
type class struct {
	// What a pass reads of each class in a long backlog lies together.

	// blocked: nothing of the class found a place when the changes had come to
	// seen. Only what changed since need be looked at again.
	blocked bool
	// seated: each of it has one machine of its own, at most.
	seated bool
	// whole: a change on one machine can open others too, so after any change
	// the search looks at all of them.
	whole bool
	view  view
	seen  uint64
	// generation of the grid that static, likings, candidates and scores are of.
	generation uint64
	static     *static
	// by says whose place it may take, and priority is its. The user is of anybody
	// of the class unless it matters.
	by       cell.Preemptor
	priority int32
	// request is what it asks of a machine; never less than anything free where
	// nothing is asked for.
	request row

	devices []deviceNeed
	cpu     int64
	mem     int64
	// slim: it asks for nothing but CPU and memory.
	slim    bool
	likings []liking
	// weighed: likings are known.
	weighed bool
	// unsuited is grid.suits when no machine suited the class; zero: never.
	unsuited uint64
	// shares are what it asks for of machines of each shape, in fullPoints.
	shares []shares

	// candidates are the slots of static that may have room: those that were
	// found full since are out until they change. Nil: all of static. Of a class
	// that runs in allocs they are the indices of the allocs of its set, and all
	// of them are back after any change.
	candidates bitset
	// noted is how far candidates has taken in the changes.
	noted uint64
	// scores are cached, see grid.cachedScore; nil: none are.
	scores []uint32
	// finds counts the searches for it.
	finds uint64
}

// shares are parts of a machine, in fullPoints.
type shares struct{ cpu, mem int32 }

// classes knows the classes of what waits.
type classes struct {
	byContent map[string]*class
	// key and staticKey are scratch.
	key, staticKey []byte
}

// maxClasses and maxCandidateBytes bound what is remembered of things that do
// not wait any more.
const (
	maxClasses        = 1 << 16
	maxCandidateBytes = 256 << 20
)

func newClasses() *classes { return &classes{byContent: make(map[string]*class)} }

// trim forgets everything when too much is remembered. It costs one search a
// class.
func (cs *classes) trim(g *grid) {
	if len(cs.byContent) <= min(maxClasses, maxCandidateBytes/(len(g.sites.walk)/8+1)) {
		return
	}
	clear(cs.byContent)
	for _, c := range g.cached {
		c.scores = nil
	}
	g.cached = nil
}

// of returns the class of w.
func (cs *classes) of(w *want, g *grid) *class {
	cs.key = w.appendKey(cs.key[:0])
	if c := cs.byContent[string(cs.key)]; c != nil {
		return c
	}
	c := cs.make(w, g)
	cs.byContent[string(cs.key)] = c
	return c
}

// make returns a class of which nothing is known yet.
func (cs *classes) make(w *want, g *grid) *class {
	r := &w.need.Resources
	asked := func(n int64) int64 {
		if n == 0 {
			return math.MinInt64
		}
		return n
	}
	c := &class{
		request: row{asked(r.CPUMilli), asked(r.MemBytes), asked(r.DiskBytes), asked(r.DiskBytesPerS), asked(r.Ports)},
		cpu:     r.CPUMilli, mem: r.MemBytes,
		slim: r.DiskBytes == 0 && r.DiskBytesPerS == 0 && r.Ports == 0 && len(r.Devices) == 0,
		view: viewOf(w.prod), priority: w.line.priority, by: w.preemptor(),
		seated: w.seated, whole: w.limited || w.inSet,
	}
	for _, d := range r.Devices {
		c.devices = append(c.devices, newDeviceNeed(g.device(d.Name), d))
	}
	return c
}

// attune makes what the class knows of slots current: where its constraints
// hold, and what changed.
func (cs *classes) attune(w *want, g *grid, ch *changes) {
	c := w.class
	if c.generation != g.generation {
		c.generation = g.generation
		cs.staticKey = w.appendStatic(cs.staticKey[:0])
		c.static = g.static(cs.staticKey, w, w.hard())
		c.likings, c.weighed = nil, false
		c.candidates, c.scores, c.shares = nil, nil, c.shares[:0]
	}
	if !c.weighed && c.static.fits.any() {
		// What suits no machine is never scored.
		c.likings, c.weighed = w.likings(g), true
	}
	for _, size := range g.shapes[len(c.shares):] {
		const most = math.MaxInt32
		c.shares = append(c.shares, shares{
			int32(min(share(c.cpu, invert(size.cpuMilli)), most)), int32(min(share(c.mem, invert(size.memBytes)), most)),
		})
	}
	if w.inSet || c.candidates == nil || c.noted == ch.now() {
		return
	}
	if c.noted < ch.base {
		copy(c.candidates, c.static.fits)
	} else {
		for _, i := range ch.log[c.noted-ch.base:] {
			c.candidates.set(i, c.static.fits.has(i))
		}
	}
	c.noted = ch.now()
}

// rule takes a slot out of the candidates that has no room. A class that was
// searched for a few times only may never be again and takes no notes.
func (c *class) rule(i int32, ch *changes) {
	if c.keepCandidates(ch) {
		c.candidates.set(i, false)
	}
}

// keepCandidates makes candidates where they are worth it.
func (c *class) keepCandidates(ch *changes) bool {
	if c.candidates == nil && c.finds >= 4 {
		c.candidates, c.noted = slices.Clone(c.static.fits), ch.now()
	}
	return c.candidates != nil
}

// recruit makes the n allocs of the set candidates of a class that runs in them,
// unless nothing has changed since it did.
func (c *class) recruit(n int, ch *changes) {
	if words := (n + 63) / 64; len(c.candidates) != words {
		c.candidates = make(bitset, words)
	} else if c.noted == ch.now() {
		return
	}
	c.noted = ch.now()
	c.candidates.fill(n)
}

// forget drops what was noted over promises that are taken back.
func (c *class) forget() { c.blocked, c.candidates = false, nil }

// fits makes the test of all amounts.
func (c *class) fits(g *grid, i int32) bool {
	return c.fitsRow(&g.exact[i].rows[c.view]) && (c.devices == nil || c.devicesFit(g, i))
}

func (c *class) fitsRow(r *row) bool {
	q := &c.request
	return q.cpuMilli <= r.cpuMilli && q.memBytes <= r.memBytes && q.diskBytes <= r.diskBytes &&
		q.diskBytesPerS <= r.diskBytesPerS && q.ports <= r.ports
}

func (c *class) devicesFit(g *grid, i int32) bool {
	for k := range c.devices {
		d := &c.devices[k]
		if g.deviceFree[c.view][d.column][i] < d.milli || !d.fits(&g.singles[d.column][i]) {
			return false
		}
	}
	return true
}

// appendKey encodes everything that feasibility and score depend on.
func (w *want) appendKey(b []byte) []byte {
	r := &w.need.Resources
	for _, v := range [...]int64{r.CPUMilli, r.MemBytes, r.DiskBytes, r.DiskBytesPerS, r.Ports, int64(w.ports), int64(w.line.priority)} {
		b = binary.AppendVarint(b, v)
	}
	for _, d := range r.Devices {
		b = appendText(b, d.Name)
		b = binary.AppendVarint(b, d.Milli)
	}
	b = append(b, 0xff)
	b = w.appendStatic(b)
	for _, k := range w.soft {
		b = appendConstraint(b, k)
	}
	b = append(b, 0xff)
	for _, p := range w.packages {
		b = appendText(b, p.GetName())
		b = appendText(b, p.GetDigest())
	}
	b = append(b, 0xff)
	by := w.preemptor()
	b = append(b, byte(min(by.Mode, 0xff)))
	if by.Mode == borgpb.Preempt_PREEMPT_OWN {
		b = appendText(b, by.User)
	}
	places := w.places()
	b = binary.AppendUvarint(appendFlag(b, places.Allocs > 0), uint64(places.Volumes))
	b = appendFlag(b, w.inSet)
	b = appendFlag(b, w.seated)
	if w.limited || w.inSet || w.seated {
		// What the tasks of the same job occupy, or where the set's allocs are,
		// makes it a class of its own.
		b = binary.AppendUvarint(b, w.line.uid.Epoch)
		b = binary.AppendUvarint(b, w.line.uid.Index)
		b = binary.AppendUvarint(b, uint64(w.line.uid.N))
	}
	if w.byIndex {
		b = binary.AppendUvarint(append(b, 1), uint64(w.last))
	}
	return b
}

// appendStatic encodes the hard constraints, the tolerations, and where it may
// not go.
func (w *want) appendStatic(b []byte) []byte {
	for _, k := range w.constraints() {
		if !k.GetSoft() {
			b = appendConstraint(b, k)
		}
	}
	b = append(b, 0xff)
	for _, t := range w.tolerations() {
		b = appendText(b, t.GetKey())
		b = appendText(b, t.GetValue())
		b = appendFlag(b, t.GetForgivenessNs() > 0)
	}
	b = append(b, 0xff)
	for _, ban := range w.bans {
		b = appendText(append(b, 1), ban.Machine())
	}
	b = append(b, 0)
	return appendVolumes(appendText(appendText(b, w.away.Crashed), w.away.Kept), &w.volumes)
}

func appendConstraint(b []byte, k *borgpb.Constraint) []byte {
	b = appendText(b, k.GetKey())
	b = append(b, byte(k.GetRelation()))
	switch k.GetRelation() {
	case borgpb.Relation_RELATION_PRESENT, borgpb.Relation_RELATION_NOT_PRESENT:
		// They hold whatever value is given with them.
		return appendText(b, "")
	}
	return appendText(b, k.GetValue())
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendFlag(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func (w *want) constraints() []*borgpb.Constraint {
	if w.line.set != nil {
		return w.line.set.Need().Task.GetConstraints()
	}
	return w.need.Task.GetConstraints()
}

func (w *want) tolerations() []*borgpb.Toleration {
	if w.line.set != nil {
		return w.line.set.Spec().GetTolerations()
	}
	return w.need.Task.GetTolerations()
}

// never tells that it takes nobody's place.
func (w *want) never() bool {
	by := w.preemptor()
	return by.Never()
}

// preemptor is who asks, for those whose place it wants.
func (w *want) preemptor() cell.Preemptor { return w.line.preemptor() }

func (l *line) preemptor() cell.Preemptor {
	by := cell.Preemptor{User: l.key.User, Priority: l.priority}
	if l.set != nil {
		by.Mode = l.set.Spec().GetPreempt()
	} else {
		by.Mode = l.job.Spec().GetPreempt()
	}
	return by
}

// newWant returns what index of l asks for.
func (s *Scheduler) newWant(c *cell.Cell, l *line, index uint32) *want {
	w := &want{line: l, prod: l.priority >= prodPriority, limits: l.limits()}
	w.volumes = s.volumeSite(c, l, index)
	if l.set != nil {
		w.need = l.set.Need()
		w.last = l.set.NumAllocs() - 1
	} else {
		w.need = l.job.Need(index)
		if w.last = w.need.Last; l.job.Mixed() {
			// The next one may be a canary, or none.
			w.last = index
		}
		w.ports = len(w.need.Task.GetPorts())
		if s.cfg.Weights.Packages != 0 {
			w.packages = w.need.Task.GetPackages()
		}
		w.seated = w.volumes.Bound || l.job.Kind() == borgpb.JobKind_JOB_KIND_DAEMON
		w.batch = l.job.Kind() == borgpb.JobKind_JOB_KIND_BATCH
		if !s.dry {
			w.bans = c.BansOf(w.need.Task.GetPackages(), nil)
		}
		if key, ok := l.job.AllocSet(); ok {
			w.inSet = true
			w.set = c.AllocSet(key)
			if w.byIndex = l.job.AllocByIndex(); w.byIndex {
				w.last = index
			}
		}
		if away := c.LastCrash(l.job, index); away.Any() && !s.dry {
			if w.away = s.keptAway(c, w, index, away); w.away.Any() {
				w.last = index
			}
		}
		if s.relaxes(l.job) {
			w.need, w.limits = s.soften(w.need), &cell.Limits{}
		}
	}
	if s.resize != nil && !w.inSet {
		w.need = s.resizeNeed(w.need, l.priority)
	}
	if l.hasVolumes(index) {
		w.withVolumes(index)
	}
	if w.limited = w.limits.Any(); l.job != nil {
		w.first = w.need.First
	}
	for _, k := range w.constraints() {
		if k.GetSoft() {
			w.soft = append(w.soft, k)
		}
	}
	if s.cfg.NoClasses {
		w.class = s.classes.make(w, s.grid)
	} else {
		w.class = s.classes.of(w, s.grid)
	}
	return w
}

// keptAway are the machines that a task is kept away from, as cell.CrashedOn says: where
// the cell looks at each machine, the arrays know it already.
func (s *Scheduler) keptAway(c *cell.Cell, w *want, index uint32, away cell.Away) cell.Away {
	switch {
	case w.volumes.Bound || w.byIndex:
		return cell.Away{}
	case w.inSet:
		return c.CrashedOn(w.line.job, index)
	}
	return away.Where(func(but cell.Away) bool { return s.takesElsewhere(w, but) })
}

// takesElsewhere tells whether any machine but those takes tasks and suits w, room
// apart.
func (s *Scheduler) takesElsewhere(w *want, but cell.Away) bool {
	s.classes.staticKey = w.appendStatic(s.classes.staticKey[:0])
	fits := s.grid.static(s.classes.staticKey, w, w.hard()).fits
	for r := pair(fits, s.grid.usable, 0); ; {
		i := r.next()
		if i < 0 {
			return false
		}
		if !but.From(s.sites.walk[i].name) {
			return true
		}
	}
}

// hard are the constraints that must hold.
func (w *want) hard() []*borgpb.Constraint {
	hard := make([]*borgpb.Constraint, 0, 4)
	for _, k := range w.constraints() {
		if !k.GetSoft() {
			hard = append(hard, k)
		}
	}
	return hard
}

// likings are what is worth points where it holds.
func (w *want) likings(g *grid) []liking {
	var all []liking
	for _, k := range w.soft {
		if f := g.fact(k); f != g.nowhere {
			all = append(all, liking{holds: f.holds, points: g.weights.Soft})
		}
	}
	for _, p := range w.packages {
		all = append(all, liking{holds: g.packageFact(p.GetDigest()).holds, points: g.weights.Packages / int64(len(w.packages)), packages: true})
	}
	return all
}
