package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// planner searches for moves after which somebody fits. It lays placements over
// the copy in a cell.Moves and takes them back again; neither the copy nor the
// overlay is changed.
type planner struct {
	search
	moves cell.Moves
	laid  cell.Overlay
	work  int
	// most is the highest band that is moved.
	most int
	// steps are what moves holds, the one who waits first.
	steps []step
	// best is the cheapest plan so far; nil: none was found.
	best []step
	cost moveCost
	// rank orders the places that one could have which leaves slot own; nil: by
	// their score.
	rank func(w *want, i, own int32) int64
	// What follows is remembered for one search: the copy does not change.
	lines map[cell.UID]*line
	slots map[slotsKey][]int32
	aims  map[*class][]int32
}

// needy is who needs a place.
type needy struct {
	want  *want
	index uint32
	// from is the copy that is moved away; nil: it waits.
	from *cell.Copy
}

// step is a placement of the plan.
type step struct {
	needy
	site    *site
	claims  []cell.CopyID
	devices []cell.DeviceGrant
}

// slotsKey is what the places depend on that somebody could have.
type slotsKey struct {
	class *class
	job   cell.UID
	from  *cell.Machine
}

// moveCost orders plans: few moves, of low priority, of little.
type moveCost struct {
	moves int
	// priority is the highest that is moved.
	priority int32
	size     int64
}

func (a moveCost) compare(b moveCost) int {
	return cmp.Or(cmp.Compare(a.moves, b.moves), cmp.Compare(a.priority, b.priority), cmp.Compare(a.size, b.size))
}

// with adds one copy that is moved.
func (a moveCost) with(p *cell.Copy) moveCost {
	res := p.Resources()
	return moveCost{a.moves + 1, max(a.priority, p.Priority()), a.size + sizeOf(&res)}
}

// sizeOf compares tasks by what they hold: a core counts as 4 GiB.
func sizeOf(r *cell.Resources) int64 { return r.CPUMilli + r.MemBytes>>22 }

// Bounds of the search, beside its work.
const (
	// maxPlaces is how many places are tried for one who is displaced.
	maxPlaces = 16
	// maxTargets is how many machines are tried on which others could make room:
	// those that lack the least.
	maxTargets = 128
	// maxObstacles is how many tasks of a machine are looked at.
	maxObstacles = 32
	// maxOptions is how many sets of tasks are tried to make room for one.
	maxOptions = 1024
)

func newPlanner(s *Scheduler, c *cell.Cell) *planner {
	return &planner{
		search: search{s: s, c: c},
		lines:  make(map[cell.UID]*line), slots: make(map[slotsKey][]int32), aims: make(map[*class][]int32),
	}
}

// make finds the cheapest plan of at most budget moves after which index of w
// fits; nil when there is none, or when it needs none.
func (p *planner) make(w *want, index uint32, budget int) *borgpb.MoveTasks {
	if w.inSet || w.never() || w.line.gang || w.line.hasVolumes(index) || !p.hopeless(w, index) {
		return nil
	}
	p.most, p.best = bandOf(w.line.priority), nil
	q := needy{want: w, index: index}
	for _, i := range p.slotsFor(&q) {
		if _, ok := p.fits(&q, p.s.sites.walk[i]); ok {
			return nil
		}
	}
	for k := 1; k <= budget && p.best == nil && p.work < maxPlanWork; k++ {
		p.solve([]needy{q}, k, moveCost{})
	}
	return p.propose()
}

// hopeless tells that it fits nowhere as things are, whoever gives way.
func (p *planner) hopeless(w *want, index uint32) bool {
	if w.class.blocked && w.class.seen == p.s.changes.now() {
		return true
	}
	if _, ok := p.find(w, index); ok {
		return false
	}
	_, _, ok := p.preempt(w, index)
	return !ok
}

// solve finds places for all of todo, the last first, with at most left more
// moves, and notes the cheapest way.
func (p *planner) solve(todo []needy, left int, cost moveCost) {
	if p.best != nil && cost.compare(p.cost) >= 0 || p.work >= maxPlanWork {
		return
	}
	if len(todo) == 0 {
		p.best, p.cost = slices.Clone(p.steps), cost
		return
	}
	q, rest := todo[len(todo)-1], todo[:len(todo)-1]
	if q.from != nil {
		for _, i := range p.slotsFor(&q) {
			p.try(&q, i, nil, rest, left, cost)
		}
		for _, o := range p.moves.Leaving() {
			if t := p.s.sites.byName[o.Machine().Name()]; t.machine != q.from.Machine() && p.mayHold(&q, t.slot) {
				p.try(&q, t.slot, nil, rest, left, cost)
			}
		}
	}
	if left == 0 || p.best != nil && cost.moves >= p.cost.moves {
		return
	}
	for _, o := range p.options(&q, left) {
		p.try(&q, o.slot, o.leave, rest, left, cost)
	}
}

// try gives q the slot once some have left it, and goes on.
func (p *planner) try(q *needy, slot int32, leave []*cell.Copy, rest []needy, left int, cost moveCost) {
	for _, o := range leave {
		cost = cost.with(o)
	}
	if p.best != nil && cost.compare(p.cost) >= 0 || p.work >= maxPlanWork {
		return
	}
	leaving, laid := p.moves.Len()
	for _, o := range leave {
		p.moves.Leave(o)
	}
	t := p.s.sites.walk[slot]
	if claims, ok := p.fits(q, t); ok {
		p.moves.Lay(p.placement)
		p.steps = append(p.steps, step{*q, t, claims, p.placement.Devices})
		todo := slices.Clone(rest)
		for _, o := range leave {
			todo = append(todo, p.needyOf(o))
		}
		p.solve(todo, left-len(leave), cost)
		p.steps = p.steps[:len(p.steps)-1]
	}
	p.moves.Cut(leaving, laid)
}

// fits makes the cell's test for q on a machine, over the plan, and says whose room
// it has to wait for: the fewest of those who leave. The placement that was found
// to do stays in p.placement.
func (p *planner) fits(q *needy, t *site) (claims []cell.CopyID, ok bool) {
	p.prepare(q.want, q.index)
	p.placement.Machine = t.machine
	p.work += p.moves.Overlay(&p.placement, &p.laid)
	if p.test(nil) {
		p.choose(q, t, nil)
		return nil, true
	}
	var free []cell.CopyID
	for o := range p.moves.LeavingFrom(t.machine) {
		if !p.moves.Claimed(o) {
			free = append(free, o.ID())
		}
	}
	for n := 1; n <= len(free); n++ {
		for set := 1; set < 1<<len(free); set++ {
			if claims = subset(free, set); len(claims) == n && p.test(claims) {
				p.choose(q, t, claims)
				return claims, true
			}
		}
	}
	return nil, false
}

// choose names the devices of the placement that was found to do.
func (p *planner) choose(q *needy, t *site, claims []cell.CopyID) {
	need := q.want.need.Resources.Devices
	if len(need) == 0 {
		return
	}
	room := t.machine.DeviceRoom()
	room.Promised = p.laid.Devices
	for _, id := range claims {
		room.Freed = append(room.Freed, t.machine.Copy(id).Devices()...)
	}
	p.placement.Devices = room.Choose(need)
}

func subset[T any](all []T, set int) (some []T) {
	for i, v := range all {
		if set&(1<<i) != 0 {
			some = append(some, v)
		}
	}
	return some
}

func (p *planner) test(claims []cell.CopyID) bool {
	p.work += testWork
	p.placement.Victims = claims
	return p.c.Fit(&p.placement, &p.laid) == cell.FitOK
}

// needyOf is what a copy needs that has to go elsewhere.
func (p *planner) needyOf(o *cell.Copy) needy {
	l := p.lines[o.JobUID()]
	if l == nil {
		j := p.c.JobByUID(o.JobUID())
		l = &line{uid: j.UID(), key: j.Key(), priority: j.Priority(), version: j.Version(), job: j}
		l.measure()
		p.lines[o.JobUID()] = l
	}
	return needy{want: p.s.want(p.c, l, o.Index()), index: o.Index(), from: o}
}

// slotsFor returns the best slots that have room for q as things are, but for the
// one that it leaves. Those where only the limits of failure domains stand in the
// way come last: one of the job may be about to leave them.
func (p *planner) slotsFor(q *needy) []int32 {
	w, g := q.want, p.s.grid
	key := slotsKey{class: w.class, job: w.line.uid}
	own := int32(-1)
	if q.from != nil {
		key.from = q.from.Machine()
		own = p.s.sites.byName[key.from.Name()].slot
	}
	if slots, ok := p.slots[key]; ok {
		return slots
	}
	cl := w.class
	p.s.classes.attune(w, g, &p.s.changes)
	p.surround(w)
	type place struct {
		slot   int32
		points int64
	}
	var best []place
	for i := range p.walk(q) {
		if i == own || !cl.fits(g, i) {
			continue
		}
		points, _ := g.pointsAt(cl, i, p.s.cfg.Policy)
		if p.neighbours != nil {
			points += p.spread(w, p.neighbours, i)
		}
		if p.rank != nil {
			points += p.rank(w, i, own)
		}
		if w.limited && p.fullBut(w, i, own) {
			points -= 1 << 60
		}
		if len(best) == maxPlaces && points <= best[maxPlaces-1].points {
			continue
		}
		at := len(best)
		for at > 0 && best[at-1].points < points {
			at--
		}
		best = slices.Insert(best, at, place{i, points})
		best = best[:min(len(best), maxPlaces)]
	}
	slots := make([]int32, len(best))
	for i, b := range best {
		slots[i] = b.slot
	}
	p.slots[key] = slots
	return slots
}

// walk goes through the slots that meet q's constraints.
func (p *planner) walk(q *needy) func(func(int32) bool) {
	return func(yield func(int32) bool) {
		g := p.s.grid
		n := len(g.sites.walk)
		if n == 0 {
			return
		}
		p.work += n
		r := pair(q.want.class.static.fits, g.usable, int32(p.start(q.want, q.index)%uint64(n)))
		for i := r.next(); i >= 0 && yield(i); i = r.next() {
		}
	}
}

// mayHold tells whether a slot meets q's constraints.
func (p *planner) mayHold(q *needy, i int32) bool {
	p.s.classes.attune(q.want, p.s.grid, &p.s.changes)
	return p.s.grid.usable.has(i) && q.want.class.static.fits.has(i)
}

// fullBut is full with the task on slot own counted out; -1: none is.
func (p *planner) fullBut(w *want, i, own int32) bool {
	if own < 0 {
		return p.full(w, i)
	}
	for kind := range cell.NumDomainKinds {
		most := w.limits.Most[kind]
		if most == 0 {
			continue
		}
		n := p.inDomain(i, kind)
		if p.together(i, own, kind) {
			n--
		}
		if n >= int64(most) {
			return true
		}
	}
	return false
}

// option is a way to make room: who leaves which slot.
type option struct {
	slot  int32
	leave []*cell.Copy
	cost  moveCost
}

// options lists sets of at most left tasks without which q might fit somewhere:
// first those after which nobody else may be moved, the cheapest first.
func (p *planner) options(q *needy, left int) []option {
	var all []option
	for _, i := range p.targets(q) {
		if q.from != nil && q.from.Machine() == p.s.sites.walk[i].machine {
			continue
		}
		obstacles, elsewhere := p.obstacles(q, i)
		free := p.freeAt(q, p.s.sites.walk[i])
		add := func(leave ...*cell.Copy) {
			o := option{slot: i, leave: slices.Clone(leave)}
			for _, x := range leave {
				o.cost = o.cost.with(x)
			}
			all = append(all, o)
		}
		p.sets(q, obstacles, elsewhere, free, left, add)
	}
	slices.SortStableFunc(all, func(a, b option) int {
		return cmp.Or(cmp.Compare(b.cost.moves, a.cost.moves), a.cost.compare(b.cost))
	})
	return all[:min(len(all), maxOptions)]
}

// targets are the slots where q lacks the least.
func (p *planner) targets(q *needy) []int32 {
	w, g := q.want, p.s.grid
	p.s.classes.attune(w, g, &p.s.changes)
	if slots, ok := p.aims[w.class]; ok {
		return slots
	}
	type target struct {
		slot int32
		lack int64
	}
	var all []target
	for i := range p.walk(q) {
		all = append(all, target{i, lack(&w.class.request, &g.exact[i].rows[w.class.view], &g.exact[i].whole)})
	}
	slices.SortStableFunc(all, func(a, b target) int { return cmp.Compare(a.lack, b.lack) })
	slots := make([]int32, 0, maxTargets)
	for _, t := range all[:min(len(all), maxTargets)] {
		slots = append(slots, t.slot)
	}
	p.aims[w.class] = slots
	return slots
}

// lack is how much of a machine a request asks for beyond what is free, in
// fullPoints.
func lack(q, free *row, whole *whole) int64 {
	n := int64(0)
	part := func(asked, free, whole int64) {
		if asked > free && whole > 0 {
			n = max(n, (asked-free)*fullPoints/whole)
		}
	}
	part(q.cpuMilli, free.cpuMilli, whole.cpuMilli)
	part(q.memBytes, free.memBytes, whole.memBytes)
	return n
}

// freeAt is what is free on a machine for q, over the plan.
func (p *planner) freeAt(q *needy, t *site) cell.Resources {
	p.prepare(q.want, q.index)
	p.placement.Machine = t.machine
	p.work += p.moves.Overlay(&p.placement, &p.laid)
	free := t.machine.Capacity().Sub(t.machine.Held(q.want.prod)).Sub(q.want.byView(&p.laid.Limits, &p.laid.Reserved))
	for o := range p.moves.LeavingFrom(t.machine) {
		if !p.moves.Claimed(o) {
			free = free.Add(o.Held(q.want.prod))
		}
	}
	return free
}

// obstacles are tasks that may be moved off a slot, or, elsewhere, out of its
// failure domains, where q's job may have no more: low ones first, then small ones.
func (p *planner) obstacles(q *needy, i int32) (here, elsewhere []*cell.Copy) {
	t := p.s.sites.walk[i]
	for o := range t.machine.Copies() {
		p.work++
		if p.mayMove(o) {
			here = append(here, o)
		}
	}
	order := func(a, b *cell.Copy) int {
		return cmp.Or(moveCost{}.with(a).compare(moveCost{}.with(b)), a.ID().Compare(b.ID()))
	}
	slices.SortFunc(here, order)
	p.surround(q.want)
	if q.want.limited && q.want.line.job != nil && p.full(q.want, i) {
		for _, task := range q.want.line.job.Tasks() {
			if o := task.Current(); o != nil && o.Machine() != t.machine && p.sharesLimit(q.want, o.Machine(), t.machine) && p.mayMove(o) {
				elsewhere = append(elsewhere, o)
			}
		}
		slices.SortFunc(elsewhere, order)
	}
	return here[:min(len(here), maxObstacles)], elsewhere[:min(len(elsewhere), maxObstacles)]
}

// sharesLimit tells whether two machines are in one domain that w limits.
func (p *planner) sharesLimit(w *want, a, b *cell.Machine) bool {
	for kind, most := range w.limits.Most {
		if most > 0 && w.limits.Same(cell.DomainKind(kind), a, b) {
			return true
		}
	}
	return false
}

// mayMove tells whether a copy may be asked to go elsewhere, beside those who leave
// already.
func (p *planner) mayMove(o *cell.Copy) bool {
	if o.Alloc() != nil || !o.Current() || bandOf(o.Priority()) > p.most || slices.Contains(p.moves.Leaving(), o) {
		return false
	}
	j := p.c.JobByUID(o.JobUID())
	if j == nil || j.Spec().GetScheduler() != p.s.cfg.Name || p.c.Unmovable(o) != "" {
		return false
	}
	h := p.c.MayMove(&p.moves, o)
	if m := &p.s.mover; h != nil && h.UntilNs != 0 && (m.releaseNs == 0 || h.UntilNs < m.releaseNs) {
		m.releaseNs = h.UntilNs
	}
	return h == nil
}

// sets adds the sets of at most left obstacles without which there is room: all of
// one or two of which nobody is needless, and of more the one of the largest.
func (p *planner) sets(q *needy, here, elsewhere []*cell.Copy, free cell.Resources, left int, add func(...*cell.Copy)) {
	need := &q.want.need.Resources
	without := func(os ...*cell.Copy) bool {
		p.work++
		room := free
		for _, o := range os {
			if o.Machine() == p.placement.Machine {
				room = room.Add(o.Held(q.want.prod))
			}
		}
		return need.Fits(room)
	}
	// Where a limit of a domain stands in the way, nobody is known to be needless.
	limit := len(elsewhere) > 0 || q.want.limited && p.full(q.want, p.s.sites.byName[p.placement.Machine.Name()].slot)
	all := append(here, elsewhere...)
	alone := make([]bool, len(all))
	for i, o := range all {
		if alone[i] = without(o); alone[i] {
			add(o)
		}
	}
	if left < 2 {
		return
	}
	any := false
	for i, a := range all {
		for k, b := range all[:i] {
			if (limit || !alone[i] && !alone[k]) && without(a, b) {
				add(a, b)
				any = true
			}
		}
	}
	if left < 3 || any || limit {
		return
	}
	// The largest first, until it fits; then who turns out not to be needed stays.
	byLack := slices.Clone(here)
	slices.SortStableFunc(byLack, func(a, b *cell.Copy) int {
		x, y := a.Resources(), b.Resources()
		return cmp.Compare(sizeOf(&y), sizeOf(&x))
	})
	for n := 3; n <= min(left, len(byLack)); n++ {
		if without(byLack[:n]...) {
			add(byLack[:n]...)
			return
		}
	}
}

// propose makes an op of the cheapest plan that was found. The last proof is the
// cell's own.
func (p *planner) propose() *borgpb.MoveTasks {
	if p.best == nil {
		return nil
	}
	var o borgpb.MoveTasks
	taken := make(map[*site]int)
	defer func() {
		for t, n := range taken {
			t.promised.Ports = t.promised.Ports[:n]
		}
	}()
	for i := range p.best {
		st := &p.best[i]
		l := st.want.line
		a := &borgpb.Assignment{Uid: l.uid.String(), Index: st.index, Version: l.version, Machine: st.site.name}
		switch {
		case st.from != nil:
			a.LastAttempt = st.from.Attempt()
			o.Moves = append(o.Moves, a)
		case l.job != nil:
			a.LastAttempt = l.job.Task(st.index).Attempt()
			o.Placement = a
		default:
			a.LastAttempt = l.set.Alloc(st.index).Attempt()
			o.Placement = a
		}
		var claimed []unit
		for _, id := range st.claims {
			a.Victims = append(a.Victims, &borgpb.Victim{JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt})
			claimed = append(claimed, unit{id: id, ports: st.site.machine.Copy(id).Ports()})
		}
		a.Ports = choosePorts(nil, st.site, st.want.ports, p.s.cfg.Seed^mix(l.uid.Index)^uint64(st.index)^a.LastAttempt<<32, claimed)
		if len(a.Ports) < st.want.ports {
			return nil
		}
		a.Devices = cell.GrantsProto(st.devices)
		if _, ok := taken[st.site]; !ok {
			taken[st.site] = len(st.site.promised.Ports)
		}
		st.site.promised.Ports = append(st.site.promised.Ports, a.Ports...)
	}
	if r := p.c.CheckMoveTasks(&o); r != nil {
		p.s.stats.Unproved++
		return nil
	}
	return &o
}
