package cell

import (
	"iter"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// formatMoves is the format from which on tasks are moved.
const formatMoves = 3

// Moves is a plan as far as it is made: who leaves a place, and who gets one. It
// is laid over the cell by whoever makes the plan, and by the cell when the plan
// comes out of the log; neither changes the cell.
type Moves struct {
	leaving []*Copy
	laid    []laid
	// Victims of all that is laid, in its order.
	victims []CopyID
	// The numbers in laid of the placements on each machine, and of each job or alloc set,
	// and the numbers in leaving of the copies on each machine, and of each job.
	laidOn      numbers[*Machine]
	laidOf      numbers[laidKey]
	leavingFrom numbers[*Machine]
	leavingOf   numbers[*Job]
}

// laidKey names the job or the alloc set of a placement.
type laidKey struct {
	job *Job
	set *AllocSet
}

// numbers keeps rising numbers by key.
type numbers[K comparable] map[K][]int32

func (n *numbers[K]) push(k K, i int) {
	if *n == nil {
		*n = make(numbers[K])
	}
	(*n)[k] = append((*n)[k], int32(i))
}

// pop removes the last number of a key.
func (n numbers[K]) pop(k K) { n[k] = n[k][:len(n[k])-1] }

// laid is one placement of a plan.
type laid struct {
	Placement
	// What it takes beyond the room of its victims.
	res byView
}

// Leave says that a copy is moved away from its place. All who leave are named
// before anybody is placed.
func (x *Moves) Leave(p *Copy) {
	x.leavingFrom.push(p.machine, len(x.leaving))
	x.leavingOf.push(p.job, len(x.leaving))
	x.leaving = append(x.leaving, p)
}

// Leaving are the copies that leave, in the order in which they were named.
func (x *Moves) Leaving() []*Copy { return x.leaving }

// LeavingFrom yields the copies that leave a machine, in the order in which they were named.
func (x *Moves) LeavingFrom(m *Machine) iter.Seq[*Copy] {
	return func(yield func(*Copy) bool) {
		for _, i := range x.leavingFrom[m] {
			if !yield(x.leaving[i]) {
				return
			}
		}
	}
}

// Lay gives a place away that was found to do.
func (x *Moves) Lay(p Placement) {
	res := inBoth(&p.asker().need.Resources)
	var freed byView
	if len(p.Victims) > 0 {
		for _, o := range x.leaving {
			if slices.Contains(p.Victims, o.ID()) {
				freed = freed.add(o.held())
			}
		}
	}
	x.laidOn.push(p.Machine, len(x.laid))
	x.laidOf.push(laidKey{p.Job, p.Set}, len(x.laid))
	x.victims = append(x.victims, p.Victims...)
	x.laid = append(x.laid, laid{p, res.sub(freed.min(res))})
}

// Len is how many leave, and how many placements are laid.
func (x *Moves) Len() (leaving, laid int) { return len(x.leaving), len(x.laid) }

// Cut takes back what was added since Len.
func (x *Moves) Cut(leaving, laid int) {
	for i := len(x.laid) - 1; i >= laid; i-- {
		l := &x.laid[i]
		x.laidOn.pop(l.Machine)
		x.laidOf.pop(laidKey{l.Job, l.Set})
		x.victims = x.victims[:len(x.victims)-len(l.Victims)]
	}
	for i := len(x.leaving) - 1; i >= leaving; i-- {
		x.leavingFrom.pop(x.leaving[i].machine)
		x.leavingOf.pop(x.leaving[i].job)
	}
	x.leaving, x.laid = x.leaving[:leaving], x.laid[:laid]
}

// Claimed reports whether a copy that leaves is a victim of a placement.
func (x *Moves) Claimed(p *Copy) bool { return slices.Contains(x.victims, p.ID()) }

// Overlay writes into o what the plan means for one more placement. work is how many
// placements and copies of the plan it looked at.
func (x *Moves) Overlay(p *Placement, o *Overlay) (work int) {
	*o = Overlay{Ports: o.Ports[:0], Devices: o.Devices[:0], Victims: append(o.Victims[:0], x.victims...), Leaving: x.leaving}
	work = len(x.victims)
	limits := p.asker().limits
	laidOn, laidOf := x.laidOn[p.Machine], x.laidOf[laidKey{p.Job, p.Set}]
	if mutant.Planted(mutant.MovesUnproved) {
		laidOn, laidOf = nil, nil
	}
	for _, i := range laidOn {
		l := &x.laid[i]
		o.Ports = append(o.Ports, l.Ports...)
		if l.Alloc == p.Alloc {
			o.Limits, o.Reserved = o.Limits.Add(l.res.prod), o.Reserved.Add(l.res.others)
			o.Devices = append(o.Devices, l.Devices...)
		}
	}
	work += len(laidOn)
	if !limits.Any() {
		return work
	}
	for _, i := range laidOf {
		o.inDomain(limits, x.laid[i].Machine, p.Machine, 1)
	}
	work += len(laidOf)
	leaving := x.leavingOf[p.Job]
	for _, i := range leaving {
		o.inDomain(limits, x.leaving[i].machine, p.Machine, ^uint32(0))
	}
	return work + len(leaving)
}

// inDomain counts n more (in two's complement) in the failure domains of at that
// m is in.
func (o *Overlay) inDomain(l *Limits, at, m *Machine, n uint32) {
	for kind := range NumDomainKinds {
		if l.Same(kind, at, m) {
			o.InDomain[kind] += n
		}
	}
}

// Unmovable says why a copy is not moved; empty: it may be.
func (c *Cell) Unmovable(p *Copy) string {
	switch {
	case !p.state.current():
		return "it is not its task's current copy"
	case p.Waits():
		return "it waits for others to make room"
	case p.alloc != nil:
		return "it runs in an alloc"
	}
	return tied(p)
}

// tied says what ties a copy to where it is; empty: nothing does.
func tied(p *Copy) string {
	switch {
	case p.job.saving != nil:
		return "it saves what an alloc left on its machine"
	case p.few != nil && p.few.uses != nil:
		return "its volumes are on its machine"
	case p.Stays():
		return "it belongs to its machine, as a task of a daemon job"
	case p.job.update.Rolling():
		return "an update of its job is under way"
	case p.version != p.job.latest().Version:
		return "an update of its job left it with an older spec"
	case p.job.latest().Proto.Gang:
		return "it is one of a gang"
	case liveCopies(p.row())+1 >= maxLiveCopiesOfTask:
		return "too many copies of it have not stopped yet"
	}
	return ""
}

// liveCopies counts the past copies of a task that still hold a place.
func liveCopies(t *Task) (n int) {
	for p := t.past; p != nil; p = p.next {
		if p.state.live() {
			n++
		}
	}
	return n
}

// CheckMoveTasks is the test that a plan must stand when it comes out of the log;
// nil when it does now. It changes nothing.
func (c *Cell) CheckMoveTasks(o *borgpb.MoveTasks) *borgpb.Refusal {
	_, r := c.checkMoveTasks(o)
	return r
}

// checkMoveTasks tries the whole plan over the present state.
func (c *Cell) checkMoveTasks(o *borgpb.MoveTasks) (commit, *borgpb.Refusal) {
	if n := len(o.Moves); n < 1 || n > maxMoves {
		return nil, invalid("moves", "%d moves; want 1 to %d", n, maxMoves)
	}
	x := new(Moves)
	for _, a := range o.Moves {
		if r := c.checkLeaves(x, a); r != nil {
			return nil, r
		}
	}
	var place []func()
	lay := func(p Placement, a *borgpb.Assignment) *borgpb.Refusal {
		r := c.readGrants(&p, p.asker().need, a.Devices)
		if r == nil {
			var do func()
			do, r = c.checkLaid(x, p)
			place = append(place, do)
		}
		return r
	}
	for i, a := range o.Moves {
		q := x.leaving[i]
		p := Placement{Job: q.job, Index: q.index, Ports: a.Ports}
		r := c.findPlace(&p, a)
		if r == nil && p.Machine == q.machine {
			r = about(p.name(), invalid("machine", "it is on %s already", q.machine.name))
		}
		if r == nil {
			r = lay(p, a)
		}
		if r != nil {
			return nil, r
		}
	}
	makesRoom := ""
	if a := o.Placement; a != nil {
		p, r := c.placement(a)
		if r == nil && p.Job != nil && p.Job.latest().Proto.Gang {
			r = badState(p.name(), "all of its gang is placed at once")
		}
		if r == nil {
			r = lay(p, a)
		}
		if r != nil {
			return nil, r
		}
		makesRoom = ", which makes room for " + p.name()
	}
	return func(*borgpb.Result) {
		for i, q := range x.leaving {
			reason := "moved to " + o.Moves[i].Machine + makesRoom
			c.disturb(q.row())
			c.evict(q.row(), edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_MOVE, reason, q.grace())
		}
		for _, do := range place {
			do()
		}
	}, nil
}

// checkLeaves wants a task that runs as the scheduler saw it.
func (c *Cell) checkLeaves(x *Moves, a *borgpb.Assignment) *borgpb.Refusal {
	uid, ok := parseUID(a.Uid)
	if !ok {
		return invalid("uid", "%q is not a uid", clip(a.Uid, 64))
	}
	j := c.jobsByUID[uid]
	if j == nil {
		return stale(a.Uid, "there is no such job any more")
	}
	if int(a.Index) >= len(j.rows) {
		return stale(TaskID{j.key, a.Index}.String(), "the job has only %d tasks", len(j.rows))
	}
	t := j.rows[a.Index]
	name := t.ID().String()
	switch {
	case t.state != stateRunning:
		return stale(name, "the task is %v, not running", t.state)
	case t.attempt != a.LastAttempt:
		return stale(name, "its attempt is %d, not %d", t.attempt, a.LastAttempt)
	case a.Version != 0 && (a.Version < j.latest().Version || a.Version > j.version):
		return stale(name, "the job's version is %d, not %d", j.version, a.Version)
	case slices.Contains(x.leaving, t.cur):
		return about(name, invalid("moves", "it is moved twice"))
	case a.Alloc != "":
		return about(name, invalid("alloc", "nothing is moved into an alloc"))
	case len(a.Ports) != len(j.Need(a.Index).Task.Ports):
		return about(name, invalid("ports", "%d ports for %d names", len(a.Ports), len(j.Need(a.Index).Task.Ports)))
	}
	if why := c.Unmovable(t.cur); why != "" {
		return badState(name, "it is not moved: %s", why)
	}
	if h := c.MayMove(x, t.cur); h != nil {
		return stale(name, "it is not moved: %s", h.Reason)
	}
	x.Leave(t.cur)
	return nil
}

// checkLaid tries one placement over those before it, and returns what will make
// it.
func (c *Cell) checkLaid(x *Moves, p Placement) (func(), *borgpb.Refusal) {
	there := len(p.Machine.copies) + len(x.laidOn[p.Machine])
	if r := c.checkPlaces(&p, Places{Copies: there - len(p.Machine.copies)}); r != nil {
		return nil, r
	}
	for _, id := range p.Victims {
		if !slices.ContainsFunc(x.leaving, func(q *Copy) bool { return q.ID() == id }) {
			return nil, about(p.name(), invalid("victims", "%v is not moved", id))
		}
	}
	var o Overlay
	x.Overlay(&p, &o)
	v, r := c.checkPlace(&p, &o)
	if r != nil {
		return nil, r
	}
	x.Lay(p)
	return c.placing(&p, v), nil
}
