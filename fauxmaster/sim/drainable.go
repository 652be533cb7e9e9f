package sim

import (
	"math/rand/v2"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// S44: the machines of which it is said that they could be emptied now are empty when
// they are drained at that moment, all of them, with nobody's budget broken, and each who
// was displaced has a place elsewhere; and a machine with nothing on it can go.

const (
	// Between two questions.
	drainAskNs = 600 * millisecond
	// How many machines are asked for, or named, at most.
	drainAsked = 4
)

// askDrains asks a scheduler now and then which machines could go.
func (p *schedulerProcess) askDrains() {
	r := p.m.r.w.drainRand
	p.after(between(r, drainAskNs/3, 2*drainAskNs), func() {
		if p.copy != nil {
			p.takeIn()
			p.askDrain(r)
		}
		p.askDrains()
	})
}

func (p *schedulerProcess) askDrain(r *rand.Rand) {
	var said []scheduler.DrainVerdict
	if n := 1 + r.IntN(min(drainAsked, len(p.m.r.w.machines))); r.IntN(2) == 0 {
		said, _ = p.search.Drainable(p.copy, nil, n, nil)
	} else {
		var names []string
		for _, i := range r.Perm(len(p.m.r.w.machines))[:n] {
			names = append(names, p.m.r.w.machines[i].name)
		}
		said, _ = p.search.JudgeDrain(p.copy, names, nil)
	}
	t := p.m.r.w.truth
	t.couldGo(p.copy, said)
	for m := range p.copy.Machines() {
		if bare(m) && len(p.copy.HoldsOfSavers(m)) == 0 {
			one, _ := p.search.JudgeDrain(p.copy, []string{m.Name()}, nil)
			t.bareGoes(one)
		}
	}
}

// bare tells whether there is nothing on a machine, nor on its way to it.
func bare(m *cell.Machine) bool {
	for range m.Allocs() {
		return false
	}
	return m.NumCopies()+m.NumVolumes() == 0
}

func (t *truth) bareGoes(said []scheduler.DrainVerdict) {
	for _, v := range said {
		if !v.Safe {
			t.w.fail("S44: nothing is on %s, and it is said that it cannot go: %+v", v.Machine, v)
		}
	}
}

// couldGo takes the word of what was said of a cell: the machines that could go are drained
// in a copy of it.
func (t *truth) couldGo(c *cell.Cell, said []scheduler.DrainVerdict) {
	var names []string
	for _, v := range said {
		if v.Safe {
			names = append(names, v.Machine)
		} else if len(v.Holds) > 0 {
			t.w.mark("machine cannot go for a budget")
		} else {
			t.w.mark("machine cannot go for want of places")
		}
	}
	then, err := copyCell(c)
	if err != nil {
		t.w.fail("S14: the cell at index %d cannot be copied: %v", c.Index(), err)
		return
	}
	entry := &borgpb.Entry{CellTimeNs: then.TimeNs(), WallTimeNs: then.WallNs()}
	for _, name := range names {
		if m := then.Machine(name); !m.Draining() {
			entry.Ops = append(entry.Ops, encode(&borgpb.Op{Principal: ownOp(), Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name, Drain: true}}}))
		}
	}
	results, events := then.Apply(then.Index()+1, t.entries[c.Index()].term, encode(entry))
	for i, res := range results {
		if refusal := res.GetRefusal(); refusal != nil {
			t.w.fail("S44: %v can go, and drain %d is refused: %s", names, i, refusal.GetMessage())
			return
		}
	}
	for _, name := range names {
		t.leftOn(c, then, name, names)
	}
	t.displaced(then, events, names)
}

// leftOn: of a machine that could go nothing is left, nor held back. What its allocs
// leave behind is saved first, by savers that come of the drain.
func (t *truth) leftOn(c, then *cell.Cell, name string, names []string) {
	m := then.Machine(name)
	if !m.Up() {
		return
	}
	for p := range m.Copies() {
		if p.Current() && !p.Stays() {
			t.w.fail("S44: %s can go with %v, and %v stays on it when they are drained at index %d", name, names, p.TaskID(), then.Index())
		}
	}
	for _, h := range then.Blockers(m, m.NumCopies()+m.NumVolumes()+len(t.w.machines)) {
		if j := then.Job(h.Job); j != nil && c.JobByUID(j.UID()) == nil {
			continue
		}
		t.w.fail("S44: %s can go with %v, and is held when they are drained at index %d: %+v", name, names, then.Index(), h)
	}
}

// displaced: who leaves machines that could go does so within his job's budget, by what
// the log says of who runs, and has a place elsewhere.
func (t *truth) displaced(then *cell.Cell, events []cell.Event, names []string) {
	down := map[cell.UID]int{}
	for i := range events {
		ev := &events[i]
		j := then.JobByUID(ev.UID)
		if ev.Kind != borgpb.EventKind_EVENT_KIND_EVICT || ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK || j == nil || !slices.Contains(names, ev.Machine) {
			continue
		}
		t.w.mark("task leaves a machine that can go")
		t.wouldDisturb(then, ev, j, down)
		if waitsForPlace(j, ev.Task) && !placeFor(then, j, ev.Task) {
			t.w.fail("S44: %s can go with %v, and no other machine takes %s at index %d", ev.Machine, names, ev.Object(), then.Index())
		}
	}
}

// wouldDisturb counts one more task that a drain takes down, if the log has not gone on
// since.
func (t *truth) wouldDisturb(then *cell.Cell, ev *cell.Event, j *cell.Job, down map[cell.UID]int) {
	b, d := j.Spec().GetDisruptionBudget(), t.disturbed[ev.UID]
	if b == nil || d == nil || t.index+1 != then.Index() || d.version != j.Version() {
		return
	}
	if d.up[ev.Task] && !d.down[ev.Task] {
		down[ev.UID]++
	}
	if n := len(d.down) + down[ev.UID]; b.MaxDown > 0 && down[ev.UID] > 0 && n > int(b.MaxDown) {
		t.w.fail("S44: %s can go, and with %s %d tasks of its job would be down because the cell wanted it; its budget is %d", ev.Machine, ev.Object(), n, b.MaxDown)
	}
	n := 0
	for _, at := range d.times[ev.Task] {
		if then.TimeNs()-at < b.WindowNs {
			n++
		}
	}
	if b.MaxPerTask > 0 && n >= int(b.MaxPerTask) {
		t.w.fail("S44: %s can go, and %s was disturbed %d times in the %d ms before; its budget is %d", ev.Machine, ev.Object(), n, b.WindowNs/millisecond, b.MaxPerTask)
	}
}

// waitsForPlace reports whether a displaced task needs another machine. An extra task of
// an update that was given up ends with its drain, and so does its row.
func waitsForPlace(j *cell.Job, index uint32) bool {
	task := j.Task(index)
	return task != nil && task.State() == borgpb.State_STATE_PENDING && j.Kind() != borgpb.JobKind_JOB_KIND_DAEMON && j.Spec().GetAllocSet() == ""
}

// placeFor tells whether some machine takes a task that waits.
func placeFor(c *cell.Cell, j *cell.Job, index uint32) bool {
	for m := range c.Machines() {
		if c.Fit(&cell.Placement{Job: j, Index: index, Machine: m, AnyPorts: true}, nil) == cell.FitOK {
			return true
		}
	}
	return false
}
