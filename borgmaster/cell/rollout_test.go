package cell

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"borg/proto/borgpb"
)

// roller rolls one update through a job while everything around it fails, and counts
// from the events what the update does.
type roller struct {
	*testLog
	r *rapid.T
	// The new version does not come up; and how it fails.
	bad, crashes bool
	// Tasks that the update at hand took down and that were not started since, and how
	// often it did so in all.
	down      map[uint32]bool
	disturbed int
	policy    *borgpb.UpdatePolicy
	pids      int64
	// Its gate has let one batch go, which has not gone yet.
	passed bool
	// Who came back with his machine when no update was under way: as he was.
	returned map[uint32]bool
}

func (x *roller) job() *Job { return x.c.Job(JobKey{"u", "j"}) }

func (x *roller) do1(ops ...*borgpb.Op) {
	was := x.updating()
	standIns := x.standIns()
	_, events := x.apply(ops...)
	x.checkStandIns(standIns, ops, events)
	fresh := map[uint32]bool{}
	for _, e := range events {
		switch {
		case e.Kind == borgpb.EventKind_EVENT_KIND_UPDATE_START:
			x.down, x.disturbed, x.passed = map[uint32]bool{}, 0, false
		case strings.HasPrefix(e.Reason, "its gate lets it go on"):
			x.passed = true
		case e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK:
		case e.Cause == borgpb.StopCause_STOP_CAUSE_UPDATE && e.To == borgpb.State_STATE_PENDING:
			x.down[e.Task] = true
			x.disturbed++
			if was[e.Task] {
				// It was down already.
			} else if fresh[e.Task] = true; len(x.down) > x.most() {
				x.r.Fatalf("%d tasks are down for the update, which may take down %d", len(x.down), x.most())
			}
			if most := int(x.policy.MaxDisruptions); most > 0 && x.disturbed > most {
				x.r.Fatalf("the update disturbed %d times, it may %d times", x.disturbed, most)
			}
			if x.policy.NoNeighbours && fresh[e.Task] && (x.down[e.Task+1] || e.Task > 0 && x.down[e.Task-1]) {
				x.r.Fatalf("task %d went down beside another: %v", e.Task, x.down)
			}
		case e.Kind == borgpb.EventKind_EVENT_KIND_RESTART:
			// It failed just now, so whoever deals with it takes nothing down.
			was[e.Task] = true
		case e.Kind == borgpb.EventKind_EVENT_KIND_START, e.Kind == borgpb.EventKind_EVENT_KIND_RETURN, e.To == borgpb.State_STATE_DEAD:
			delete(x.down, e.Task)
		}
	}
	if err := x.c.Check(); err != nil {
		x.r.Fatal(err)
	}
	j := x.job()
	x.checkFresh(fresh)
	for _, e := range events {
		if e.Kind == borgpb.EventKind_EVENT_KIND_RETURN && !j.update.Rolling() {
			x.returned[e.Task] = true
		}
	}
	if u := j.update; u.canarying() {
		n := 0
		for _, t := range j.rows {
			if t.cur != nil && t.cur.version == u.toVersion {
				n++
			}
		}
		if n > int(x.policy.Canaries) {
			x.r.Fatalf("%d tasks have a version that %d canaries should try", n, x.policy.Canaries)
		}
	}
}

// most is how many tasks may be down for the update: its batch, and one more for each
// extra task that runs.
func (x *roller) most() int {
	u := x.job().update
	if x.policy.Surge == 0 || u.surge == 0 || u.canarying() {
		return int(max(x.policy.BatchSize, 1))
	}
	n := int(x.policy.BatchSize)
	for _, t := range x.job().rows[x.job().Size():] {
		if t.cur != nil && t.cur.state == attemptRunning {
			n++
		}
	}
	return n
}

// standIns are the extra tasks that run.
func (x *roller) standIns() map[uint32]bool {
	m := map[uint32]bool{}
	if j := x.job(); j != nil {
		for _, t := range j.rows[j.Size():] {
			m[t.index] = t.runs()
		}
	}
	return m
}

// checkStandIns wants that an update that is given up ends no extra task that runs while
// fewer tasks than the job has do.
func (x *roller) checkStandIns(ran map[uint32]bool, ops []*borgpb.Op, events []Event) {
	j := x.job()
	if len(ran) == 0 || ops[0].GetResizeJob() != nil || x.c.format < FormatStandIns || !x.c.standsIn(j.update.state) {
		return
	}
	for _, e := range events {
		if e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK && e.To == borgpb.State_STATE_DEAD && ran[e.Task] && j.started < j.Size() {
			x.r.Fatalf("extra task %d is ended while %d of %d tasks run", e.Task, j.started, j.Size())
		}
	}
}

func (x *roller) updating() map[uint32]bool {
	m := map[uint32]bool{}
	if j := x.job(); j != nil {
		for _, t := range j.rows {
			if t.flags&taskUpdating != 0 {
				m[t.index] = true
			}
		}
	}
	return m
}

// checkFresh judges those that an op took down: of a rack no larger part of the batch
// than it has of the tasks, and nobody without an answer of the gate.
func (x *roller) checkFresh(fresh map[uint32]bool) {
	j := x.job()
	if len(fresh) == 0 {
		return
	}
	if x.policy.Gate != nil && !j.update.rollback {
		if !x.passed {
			x.r.Fatalf("%v went down and the gate was not asked", fresh)
		}
		x.passed = false
	}
	if x.policy.Order != borgpb.UpdateOrder_UPDATE_ORDER_SPREAD {
		return
	}
	tasks, down, newly := map[string]int{}, map[string]int{}, map[string]bool{}
	all := 0
	for _, t := range j.rows[:j.Size()] {
		p := t.cur
		if p == nil {
			p = t.past
		}
		if p == nil {
			continue
		}
		rack, _ := p.machine.Attribute("rack")
		all++
		tasks[rack]++
		if t.flags&taskUpdating != 0 {
			down[rack]++
		}
		newly[rack] = newly[rack] || fresh[t.index]
	}
	for rack := range newly {
		if most := (x.most()*tasks[rack] + all - 1) / all; newly[rack] && down[rack] > most {
			x.r.Fatalf("%d of %d tasks of rack %s are down, with room for %d of %d", down[rack], tasks[rack], rack, x.most(), all)
		}
	}
}

// judge answers for the gate, if it is asked.
func (x *roller) judge(v borgpb.GateVerdict) {
	if j := x.job(); x.c.asksGate(j.update) {
		x.do1(&borgpb.Op{Op: &borgpb.Op_JudgeGate{JudgeGate: &borgpb.JudgeGate{User: "u", Name: "j", UpdateUid: j.update.uid.String(), Verdict: v, Words: "0.5"}}})
	}
}

// borglets stops what must stop and starts what was placed; the new version only if it
// is any good.
func (x *roller) borglets(most int) {
	reports := new(borgpb.Reports)
	for m := range x.c.Machines() {
		mr := &borgpb.MachineReport{Machine: m.name}
		for p := range m.Copies() {
			x.pids++
			r := &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(attemptRunning), Pid: x.pids, Restarts: p.restarts}
			switch {
			case p.state == attemptStopping:
				r.State = int32(attemptStopped)
			case p.state == attemptRunning:
				r.Pid, r.AsOfNs = p.pid, x.cellNs
			case x.bad && p.spec != nil && slices.Equal(p.spec.Proto.Task.Args, []string{"new"}):
				if r.State = int32(attemptStarting); x.crashes {
					r.State, r.Restarts = int32(attemptBackoff), p.restarts+1
				}
			}
			if x.c.Effect(m, r) == ReportNews && len(mr.Tasks) < most {
				mr.Tasks = append(mr.Tasks, r)
			}
		}
		if len(mr.Tasks) > 0 {
			reports.Machines = append(reports.Machines, mr)
		}
	}
	x.do1(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: reports}})
}

func (x *roller) place(most int) {
	assign := new(borgpb.Assign)
	machines := slices.Collect(x.c.Machines())
	for j, i := range x.c.Pending() {
		for n := range machines {
			m := machines[(n+int(i))%len(machines)]
			p := &Placement{Job: j, Index: i, Machine: m, AnyPorts: true}
			if x.c.Fit(p, nil) == FitOK && len(assign.Assignments) < most {
				assign.Assignments = append(assign.Assignments, &borgpb.Assignment{
					Uid: j.uid.String(), Index: i, LastAttempt: j.rows[i].attempt, Machine: m.name})
				break
			}
		}
	}
	x.do1(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}})
}

// wait lets time pass, and has somebody write an entry then.
func (x *roller) wait(ns int64) {
	x.cellNs += ns
	x.wallNs += ns
	x.do1(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
}

func (x *roller) control(verb borgpb.UpdateVerb) {
	x.do1(&borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "u", Name: "j", Verb: verb}}})
}

// upset is something that goes wrong around the update, or somebody's word.
func (x *roller) upset() {
	switch rapid.IntRange(0, 10).Draw(x.r, "upset") {
	case 0:
		x.do1(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m1", Term: x.term}}})
	case 1:
		x.do1(&borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: "m1"}}})
	case 2, 3:
		// A process ends by itself.
		j := x.job()
		t := j.rows[rapid.IntRange(0, len(j.rows)-1).Draw(x.r, "who fails")]
		if p := t.cur; p != nil {
			r := &borgpb.TaskReport{JobUid: j.uid.String(), Index: t.index, Attempt: t.attempt, State: int32(attemptBackoff), Restarts: p.restarts + 1, Pid: 1}
			x.do1(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: p.machine.name, Tasks: []*borgpb.TaskReport{r}}}}}})
		}
	case 4:
		x.do1(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "u", Name: "j", Tasks: uint32(rapid.IntRange(1, 10).Draw(x.r, "size"))}}})
	case 5:
		x.control(borgpb.UpdateVerb(rapid.IntRange(1, 7).Draw(x.r, "verb")))
	case 7, 8:
		x.judge(borgpb.GateVerdict(rapid.IntRange(1, 3).Draw(x.r, "verdict")))
	case 6:
		x.wait(int64(rapid.IntRange(1, 20).Draw(x.r, "seconds")) * second)
	default:
		// A replica that was started anew goes on as the others do.
		c, err := Load(x.c.Records())
		if err != nil {
			x.r.Fatal(err)
		}
		if got, want := c.Digest(), x.c.Digest(); got != want {
			x.r.Fatalf("digest after Load is %x, want %x", got, want)
		}
		x.c = c
	}
}

// TestUpdateMachine: whatever fails in between, an update with a progress deadline ends,
// never has more tasks down than its batch and the extra tasks that run, never takes down
// more of a rack than its share, or anybody without an answer of its gate, never disturbs more often than its cap, never ends
// extra tasks that stand in for who is down when it is given up, lets none but its canaries try what was not promoted, and leaves neighbours alone. Where it
// rolls back by itself, every task that could be placed has the old spec at the end.
func TestUpdateMachine(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		x := &roller{testLog: newTestLog(t), r: r, down: map[uint32]bool{}, returned: map[uint32]bool{}}
		x.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: rapid.SampledFrom([]uint32{BuildFormat, FormatSurges}).Draw(r, "format")}}})
		for i := range 3 {
			m := addMachine(fmt.Sprintf("m%d", i), 10_000, 1<<34)
			m.GetAddMachine().Spec.Attributes = map[string]string{"rack": fmt.Sprint(i / 2)}
			x.do(m)
		}
		spec := service(uint32(rapid.IntRange(1, 10).Draw(r, "tasks")), 200, 300, 1<<20)
		spec.Task.Args = []string{"old"}
		x.policy = &borgpb.UpdatePolicy{}
		x.do(submitJob(t, "j", spec))
		x.place(100)
		x.borglets(100)

		x.bad, x.crashes = rapid.Bool().Draw(r, "bad"), rapid.Bool().Draw(r, "crashes")
		watch := int64(rapid.IntRange(0, 3).Draw(r, "watch")) * second
		x.policy = &borgpb.UpdatePolicy{
			BatchSize: uint32(rapid.IntRange(0, 4).Draw(r, "batch")), MaxDisruptions: uint32(rapid.IntRange(0, 6).Draw(r, "cap")),
			Order:   borgpb.UpdateOrder(rapid.IntRange(0, 2).Draw(r, "order")),
			WatchNs: watch, ProgressDeadlineNs: watch + int64(rapid.IntRange(5, 40).Draw(r, "deadline"))*second,
			Canaries: uint32(rapid.IntRange(0, 3).Draw(r, "canaries")), AutoRollback: rapid.Bool().Draw(r, "auto"),
			NoNeighbours: rapid.Bool().Draw(r, "apart"), CloseAfterNs: 3600 * second,
		}
		if x.policy.Canaries > 0 && rapid.Bool().Draw(r, "promotes itself") {
			x.policy.CanaryWatchNs = int64(rapid.IntRange(1, 10).Draw(r, "canary watch")) * second
		}
		if rapid.Bool().Draw(r, "bears failures") {
			x.policy.MaxFailed = new(uint32(rapid.IntRange(0, 3).Draw(r, "max failed")))
		}
		if rapid.IntRange(0, 4).Draw(r, "pulse") == 0 {
			x.policy.PulseNs = 10 * second
		}
		x.policy.Surge = uint32(rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(r, "surge"))
		if rapid.Bool().Draw(r, "spread") {
			x.policy.Order = borgpb.UpdateOrder_UPDATE_ORDER_SPREAD
		}
		if rapid.IntRange(0, 2).Draw(r, "gate") == 0 {
			x.policy.Gate = &borgpb.MetricGate{Url: "http://prom", Query: "up", MostMicro: new(int64(1)), FailAfterNs: int64(rapid.IntRange(1, 30).Draw(r, "gate fails after")) * second}
		}
		spec.Task.Args, spec.Update = []string{"new"}, x.policy
		x.do1(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: marshal(t, spec)}}})
		for range rapid.IntRange(0, 25).Draw(r, "upsets") {
			x.upset()
			x.place(rapid.IntRange(0, 3).Draw(r, "placed"))
			x.borglets(rapid.IntRange(0, 3).Draw(r, "reported"))
		}
		x.settle()
	})
}

// settle lets everything around the update be well, and wants it to end.
func (x *roller) settle() {
	x.do1(&borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: "m1"}}})
	for range 200 {
		u := x.job().update
		if !u.Rolling() {
			break
		}
		switch {
		case u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED:
			x.control(borgpb.UpdateVerb_UPDATE_VERB_RESUME)
		case u.state == borgpb.UpdateState_UPDATE_STATE_CANARY && (u.policy.canaryWatchNs == 0 || u.canaryNs == 0):
			x.control(borgpb.UpdateVerb_UPDATE_VERB_PROMOTE)
		case u.policy.pulseNs > 0:
			x.control(borgpb.UpdateVerb_UPDATE_VERB_PULSE)
		}
		x.judge(borgpb.GateVerdict_GATE_VERDICT_PASS)
		x.place(100)
		x.borglets(100)
		x.wait(2 * second)
	}
	j := x.job()
	u := j.update
	if u.Rolling() {
		x.r.Fatalf("the update does not end: %v", x.c.UpdateProto(j))
	}
	x.place(100)
	x.borglets(100)
	for _, t := range j.rows {
		p := t.cur
		if p == nil || t.flags&taskSkipped != 0 || x.returned[t.index] {
			continue
		}
		if args := p.spec.Proto.Task.Args[0]; u.state == borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK && args != "old" || u.state == borgpb.UpdateState_UPDATE_STATE_DONE && args != "new" {
			x.r.Fatalf("the update is %s and task %d runs the %s version", u.stateWords(), t.index, args)
		}
	}
}

// TestHundredTasks is scenario 34 of the cell: of a hundred tasks ten are restarted, the
// others are skipped; a rollback returns all to the old spec and disturbs those ten
// alone; once closed there is none.
func TestHundredTasks(t *testing.T) {
	d := &driver{newTestLog(t)}
	d.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatUpdates}}})
	for i := range 10 {
		d.do(addMachine(fmt.Sprintf("m%d", i), 10_000, 1<<34))
	}
	spec := service(100, 200, 300, 1<<20)
	spec.Task.Args = []string{"old"}
	d.do(submitJob(t, "j", spec))
	for d.step(100) {
	}
	first := map[uint32]uint64{}
	for i, task := range d.c.Job(JobKey{"u", "j"}).Tasks() {
		first[i] = task.Attempt()
	}
	j := d.c.Job(JobKey{"u", "j"})
	count := func(args string) (n, moved int) {
		for i, task := range j.Tasks() {
			if task.cur.spec.Proto.Task.Args[0] == args {
				n++
			}
			if task.Attempt() != first[i] {
				moved++
			}
		}
		return n, moved
	}
	update := func() *borgpb.UpdateStatus {
		spec.Task.Args, spec.Update = []string{"new"}, &borgpb.UpdatePolicy{BatchSize: 4, MaxDisruptions: 10}
		d.do(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: marshal(t, spec)}}})
		for d.step(7) {
		}
		st := d.c.UpdateProto(j).Status
		if n, _ := count("new"); n != 10 || st.Restarted != 10 || st.Skipped != 90 || st.State != borgpb.UpdateState_UPDATE_STATE_DONE {
			t.Fatalf("%d tasks have the new version: %v", n, st)
		}
		return st
	}
	control := func(verb borgpb.UpdateVerb) *borgpb.Refusal {
		res, _ := d.apply(&borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "u", Name: "j", Verb: verb}}})
		return res[0].Refusal
	}
	update()
	if r := control(borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK); r != nil {
		t.Fatal(r)
	}
	for d.step(7) {
	}
	u := d.c.UpdateProto(j)
	if n, moved := count("old"); n != 100 || moved != 10 || u.Status.State != borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK || u.Status.InPlace != 90 {
		t.Fatalf("%d tasks have the old version, %d are not where they began: %v", n, moved, u)
	}
	update()
	if r := control(borgpb.UpdateVerb_UPDATE_VERB_CLOSE); r != nil {
		t.Fatal(r)
	}
	if r := control(borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		t.Fatalf("a closed update is rolled back: %v", r)
	}
	if n := len(j.specs); n != 2 {
		t.Errorf("%d specs are kept of a job with two versions", n)
	}
}

// TestManyUpdates rolls an update through each twentieth of many jobs at once, and in the
// middle of it goes on with a cell that was read from records, as a newly elected master
// may. Every update ends, takes down one task at a time, and no task of another job is
// touched. BORG_UPDATE_JOBS: how many jobs there are.
func TestManyUpdates(t *testing.T) {
	jobs, tasks := 400, uint32(3)
	if n, err := strconv.Atoi(os.Getenv("BORG_UPDATE_JOBS")); err == nil {
		jobs = n
	}
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatUpdates}}})
	machines := 1 + jobs/400
	for i := range machines {
		l.do(addMachine(fmt.Sprintf("m%d", i), 1_000_000, 1<<40))
	}
	spec := service(tasks, 200, 100, 1<<20)
	spec.Task.Args = []string{"old"}
	for i := range jobs {
		l.do(submitJob(t, fmt.Sprintf("j%d", i), spec))
	}
	down := map[UID]int{}
	disturbed := 0
	apply := func(op *borgpb.Op) {
		_, events := l.apply(op)
		for _, e := range events {
			switch {
			case e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK:
			case e.Cause == borgpb.StopCause_STOP_CAUSE_UPDATE && e.To == borgpb.State_STATE_PENDING:
				disturbed++
				if down[e.UID]++; down[e.UID] > 1 {
					t.Fatalf("two tasks of %v are down for its update", e.Key)
				}
			case e.Kind == borgpb.EventKind_EVENT_KIND_START && down[e.UID] > 0:
				down[e.UID]--
			}
		}
	}
	step := func() (busy bool) {
		assign, reports := new(borgpb.Assign), new(borgpb.Reports)
		for j, i := range l.c.Pending() {
			if len(assign.Assignments) == 4000 {
				break
			}
			assign.Assignments = append(assign.Assignments, &borgpb.Assignment{
				Uid: j.uid.String(), Index: i, LastAttempt: j.rows[i].attempt, Machine: fmt.Sprintf("m%d", (int(j.uid.Index)+int(i))%machines)})
		}
		for m := range l.c.Machines() {
			mr := &borgpb.MachineReport{Machine: m.name}
			for p := range m.Copies() {
				r := &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(attemptRunning), Pid: 1}
				if p.state == attemptStopping {
					r.State = int32(attemptStopped)
				} else if r.AsOfNs = l.cellNs; p.state == attemptRunning && l.c.Effect(m, r) != ReportNews {
					continue
				}
				mr.Tasks = append(mr.Tasks, r)
			}
			if len(mr.Tasks) > 0 {
				reports.Machines = append(reports.Machines, mr)
			}
		}
		apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}})
		apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: reports}})
		l.cellNs += second
		l.wallNs += second
		apply(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
		return len(assign.Assignments)+len(reports.Machines) > 0
	}
	for step() {
	}
	spec.Task.Args = []string{"new"}
	spec.Update = &borgpb.UpdatePolicy{WatchNs: 2 * second, ProgressDeadlineNs: 60 * second, AutoRollback: true, MaxFailed: new(uint32)}
	rolls := map[JobKey]bool{}
	for i := 0; i < jobs; i += 20 {
		name := fmt.Sprintf("j%d", i)
		rolls[JobKey{"u", name}] = true
		apply(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: name, Spec: marshal(t, spec)}}})
	}
	for n := range 40 {
		if n == 5 {
			l.c = reload(t, l.c)
		}
		step()
	}
	if err := l.c.Check(); err != nil {
		t.Fatal(err)
	}
	for j := range l.c.Jobs() {
		want, args := uint64(1), "old"
		if rolls[j.Key()] {
			want, args = 2, "new"
			if st := j.update.state; st != borgpb.UpdateState_UPDATE_STATE_DONE {
				t.Errorf("the update of %v is %v", j.Key(), st)
			}
		}
		for i, task := range j.Tasks() {
			if task.attempt != want || task.cur == nil || task.cur.spec.Proto.Task.Args[0] != args {
				t.Errorf("task %v/%d has attempt %d, want %d with the %s version", j.Key(), i, task.attempt, want, args)
			}
		}
	}
	if want := len(rolls) * int(tasks); disturbed != want {
		t.Errorf("%d tasks were disturbed, want %d", disturbed, want)
	}
}

// TestRollbackOfWhatIsDown: a rollback begins with the task that the new version keeps
// from coming up, wherever it stands in the order; else the batch would have no room for
// any other, and it would never end.
func TestRollbackOfWhatIsDown(t *testing.T) {
	d := &driver{newTestLog(t)}
	d.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatUpdates}}})
	d.do(addMachine("m0", 10_000, 1<<34))
	spec := service(3, 200, 300, 1<<20)
	spec.Task.Args = []string{"old"}
	d.do(submitJob(t, "j", spec))
	for d.step(100) {
	}
	spec.Task.Args = []string{"new"}
	d.do(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: marshal(t, spec)}}})
	j := d.c.Job(JobKey{"u", "j"})
	// The first task comes up with the new version, the second never does.
	for j.rows[1].attempt == 1 || j.rows[1].state != stateRunning {
		d.step(1)
	}
	d.do(&borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "u", Name: "j", Verb: borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK}}})
	if j.rows[1].state == stateRunning && j.rows[1].cur.spec.Proto.Task.Args[0] == "new" {
		t.Fatal("the task that is down was not dealt with first")
	}
	for d.step(100) {
	}
	if st := j.update.state; st != borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK {
		t.Errorf("the rollback is %v", st)
	}
}

// Updates whose deadlines have passed when time goes on at last are rolled back in the same
// order by who has followed the cell and by who has just read it.
func TestUpdatesAreDueInOneOrder(t *testing.T) {
	l := raised(t, BuildFormat)
	l.do(addMachine("m", 4_000, tib))
	for _, q := range []struct {
		name       string
		deadlineNs int64
	}{{"a", 10 * second}, {"b", 12 * second}} {
		spec := service(2, 200, 100, 1<<20)
		spec.Update = &borgpb.UpdatePolicy{BatchSize: 1, ProgressDeadlineNs: q.deadlineNs, AutoRollback: true}
		l.do(submitJob(t, q.name, spec))
		l.start(q.name, 0, "m")
		l.start(q.name, 1, "m")
		// The first spec is known to be good, and the second one is under way.
		spec.Task.Args = []string{"new"}
		l.do(updateJob(t, q.name, spec))
	}
	// One task of a is dealt with: it is looked at too early from now on, after b.
	l.cellNs += 5 * second
	l.start("a", 0, "m")
	other := reload(t, l.c)
	l.cellNs += 100 * second
	entry := l.entry(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	l.c.Apply(l.c.Index()+1, l.term, entry)
	other.Apply(other.Index()+1, l.term, entry)
	for _, name := range []string{"a", "b"} {
		if u := l.c.Job(JobKey{"u", name}).Update(); u.state != borgpb.UpdateState_UPDATE_STATE_ROLLING_BACK {
			t.Errorf("the update of %s is %v, want it rolled back", name, u.state)
		}
	}
	if l.c.Digest() != other.Digest() {
		t.Error("who has just read the cell comes to another one")
	}
}
