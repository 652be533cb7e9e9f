package scheduler

import (
	"fmt"

	"borg/borgmaster/cell"
)

// Placement says what a place was chosen for.
type Placement struct {
	// Machine is the place, RunnerUp the second best; empty: nowhere else was
	// room among those that were looked at.
	Machine, RunnerUp string
	// Score of the place, and Second of the runner-up. Nothing was scored when
	// others gave way.
	Score, Second Score
	// Looked counts the places that were looked at, Found those that had room.
	Looked, Found int
	// Index of the copy that it was decided on. Zero: nobody remembers that, and
	// the rest is as things are now, had the task no place yet.
	Index uint64
	// Fight is who gave way for it; nil: nobody.
	Fight *Fight
}

// Fight says who gave way to whom, and why.
type Fight struct {
	// By is who needed the room, with its priority.
	By       string
	Priority int32
	Machine  string
	// Index of the copy that it was decided on.
	Index uint64
	// Victims gave way; Cost is what that comes to, for people.
	Victims []Holder
	Cost    string
	// Looked counts the machines that were looked at closely. Otherwise is the
	// best but one of them, and Dearer what it would have cost; empty: only one
	// would have done, or none of the others was cheaper than the first.
	Looked            int
	Otherwise, Dearer string
	// Spared are those on the same machine that were no dearer and stayed, some
	// of them when they are many.
	Spared []Holder
}

// Holder is somebody who holds room.
type Holder struct {
	Name     string
	Priority int32
	// Why it stays; empty for a victim.
	Why string
}

// placement says why a task or alloc of l has the place where it is.
func (s *Scheduler) placement(c *cell.Cell, l *line, index uint32, attempt uint64, m *cell.Machine, a *cell.Alloc) *Placement {
	d := s.decisions.of(ID{l.uid, index}, attempt)
	if d != nil && d.at.name == m.Name() {
		p := &Placement{
			Machine: d.at.name, Score: d.score.large(), Second: d.second.large(),
			Looked: int(d.looked), Found: int(d.found), Index: d.index, Fight: d.fight.words(c),
		}
		if d.runnerUp != nil {
			p.RunnerUp = d.runnerUp.name
		}
		return p
	}
	t := s.sites.byName[m.Name()]
	if a != nil || t == nil || t.slot < 0 {
		return nil
	}
	return s.compare(c, l, index, t)
}

// compare scores the place that a task has, and all others, as if it had none.
func (s *Scheduler) compare(c *cell.Cell, l *line, index uint32, t *site) *Placement {
	f := search{s: s, c: c}
	w := s.newWant(c, l, index)
	s.classes.attune(w, s.grid, &s.changes)
	f.surround(w)
	g, p := s.grid, &Placement{Machine: t.name, Looked: len(s.sites.walk)}
	// It leaves for as long as the question takes.
	holds, reserves := w.need.Resources, w.need.Resources
	if l.job != nil {
		if p := l.job.Task(index).Current(); p != nil {
			holds, reserves = p.Held(true), p.Held(false)
		}
	}
	leaves, leavesReserved := cell.Resources{}.Sub(holds), cell.Resources{}.Sub(reserves)
	g.take(t, &leaves, &leavesReserved, w.prod)
	defer g.take(t, &holds, &reserves, w.prod)
	if f.neighbours != nil {
		f.neighbours = countsOf(g, s.crowdOf(l))
		f.neighbours.add(g, t.slot, -1)
	}
	p.Score = f.score(w, spot{site: t})
	r := pair(w.class.static.fits, g.usable, 0)
	for i := r.next(); i >= 0; i = r.next() {
		if !w.class.fits(g, i) || f.neighbours != nil && w.limited && f.full(w, i) {
			continue
		}
		p.Found++
		if i == t.slot {
			continue
		}
		if score := f.score(w, spot{site: s.sites.walk[i]}); p.RunnerUp == "" || score.Total() > p.Second.Total() {
			p.RunnerUp, p.Second = s.sites.walk[i].name, score
		}
	}
	return p
}

// words puts a fight into words; nil stays nil.
func (f *fight) words(c *cell.Cell) *Fight {
	if f == nil {
		return nil
	}
	out := &Fight{
		By: nameOf(c, f.by.UID, f.by.Index), Priority: f.priority, Machine: f.machine, Index: f.index,
		Cost: f.toll.words(), Looked: f.looked,
	}
	if f.otherwise != "" {
		out.Otherwise, out.Dearer = f.otherwise, f.dearer.words()
	}
	for i := range f.victims {
		v := &f.victims[i]
		out.Victims = append(out.Victims, Holder{Name: nameOf(c, v.id.Job, v.id.Index), Priority: v.priority})
	}
	for _, o := range f.spared {
		out.Spared = append(out.Spared, Holder{o.name, o.priority, o.why})
	}
	return out
}

// nameOf names a task or alloc, by its uid when the copy knows it no more.
func nameOf(c *cell.Cell, uid cell.UID, index uint32) string {
	if j := c.JobByUID(uid); j != nil {
		return cell.TaskID{Job: j.Key(), Index: index}.String()
	}
	if set := c.AllocSetByUID(uid); set != nil {
		return cell.TaskID{Job: set.Key(), Index: index}.String()
	}
	return fmt.Sprintf("task %d of job %s, which is gone", index, uid)
}
