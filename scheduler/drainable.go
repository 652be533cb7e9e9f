package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
	"borg/mutant"
)

// DrainVerdict says whether a machine could be emptied now.
type DrainVerdict struct {
	Machine string
	// Safe: budgets let all of it go at once, and all has a place elsewhere but for
	// tasks of daemon jobs, which need none.
	Safe          bool
	Tasks, Allocs int
	// Holds are why budgets do not let tasks go.
	Holds []cell.Hold
	// Homeless are tasks and allocs for which no place was found; not those that their own
	// volumes hold, which are in Holds.
	Homeless []string
}

const (
	// maxNamed is how many tasks a verdict names of one kind.
	maxNamed = 64
	// maxDrainWork bounds what looking for machines that can go may cost, in the
	// measure of maxPlanWork.
	maxDrainWork = 20_000_000
)

// JudgeDrain says of each machine whether it could be emptied now, together with those
// before it that could: the machines it calls safe can be drained together, and the others
// left alone. No machine that is named takes anybody in. Nothing gives way for those who are
// displaced; each is placed by the cell's own test over those before it, the largest of a
// machine first. A machine that is named twice is judged once; names that the copy does not
// know are left out. The search ends early when it has done its work, or when stop, which may
// be nil, says so. all reports whether every machine was judged: the first always is.
func (s *Scheduler) JudgeDrain(c *cell.Cell, names []string, stop func() bool) (judged []DrainVerdict, all bool) {
	d := s.newDrainer(c)
	d.stop = stop
	var ms []*cell.Machine
	for _, name := range names {
		if m := c.Machine(name); m != nil && !d.leaves[m] {
			ms = append(ms, m)
			d.leaves[m] = true
		}
	}
	for _, m := range ms {
		if len(judged) > 0 && d.ends() {
			return judged, false
		}
		judged = append(judged, d.tryOut(m))
	}
	return judged, true
}

// Drainable finds at most count machines that could be emptied now, together, among
// those that are named, or all: those with the least on them first. It ends early as JudgeDrain
// does. all tells that every machine was looked at.
func (s *Scheduler) Drainable(c *cell.Cell, names []string, count int, stop func() bool) (found []DrainVerdict, all bool) {
	d := s.newDrainer(c)
	d.stop = stop
	named := make(map[string]bool, len(names))
	for _, name := range names {
		named[name] = true
	}
	var ms []*cell.Machine
	for m := range c.Machines() {
		if m.Up() && !m.Draining() && (len(names) == 0 || named[m.Name()]) {
			ms = append(ms, m)
		}
	}
	slices.SortStableFunc(ms, func(a, b *cell.Machine) int { return cmp.Compare(a.NumCopies(), b.NumCopies()) })
	for _, m := range ms {
		if len(found) == count {
			return found, true
		}
		if d.ends() {
			return found, false
		}
		if d.laidOn(m) {
			// Others have their places there.
			continue
		}
		d.leaves[m] = true
		if v := d.tryOut(m); v.Safe {
			found = append(found, v)
		} else {
			delete(d.leaves, m)
		}
	}
	return found, true
}

// drainer lays the places of those who are displaced over the copy, as a planner.
type drainer struct {
	*planner
	// leaves are the machines that go.
	leaves map[*cell.Machine]bool
	// going are those who run on them, in allocs too, and running counts these by job.
	going   []*cell.Copy
	running cell.Going
	// stop says that nobody waits for the answer any more; nil: it is never asked.
	stop func() bool
	// taken are the machines of what is laid, in order, and how much is laid on each.
	taken   []*cell.Machine
	takenOn map[*cell.Machine]int
}

func (s *Scheduler) newDrainer(c *cell.Cell) *drainer {
	s.open(c)
	return &drainer{planner: newPlanner(s, c), leaves: make(map[*cell.Machine]bool), running: make(cell.Going), takenOn: make(map[*cell.Machine]int)}
}

// ends reports whether no more machines are looked at.
func (d *drainer) ends() bool { return d.work >= d.s.drainWork || d.stop != nil && d.stop() }

func (d *drainer) laidOn(m *cell.Machine) bool { return d.takenOn[m] > 0 }

// tryOut judges a machine. When it cannot go, all on it stays: nobody judged later counts
// on room, or on a place in a failure domain, that it would have left.
func (d *drainer) tryOut(m *cell.Machine) DrainVerdict {
	leaving, laid := d.moves.Len()
	going := len(d.going)
	v := d.judge(m)
	if !v.Safe {
		d.moves.Cut(leaving, laid)
		for _, m := range d.taken[laid:] {
			d.takenOn[m]--
		}
		for _, p := range d.going[going:] {
			d.running.Remove(p)
		}
		d.going, d.taken = d.going[:going], d.taken[:laid]
	}
	return v
}

// judge lets all that is on a machine go.
func (d *drainer) judge(m *cell.Machine) DrainVerdict {
	v := DrainVerdict{Machine: m.Name()}
	if !m.Up() {
		// Nothing that runs there is counted on.
		v.Safe = true
		return v
	}
	var displaced []needy
	for a := range m.Allocs() {
		v.Allocs++
		h := a.HoldVolumes()
		if h == nil {
			h = d.c.HoldHere(cell.TaskID{Job: a.Set().Key(), Index: a.Index()}, nil)
		}
		if h != nil && len(v.Holds) < maxNamed {
			v.Holds = append(v.Holds, *h)
		}
		if !h.OfVolume() {
			displaced = append(displaced, d.needyOfAlloc(a))
		}
	}
	for p := range m.Copies() {
		if p.Quarantined() && len(v.Holds) < maxNamed {
			v.Holds = append(v.Holds, *d.c.HoldOf([]*cell.Copy{p}))
		}
		if !p.Current() {
			continue
		}
		v.Tasks++
		running := d.running
		if mutant.Planted(mutant.GoingForgotten) {
			running = nil
		}
		h := d.c.HoldHere(p.TaskID(), d.c.HoldNext(running, p))
		if h != nil && len(v.Holds) < maxNamed {
			h.Task = p.TaskID()
			v.Holds = append(v.Holds, *h)
		}
		if h == nil {
			// Who is held takes nothing from those who are judged after it.
			d.going = append(d.going, p)
			d.running.Add(p)
		}
		if p.Stays() || h.OfVolume() {
			// It ends with its machine, or does not leave it.
			continue
		}
		if p.Alloc() == nil {
			d.moves.Leave(p)
		}
		// A copy that runs in an alloc goes with that, unless an update has its job out of allocs.
		if _, inSet := d.c.JobByUID(p.JobUID()).AllocSet(); p.Alloc() == nil || !inSet {
			displaced = append(displaced, d.needyOf(p))
		}
	}
	kept := append(d.c.HoldsOfSavers(m), d.c.KeptVolumes(m)...)
	v.Holds = append(v.Holds, kept[:min(maxNamed-len(v.Holds), len(kept))]...)
	slices.SortStableFunc(displaced, func(a, b needy) int {
		return cmp.Compare(sizeOf(&b.want.need.Resources), sizeOf(&a.want.need.Resources))
	})
	for i := range displaced {
		if q := &displaced[i]; !d.place(q) && len(v.Homeless) < maxNamed {
			v.Homeless = append(v.Homeless, cell.TaskID{Job: q.want.line.key, Index: q.index}.String())
		}
	}
	v.Safe = len(v.Holds)+len(v.Homeless) == 0
	return v
}

// needyOfAlloc is needyOf for an alloc, with all that runs in it.
func (d *drainer) needyOfAlloc(a *cell.Alloc) needy {
	set := a.Set()
	l := d.lines[set.UID()]
	if l == nil {
		l = &line{uid: set.UID(), key: set.Key(), priority: set.Priority(), version: 1, set: set}
		l.measure()
		d.lines[set.UID()] = l
	}
	return needy{want: d.s.want(d.c, l, a.Index()), index: a.Index()}
}

// place finds the first place for one who is displaced, on a machine that stays.
func (d *drainer) place(q *needy) bool {
	d.s.classes.attune(q.want, d.s.grid, &d.s.changes)
	for i := range d.walk(q) {
		t := d.s.sites.walk[i]
		if d.leaves[t.machine] && !mutant.Planted(mutant.PlacedOnLeaving) || !q.want.class.fits(d.s.grid, i) {
			continue
		}
		if _, ok := d.fits(q, t); ok {
			d.moves.Lay(d.placement)
			d.taken = append(d.taken, t.machine)
			d.takenOn[t.machine]++
			return true
		}
	}
	return false
}
