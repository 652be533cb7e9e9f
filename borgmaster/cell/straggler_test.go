package cell

import (
	"fmt"
	"slices"
	"testing"

	"borg/proto/borgpb"
)

// troubled is a cell of four machines of which m1 gets into trouble around an update.
type troubled struct {
	*testLog
	t     *testing.T
	watch int64
	// Machines that answer nothing.
	silent map[string]bool
	// What processes run, with the version that they were started with, whatever the
	// cell believes.
	runs map[string]map[CopyID]uint64
	// Cell time at which each machine last answered.
	heardNs map[string]int64
	// Since when tasks are known to run the new version, of those that the update took down.
	since map[uint32]int64
	pid   map[CopyID]int64
	next  int64
}

func newTroubled(t *testing.T, kind borgpb.JobKind, policy *borgpb.UpdatePolicy) *troubled {
	x := &troubled{testLog: raised(t, BuildFormat), t: t, watch: policy.WatchNs, silent: map[string]bool{}, runs: map[string]map[CopyID]uint64{},
		heardNs: map[string]int64{}, since: map[uint32]int64{}, pid: map[CopyID]int64{}}
	for i := range 4 {
		name := fmt.Sprintf("m%d", i)
		x.runs[name] = map[CopyID]uint64{}
		x.do(addMachine(name, 10_000, 1<<34))
	}
	x.do(submitJob(t, "j", x.spec(kind, "old", nil)))
	for range 4 {
		x.round()
	}
	return x
}

func (x *troubled) spec(kind borgpb.JobKind, version string, policy *borgpb.UpdatePolicy) *borgpb.JobSpec {
	spec := service(4, 200, 300, 1<<20)
	if kind == borgpb.JobKind_JOB_KIND_DAEMON {
		spec.Tasks = 0
	}
	spec.Kind, spec.Task.Args, spec.Update = kind, []string{version}, policy
	return spec
}

func (x *troubled) job() *Job { return x.c.Job(JobKey{"u", "j"}) }

func (x *troubled) op(op *borgpb.Op) {
	x.t.Helper()
	res, events := x.apply(op)
	if r := res[0].Refusal; r != nil {
		x.t.Fatalf("%v is refused: %v", op, r)
	}
	for _, e := range events {
		switch {
		case e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK:
		case e.Cause == borgpb.StopCause_STOP_CAUSE_UPDATE && e.To == borgpb.State_STATE_PENDING:
			x.shown(e.Task)
			x.since[e.Task] = 0
		case e.Kind == borgpb.EventKind_EVENT_KIND_START:
			if _, ok := x.since[e.Task]; ok {
				x.since[e.Task] = x.cellNs
			}
		}
	}
	if err := x.c.Check(); err != nil {
		x.t.Fatal(err)
	}
}

// shown wants that a task is taken down only when each one before it was heard to run
// from the end of its window.
func (x *troubled) shown(next uint32) {
	for _, t := range x.job().rows {
		since, ok := x.since[t.index]
		// What becomes of it from now on is not the update's doing.
		delete(x.since, t.index)
		if !ok || t.index == next || t.cur == nil {
			continue
		}
		if m := t.cur.machine; x.heardNs[m.name] < since+x.watch {
			x.t.Fatalf("task %d is taken down at %d; task %d runs since %d, and %s was last heard at %d", next, x.cellNs, t.index, since, m.name, x.heardNs[m.name])
		}
	}
}

// round lets a second pass, in which the scheduler places and the machines answer.
func (x *troubled) round() {
	x.cellNs += second
	x.wallNs += second
	x.op(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	assign := new(borgpb.Assign)
	machines := slices.Collect(x.c.Machines())
	for j, i := range x.c.Pending() {
		for n := range machines {
			m := machines[(n+int(i))%len(machines)]
			if x.c.Fit(&Placement{Job: j, Index: i, Machine: m, AnyPorts: true}, nil) == FitOK {
				assign.Assignments = append(assign.Assignments, &borgpb.Assignment{Uid: j.uid.String(), Index: i, LastAttempt: j.rows[i].attempt, Machine: m.name})
				break
			}
		}
	}
	if len(assign.Assignments) > 0 {
		x.op(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}})
	}
	for m := range x.c.Machines() {
		if !x.silent[m.name] {
			x.answer(m)
		}
	}
}

// answer has a machine obey, and say what it runs.
func (x *troubled) answer(m *Machine) {
	runs := x.runs[m.name]
	mr := &borgpb.MachineReport{Machine: m.name}
	x.heardNs[m.name] = x.cellNs
	if m.down {
		x.op(&borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: m.name}}})
	}
	for p := range m.Copies() {
		r := &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(attemptRunning), AsOfNs: x.cellNs}
		if p.state == attemptStopping {
			delete(runs, p.ID())
			r.State = int32(attemptStopped)
		} else if x.pid[p.ID()] == 0 {
			x.next++
			x.pid[p.ID()], runs[p.ID()] = x.next, p.version
		}
		r.Pid = x.pid[p.ID()]
		if x.c.Effect(m, r) == ReportNews {
			mr.Tasks = append(mr.Tasks, r)
		}
	}
	if len(mr.Tasks) > 0 {
		x.op(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{mr}}}})
	}
}

// ended wants the update done, and everything that runs to be of the new version.
func (x *troubled) ended(what string) {
	x.t.Helper()
	j := x.job()
	if st := j.update.state; st != borgpb.UpdateState_UPDATE_STATE_DONE {
		x.t.Fatalf("%s: the update is %v: %v", what, st, x.c.UpdateProto(j))
	}
	if j.outdated() {
		x.t.Fatalf("%s: a task runs an old version", what)
	}
	for _, t := range j.rows {
		p := t.cur
		switch {
		case p == nil:
			if m := x.c.bound(t); t.state == statePending && (m == nil || !m.down) {
				x.t.Fatalf("%s: task %d waits", what, t.index)
			}
		case p.spec.Proto.Task.Args[0] != "new" || x.runs[p.machine.name][p.ID()] == 0:
			x.t.Fatalf("%s: task %d runs version %d on %s", what, t.index, p.version, p.machine.name)
		}
	}
}

// TestUpdateAmongTroubles: a machine goes silent, is called down, comes back with what it
// ran, or leaves for good, at any moment before, in and after an update of a service, of
// a batch job and of a daemon job. Nobody is taken down while it is not known how the one
// before does. The update ends, and everything that runs in the end is of the new version,
// without anybody's hand.
func TestUpdateAmongTroubles(t *testing.T) {
	kinds := []borgpb.JobKind{borgpb.JobKind_JOB_KIND_SERVICE, borgpb.JobKind_JOB_KIND_BATCH, borgpb.JobKind_JOB_KIND_DAEMON}
	policies := map[string]*borgpb.UpdatePolicy{
		"plain": {BatchSize: 1}, "watch": {BatchSize: 1, WatchNs: 2 * second},
		"canary": {BatchSize: 1, WatchNs: second, Canaries: 1, CanaryWatchNs: 2 * second},
	}
	for _, kind := range kinds {
		for name, policy := range policies {
			for _, trouble := range []string{"silent", "down", "returns old", "leaves"} {
				t.Run(fmt.Sprintf("%v/%s/%s", kind, name, trouble), func(t *testing.T) {
					// Three rounds before the update begins, until after it has ended.
					for at := range 30 {
						for _, lasts := range []int{2, 9, 40} {
							x := newTroubled(t, kind, policy)
							x.play(kind, policy, trouble, at, lasts)
							x.ended(fmt.Sprintf("%s in round %d, for %d", trouble, at, lasts))
						}
					}
				})
			}
		}
	}
}

func (x *troubled) play(kind borgpb.JobKind, policy *borgpb.UpdatePolicy, trouble string, at, lasts int) {
	const m = "m1"
	for round := range 90 {
		switch {
		case round == at:
			x.silent[m] = true
		case round == at+2 && trouble != "silent":
			x.op(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: m, Term: x.term}}})
		case round == at+2+lasts && trouble == "leaves":
			x.op(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: m, Force: true}}})
		case round == at+2+lasts && trouble != "down":
			x.silent[m] = false
		}
		if round == 3 {
			x.op(updateJob(x.t, "j", x.spec(kind, "new", policy)))
		}
		if round%7 == 6 {
			x.c = reload(x.t, x.c)
		}
		x.round()
	}
}

// TestCanaryLosesItsMachineFirst: a canary whose machine goes down before the gate lets it
// be restarted is not healthy while it waits for another machine, nor while it starts there.
func TestCanaryLosesItsMachineFirst(t *testing.T) {
	d := &driver{newTestLog(t)}
	d.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	for i := range 3 {
		d.do(addMachine(fmt.Sprintf("m%d", i), 10_000, 1<<34))
	}
	spec := service(2, 200, 300, 1<<20)
	spec.Task.Args = []string{"old"}
	d.do(submitJob(t, "j", spec))
	for d.step(100) {
	}
	spec.Task.Args = []string{"new"}
	spec.Update = &borgpb.UpdatePolicy{
		Canaries: 1, CanaryWatchNs: second,
		Gate: &borgpb.MetricGate{Url: "http://prom", Query: "up", MostMicro: new(int64(1)), FailAfterNs: second},
	}
	d.do(updateJob(t, "j", spec))
	j := d.c.Job(JobKey{"u", "j"})
	canary := j.rows[j.update.chosen[0]]
	d.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: canary.cur.machine.name, Term: d.term}}})
	if canary.state != statePending || j.update.state != borgpb.UpdateState_UPDATE_STATE_ROLLING {
		t.Fatalf("the canary is %v and the update %s, want pending and rolling", canary.state, j.update.stateWords())
	}
	for d.step(100) {
	}
	if canary.cur.version != j.update.toVersion || j.update.state != borgpb.UpdateState_UPDATE_STATE_CANARY {
		t.Fatalf("the canary runs version %d and the update is %s, want the new version and canary", canary.cur.version, j.update.stateWords())
	}
}
