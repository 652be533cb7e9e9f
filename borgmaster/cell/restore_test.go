package cell

import (
	"testing"

	"borg/proto/borgpb"
)

func hearMachine(h *borgpb.HeardMachine) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_HearMachines{HearMachines: &borgpb.HearMachines{Machines: []*borgpb.HeardMachine{h}}}}
}

func place1(uid string, index uint32, last uint64, machine string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: uid, Index: index, LastAttempt: last, Machine: machine},
	}}}}
}

func runs(uid string, index uint32, attempt uint64, pid int64) *borgpb.TaskReport {
	return &borgpb.TaskReport{JobUid: uid, Index: index, Attempt: attempt, State: int32(attemptRunning), Pid: pid}
}

// restoredLog is a cell of two machines and a job of three tasks, restored from a
// checkpoint that says: tasks 0 and 1 run on m1, task 2 on m2.
func restoredLog(t *testing.T) (l *testLog, uid string) {
	l = newTestLog(t)
	l.do(addMachine("m1", 4000, 1<<30))
	l.do(addMachine("m2", 4000, 1<<30))
	uid = l.do(submitJob(t, "web", service(3, 200, 1000, 1<<20))).Uid
	for i, m := range []string{"m1", "m1", "m2"} {
		l.do(place1(uid, uint32(i), 0, m))
		l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{
			{Machine: m, Tasks: []*borgpb.TaskReport{runs(uid, uint32(i), 1, int64(100+i))}},
		}}}})
	}
	again := reload(t, l.c)
	if err := l.c.Restore(2); err != nil {
		t.Fatal(err)
	}
	if err := again.Restore(2); err != nil {
		t.Fatal(err)
	}
	if l.c.Digest() != again.Digest() {
		t.Fatal("one checkpoint restored twice gives two cells")
	}
	l.c = reload(t, l.c)
	l.term++
	return l, uid
}

func (l *testLog) check() {
	l.t.Helper()
	if err := l.c.Check(); err != nil {
		l.t.Fatal(err)
	}
	l.c = reload(l.t, l.c)
}

// TestRestoreHoldsUntilHeard: nothing is placed before every machine that is up has
// told what it runs; a machine that is down is not waited for.
func TestRestoreHoldsUntilHeard(t *testing.T) {
	l, _ := restoredLog(t)
	extra := l.do(submitJob(t, "new", service(1, 200, 1000, 1<<20))).Uid
	if extra[:2] != "2-" {
		t.Errorf("a job of the new epoch has uid %s", extra)
	}
	placed := func() *borgpb.Refusal {
		t.Helper()
		res, _ := l.apply(place1(extra, 0, 0, "m1"))
		if items := res[0].Items; len(items) > 0 && items[0].Kind != 0 {
			return items[0]
		}
		return nil
	}
	if r := placed(); r == nil {
		t.Fatal("a task was placed although no machine was heard")
	}
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m1"}))
	l.check()
	if r := placed(); r == nil {
		t.Fatal("a task was placed although m2 was not heard")
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m2", Term: l.term}}})
	l.check()
	if _, held := l.c.Held(); held {
		t.Error("the cell waits for a machine that is down")
	}
	if r := placed(); r != nil {
		t.Errorf("a task was not placed although all were heard: %v", r)
	}
	l.check()
}

// TestRestoreHoldEnds: after its time, and at an operator's word.
func TestRestoreHoldEnds(t *testing.T) {
	l, _ := restoredLog(t)
	l.cellNs += HoldNs
	l.apply()
	if _, held := l.c.Held(); held {
		t.Error("the hold did not end when its time was over")
	}
	l.check()
	if !l.c.Machine("m1").Closed() {
		t.Error("a machine that was not heard takes tasks")
	}
	l, _ = restoredLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_EndHold{EndHold: &borgpb.EndHold{}}})
	if _, held := l.c.Held(); held {
		t.Error("the hold did not end when an operator said so")
	}
	if r := l.refusalOf(&borgpb.Op{Op: &borgpb.Op_EndHold{EndHold: &borgpb.EndHold{}}}); r == nil {
		t.Error("a hold ended that there was not")
	}
}

// TestRestoreTakesWhatRuns: a later attempt is taken as it is, what a machine does
// not have waits for a place, and no attempt is given out twice.
func TestRestoreTakesWhatRuns(t *testing.T) {
	l, uid := restoredLog(t)
	// Since the checkpoint task 0 has moved to m2, and task 1 has gone.
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m1", Missing: []*borgpb.Victim{
		{JobUid: uid, Index: 0, Attempt: 1}, {JobUid: uid, Index: 1, Attempt: 1},
	}}))
	l.check()
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m2", Found: []*borgpb.FoundCopy{{Machine: "m2", Report: runs(uid, 0, 2, 200), Version: 1}}}))
	l.check()
	j := l.c.Job(JobKey{"u", "web"})
	if p := j.Task(0).Current(); p == nil || p.Attempt() != 2 || p.PID() != 200 || p.Machine().Name() != "m2" {
		t.Errorf("task 0 is %v", p)
	}
	if p := j.Task(1).Current(); p != nil || j.Task(1).State() != borgpb.State_STATE_PENDING {
		t.Errorf("task 1, which nobody runs, is %v", j.Task(1).State())
	}
	if p := j.Task(2).Current(); p == nil || p.Attempt() != 1 || p.PID() != 102 {
		t.Errorf("task 2, which runs as it did, is %v", p)
	}
	l.do(place1(uid, 1, 1, "m1"))
	if n := j.UID(); n.Epoch != 1 || l.c.Job(JobKey{"u", "web"}).Task(1).Attempt() != epochStride+1 {
		t.Errorf("the next attempt of task 1 is %d", l.c.Job(JobKey{"u", "web"}).Task(1).Attempt())
	}
	l.check()
}

// TestRestoreLaterWins: of two attempts the later one counts, in whichever order
// their machines are heard; the earlier one is stopped only if the cell has it.
func TestRestoreLaterWins(t *testing.T) {
	l, uid := restoredLog(t)
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m2", Found: []*borgpb.FoundCopy{{Report: runs(uid, 0, 3, 300), Version: 1}}}))
	l.check()
	if p := l.c.Machine("m1").Copy(CopyID{l.c.Job(JobKey{"u", "web"}).UID(), 0, 1}); p == nil || p.Cause() != borgpb.StopCause_STOP_CAUSE_DUPLICATE {
		t.Errorf("what attempt 3 took the place of is %v", p)
	}
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m1", Found: []*borgpb.FoundCopy{{Report: runs(uid, 0, 2, 200), Version: 1}}}))
	l.check()
	if m := l.c.Machine("m1"); m.Unknown() != 1 || !m.Closed() {
		t.Errorf("m1 runs attempt 2, which attempt 3 took the place of, and has %d unknown copies", m.Unknown())
	}
	if n := l.c.Job(JobKey{"u", "web"}).Task(0).Attempt(); n != 3 {
		t.Errorf("task 0 is at attempt %d", n)
	}
}

// TestRestoreAdopts: a job that is newer than the checkpoint comes back with its
// copies, and their machine takes tasks again.
func TestRestoreAdopts(t *testing.T) {
	l, _ := restoredLog(t)
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m1", Unknown: 1}))
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m2"}))
	l.check()
	if !l.c.Machine("m1").Closed() || l.c.Machine("m2").Closed() {
		t.Error("a machine with unknown copies takes tasks, or one without takes none")
	}
	spec := service(2, 200, 500, 1<<20)
	spec.Task.Ports = []string{"http"}
	adopt := func(uid string, attempt uint64) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_AdoptJob{AdoptJob: &borgpb.AdoptJob{Uid: uid, User: "u", Name: "late", Spec: marshal(t, spec), Copies: []*borgpb.FoundCopy{
			{Machine: "m1", Report: runs(uid, 1, attempt, 900), Version: 4, Ports: []uint32{20003}},
		}}}}
	}
	if r := l.refusalOf(adopt("2-40-0", 1)); r == nil {
		t.Error("a job of this epoch was adopted")
	}
	if r := l.refusalOf(adopt("1-40-0", 2*epochStride)); r == nil {
		t.Error("an attempt of this epoch was adopted")
	}
	l.do(adopt("1-40-0", 7))
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m1"}))
	l.check()
	j := l.c.Job(JobKey{"u", "late"})
	p := j.Task(1).Current()
	if p == nil || p.Attempt() != 7 || p.PID() != 900 || p.Ports()[0] != 20003 || j.UID().String() != "1-40-0" || l.c.Machine("m1").Closed() {
		t.Errorf("the adopted copy is %+v", p)
	}
	if r := l.refusalOf(adopt("1-40-0", 7)); r == nil {
		t.Error("a job was adopted twice")
	}
}

// TestRestoreStopsUnknown: at an operator's word, and it holds its place until gone.
func TestRestoreStopsUnknown(t *testing.T) {
	l, uid := restoredLog(t)
	l.do(hearMachine(&borgpb.HeardMachine{Machine: "m1", Unknown: 1}))
	stop := func(uid string, attempt uint64) *borgpb.Op {
		return &borgpb.Op{Reason: "not ours", Op: &borgpb.Op_StopUnknown{StopUnknown: &borgpb.StopUnknown{Machine: "m1", Copies: []*borgpb.UnknownCopy{{
			JobUid: uid, Index: 0, Attempt: attempt, User: "u", Job: "late", Kind: borgpb.JobKind_JOB_KIND_SERVICE,
			Resources: &borgpb.Resources{CpuMilli: 500}, Ports: []uint32{20004}, GraceNs: second,
		}}}}}
	}
	if r := l.refusalOf(stop(uid, 1)); r == nil {
		t.Error("a copy that the cell has was stopped as unknown")
	}
	l.do(stop("1-40-0", 1))
	l.check()
	id, _ := ParseUID("1-40-0")
	p := l.c.Machine("m1").Copy(CopyID{id, 0, 1})
	if p == nil || p.State() != borgpb.AttemptState_ATTEMPT_STATE_STOPPING || p.Cause() != borgpb.StopCause_STOP_CAUSE_KILL || p.Resources().CPUMilli != 500 {
		t.Fatalf("the copy to be stopped is %+v", p)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{
		{Machine: "m1", Tasks: []*borgpb.TaskReport{{JobUid: "1-40-0", Index: 0, Attempt: 1, State: int32(attemptStopped)}}},
	}}}})
	l.check()
	if l.c.Machine("m1").Copy(CopyID{id, 0, 1}) != nil {
		t.Error("it holds its place although it has stopped")
	}
}

// TestRestoreOnlyForward: a new epoch is later than the one before.
func TestRestoreOnlyForward(t *testing.T) {
	l, _ := restoredLog(t)
	if err := l.c.Restore(2); err == nil {
		t.Error("a cell of epoch 2 began epoch 2 again")
	}
	if err := New("x", 1).Restore(2); err == nil {
		t.Error("an empty cell was restored")
	}
}

// TestRestoreHoldsDrains: while the cell is held nobody leaves a machine that is emptied, and
// it is said why; then they go.
func TestRestoreHoldsDrains(t *testing.T) {
	l, _ := restoredLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m1", Drain: true}}})
	m := l.c.Machine("m1")
	if holds := l.c.Blockers(m, 9); len(holds) != 2 || holds[0].Reason != restoredWords || holds[0].Task == holds[1].Task {
		t.Errorf("the drain of a cell that is held waits for %+v", holds)
	}
	if got := l.c.MachineProto(m).GetStatus().GetDrain(); got.GetEvicted() != 0 || len(got.GetBlockers()) != 2 || got.GetBlockers()[0].GetJob() != "" {
		t.Errorf("it is shown as %v", got)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_EndHold{EndHold: &borgpb.EndHold{}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	l.check()
	m = l.c.Machine("m1")
	if got := l.c.MachineProto(m).GetStatus().GetDrain(); got.GetEvicted() != 2 || len(l.c.Blockers(m, 9)) != 0 {
		t.Errorf("when the hold is over, it is shown as %v", got)
	}
}

// TestRestoreKeepsDisruptions: what was disturbed before the checkpoint was taken
// counts after its restore, and a drain is still there; but nobody leaves before the
// machines were heard.
func TestRestoreKeepsDisruptions(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	for _, name := range []string{"m1", "m2", "m3"} {
		l.do(addMachine(name, 4000, 1<<30))
	}
	spec := service(1, 200, 1000, 1<<20)
	spec.DisruptionBudget = &borgpb.DisruptionBudget{MaxPerTask: 1, WindowNs: 3600 * second}
	uid := l.do(submitJob(t, "web", spec)).Uid
	drain := func(name string, deadlineNs int64) {
		l.do(&borgpb.Op{Reason: "kernel", Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name, Drain: true, DeadlineNs: deadlineNs}}})
	}
	l.do(place1(uid, 0, 0, "m1"))
	drain("m1", 0)
	l.do(place1(uid, 0, 1, "m2"))
	drain("m2", 7200*second)
	if err := l.c.Restore(2); err != nil {
		t.Fatal(err)
	}
	l.term++
	l.check()
	held := l.c.Blockers(l.c.Machine("m2"), 10)
	if len(held) != 1 || held[0].UntilNs < 3600*second {
		t.Errorf("held back: %+v", held)
	}
	if deadlineNs, forced, ok := l.c.Machine("m2").Drain(); !ok || forced || deadlineNs < 7200*second {
		t.Errorf("the drain of m2: deadline %d, forced %v, %v", deadlineNs, forced, ok)
	}
	// The window passes; the hold is over, and the task may go.
	l.cellNs += 3700 * second
	l.do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	l.check()
	if p := l.c.Job(JobKey{"u", "web"}).Task(0).Current(); p != nil {
		t.Errorf("it is still on %s", p.Machine().Name())
	}
}
