package sim

import (
	"maps"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// What S31 wants of updates with extra tasks, of those that spread over shelves, and of
// those with a gate. The elected masters answer for the gates themselves: nobody is
// there whom they could ask.

// pace is what is known of such an update.
type pace struct {
	// Extra tasks that ran when the entry before had been applied, and those that were
	// seen starting since.
	extra map[uint32]bool
	// How many tasks the job was to have then: a resize in the entry may take the indices
	// of extra tasks, and ends them.
	size uint32
	// Tasks that ran then; nil: no update was under way, so that all count as such.
	runs map[uint32]bool
	// Tasks of each shelf then, and all of them.
	tasks map[string]int
	all   int
	// Machine from which it took down who is down.
	machines map[uint32]string
	// Shelf of each task then: a machine may be moved to another one by an entry that takes
	// tasks down by where it was.
	shelves map[uint32]string
	// Its gate let a batch go that has not gone yet; and index of the entry in which the
	// last one went.
	passed bool
	went   uint64
}

// paced gives an update of format 8 something of that.
func (c *client) paced(p *borgpb.UpdatePolicy) {
	r := c.rand
	if c.w.truth.cell.Format() < cell.FormatSurges {
		return
	}
	if r.IntN(2) == 0 {
		p.Surge = uint32(1 + r.IntN(2))
		p.BatchSize = uint32(r.IntN(2))
		c.w.mark("update with extra tasks")
	}
	if r.IntN(2) == 0 {
		p.Order, p.SpreadBy = borgpb.UpdateOrder_UPDATE_ORDER_SPREAD, shelfAttribute
		p.BatchSize++
	}
	if r.IntN(4) == 0 {
		p.Gate = &borgpb.MetricGate{Url: "http://metrics", Query: "errors", MostMicro: new(int64(1)), FailAfterNs: between(r, 500*millisecond, 2*second)}
		c.w.mark("update with a gate")
	}
}

// judgeGates answers for the gates of updates that wait: well, mostly, and always once
// all faults are over.
func (m *masterSide) judgeGates() {
	for j := range m.r.cell.Gated() {
		verdict := borgpb.GateVerdict_GATE_VERDICT_PASS
		if !m.r.w.healed && m.r.rand.IntN(3) == 0 {
			verdict = borgpb.GateVerdict(2 + m.r.rand.IntN(2))
		}
		m.proposeOwn(&borgpb.Op{Principal: ownOp(), Op: &borgpb.Op_JudgeGate{JudgeGate: &borgpb.JudgeGate{
			User: j.Key().User, Name: j.Key().Name, UpdateUid: j.Update().UID().String(), Verdict: verdict, Words: "0",
		}}}, func(*borgpb.Result, error) {})
	}
}

// paceEvent follows what is told of an update itself.
func (x *rollout) paceEvent(ev *cell.Event) {
	if strings.HasPrefix(ev.Reason, "its gate lets it go on") {
		x.pace.passed = true
	}
}

// mayTakeDown is how many tasks may be down for it at once, by the extra tasks that ran
// when the entry began or run now.
func (x *rollout) mayTakeDown(j *cell.Job) int {
	u := j.Update()
	n := int(x.policy.GetBatchSize())
	if x.policy.GetSurge() > 0 && (u == nil || u.UID().String() != x.uid || !u.Rolling()) {
		// The entry has ended it since, and its extra tasks are gone.
		for i := range x.pace.extra {
			if i >= min(x.pace.size, j.Size()) {
				n++
			}
		}
		return max(n, 1)
	}
	if x.policy.GetSurge() == 0 || u.Surge() == 0 || j.Mixed() {
		return max(n, 1)
	}
	first, extra := min(x.pace.size, j.Size()), maps.Clone(x.pace.extra)
	for i := first; i < j.NumTasks(); i++ {
		if t := j.Task(i); t != nil && t.Current() != nil && t.Current().State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			extra[i] = true
		}
	}
	// With fewer tasks those that ran may be beyond where extra tasks are now.
	for i := range extra {
		if i >= first {
			n++
		}
	}
	return n
}

// paceTask judges that a task goes down which was up.
func (t *truth) paceTask(ev *cell.Event, j *cell.Job, x *rollout) {
	p := &x.pace
	p.machines[ev.Task] = ev.Machine
	if x.policy.GetGate() != nil && !x.rollback {
		if !p.passed && p.went != ev.Index {
			t.w.fail("S31: %s went down for update %s at index %d, and its gate was not asked", ev.Object(), x.uid, ev.Index)
		}
		p.passed, p.went = false, ev.Index
		t.w.mark("gate let a batch go")
	}
	key := x.policy.GetSpreadBy()
	if key == "" {
		return
	}
	shelf := t.shelfOf(ev.Machine)
	down := 0
	moved := func(task uint32) bool { was, known := p.shelves[task]; return known && was != shelf }
	if moved(ev.Task) {
		return
	}
	for i := range x.down {
		// Who was placed elsewhere meanwhile is down there.
		if at := lastAt(j.Task(i)); !moved(i) && at != nil && t.shelfOf(p.machines[i]) == shelf && t.shelfOf(at.Machine().Name()) == shelf {
			down++
		}
	}
	tasks, all := t.shelves(j)
	// As it was before the entry, or is after it: what is kinder.
	n, of := max(tasks[shelf], p.tasks[shelf]), all
	if p.all > 0 {
		of = min(all, p.all)
	}
	if most := (x.mayTakeDown(j)*n + of - 1) / max(of, 1); down > most {
		t.w.fail("S31: with %s, %d of %d tasks of shelf %s are down for update %s at index %d, which may take down %d of %d at once", ev.Object(), down, n, shelf, x.uid, ev.Index, x.mayTakeDown(j), of)
	}
	t.w.mark("update spread over shelves")
}

func (t *truth) shelfOf(machine string) string {
	m := t.cell.Machine(machine)
	if m == nil {
		return "of " + machine
	}
	if v, ok := m.Attribute(shelfAttribute); ok {
		return v
	}
	return "of " + machine
}

// lastAt is the copy of a task that says where it is, or was last; nil: nowhere.
func lastAt(task *cell.Task) *cell.Copy {
	if task == nil {
		return nil
	}
	if p := task.Current(); p != nil {
		return p
	}
	for past := range task.Past() {
		return past
	}
	return nil
}

// shelves counts the tasks of a job by where they are, or were last.
func (t *truth) shelves(j *cell.Job) (tasks map[string]int, all int) {
	tasks = map[string]int{}
	for i := range j.Size() {
		if p := lastAt(j.Task(i)); p != nil {
			tasks[t.shelfOf(p.Machine().Name())]++
			all++
		}
	}
	return tasks, all
}

// paceStands notes how an entry left a job.
func (t *truth) paceStands(j *cell.Job, x *rollout) {
	p := &x.pace
	clear(p.extra)
	p.runs = map[uint32]bool{}
	p.size = j.Size()
	u := j.Update()
	for i, task := range j.Tasks() {
		c := task.Current()
		if c == nil || c.State() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			continue
		}
		if p.runs[i] = true; i >= j.Size() {
			p.extra[i] = true
			t.w.mark("extra task runs")
		}
	}
	if n := u.Extra(); !x.unknown && n > x.policy.GetSurge() {
		t.w.fail("S31: update %s has %d extra tasks at index %d, and may have %d", x.uid, n, t.index, x.policy.GetSurge())
	}
	if x.policy.GetSpreadBy() != "" {
		p.tasks, p.all = t.shelves(j)
		clear(p.shelves)
		for i, task := range j.Tasks() {
			if at := lastAt(task); at != nil {
				p.shelves[i] = t.shelfOf(at.Machine().Name())
			}
		}
	}
}

// paceRuns notes that a task runs, or not, within an entry.
func (p *pace) paceRuns(index uint32, runs bool) {
	if runs {
		p.extra[index] = true
	}
	if p.runs != nil {
		p.runs[index] = runs
	}
}

// paceRestarts notes that a task was started again within an entry. It may run already,
// and then counts as an extra task that runs; as a task of the job it counts as down.
func (p *pace) paceRestarts(index uint32) {
	p.paceRuns(index, false)
	p.extra[index] = true
}

func newPace() pace {
	return pace{extra: map[uint32]bool{}, machines: map[uint32]string{}, shelves: map[uint32]string{}}
}
