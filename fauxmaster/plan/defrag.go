package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Aims of a Defrag.
const (
	// AimMachines empties machines: what runs on the ones with the least to move
	// goes to machines that are in use already.
	AimMachines = "machines"
	// AimFragments is the scheduler's own rescheduler in its defragmenting mode.
	AimFragments = "fragments"
)

// Move is a task that goes elsewhere.
type Move struct {
	Task string `json:"task"`
	From string `json:"from"`
	To   string `json:"to"`
	Aim  string `json:"aim"`
}

// Tidiness is how much use can be made of what is free in a cell.
type Tidiness struct {
	// Empty machines are up and nothing is on them.
	Empty int `json:"emptyMachines"`
	// Largest task of the cell's own mix of CPU and memory that fits so many times
	// into what is free by limits.
	Largest []Scaled `json:"largest"`
	// StrandedCPUPercent is what is free of all CPU on machines that have less than
	// a twentieth of their memory free, StrandedMemPercent the reverse.
	StrandedCPUPercent float64 `json:"strandedCpuPercent"`
	StrandedMemPercent float64 `json:"strandedMemPercent"`
	// UnevenPercent is how far apart the free parts of CPU and of memory are: the root of
	// the mean square over all machines.
	UnevenPercent float64 `json:"unevenPercent"`
	rooms         []Room
}

// Rooms are what is free on each machine.
func (t Tidiness) Rooms() []Room { return t.rooms }

// gains reports whether at least one figure is better than before and none is worse.
func (t Tidiness) gains(before Tidiness) bool {
	stranded := t.StrandedCPUPercent + t.StrandedMemPercent - before.StrandedCPUPercent - before.StrandedMemPercent
	better := t.Empty > before.Empty || stranded < 0 || t.UnevenPercent < before.UnevenPercent
	if t.Empty < before.Empty || stranded > 0 || t.UnevenPercent > before.UnevenPercent {
		return false
	}
	for i, l := range t.Largest {
		if l.Permille < before.Largest[i].Permille {
			return false
		}
		better = better || l.Permille > before.Largest[i].Permille
	}
	return better
}

// Defragged is a plan of moves, and what it would gain.
type Defragged struct {
	// Moves in the order in which they are to be made: each was proved to have its
	// place when those before it are done.
	Moves []Move `json:"moves"`
	// Freed machines are those that the plan empties.
	Freed  []string `json:"freedMachines,omitempty"`
	Before Tidiness `json:"before"`
	After  Tidiness `json:"after"`
	// Waiting tasks were placed before the plan begins, and Placed ones of those
	// that found no place then find one after it.
	Waiting int `json:"placedBefore"`
	Placed  int `json:"placedAfter"`
	// Untried machines might be emptied too: the search ended after maxVain of them in a
	// row that could not.
	Untried int `json:"untriedMachines,omitempty"`
}

const (
	// formatMoves is the format from which on a cell moves tasks.
	formatMoves = 3
	// maxVain is how many machines in a row, those with the least to move first, are
	// tried in vain before no other one is.
	maxVain = 256
	// A search of the rescheduler's that was in vain is made again after so long.
	planWaitNs = 70e9
)

// Defrag makes a plan of at most maxMoves moves, by aims in their order. Every move is an op that the
// cell checks and does, in a copy of it where borglets obey at once: that is the
// proof of each, and that it keeps to the disruption budget of its job.
func Defrag(c *cell.Cell, cfg scheduler.Config, maxMoves int, aims []string) (*Defragged, error) {
	if c.Format() < formatMoves {
		return nil, fmt.Errorf("a cell of format %d moves no tasks, one of format %d does", c.Format(), formatMoves)
	}
	m, err := ModelOf(c, cfg)
	if err != nil {
		return nil, err
	}
	first, err := m.rest()
	if err != nil {
		return nil, err
	}
	moving := cfg
	moving.Reschedule, moving.Moves = scheduler.RescheduleDefragment, maxMoves
	m.cfg = moving
	if m.s, err = scheduler.New(moving); err != nil {
		return nil, err
	}
	d := &Defragged{Before: tidinessOf(m.cell), Waiting: first.Placed}
	busy := make(map[string]bool)
	for at := range m.cell.Machines() {
		busy[at.Name()] = !isEmpty(at)
	}
	for _, aim := range aims {
		switch aim {
		case AimMachines:
			err = d.empty(m, maxMoves)
		case AimFragments:
			m, err = d.fragments(m, maxMoves)
		default:
			err = fmt.Errorf("there is no aim %q; aims: %s, %s", aim, AimMachines, AimFragments)
		}
		if err != nil {
			return nil, err
		}
	}
	d.After = tidinessOf(m.cell)
	for at := range m.cell.Machines() {
		if busy[at.Name()] && isEmpty(at) {
			d.Freed = append(d.Freed, at.Name())
		}
	}
	if m.s, err = scheduler.New(cfg); err != nil {
		return nil, err
	}
	then, err := m.rest()
	d.Placed = then.Placed
	return d, err
}

// fragments does what the scheduler proposes, until it proposes nothing. It keeps the moves
// up to the last proposal after which the cell is better than before the first; the model
// returned is of that moment.
func (d *Defragged) fragments(m *Model, maxMoves int) (*Model, error) {
	before, kept, steps := tidinessOf(m.cell), len(d.Moves), 0
	start, err := m.Copy()
	if err != nil {
		return nil, err
	}
	// script is what was done, in order; nil is a wait.
	var script []*borgpb.MoveTasks
	for waited := false; len(d.Moves) < maxMoves; {
		o := m.s.Plan(m.cell)
		if o == nil && waited {
			break
		}
		script = append(script, o)
		if o == nil {
			waited = true
			m.entry(planWaitNs, nil)
			continue
		}
		waited = false
		made := len(d.Moves)
		o.Moves = o.Moves[:min(len(o.Moves), maxMoves-made)]
		r, err := d.do(m, o, AimFragments)
		if err != nil {
			return nil, err
		}
		if len(d.Moves) == made {
			// It would be proposed again.
			break
		}
		m.s.SettlePlan(m.cell, r)
		if tidinessOf(m.cell).gains(before) {
			kept, steps = len(d.Moves), len(script)
		}
	}
	if kept == len(d.Moves) {
		return m, nil
	}
	d.Moves = d.Moves[:kept]
	for _, o := range script[:steps] {
		if o == nil {
			start.entry(planWaitNs, nil)
		} else if _, err := new(Defragged).do(start, o, AimFragments); err != nil {
			return nil, err
		}
	}
	return start, nil
}

// do makes moves one after the other and notes those that the cell does; it ends at
// the first that is refused.
func (d *Defragged) do(m *Model, o *borgpb.MoveTasks, aim string) (r *borgpb.Result, err error) {
	for _, a := range o.Moves {
		uid, err := cell.ParseUID(a.Uid)
		if err != nil {
			return nil, err
		}
		t := m.cell.JobByUID(uid).Task(a.Index)
		move := Move{Task: t.ID().String(), From: t.Current().Machine().Name(), To: a.Machine, Aim: aim}
		one := &borgpb.MoveTasks{Moves: []*borgpb.Assignment{a}, CopyIndex: m.cell.Index()}
		r = m.Do(&borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_MoveTasks{MoveTasks: one}})[0]
		if r.GetRefusal() != nil {
			return r, nil
		}
		d.Moves = append(d.Moves, move)
		for m.obey() {
		}
	}
	return r, nil
}

// isEmpty tells whether nothing would have to be moved away from a machine.
func isEmpty(m *cell.Machine) bool {
	for range m.Allocs() {
		return false
	}
	return m.OnlyDaemons()
}

// goers are the copies that would have to be moved away from a machine.
func goers(m *cell.Machine) (copies []*cell.Copy) {
	for p := range m.Copies() {
		if !p.Stays() {
			copies = append(copies, p)
		}
	}
	return copies
}

// empty empties the machines with the least to move.
func (d *Defragged) empty(m *Model, maxMoves int) error {
	type candidate struct {
		machine *cell.Machine
		copies  int
	}
	var all []candidate
	for at := range m.cell.Machines() {
		if n := len(goers(at)); at.Up() && !at.Draining() && !isEmpty(at) && n <= maxMoves && movable(m, at) {
			all = append(all, candidate{at, n})
		}
	}
	// Few moves first, then large machines.
	slices.SortFunc(all, func(a, b candidate) int {
		x, y := a.machine.Capacity(), b.machine.Capacity()
		return cmp.Or(cmp.Compare(a.copies, b.copies), cmp.Compare(y.CPUMilli, x.CPUMilli), cmp.Compare(y.MemBytes, x.MemBytes),
			strings.Compare(a.machine.Name(), b.machine.Name()))
	})
	vain := 0
	for i, k := range all {
		// What was moved there meanwhile would be moved again.
		n := len(goers(k.machine))
		if n != k.copies || len(d.Moves)+n > maxMoves {
			continue
		}
		if vain == maxVain {
			d.Untried = len(all) - i
			return nil
		}
		before := len(d.Moves)
		if err := d.emptyOne(m, k.machine); err != nil {
			return err
		}
		if vain++; len(d.Moves) > before {
			vain = 0
		}
	}
	return nil
}

// movable tells whether everything on a machine can be moved.
func movable(m *Model, at *cell.Machine) bool {
	for range at.Allocs() {
		return false
	}
	for _, p := range goers(at) {
		if !p.Current() || m.cell.Unmovable(p) != "" || len(p.Ports()) > 0 {
			return false
		}
	}
	return true
}

// emptyOne moves all that runs on a machine to others that are in use, or nothing.
func (d *Defragged) emptyOne(m *Model, from *cell.Machine) error {
	copies := goers(from)
	slices.SortStableFunc(copies, func(a, b *cell.Copy) int {
		x, y := a.Resources(), b.Resources()
		return cmp.Or(cmp.Compare(y.MemBytes>>22+y.CPUMilli, x.MemBytes>>22+x.CPUMilli), a.ID().Compare(b.ID()))
	})
	o := &borgpb.MoveTasks{CopyIndex: m.cell.Index()}
	var moves cell.Moves
	for _, p := range copies {
		moves.Leave(p)
	}
	for _, p := range copies {
		j := m.cell.JobByUID(p.JobUID())
		at := d.placeFor(m, &moves, cell.Placement{Job: j, Index: p.Index()}, p, from)
		if at == nil {
			return nil
		}
		moves.Lay(*at)
		o.Moves = append(o.Moves, &borgpb.Assignment{
			Uid: j.UID().String(), Index: p.Index(), Version: p.Version(), LastAttempt: p.Attempt(), Machine: at.Machine.Name(), Devices: cell.GrantsProto(at.Devices),
		})
	}
	// All of them or none.
	if m.cell.CheckMoveTasks(o) != nil {
		return nil
	}
	_, err := d.do(m, o, AimMachines)
	return err
}

// placeFor finds the place of a copy that is left with the least room: on a machine
// in use, with what is laid already counted. The test is the cell's.
func (d *Defragged) placeFor(m *Model, moves *cell.Moves, p cell.Placement, of *cell.Copy, from *cell.Machine) *cell.Placement {
	need, prod := of.Resources(), of.Priority() >= productionPriority
	type room struct {
		machine *cell.Machine
		left    int64
	}
	var rooms []room
	for at := range m.cell.Machines() {
		if at == from || isEmpty(at) || !suits(of.TaskSpec(), at) {
			continue
		}
		free, whole := at.Capacity().Sub(at.Held(prod)), at.Capacity()
		if !need.Fits(free) {
			continue
		}
		free = free.Sub(need)
		rooms = append(rooms, room{at, 1000*free.CPUMilli/max(whole.CPUMilli, 1) + 1000*(free.MemBytes>>20)/max(whole.MemBytes>>20, 1)})
	}
	slices.SortStableFunc(rooms, func(a, b room) int { return cmp.Compare(a.left, b.left) })
	var laid cell.Overlay
	for _, r := range rooms {
		p.Machine = r.machine
		moves.Overlay(&p, &laid)
		if len(need.Devices) > 0 {
			devices := r.machine.DeviceRoom()
			devices.Promised = laid.Devices
			if p.Devices = devices.Choose(need.Devices); p.Devices == nil {
				continue
			}
		}
		if m.cell.Fit(&p, &laid) == cell.FitOK {
			return &p
		}
	}
	return nil
}

// Scales of the largest task in a Tidiness.
var tidyScales = []int{1, 10, 100}

func tidinessOf(c *cell.Cell) (t Tidiness) {
	t.rooms = Rooms(c, true)
	var capacity, strandedCPU, strandedMem cell.Resources
	squares := 0.0
	var free []cell.Resources
	for _, r := range t.rooms {
		capacity = capacity.Add(r.Capacity)
		free = append(free, r.Free)
		apart := freePercent(r.Free.CPUMilli, r.Capacity.CPUMilli) - freePercent(r.Free.MemBytes, r.Capacity.MemBytes)
		squares += apart * apart
		if r.Free.MemBytes < r.Capacity.MemBytes/20 {
			strandedCPU.CPUMilli += max(r.Free.CPUMilli, 0)
		}
		if r.Free.CPUMilli < r.Capacity.CPUMilli/20 {
			strandedMem.MemBytes += max(r.Free.MemBytes, 0)
		}
	}
	for m := range c.Machines() {
		if m.Up() && !m.Draining() && isEmpty(m) {
			t.Empty++
		}
	}
	if len(t.rooms) == 0 {
		return t
	}
	n := int64(len(t.rooms))
	// A thousandth of the average machine, so that the answer is in thousandths.
	t.Largest = scaled(free, cell.Resources{CPUMilli: capacity.CPUMilli / n, MemBytes: capacity.MemBytes / n}, tidyScales)
	t.StrandedCPUPercent = 100 * float64(strandedCPU.CPUMilli) / float64(max(capacity.CPUMilli, 1))
	t.StrandedMemPercent = 100 * float64(strandedMem.MemBytes) / float64(max(capacity.MemBytes, 1))
	t.UnevenPercent = math.Sqrt(squares / float64(n))
	return t
}

// freePercent is what is free of a whole; of nothing, nothing is used.
func freePercent(free, whole int64) float64 {
	if whole <= 0 {
		return 100
	}
	return 100 * float64(max(free, 0)) / float64(whole)
}
