package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

func moveTasks(o *borgpb.MoveTasks) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER},
		Op:        &borgpb.Op_MoveTasks{MoveTasks: o},
	}
}

// start says of every copy of a job that it runs.
func (w *world) start(key cell.JobKey) {
	j := w.cell.Job(key)
	for i, task := range j.Tasks() {
		if p := task.Current(); p != nil && p.State() == borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED {
			w.do(reported(j, i, p.Machine().Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_RUNNING))
		}
	}
}

// reschedule reads a set of reasons, with "+" between them.
func (o options) reschedule() scheduler.Reschedule {
	r, ok := scheduler.ParseReschedule(strings.ReplaceAll(o.words["reschedule"], "+", ","))
	if !ok {
		o.t.Fatalf("reschedule=%s", o.words["reschedule"])
	}
	return r
}

// planText writes down a plan, one placement on a line.
func (tr *transcript) planText() string {
	if tr.plan == nil {
		return "no plan\n"
	}
	var out strings.Builder
	for _, a := range tr.plan.Moves {
		uid, err := cell.ParseUID(a.Uid)
		if err != nil {
			return err.Error()
		}
		from := tr.copy.JobByUID(uid).Task(a.Index).Current().Machine().Name()
		fmt.Fprintf(&out, "%s leaves %s: %s\n", cell.TaskID{Job: tr.copy.JobByUID(uid).Key(), Index: a.Index}, from, tr.assignmentText(a))
	}
	if a := tr.plan.Placement; a != nil {
		fmt.Fprintf(&out, "then %s\n", tr.assignmentText(a))
	}
	return out.String()
}

// tightCell draws a cell of a few machines that is so full that production waits,
// or nearly.
func tightCell(t testing.TB, r *rand.Rand, reschedule scheduler.Reschedule) *world {
	policies := []scheduler.Policy{scheduler.Hybrid, scheduler.BestFit, scheduler.WorstFit, scheduler.WorstFit}
	w := newWorld(t, scheduler.Config{
		Seed: r.Uint64(), Policy: policies[r.IntN(len(policies))], Reschedule: reschedule, Moves: 1000,
	})
	machines := 2 + r.IntN(7)
	for i := range machines {
		spec := machineSpec(int64(2+r.IntN(7))*500, int64(4+r.IntN(13))<<28)
		for _, key := range []string{"rack", "power", "arch"} {
			if r.IntN(2) == 0 {
				spec.Attributes[key] = strconv.Itoa(r.IntN(3))
			}
		}
		if r.IntN(6) == 0 {
			spec.Capacity.Devices = map[string]int64{"gpu": int64(1 + r.IntN(3))}
		}
		if r.IntN(8) == 0 {
			spec.Taints = []*borgpb.Taint{{Key: "dedicated", Value: "db"}}
		}
		w.must(t, addMachine(fmt.Sprintf("m%d", i), spec))
	}
	for i := range 1 + machines/3 + r.IntN(machines/2+1) {
		w.must(t, submitJob([]string{"ann", "bob"}[r.IntN(2)], fmt.Sprintf("j%d", i), tightJob(r)))
		w.settleAll(t)
	}
	for i := range 1 + r.IntN(2) {
		spec := tightJob(r)
		spec.Tasks, spec.Priority = 1, []int32{120, 200, 300, 370}[r.IntN(4)]
		spec.Task.Constraints = nil
		capacity := w.cell.Machine(fmt.Sprintf("m%d", r.IntN(machines))).Capacity()
		spec.Task.Resources.CpuMilli = capacity.CPUMilli * int64(4+r.IntN(5)) / 8
		spec.Task.Resources.MemBytes = capacity.MemBytes * int64(2+r.IntN(6)) / 8
		w.must(t, submitJob("cyd", fmt.Sprintf("large%d", i), spec))
	}
	w.settleAll(t)
	if r.IntN(3) == 0 {
		w.do(machineOp("drain", options{name: fmt.Sprintf("m%d", r.IntN(machines))}))
		w.endStopping()
		w.settleAll(t)
	}
	w.endStopping()
	w.settleAll(t)
	return w
}

func tightJob(r *rand.Rand) *borgpb.JobSpec {
	priorities := []int32{25, 120, 140, 200, 200, 240, 370}
	spec := service(uint32(1+r.IntN(4)), priorities[r.IntN(len(priorities))], int64(1+r.IntN(5))*250, int64(1+r.IntN(5))<<28)
	switch r.IntN(8) {
	case 0:
		spec.MaxPerMachine = 1
	case 1:
		spec.MaxPerRack = 1
	case 2:
		spec.Task.Constraints = []*borgpb.Constraint{{Key: "arch", Relation: borgpb.Relation_RELATION_EQUAL, Value: strconv.Itoa(r.IntN(3))}}
	case 3:
		spec.Task.Tolerations = []*borgpb.Toleration{{Key: "dedicated"}}
	case 4:
		spec.Task.Resources.Devices = map[string]int64{"gpu": int64(1 + r.IntN(2))}
		if r.IntN(2) == 0 {
			spec.Task.Resources.Devices, spec.Task.Resources.DeviceMilli = nil, map[string]int64{"gpu": int64(1+r.IntN(9)) * 100}
		}
	case 5:
		spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
	}
	if r.IntN(4) == 0 {
		spec.DisruptionBudget = &borgpb.DisruptionBudget{MaxDown: uint32(1 + r.IntN(2)), MaxPerTask: 1, WindowNs: int64(r.IntN(20)+1) * 1e9}
	}
	return spec
}

// endStopping lets everything end that was told to stop.
func (w *world) endStopping() {
	for m := range w.cell.Machines() {
		for _, p := range slices.Collect(m.Copies()) {
			if p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING {
				w.do(reported(w.cell.JobByUID(p.JobUID()), p.Index(), m.Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
			}
		}
	}
	w.catchUp()
}

// bruteForce tries all plans of at most two moves after which index of j fits, by
// the cell's test of the whole plan. It says how few moves do, and the lowest of the
// highest priorities that so few move.
type bruteForce struct {
	c     *cell.Cell
	j     *cell.Job
	index uint32
	// moves is 0 as long as there is no plan.
	moves    int
	priority int32
}

func (b *bruteForce) run() {
	if !slices.ContainsFunc(slices.Collect(b.c.Machines()), func(m *cell.Machine) bool {
		return b.j.Need(b.index).Resources.Fits(m.Capacity())
	}) {
		return
	}
	var movable []*cell.Copy
	for m := range b.c.Machines() {
		for p := range m.Copies() {
			if p.Alloc() == nil && p.Current() && !p.Waits() && (b.j.Priority() >= 360 || p.Priority() < 360) {
				movable = append(movable, p)
			}
		}
	}
	for _, p := range movable {
		b.try(p)
	}
	if b.moves > 0 {
		return
	}
	for i, p := range movable {
		for _, q := range movable[:i] {
			b.try(p, q)
		}
	}
}

// try tries all ways to move some copies.
func (b *bruteForce) try(leave ...*cell.Copy) {
	priority := int32(0)
	for _, p := range leave {
		priority = max(priority, p.Priority())
	}
	if b.moves > 0 && priority >= b.priority {
		return
	}
	o := &borgpb.MoveTasks{}
	for _, p := range leave {
		o.Moves = append(o.Moves, &borgpb.Assignment{Uid: p.JobUID().String(), Index: p.Index(), LastAttempt: p.Attempt()})
	}
	o.Placement = &borgpb.Assignment{Uid: b.j.UID().String(), Index: b.index, LastAttempt: b.j.Task(b.index).Attempt()}
	if b.place(o, leave, append(slices.Clone(o.Moves), o.Placement), nil) {
		b.moves, b.priority = len(leave), priority
	}
}

// place tries all machines for the first of todo, each with all sets of victims
// that nobody else has, and goes on with the rest.
func (b *bruteForce) place(o *borgpb.MoveTasks, leave []*cell.Copy, todo []*borgpb.Assignment, claimed []*cell.Copy) bool {
	if len(todo) == 0 {
		return b.c.CheckMoveTasks(o) == nil
	}
	a := todo[0]
	for m := range b.c.Machines() {
		var here []*cell.Copy
		for _, p := range leave {
			if p.Machine() == m && !slices.Contains(claimed, p) {
				here = append(here, p)
			}
		}
		// Without anybody who leaves the machine nothing has changed for who waits,
		// but where limits of failure domains count.
		spec := b.j.Spec()
		if len(todo) == 1 && len(here) == 0 && spec.GetMaxPerMachine()+spec.GetMaxPerRack()+spec.GetMaxPerPower() == 0 {
			continue
		}
		a.Machine = m.Name()
		for set := range 1 << len(here) {
			a.Victims = nil
			taken := slices.Clone(claimed)
			for i, p := range here {
				if set&(1<<i) != 0 {
					a.Victims = append(a.Victims, &borgpb.Victim{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt()})
					taken = append(taken, p)
				}
			}
			for _, devices := range b.grants(a, m) {
				if a.Devices = devices; b.place(o, leave, todo[1:], taken) {
					return true
				}
			}
		}
	}
	return false
}

// grants are all ways to name the devices on m that a needs.
func (b *bruteForce) grants(a *borgpb.Assignment, m *cell.Machine) (all [][]*borgpb.DeviceGrant) {
	uid, _ := cell.ParseUID(a.Uid)
	need := b.c.JobByUID(uid).Need(a.Index).Resources.Devices
	if len(need) == 0 {
		return [][]*borgpb.DeviceGrant{nil}
	}
	n, _ := need[0].Split()
	capacity := m.Capacity()
	for set := range 1 << (capacity.Device(need[0].Name) / 1000) {
		g := &borgpb.DeviceGrant{Name: need[0].Name}
		for number := range uint32(8) {
			if set&(1<<number) != 0 {
				g.Numbers = append(g.Numbers, number)
			}
		}
		if int64(len(g.Numbers)) == n {
			all = append(all, []*borgpb.DeviceGrant{g})
		}
	}
	return all
}

// hopeless lists tasks of production that fit nowhere, whoever gives way.
func hopeless(c *cell.Cell) (ids []cell.TaskID) {
	p := newPlain(c, scheduler.Config{})
	for j, index := range c.Pending() {
		if j.Priority() < 120 || j.Spec().GetPreempt() == borgpb.Preempt_PREEMPT_NEVER {
			continue
		}
		if _, ok := p.best(j, index); ok {
			continue
		}
		if _, ok := p.leastToll(j, index); ok {
			continue
		}
		ids = append(ids, cell.TaskID{Job: j.Key(), Index: index})
	}
	return ids
}

// moveSeeds are 1 to BORG_MOVE_SEEDS (most unless said), or BORG_MOVE_SEED alone.
func moveSeeds(t *testing.T, most uint64) (first, last uint64) {
	number := func(name string, otherwise uint64) uint64 {
		s := os.Getenv(name)
		if s == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q: %v", name, s, err)
		}
		return n
	}
	if one := number("BORG_MOVE_SEED", 0); one > 0 {
		return one, one
	}
	return 1, number("BORG_MOVE_SEEDS", most)
}

// TestPlansAgainstBruteForce makes plans in small cells that are full. A plan is
// found whenever one of at most two moves exists, it moves as few as possible of as
// low a priority as possible, and only for a task that fits nowhere; the cell does
// it, and then everybody who was displaced runs.
func TestPlansAgainstBruteForce(t *testing.T) {
	seen := make(map[string]int)
	first, last := moveSeeds(t, 100)
	for seed := first; seed <= last; seed++ {
		w := tightCell(t, rand.New(rand.NewPCG(seed, 1)), scheduler.ReschedulePending)
		if problem := checkPlans(t, w, seen); problem != "" {
			t.Fatalf("%s\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", problem, seed, t.Name())
		}
	}
	t.Logf("%v", seen)
}

// TestSamePlanAfterRestart wants the plan of a scheduler that was just made over
// the cell as it is written down to be that of the one that has followed it.
func TestSamePlanAfterRestart(t *testing.T) {
	first, last := moveSeeds(t, 200)
	plans := 0
	for seed := first; seed <= last; seed++ {
		all := scheduler.ReschedulePending | scheduler.RescheduleSpread | scheduler.RescheduleDefragment
		w := tightCell(t, rand.New(rand.NewPCG(seed, 5)), all)
		w.startAll()
		w.settleAll(t)
		copied, err := cell.Load(w.cell.Records())
		if err != nil {
			t.Fatal(err)
		}
		s, err := scheduler.New(w.s.Config())
		if err != nil {
			t.Fatal(err)
		}
		if b := s.Pass(copied); b.ID != 0 || b.More {
			t.Fatalf("seed %d: a pass decides something: %v", seed, b)
		}
		was, is := w.s.Plan(w.copy), s.Plan(copied)
		if !proto.Equal(was, is) {
			t.Fatalf("the plan was %v and is %v\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", was, is, seed, t.Name())
		}
		if is != nil {
			plans++
		}
	}
	t.Logf("%d plans", plans)
}

// checkPlans makes plans until there are no more.
func checkPlans(t *testing.T, w *world, seen map[string]int) (problem string) {
	for range 20 {
		waiting := hopeless(w.cell)
		best := make(map[string]*bruteForce)
		for _, id := range waiting {
			b := &bruteForce{c: w.cell, j: w.cell.Job(id.Job), index: id.Index}
			b.run()
			best[id.String()] = b
		}
		o := w.s.Plan(w.copy)
		if w.s.Stats().Unproved > 0 {
			return fmt.Sprintf("the cell refuses a plan that was made: %v", waiting)
		}
		if o == nil {
			for name, b := range best {
				if b.moves > 0 {
					return fmt.Sprintf("%s waits, and %d moves of priority %d would do", name, b.moves, b.priority)
				}
			}
			seen["in vain"] += len(waiting)
			return ""
		}
		uid, _ := cell.ParseUID(o.GetPlacement().GetUid())
		j := w.cell.JobByUID(uid)
		if j == nil {
			return fmt.Sprintf("a plan for nobody: %v", o)
		}
		name := cell.TaskID{Job: j.Key(), Index: o.Placement.Index}.String()
		b := best[name]
		if b == nil {
			return fmt.Sprintf("%s is not one of those who fit nowhere: %v", name, waiting)
		}
		if b.moves > 0 && len(o.Moves) != b.moves || b.moves == 0 && len(o.Moves) < 3 {
			return fmt.Sprintf("%s: %d moves, want %d", name, len(o.Moves), b.moves)
		}
		if got := highest(w.cell, o); b.moves > 0 && got != b.priority {
			return fmt.Sprintf("%s: moves priority %d, want %d", name, got, b.priority)
		}
		seen[fmt.Sprintf("%d moves", len(o.Moves))]++
		if problem := carryOut(w, o); problem != "" {
			return problem
		}
		w.settleAll(t)
	}
	return "plans go on and on"
}

// highest is the highest priority that a plan moves.
func highest(c *cell.Cell, o *borgpb.MoveTasks) (n int32) {
	for _, a := range o.Moves {
		uid, _ := cell.ParseUID(a.Uid)
		n = max(n, c.JobByUID(uid).Priority())
	}
	return n
}

// carryOut puts a plan into the log and lets those stop who leave. Everybody who
// was moved, or placed, must run where the plan says, and nobody else may be
// disturbed.
func carryOut(w *world, o *borgpb.MoveTasks) (problem string) {
	running := make(map[cell.CopyID]bool)
	for m := range w.cell.Machines() {
		for p := range m.Copies() {
			if p.Current() {
				running[p.ID()] = true
			}
		}
	}
	r := w.do(moveTasks(o))
	w.s.SettlePlan(w.copy, r)
	if r.GetRefusal() != nil {
		return fmt.Sprintf("%v: %v", o, r.GetRefusal())
	}
	w.endStopping()
	w.timeNs += 2e9
	if err := w.cell.Check(); err != nil {
		return err.Error()
	}
	all := slices.Clone(o.Moves)
	if o.Placement != nil {
		all = append(all, o.Placement)
	}
	for _, a := range all {
		uid, _ := cell.ParseUID(a.Uid)
		p := w.cell.JobByUID(uid).Task(a.Index).Current()
		if p == nil || p.Machine().Name() != a.Machine || p.Waits() {
			return fmt.Sprintf("%v: %v does not run there", o, a)
		}
		delete(running, cell.CopyID{Job: uid, Index: a.Index, Attempt: a.LastAttempt})
	}
	for id := range running {
		if uid := w.cell.JobByUID(id.Job); uid.Task(id.Index).Attempt() != id.Attempt {
			return fmt.Sprintf("%v: %v was disturbed", o, id)
		}
	}
	return ""
}
