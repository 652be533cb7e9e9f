package sim

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S23: what the cell does to tasks of its own accord keeps to the budgets of their
// jobs. How many it has taken down, and how often, is counted here from the events
// and from what borglets said, without the cell's own counts.

// disturbances are what was done to the tasks of one job.
type disturbances struct {
	// The spec that was judged by. An entry with another one is not judged: what is
	// in it comes before or after.
	version uint64
	// Tasks that ran when the cell took them down of its own accord, and have not
	// been seen running again.
	down map[uint32]bool
	// Tasks that run: their borglets said so last.
	up map[uint32]bool
	// Cell times at which each was disturbed.
	times map[uint32][]int64
}

// budgetOf is the budget of all jobs of a name, so that an update brings none and
// takes none away.
func budgetOf(name string) *borgpb.DisruptionBudget {
	switch strings.TrimLeft(name, "j") {
	case "0", "4":
		return &borgpb.DisruptionBudget{MaxDown: 1}
	case "1", "5":
		return &borgpb.DisruptionBudget{MaxDown: 2, MaxPerTask: 1, WindowNs: 4 * second}
	case "2", "6":
		return &borgpb.DisruptionBudget{MaxPerTask: 1, WindowNs: 60 * second}
	}
	return nil
}

// budgeted gives a job the budget of its name.
func (c *client) budgeted(name string, spec *borgpb.JobSpec) *borgpb.JobSpec {
	if c.w.swarm.budgets && c.w.truth.cell.Format() >= cell.FormatBudgets {
		spec.DisruptionBudget = budgetOf(name)
	}
	return spec
}

// drainOp empties a machine as budgets allow, in the end whether they do or not, or
// at once; or lets it be filled again.
func (c *client) drainOp(m *machine) *borgpb.Op {
	o := &borgpb.DrainMachine{Name: m.name, Drain: c.rand.IntN(2) == 0}
	if c.w.swarm.drainsPercent > 0 {
		// Most drains have the time to come to their ends.
		o.Drain = c.rand.IntN(8) > 0
	}
	if x := c.w.truth.cell.Machine(m.name); x != nil && x.Draining() && c.rand.IntN(4) > 0 {
		return &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: o}}
	}
	if c.w.swarm.budgets && o.Drain && c.w.truth.cell.Format() >= cell.FormatBudgets {
		switch c.rand.IntN(6) {
		case 0, 1:
			o.DeadlineNs = between(c.rand, second/2, 3*second)
		case 2:
			o.Now = true
		}
	}
	return &borgpb.Op{Reason: "maintenance", Op: &borgpb.Op_DrainMachine{DrainMachine: o}}
}

// budgets looks at what one entry did to the tasks of jobs with budgets.
func (t *truth) budgets(e borgmaster.CommittedEntry, events []cell.Event) {
	if !t.w.swarm.budgets {
		return
	}
	t.overdue()
	unsure := t.notRunning(e)
	t.forces(e)
	defer func() { t.forced = map[string]bool{} }()
	changed := map[cell.UID]bool{}
	for i := range events {
		ev := &events[i]
		if ev.Kind == borgpb.EventKind_EVENT_KIND_RESIZE {
			t.disturbed[ev.UID].cut(ev.Reason)
		}
		if ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
			continue
		}
		j := t.cell.JobByUID(ev.UID)
		if j == nil || j.Spec().GetDisruptionBudget() == nil {
			continue
		}
		d := t.disturbed[ev.UID]
		if d == nil {
			d = &disturbances{down: map[uint32]bool{}, up: map[uint32]bool{}, times: map[uint32][]int64{}}
			t.disturbed[ev.UID] = d
		}
		if d.version != j.Version() {
			d.version = j.Version()
			changed[ev.UID] = true
		}
		ours := ev.Kind == borgpb.EventKind_EVENT_KIND_EVICT &&
			(ev.Cause == borgpb.StopCause_STOP_CAUSE_DRAIN || ev.Cause == borgpb.StopCause_STOP_CAUSE_MOVE)
		if ours && !changed[ev.UID] {
			t.disturbs(ev, j, d, d.up[ev.Task] && !unsure[taskOf{ev.UID, ev.Task}])
		}
		switch {
		case ev.Kind == borgpb.EventKind_EVENT_KIND_START:
			d.up[ev.Task] = true
			delete(d.down, ev.Task)
		case ev.Kind == borgpb.EventKind_EVENT_KIND_RESTART, ev.Kind == borgpb.EventKind_EVENT_KIND_RETURN:
			// It may run.
			delete(d.up, ev.Task)
			delete(d.down, ev.Task)
		case ev.To == borgpb.State_STATE_DEAD:
			delete(d.up, ev.Task)
			delete(d.down, ev.Task)
			delete(d.times, ev.Task)
		case ev.To != borgpb.State_STATE_RUNNING && ev.From == borgpb.State_STATE_RUNNING:
			delete(d.up, ev.Task)
		}
	}
	for of := range unsure {
		if d := t.disturbed[of.uid]; d != nil {
			delete(d.up, of.index)
		}
	}
}

// cut forgets the tasks that a resize ended: it may bring others of their indices.
func (d *disturbances) cut(words string) {
	was, tasks := uint32(0), uint32(0)
	if n, err := fmt.Sscanf(words, "%d to %d tasks", &was, &tasks); err != nil || n != 2 || d == nil {
		return
	}
	for index := tasks; index < was; index++ {
		delete(d.down, index)
		delete(d.up, index)
		delete(d.times, index)
	}
}

type taskOf struct {
	uid   cell.UID
	index uint32
}

// forces finds the machines that an entry may have found forced to be empty, or
// forced: those that are so after it, are said to be so in it, or drained no more.
func (t *truth) forces(e borgmaster.CommittedEntry) {
	for _, op := range opsOf(e.Data) {
		if o := op.GetDrainMachine(); o != nil && (o.Now || !o.Drain) {
			t.forced[o.Name] = true
		}
	}
	for m := range t.cell.Machines() {
		if _, forced, _ := m.Drain(); forced {
			t.forced[m.Name()] = true
		}
	}
}

// opsOf are the ops of an entry that can be read.
func opsOf(data []byte) (ops []*borgpb.Op) {
	entry := new(borgpb.Entry)
	if proto.Unmarshal(data, entry) != nil {
		return nil
	}
	for _, data := range entry.Ops {
		if op := new(borgpb.Op); proto.Unmarshal(data, op) == nil {
			ops = append(ops, op)
		}
	}
	return ops
}

// notRunning are the tasks of which a borglet said in an entry that they do not run,
// whatever the cell made of it.
func (t *truth) notRunning(e borgmaster.CommittedEntry) map[taskOf]bool {
	tasks := map[taskOf]bool{}
	for _, op := range opsOf(e.Data) {
		for _, m := range op.GetReports().GetMachines() {
			for _, r := range m.Tasks {
				if uid, err := cell.ParseUID(r.JobUid); err == nil && r.State != int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING) {
					tasks[taskOf{uid, r.Index}] = true
				}
			}
		}
	}
	return tasks
}

// disturbs judges one task that the cell takes off its place; ran: it is certain that
// it ran.
func (t *truth) disturbs(ev *cell.Event, j *cell.Job, d *disturbances, ran bool) {
	b, now := j.Spec().GetDisruptionBudget(), t.cell.TimeNs()
	forced := ev.Cause == borgpb.StopCause_STOP_CAUSE_DRAIN && t.forced[ev.Machine]
	if forced {
		t.w.mark("drain held back by nothing")
	} else {
		t.w.mark("task disturbed within its budget")
	}
	if ran {
		d.down[ev.Task] = true
		if n := len(d.down); !forced && b.MaxDown > 0 && n > int(b.MaxDown) {
			t.w.fail("S23: with %s, which %v takes off %s at index %d, %d tasks of its job are down because the cell wanted it; its budget is %d",
				ev.Object(), ev.Cause, ev.Machine, ev.Index, n, b.MaxDown)
		}
	}
	if b.MaxPerTask == 0 {
		return
	}
	n := 0
	for _, at := range d.times[ev.Task] {
		if now-at < b.WindowNs {
			n++
		}
	}
	if !forced && n >= int(b.MaxPerTask) {
		t.w.fail("S23: %s is taken off %s by %v at index %d, and was disturbed %d times in the %d ms before; its budget is %d",
			ev.Object(), ev.Machine, ev.Cause, ev.Index, n, b.WindowNs/millisecond, b.MaxPerTask)
	}
	d.times[ev.Task] = append(d.times[ev.Task], now)
}

// overdue: nobody is on a machine whose deadline has passed.
func (t *truth) overdue() {
	alone := make(map[string]bool)
	for m := range t.cell.Machines() {
		deadlineNs, forced, ok := m.Drain()
		if !ok || !m.Up() || !forced && (deadlineNs == 0 || t.cell.TimeNs() < deadlineNs) {
			continue
		}
		// Tasks of daemon jobs leave when all others are gone: the cell looks with the
		// entry after the one with which the last of them went.
		only := m.OnlyDaemons()
		for p := range m.Copies() {
			alone[m.Name()] = only
			if p.Current() && (!p.Stays() || only && t.daemonsAlone[m.Name()]) {
				t.w.fail("S23: %v is on %s at index %d, which was to be empty %d ms ago", p.TaskID(), m.Name(), t.index, (t.cell.TimeNs()-deadlineNs)/millisecond)
			}
		}
		if deadlineNs != 0 {
			t.w.mark("drain came to its deadline")
		}
	}
	t.daemonsAlone = alone
}
