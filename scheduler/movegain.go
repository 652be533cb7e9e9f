package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Moves that gain something for nobody in particular. Each must lower what it is
// measured by: for spreading, the price of neighbours beyond the fair share, added
// up over the tasks of a job; for fragments, the square of the difference between
// the free parts of CPU and of memory, added up over the machines. Neither sum can
// fall for ever, so moves of one kind alone come to an end; and so do both together,
// since what is moved for fragments does not raise the price of neighbours.

// minGain is by how much a move must lower the sum of fragments to be worth a
// restart: what an otherwise empty machine has of which an eighth of one resource
// is used.
const minGain = (fullPoints / 8) * (fullPoints / 8)

const (
	// maxFragmented is how many machines are looked at for fragments: the worst.
	maxFragmented = 32
	// maxTried is for how many tasks of a job a better place is looked for.
	maxTried = 16
)

// forGain makes a plan of moves that gain something. At most one task of a job is
// moved, and only when all of the job run: one that was moved is up again before
// the next of its job goes.
func (p *planner) forGain(budget int) *borgpb.MoveTasks {
	p.most, p.best = bandOf(1<<30), nil
	clear(p.slots)
	if p.s.cfg.Reschedule&RescheduleSpread != 0 {
		p.rank = func(w *want, i, own int32) int64 { return -p.crowding(w, i, own) << 24 }
		p.gainSpread(budget)
	}
	if len(p.steps) == 0 && p.s.cfg.Reschedule&RescheduleDefragment != 0 {
		clear(p.slots)
		p.rank = func(w *want, i, _ int32) int64 {
			if p.empty(i) {
				return -1 << 60
			}
			return p.fragment(i, nil) - p.fragment(i, &w.need.Resources)
		}
		p.gainFragments(budget)
	}
	if len(p.steps) > 0 {
		p.best = p.steps
	}
	return p.propose()
}

// gainSpread looks at the jobs in turn, from one that follows from the index of the
// copy, and moves of each the task that gains most.
func (p *planner) gainSpread(budget int) {
	jobs := slices.Collect(p.c.Jobs())
	for k := range jobs {
		j := jobs[(uint64(k)+mix(p.c.Index()))%uint64(len(jobs))]
		if len(p.steps) == budget || p.work >= maxPlanWork {
			return
		}
		p.work++
		if j.NumTasks() < 2 || j.Kind() != borgpb.JobKind_JOB_KIND_SERVICE || !p.settled(j) {
			continue
		}
		best, gain, tried := step{}, int64(0), 0
		for _, task := range j.Tasks() {
			o := task.Current()
			if p.work++; tried == maxTried {
				break
			}
			if !p.mayMove(o) || p.touched(o.Machine()) {
				continue
			}
			q := p.needyOf(o)
			p.surround(q.want)
			own := p.s.sites.byName[o.Machine().Name()].slot
			price := p.crowding(q.want, own, own)
			if price <= gain {
				continue
			}
			tried++
			if st, less, ok := p.better(&q, func(i int32) int64 { return price - p.crowding(q.want, i, own) }); ok && less > gain {
				best, gain = st, less
			}
		}
		p.lay(best)
	}
}

// crowding is the price of the neighbours that a task has in a slot which leaves
// slot own.
func (p *planner) crowding(w *want, i, own int32) int64 {
	weights := &p.s.cfg.Weights
	d, o, n := p.s.grid.domains[i], p.s.grid.domains[own], p.neighbours
	// over is how many too many there are with it.
	over := func(count int64, same bool, kind cell.DomainKind) int64 {
		if same {
			count--
		}
		return max(0, count+1-p.fair[kind])
	}
	price := weights.Machine * over(n.on(i), i == own, cell.DomainMachine)
	if d.rack != 0 {
		price += weights.Rack * over(int64(n.rack[d.rack]), d.rack == o.rack, cell.DomainRack)
	}
	if d.power != 0 {
		price += weights.Power * over(int64(n.power[d.power]), d.power == o.power, cell.DomainPower)
	}
	return price
}

// gainFragments looks at the machines with the worst fragments, and moves off each
// what gains most. It leaves empty machines empty: an empty machine takes a task of any
// shape.
func (p *planner) gainFragments(budget int) {
	var worst []int32
	for i := range p.s.sites.walk {
		worst = append(worst, int32(i))
	}
	p.work += len(worst)
	slices.SortStableFunc(worst, func(a, b int32) int { return cmp.Compare(p.fragment(b, nil), p.fragment(a, nil)) })
	for _, i := range worst[:min(len(worst), maxFragmented)] {
		t := p.s.sites.walk[i]
		if len(p.steps) == budget || p.work >= maxPlanWork {
			return
		}
		if p.touched(t.machine) {
			continue
		}
		best, gain := step{}, int64(minGain-1)
		for o := range t.machine.Copies() {
			if !p.mayMove(o) || o.Kind() != borgpb.JobKind_JOB_KIND_SERVICE || p.moved(o.JobUID()) || !p.settled(p.c.JobByUID(o.JobUID())) {
				continue
			}
			q := p.needyOf(o)
			res := o.Held(true)
			less := p.fragment(i, nil) - p.fragment(i, freed(&res))
			crowds := p.crowds(&q, i)
			st, most, ok := p.better(&q, func(y int32) int64 {
				if crowds(y) || p.empty(y) {
					return 0
				}
				return less + p.fragment(y, nil) - p.fragment(y, &q.want.need.Resources)
			})
			if ok && most > gain {
				best, gain = st, most
			}
		}
		p.lay(best)
	}
}

// empty reports whether no task but daemons is on the machine of a slot.
func (p *planner) empty(i int32) bool { return p.s.sites.walk[i].machine.OnlyDaemons() }

// crowds tells of places whether q, which leaves slot own, would crowd its job there
// more than where it is; of none when tasks are not moved for that. What one reason
// puts apart the other must not put together again.
func (p *planner) crowds(q *needy, own int32) func(int32) bool {
	if p.surround(q.want); p.s.cfg.Reschedule&RescheduleSpread == 0 || p.neighbours == nil {
		return func(int32) bool { return false }
	}
	price := p.crowding(q.want, own, own)
	return func(i int32) bool { return p.crowding(q.want, i, own) > price }
}

// freed is what a machine gains, as something that it is asked for.
func freed(r *cell.Resources) *cell.Resources {
	less := cell.Resources{}.Sub(*r)
	return &less
}

// fragment measures a machine on which so much more is asked for; nil: nothing.
func (p *planner) fragment(i int32, more *cell.Resources) int64 {
	r, whole := &p.s.grid.exact[i].rows[viewProd], &p.s.grid.exact[i].whole
	cpu, mem := r.cpuMilli, r.memBytes
	if more != nil {
		cpu, mem = cpu-more.CPUMilli, mem-more.MemBytes
	}
	d := fullness(whole.cpuMilli, cpu) - fullness(whole.memBytes, mem)
	return d * d
}

// better finds the place for q that gains most, and something.
func (p *planner) better(q *needy, gain func(int32) int64) (best step, most int64, ok bool) {
	for _, i := range p.slotsFor(q) {
		t := p.s.sites.walk[i]
		if p.touched(t.machine) {
			continue
		}
		if n := gain(i); n > most {
			if _, fits := p.fitsLeft(q, t); fits {
				best, most, ok = step{needy: *q, site: t}, n, true
			}
		}
	}
	return best, most, ok
}

// fitsLeft is fits for one who is about to leave. Nobody's room is waited for.
func (p *planner) fitsLeft(q *needy, t *site) (claims []cell.CopyID, ok bool) {
	leaving, laid := p.moves.Len()
	defer p.moves.Cut(leaving, laid)
	p.moves.Leave(q.from)
	return p.fits(q, t)
}

// lay takes a step into the plan; an empty one is none.
func (p *planner) lay(st step) {
	if st.site == nil {
		return
	}
	p.moves.Leave(st.from)
	if _, ok := p.fits(&st.needy, st.site); !ok {
		return
	}
	p.moves.Lay(p.placement)
	st.devices = p.placement.Devices
	p.steps = append(p.steps, st)
	clear(p.slots)
}

// touched tells whether the plan moves something to or from a machine: what is
// gained there was reckoned without that.
func (p *planner) touched(m *cell.Machine) bool {
	return slices.ContainsFunc(p.steps, func(st step) bool { return st.site.machine == m || st.from.Machine() == m })
}

// moved tells whether the plan moves a task of that job.
func (p *planner) moved(uid cell.UID) bool {
	return slices.ContainsFunc(p.steps, func(st step) bool { return st.from.JobUID() == uid })
}

// settled tells whether all tasks of a job run.
func (p *planner) settled(j *cell.Job) bool {
	if pending, _, dead := j.Counts(); pending+dead > 0 {
		return false
	}
	for _, task := range j.Tasks() {
		p.work++
		if task.Current().State() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			return false
		}
	}
	return true
}
