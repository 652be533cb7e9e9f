package scheduler

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Packed is what became of a workload that was packed from nothing.
type Packed struct {
	// Machines is how many it was packed onto.
	Machines int
	// Placed and Pending count tasks and allocs; Picky are those of Pending that
	// at most pickyMachines of the cell's machines could ever hold, ProdPending
	// those of production and monitoring.
	Placed, Pending, Picky, ProdPending int
	// StrandedPercent is what is left of CPU or memory on the machines where the
	// other one of the two has run out (less than one level), of all.
	StrandedCPUPercent, StrandedMemPercent int64
	// Limits is the sum of what was placed. Reclaimed is what of it is beyond the
	// machines that it is on: it runs on what others asked for and do not use.
	Limits, Reclaimed cell.Resources
	Stats             Stats
}

const (
	pickyMachines = 5
	// Of so many tasks one picky one may stay pending and the workload still
	// counts as fitting (§5.1: 0.2 %).
	tasksPerPicky = 500
)

// Fits tells whether everything found a place, but for a few picky ones.
func (p Packed) Fits() bool {
	return p.Pending == p.Picky && p.Picky <= (p.Placed+p.Pending)/tasksPerPicky
}

// Reserved is what a task of a job will use, as far as anybody can tell (§5.5).
type Reserved func(j *cell.Job, index uint32) cell.Resources

// Packing is a workload and what it is packed onto, from nothing. Production is
// placed by the limits of production, others by the reservations of all; each still
// asks for its own limit. No cell is changed. Several may be packed at once.
type Packing struct {
	Config Config
	// Workload has the jobs and alloc sets: all that is not dead in it. Daemon jobs have a
	// task on each machine that they match, before anything else is placed.
	Workload *cell.Cell
	// Machines has the machines, taken as if they were empty; nil: Workload.
	Machines *cell.Cell
	// Reserved says what tasks will use; nil: what runs has the reservations that
	// the cell knows, what waits its limits.
	Reserved Reserved
	// Soft names the jobs whose hard constraints count as soft ones, and whose
	// limits per failure domain do not count; nil: none (§5.1).
	Soft func(*cell.Job) bool
	// Left names the tasks that are left out; nil: none. LeftSet does so for alloc
	// sets.
	Left    func(j *cell.Job, index uint32) bool
	LeftSet func(*cell.AllocSet) bool
	// Resize is what tasks and allocs on machines ask for instead, by priority; nil:
	// what they ask for. What tasks reserve is not changed by it.
	Resize func(priority int32, asked cell.Resources) cell.Resources
	// Enough reports whether so much is packed that no other order need be tried; nil:
	// when it fits.
	Enough func(Packed) bool
	// Unplaced is told the tasks that found no place; nil: nobody is.
	Unplaced func(j *cell.Job, index uint32)
	// Nowhere is told the tasks and, without a job, the allocs for which no machine of the
	// workload's cell is large enough or meets the constraints; nil: nobody is.
	Nowhere func(j *cell.Job, set *cell.AllocSet, index uint32)
}

// Pack packs all that is not dead in a cell onto some of its machines as if
// they were empty. What runs has the reservations that the cell knows. The cell is
// not changed.
func Pack(c *cell.Cell, cfg Config, keep func(*cell.Machine) bool) (Packed, error) {
	return Packing{Config: cfg, Workload: c}.Pack(keep)
}

// PackReserved is Pack for a workload of which something else is known.
func PackReserved(c *cell.Cell, cfg Config, keep func(*cell.Machine) bool, reserved Reserved) (Packed, error) {
	return Packing{Config: cfg, Workload: c, Reserved: reserved}.Pack(keep)
}

// reservedInCell is what a task's copy reserves; of one that waits, its limit.
func reservedInCell(j *cell.Job, index uint32) cell.Resources {
	if p := j.Task(index).Current(); p != nil {
		return p.Held(false)
	}
	return j.Need(index).Resources
}

// withDefaults returns k with its nil fields filled in.
func (k Packing) withDefaults() Packing {
	if k.Machines == nil {
		k.Machines = k.Workload
	}
	if k.Reserved == nil {
		k.Reserved = reservedInCell
	}
	if k.Soft == nil {
		k.Soft = func(*cell.Job) bool { return false }
	}
	if k.Left == nil {
		k.Left = func(*cell.Job, uint32) bool { return false }
	}
	if k.Enough == nil {
		k.Enough = Packed.Fits
	}
	if k.LeftSet == nil {
		k.LeftSet = func(*cell.AllocSet) bool { return false }
	}
	return k
}

// Pack packs the workload onto the machines that keep keeps: in several orders, until it
// fits in one of them. What it returns is the best of them.
func (k Packing) Pack(keep func(*cell.Machine) bool) (Packed, error) {
	k = k.withDefaults()
	var best *packing
	for o := k.orders(); ; {
		p, err := k.pack(keep, o)
		if err != nil {
			return Packed{}, err
		}
		if best == nil || p.betterThan(best) {
			best = p
		}
		if k.Enough(best.packed) || !o.next(p) {
			break
		}
	}
	if k.Unplaced != nil {
		for _, id := range best.unplaced {
			k.Unplaced(id.job, id.index)
		}
	}
	if k.Nowhere != nil {
		for _, id := range best.nowhere {
			k.Nowhere(id.job, id.set, id.index)
		}
	}
	return best.packed, nil
}

// packing is the outcome of one order.
type packing struct {
	packed Packed
	// unplaced are the tasks that found no place; left are these and the allocs.
	unplaced []taskOf
	left     []ID
	// nowhere are the tasks and allocs that no machine could hold.
	nowhere []taskOf
}

// taskOf is a task of a job, or an alloc of a set.
type taskOf struct {
	job   *cell.Job
	set   *cell.AllocSet
	index uint32
}

// betterThan reports whether more important things are better: production that waits first, then
// everything that waits but for the picky.
func (p *packing) betterThan(o *packing) bool {
	return cmp.Or(
		cmp.Compare(p.packed.ProdPending, o.packed.ProdPending),
		cmp.Compare(p.packed.Pending-p.packed.Picky, o.packed.Pending-o.packed.Picky),
		cmp.Compare(p.packed.Pending, o.packed.Pending)) < 0
}

// pack packs the workload in one order.
func (k Packing) pack(keep func(*cell.Machine) bool, o *packOrder) (*packing, error) {
	c, cfg := k.Workload, k.Config
	// One pass decides everything.
	cfg.BatchCount, cfg.BatchBytes, cfg.PassChecks, cfg.MaxInFlight = 0, 0, 0, 0
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	const all = 1 << 60
	s.cfg.BatchCount, s.cfg.BatchBytes, s.cfg.PassChecks, s.cfg.MaxInFlight = all, all, all, all
	s.dry, s.reserved, s.soft, s.resize = true, k.Reserved, k.Soft, k.Resize
	s.softened, s.resized = make(map[*cell.Need]*cell.Need), make(map[*cell.Need]*cell.Need)
	s.sites = newSites(k.Machines, cfg.Seed)
	s.sites.walk = slices.DeleteFunc(s.sites.walk, func(t *site) bool { return !keep(t.machine) })
	s.sites.number()
	daemons := k.daemons()
	k.seatDaemons(daemons, s.sites)
	s.grid = newGrid(s.sites, &s.cfg, true)
	s.dearer = true
	s.askAll(c)
	s.reprice()
	s.enlist(k)
	out := &packing{packed: Packed{Machines: len(s.sites.walk)}}
	for {
		p := &pass{search: search{s: s, c: c}}
		s.queue.begin(false)
		if o.attempt == byArrival {
			p.run()
		} else {
			p.runItems(o.items(p))
		}
		s.queue.end()
		s.note(p)
		out.packed.Placed += len(p.out)
		if len(p.out) == 0 {
			break
		}
		// What runs in allocs finds room once those have a place.
		s.changes.all()
	}
	s.countPending(k, daemons, out)
	packed := &out.packed
	packed.StrandedCPUPercent, packed.StrandedMemPercent = s.grid.stranded()
	packed.Limits, packed.Reclaimed = s.reclaimed(c)
	packed.Stats = s.stats
	return out, nil
}

// soften returns need with hard constraints that count as soft ones.
func (s *Scheduler) soften(need *cell.Need) *cell.Need {
	if of := s.softened[need]; of != nil {
		return of
	}
	of := *need
	of.Task = proto.CloneOf(need.Task)
	for _, k := range of.Task.Constraints {
		k.Soft = true
	}
	s.softened[need] = &of
	return &of
}

// resizeNeed returns need with what is asked for instead.
func (s *Scheduler) resizeNeed(need *cell.Need, priority int32) *cell.Need {
	if of := s.resized[need]; of != nil {
		return of
	}
	of := *need
	of.Resources = s.resize(priority, need.Resources)
	s.resized[need] = &of
	return &of
}

// relaxes tells whether the hard constraints of a job count as soft ones.
func (s *Scheduler) relaxes(j *cell.Job) bool { return s.soft != nil && s.soft(j) }

// enlist makes lines of everything that is not dead, placed or not, and not left
// out.
func (s *Scheduler) enlist(k Packing) {
	for j := range k.Workload.Jobs() {
		if isDaemon(j) {
			continue
		}
		l := &line{uid: j.UID(), key: j.Key(), priority: j.Priority(), version: j.Version(), job: j}
		for i, t := range j.Tasks() {
			if t.State() != borgpb.State_STATE_DEAD && !k.Left(j, i) {
				l.indices = append(l.indices, i)
			}
		}
		s.enter(l)
	}
	for set := range k.Workload.AllocSets() {
		if k.LeftSet(set) {
			continue
		}
		l := &line{uid: set.UID(), key: set.Key(), text: set.UID().String(), priority: set.Priority(), version: 1, set: set}
		for a := range set.Allocs() {
			if a.State() != borgpb.State_STATE_DEAD {
				l.indices = append(l.indices, a.Index())
			}
		}
		s.enter(l)
	}
}

func (s *Scheduler) enter(l *line) {
	if len(l.indices) > 0 {
		l.measure()
		l.whole = true
		s.queue.byUID[l.uid] = l
		s.queue.enter(l)
	}
}

// countPending counts what found no place, and whether any machine of the whole
// cell could hold it when empty.
func (s *Scheduler) countPending(k Packing, daemons []*cell.Job, out *packing) {
	c, packed := k.Workload, &out.packed
	var whole *grid
	for _, l := range s.queue.list {
		for _, index := range l.indices {
			packed.Pending++
			if l.priority >= prodPriority {
				packed.ProdPending++
			}
			out.left = append(out.left, ID{l.uid, index})
			if l.job != nil {
				out.unplaced = append(out.unplaced, taskOf{job: l.job, index: index})
			}
			if whole == nil {
				all := newSites(c, 0)
				k.seatDaemons(daemons, all)
				whole = newGrid(all, &s.cfg, true)
			}
			w := s.want(c, l, index)
			n := whole.holders(s, w)
			if n <= pickyMachines {
				packed.Picky++
			}
			if n == 0 && !w.inSet || w.inSet && !fitsSet(c, l.job, w.need) {
				out.nowhere = append(out.nowhere, taskOf{l.job, l.set, index})
			}
		}
	}
}

// fitsSet reports whether the alloc set of a job is there and its allocs are large enough.
// Whether they have a place is another question.
func fitsSet(c *cell.Cell, j *cell.Job, need *cell.Need) bool {
	key, _ := j.AllocSet()
	set := c.AllocSet(key)
	return set != nil && set.State() != borgpb.State_STATE_DEAD && need.Resources.Fits(set.Need().Resources)
}

// holders counts the slots with room for w, in allocs those of the set's.
func (g *grid) holders(s *Scheduler, w *want) (n int) {
	cl := s.classes.make(w, g)
	var of classes
	of.attune(&want{line: w.line, need: w.need, class: cl}, g, &changes{})
	r := pair(cl.static.fits, g.usable, 0)
	for i := r.next(); i >= 0; i = r.next() {
		if cl.fits(g, i) {
			n++
		}
	}
	return n
}

// stranded is how much of all CPU and memory is free where the other one has run
// out.
func (g *grid) stranded() (cpuPercent, memPercent int64) {
	var cpu, mem, strandedCPU, strandedMem int64
	for _, t := range g.sites.walk {
		capacity, r, l := t.machine.Capacity(), &g.exact[t.slot].rows[viewOthers], &g.rough[t.slot].levels[viewOthers]
		cpu += capacity.CPUMilli
		mem += capacity.MemBytes >> 20
		if l.mem == 0 {
			strandedCPU += max(r.cpuMilli, 0)
		}
		if l.cpu == 0 {
			strandedMem += max(r.memBytes, 0) >> 20
		}
	}
	return 100 * strandedCPU / max(cpu, 1), 100 * strandedMem / max(mem, 1)
}

// reclaimed sums up the limits of what is promised on the machines, and what of
// them is beyond each.
func (s *Scheduler) reclaimed(c *cell.Cell) (limits, beyond cell.Resources) {
	onSlot := make([]cell.Resources, len(s.sites.walk))
	for _, l := range s.queue.byUID {
		for _, p := range l.promises {
			if p != nil && p.alloc == nil {
				onSlot[p.site.slot] = onSlot[p.site.slot].Add(s.want(c, l, p.id.Index).need.Resources)
			}
		}
	}
	for i, t := range s.sites.walk {
		capacity := t.machine.Capacity()
		limits = limits.Add(onSlot[i])
		beyond.CPUMilli += max(onSlot[i].CPUMilli-capacity.CPUMilli, 0)
		beyond.MemBytes += max(onSlot[i].MemBytes-capacity.MemBytes, 0)
	}
	return limits, beyond
}
