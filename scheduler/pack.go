package scheduler

import (
	"cmp"
	"slices"

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

// Pack packs all that is not dead in a cell onto some of its machines as if
// they were empty. What runs has the reservations that the cell knows. The cell is
// not changed.
func Pack(c *cell.Cell, cfg Config, keep func(*cell.Machine) bool) (Packed, error) {
	return PackReserved(c, cfg, keep, reservedInCell)
}

// reservedInCell is what a task's copy reserves; of one that waits, its limit.
func reservedInCell(j *cell.Job, index uint32) cell.Resources {
	if p := j.Task(index).Current(); p != nil {
		return p.Held(false)
	}
	return j.Need(index).Resources
}

// PackReserved is Pack for a workload of which something else is known:
// production is placed by the limits of production, others by the reservations of
// all. Each still asks for its own limit.
func PackReserved(c *cell.Cell, cfg Config, keep func(*cell.Machine) bool, reserved Reserved) (Packed, error) {
	// One pass decides everything.
	cfg.BatchCount, cfg.BatchBytes, cfg.PassChecks, cfg.MaxInFlight = 0, 0, 0, 0
	s, err := New(cfg)
	if err != nil {
		return Packed{}, err
	}
	const all = 1 << 60
	s.cfg.BatchCount, s.cfg.BatchBytes, s.cfg.PassChecks, s.cfg.MaxInFlight = all, all, all, all
	s.dry, s.reserved = true, reserved
	s.sites = newSites(c, cfg.Seed)
	s.sites.walk = slices.DeleteFunc(s.sites.walk, func(t *site) bool { return !keep(t.machine) })
	s.sites.number()
	s.grid = newGrid(s.sites, &s.cfg, true)
	s.dearer = true
	s.askAll(c)
	s.reprice()
	s.enlist(c)
	packed := Packed{Machines: len(s.sites.walk)}
	for {
		p := &pass{search: search{s: s, c: c}}
		s.queue.begin()
		p.run()
		s.queue.end()
		s.note(p)
		packed.Placed += len(p.out)
		if len(p.out) == 0 {
			break
		}
		// What runs in allocs finds room once those have a place.
		s.changes.all()
	}
	s.countPending(c, &packed)
	packed.StrandedCPUPercent, packed.StrandedMemPercent = s.grid.stranded()
	packed.Limits, packed.Reclaimed = s.reclaimed(c)
	packed.Stats = s.stats
	return packed, nil
}

// enlist makes lines of everything that is not dead, placed or not.
func (s *Scheduler) enlist(c *cell.Cell) {
	for j := range c.Jobs() {
		l := &line{uid: j.UID(), key: j.Key(), text: j.UID().String(), priority: j.Priority(), version: j.Version(), job: j}
		for i, t := range j.Tasks() {
			if t.State() != borgpb.State_STATE_DEAD {
				l.indices = append(l.indices, i)
			}
		}
		s.enter(l)
	}
	for set := range c.AllocSets() {
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
func (s *Scheduler) countPending(c *cell.Cell, packed *Packed) {
	var whole *grid
	for _, l := range s.queue.list {
		for _, index := range l.indices {
			packed.Pending++
			if l.priority >= prodPriority {
				packed.ProdPending++
			}
			if whole == nil {
				whole = newGrid(newSites(c, 0), &s.cfg, true)
			}
			if whole.holders(s, s.want(c, l, index)) <= pickyMachines {
				packed.Picky++
			}
		}
	}
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

// Compact says onto how few machines a cell's workload fits (§5.1): machines are
// taken away in an order that follows from the trial, and the workload is packed
// from nothing at every probe. Ok is false when it does not fit onto all of them.
func Compact(c *cell.Cell, cfg Config, trial uint64) (machines int, ok bool, err error) {
	return CompactReserved(c, cfg, trial, reservedInCell)
}

// CompactReserved is Compact for a workload with reservations; see PackReserved.
func CompactReserved(c *cell.Cell, cfg Config, trial uint64, reserved Reserved) (machines int, ok bool, err error) {
	place := trialOrder(c, trial)
	fits := func(n int) (bool, error) {
		p, err := PackReserved(c, cfg, func(m *cell.Machine) bool { return place[m.Name()] < n }, reserved)
		return p.Fits(), err
	}
	// Invariant: it fits onto high, if it fits onto all, and not onto low.
	low, high := 0, len(place)
	if ok, err := fits(high); !ok || err != nil {
		return high, false, err
	}
	for low+1 < high {
		mid := (low + high) / 2
		ok, err := fits(mid)
		switch {
		case err != nil:
			return 0, false, err
		case ok:
			high = mid
		default:
			low = mid
		}
	}
	return high, true, nil
}

// TrialMachines are the n machines that a trial of Compact would take away last.
func TrialMachines(c *cell.Cell, trial uint64, n int) (keep func(*cell.Machine) bool) {
	place := trialOrder(c, trial)
	return func(m *cell.Machine) bool { return place[m.Name()] < n }
}

// trialOrder is the place of each machine in the order of a trial.
func trialOrder(c *cell.Cell, trial uint64) map[string]int {
	type drawn struct {
		name  string
		order uint64
	}
	var order []drawn
	for m := range c.Machines() {
		order = append(order, drawn{m.Name(), mix(mix(trial) ^ hashString(m.Name()))})
	}
	slices.SortFunc(order, func(a, b drawn) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.name, b.name))
	})
	place := make(map[string]int, len(order))
	for i, d := range order {
		place[d.name] = i
	}
	return place
}
