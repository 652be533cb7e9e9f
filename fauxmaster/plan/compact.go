package plan

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Compaction is the question how few machines would do (§5.1). Its method:
// tasks that are tied to one machine are dropped; of jobs with more tasks than
// half of the machines the hard constraints become soft; if all of it does not fit
// onto the cell, the cell is cloned. Then, in each of eleven trials, machines are
// taken away in a random order, the workload is packed from nothing at every
// probe, and 0.2 % of the tasks may stay pending if they are picky. The answer is
// the 90th percentile of the trials. Daemons go with the machines: each machine that is left
// has them before anything else is packed onto it.
type Compaction struct {
	// Original is how many machines the cell has; those that are down are Away
	// and count for nothing.
	Original, Away int
	// Tasks are packed; Dropped are tied to one machine, by a constraint that
	// holds nowhere else.
	Tasks, Dropped int
	// Nowhere names the jobs and alloc sets of which some tasks or allocs are left out
	// because no machine could hold them, with how many; NowhereTasks counts these.
	Nowhere      []string
	NowhereTasks int
	// Softened jobs have more tasks than half of the machines.
	Softened []string
	// Daemons are the daemon jobs: one task of each takes its room on every machine that it
	// matches, and is not among Tasks.
	Daemons []string
	// Clones is how many times the machines are there.
	Clones int
	// Whole is what became of the workload on all of these.
	Whole scheduler.Packed

	packing scheduler.Packing
	order   uint64
	pending int
}

// Of says what of a cell is packed, and as what. The zero value is all as it is.
type Of struct {
	// Jobs and AllocSets name those that are packed; nil: all of them.
	Jobs      func(*cell.Job) bool
	AllocSets func(*cell.AllocSet) bool
	// Left names tasks that are left out; nil: none.
	Left func(j *cell.Job, index uint32) bool
	// Reserved and Resize are those of a scheduler.Packing.
	Reserved scheduler.Reserved
	Resize   func(priority int32, asked cell.Resources) cell.Resources
	// Pending tasks may find no place, besides the few picky ones that the paper allows.
	Pending int
	// Order is one of several series of orders in which machines are taken away.
	Order uint32
	// clones are shared by compactions of one cell; nil: they are not.
	clones *clones
}

// Trials of a compaction, and the percentile that is its result.
const (
	Trials     = 11
	percentile = 90
	// A workload that does not fit onto so many times the cell does not fit.
	maxClones = 4
)

// NewCompaction gets a cell ready. Only reads of it follow, so that trials may run
// side by side.
func NewCompaction(c *cell.Cell, cfg scheduler.Config, of Of) (*Compaction, error) {
	if of.clones == nil {
		of.clones = new(clones)
	}
	k := &Compaction{Original: c.NumMachines(), order: uint64(of.Order) << 32, pending: of.Pending}
	for m := range c.Machines() {
		if !m.Up() {
			k.Away++
		}
	}
	big := (k.Original - k.Away) / 2
	soft := make(map[*cell.Job]bool)
	tied := newTies(c)
	dropped := make(map[taskKey]bool)
	for j := range c.Jobs() {
		if isDaemonJob(j) && j.State() != borgpb.State_STATE_DEAD {
			k.Daemons = append(k.Daemons, j.Key().String())
		}
		if isDaemonJob(j) || of.Jobs != nil && !of.Jobs(j) {
			continue
		}
		pending, running, _ := j.Counts()
		if live := int(pending + running); live > big && binds(j) {
			soft[j] = true
			k.Softened = append(k.Softened, j.Key().String())
		}
		for i, t := range j.Tasks() {
			switch {
			case t.State() == borgpb.State_STATE_DEAD || of.Left != nil && of.Left(j, i):
			case !soft[j] && tied.are(j.Need(i)):
				dropped[taskKey{j.UID(), i}] = true
				k.Dropped++
			default:
				k.Tasks++
			}
		}
	}
	k.packing = scheduler.Packing{
		Config: cfg, Workload: c, Reserved: of.Reserved, Resize: of.Resize,
		Soft: func(j *cell.Job) bool { return soft[j] },
		Left: func(j *cell.Job, index uint32) bool {
			return of.Jobs != nil && !of.Jobs(j) || of.Left != nil && of.Left(j, index) || dropped[taskKey{j.UID(), index}]
		},
		LeftSet: func(s *cell.AllocSet) bool { return of.AllocSets != nil && !of.AllocSets(s) },
		Enough:  k.fits,
	}
	return k, k.clone(of.clones)
}

// isDaemonJob reports whether the tasks of a job go with the machines.
func isDaemonJob(j *cell.Job) bool { return j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON }

// binds tells whether a job has hard constraints of any kind.
func binds(j *cell.Job) bool {
	s := j.Spec()
	if s.GetMaxPerMachine()+s.GetMaxPerRack()+s.GetMaxPerPower() > 0 || len(s.GetMaxPer()) > 0 {
		return true
	}
	for i := range j.Tasks() {
		for _, k := range j.Need(i).Task.GetConstraints() {
			if !k.GetSoft() {
				return true
			}
		}
	}
	return false
}

// ties knows which constraints hold on one machine of the cell alone.
type ties struct {
	cell   *cell.Cell
	byNeed map[*cell.Need]bool
	byText map[string]bool
}

func newTies(c *cell.Cell) *ties {
	return &ties{c, make(map[*cell.Need]bool), make(map[string]bool)}
}

func (t *ties) are(need *cell.Need) bool {
	tied, ok := t.byNeed[need]
	if !ok {
		var hard []*borgpb.Constraint
		var text strings.Builder
		for _, k := range need.Task.GetConstraints() {
			if !k.GetSoft() {
				hard = append(hard, k)
				fmt.Fprintf(&text, "%q %v %q ", k.Key, k.Relation, k.Value)
			}
		}
		if len(hard) > 0 {
			if tied, ok = t.byText[text.String()]; !ok {
				tied = t.alone(hard)
				t.byText[text.String()] = tied
			}
		}
		t.byNeed[need] = tied
	}
	return tied
}

// alone tells whether constraints hold on exactly one machine.
func (t *ties) alone(hard []*borgpb.Constraint) bool {
	n := 0
	for m := range t.cell.Machines() {
		if !slices.ContainsFunc(hard, func(k *borgpb.Constraint) bool { return !cell.Holds(k, m) }) {
			if n++; n > 1 {
				return false
			}
		}
	}
	return n == 1
}

// clone makes the cell as large as the workload needs.
func (k *Compaction) clone(made *clones) error {
	for k.Clones = 1; ; {
		var err error
		if k.packing.Machines, err = made.of(k.packing.Workload, k.Clones); err != nil {
			return err
		}
		packing, left := k.packing, newNowhere()
		packing.Nowhere = left.take
		var waits []string
		packing.Unplaced = func(j *cell.Job, index uint32) {
			if len(waits) <= maxWaitsNamed {
				waits = append(waits, cell.TaskID{Job: j.Key(), Index: index}.String())
			}
		}
		if k.Whole, err = packing.Pack(func(*cell.Machine) bool { return true }); err != nil {
			return err
		}
		switch {
		case k.Whole.Pending == 0:
			return nil
		case k.leaveOut(left):
			// The rest is packed again.
		case k.fits(k.Whole):
			return nil
		case k.Clones == maxClones:
			return &DoesNotFit{k.Clones, k.Whole, waits}
		default:
			k.Clones++
		}
	}
}

// fits tells whether all was placed but for those that may be left, picky ones last.
func (k *Compaction) fits(p scheduler.Packed) bool {
	left := min(k.pending, p.Pending)
	picky := max(left-(p.Pending-p.Picky), 0)
	p.Pending, p.Picky = p.Pending-left, p.Picky-picky
	return p.Fits()
}

// DoesNotFit says that a workload does not fit onto so many times its cell.
type DoesNotFit struct {
	Clones int
	Packed scheduler.Packed
	// Waits names the first tasks that find no place; one more than are told, if there are more.
	Waits []string
}

// maxWaitsNamed is how many tasks the error of a workload that does not fit names.
const maxWaitsNamed = 5

func (e *DoesNotFit) Error() string {
	text := fmt.Sprintf("%d of %d tasks find no place on %d times the machines, %d of them as they suit at most five machines: it does not fit however many there are",
		e.Packed.Pending, e.Packed.Placed+e.Packed.Pending, e.Clones, e.Packed.Picky)
	if len(e.Waits) == 0 {
		return text
	}
	text += ": " + strings.Join(e.Waits[:min(maxWaitsNamed, len(e.Waits))], ", ")
	if len(e.Waits) > maxWaitsNamed {
		text += " and others"
	}
	return text
}

// clones of the machines of one cell, by how many times they are there.
type clones [maxClones + 1]*cell.Cell

func (made *clones) of(c *cell.Cell, times int) (_ *cell.Cell, err error) {
	if made[times] == nil {
		made[times], err = cloned(c, times)
	}
	return made[times], err
}

// cloned is a cell with the machines of another that are up, so many times each.
// Each clone has racks and power domains of its own, unless a task of a live
// job asks for one of these by name.
func cloned(of *cell.Cell, times int) (*cell.Cell, error) {
	named := make(map[string]bool)
	for j := range of.Jobs() {
		if j.State() == borgpb.State_STATE_DEAD {
			continue
		}
		for i := range j.Tasks() {
			for _, k := range j.Need(i).Task.GetConstraints() {
				named[k.GetKey()] = true
			}
		}
	}
	m, err := New(cell.New("clone", 1), scheduler.Config{})
	if err != nil {
		return nil, err
	}
	var ops []*borgpb.Op
	if f := of.Format(); f > 1 {
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: f}}})
	}
	if of.Format() >= cell.FormatStateBudgets {
		ops = append(ops, cell.WholeState())
	}
	for at := range of.Machines() {
		if !at.Up() {
			continue
		}
		for n := range times {
			spec := proto.CloneOf(of.MachineProto(at).GetSpec())
			name := at.Name()
			if n > 0 {
				if name = fmt.Sprintf("%s-clone-%d", at.Name()[:min(len(at.Name()), 50)], n); of.Machine(name) != nil {
					return nil, fmt.Errorf("the cell has a machine %s, as a clone would be called", name)
				}
				for _, key := range []string{"rack", "power"} {
					if v, ok := spec.Attributes[key]; ok && !named[key] {
						spec.Attributes[key] = fmt.Sprintf("%s (clone %d)", v[:min(len(v), 230)], n)
					}
				}
			}
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: spec}}})
		}
	}
	if err := m.Must(ops...); err != nil {
		return nil, err
	}
	return m.cell, nil
}

// Probe is one pack of a trial.
type Probe struct {
	// Part of the workload that was packed; empty: all of it.
	Part     string `json:"part,omitempty"`
	Trial    int    `json:"trial"`
	Machines int    `json:"machines"`
	Fits     bool   `json:"fits"`
	Pending  int    `json:"pending"`
	Picky    int    `json:"picky"`
	// Of the packed machines.
	StrandedCPUPercent int64 `json:"strandedCpuPercent"`
	StrandedMemPercent int64 `json:"strandedMemPercent"`
	// Of the limits of what was placed, that which is beyond the machines: it runs
	// in what others asked for and do not use.
	ReclaimedCPUPercent int64 `json:"reclaimedCpuPercent"`
	ReclaimedMemPercent int64 `json:"reclaimedMemPercent"`
	// Waits is the largest of the tasks that found no place, by what it asks for;
	// empty: all found one.
	Waits string `json:"waits,omitempty"`
	// Below is the pack onto most machines that did not do; of the best of a trial
	// alone.
	Below *Probe `json:"-"`
}

// largest is the task that asks for most of those that it is told.
type largest struct {
	job   *cell.Job
	index uint32
	size  int64
}

func (l *largest) take(j *cell.Job, index uint32) {
	r := j.Need(index).Resources
	if size := r.CPUMilli + r.MemBytes>>20; l.job == nil || size > l.size {
		*l = largest{j, index, size}
	}
}

func (l *largest) words() string {
	if l.job == nil {
		return ""
	}
	r := l.job.Need(l.index).Resources
	return fmt.Sprintf("%v/%d of priority %d, which asks for %d.%03d cpu and %d MiB",
		l.job.Key(), l.index, l.job.Priority(), r.CPUMilli/1000, r.CPUMilli%1000, r.MemBytes>>20)
}

// Trial makes one trial. known are probes that were made before; each that is made
// anew is told to made, and its error ends the trial. It may be called by several
// goroutines at once.
func (k *Compaction) Trial(trial int, known func(machines int) (Probe, bool), made func(Probe) error) (Probe, error) {
	t := k.packing.Trial(uint64(trial) | k.order)
	best, failed := Probe{}, Probe{}
	for n, more := t.Next(); more; n, more = t.Next() {
		p, ok := known(n)
		if !ok {
			packing, waits := k.packing, largest{}
			packing.Unplaced = waits.take
			packed, err := packing.Pack(t.Keep(n))
			if err != nil {
				return best, err
			}
			p = Probe{
				Trial: trial, Machines: n, Fits: k.fits(packed), Waits: waits.words(), Pending: packed.Pending, Picky: packed.Picky,
				StrandedCPUPercent: packed.StrandedCPUPercent, StrandedMemPercent: packed.StrandedMemPercent,
				ReclaimedCPUPercent: 100 * packed.Reclaimed.CPUMilli / max(packed.Limits.CPUMilli, 1),
				ReclaimedMemPercent: 100 * (packed.Reclaimed.MemBytes >> 20) / max(packed.Limits.MemBytes>>20, 1),
			}
			if err := made(p); err != nil {
				return best, err
			}
		}
		if p.Fits {
			best = p
		} else if p.Machines > failed.Machines {
			failed = p
		}
		t.Note(p.Fits)
	}
	if _, ok := t.Machines(); !ok {
		return best, &DoesNotFit{k.Clones, k.Whole, nil}
	}
	best.Below = &failed
	return best, nil
}

// ProbesPerTrial is about how many packs a trial makes.
func (k *Compaction) ProbesPerTrial() int { return k.packing.Trial(0).Probes() }

// Compacted is the result of the trials.
type Compacted struct {
	// Machines is the 90th percentile, Least and Most the ends.
	Machines int `json:"machines"`
	Least    int `json:"least"`
	Most     int `json:"most"`
	// All of the trials, sorted.
	All []int `json:"trials"`
	// StrandedCPUPercent and StrandedMemPercent are of the trial at the percentile.
	StrandedCPUPercent int64 `json:"strandedCpuPercent"`
	StrandedMemPercent int64 `json:"strandedMemPercent"`
	// ReclaimedCPUPercent and ReclaimedMemPercent of what runs there runs in what
	// others asked for and do not use, by limits.
	ReclaimedCPUPercent int64 `json:"reclaimedCpuPercent"`
	ReclaimedMemPercent int64 `json:"reclaimedMemPercent"`
	// Below says what kept the trial at the percentile from fewer machines.
	Below *Probe `json:"below,omitempty"`
}

// Sum sorts the trials and takes the percentile, by nearest rank: of eleven the
// tenth.
func Sum(trials []Probe) Compacted {
	sorted := slices.SortedFunc(slices.Values(trials), func(a, b Probe) int { return a.Machines - b.Machines })
	var c Compacted
	for _, p := range sorted {
		c.All = append(c.All, p.Machines)
	}
	if len(sorted) == 0 {
		return c
	}
	at := sorted[rank(len(sorted))]
	c.ReclaimedCPUPercent, c.ReclaimedMemPercent = at.ReclaimedCPUPercent, at.ReclaimedMemPercent
	c.Machines, c.StrandedCPUPercent, c.StrandedMemPercent = at.Machines, at.StrandedCPUPercent, at.StrandedMemPercent
	c.Below = at.Below
	c.Least, c.Most = sorted[0].Machines, sorted[len(sorted)-1].Machines
	return c
}

// rank is where the percentile is among n, by nearest rank.
func rank(n int) int { return (n*percentile+99)/100 - 1 }

// Side is one policy on the cell as it is.
type Side struct {
	// Pending tasks have no place when all is packed from nothing onto all
	// machines.
	Pending            int   `json:"pendingFromNothing"`
	ProdPending        int   `json:"prodPendingFromNothing"`
	StrandedCPUPercent int64 `json:"strandedCpuPercent"`
	StrandedMemPercent int64 `json:"strandedMemPercent"`
	// What becomes of the cell as it is: Placed tasks waited and have a place then,
	// Preempted ones gave way to them, Displaced ones of those found no other place,
	// Left ones wait then.
	Placed    int `json:"placedOfWaiting"`
	Preempted int `json:"preempted"`
	Displaced int `json:"displaced"`
	Left      int `json:"leftWaiting"`
}

// Compare says what a policy makes of a cell: packed from nothing, and going on
// from what runs.
func Compare(c *cell.Cell, cfg scheduler.Config) (Side, error) {
	var s Side
	p, err := scheduler.Pack(c, cfg, func(*cell.Machine) bool { return true })
	if err != nil {
		return s, err
	}
	s.Pending, s.ProdPending, s.StrandedCPUPercent, s.StrandedMemPercent = p.Pending, p.ProdPending, p.StrandedCPUPercent, p.StrandedMemPercent
	m, err := ModelOf(c, cfg)
	if err != nil {
		return s, err
	}
	r, err := m.rest()
	s.Placed, s.Displaced, s.Left, s.Preempted = r.Placed, r.Displaced, r.Waiting, m.s.Stats().Preempted
	return s, err
}
