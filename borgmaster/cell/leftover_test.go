package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

func leftOf(j *Job, index uint32, attempt uint64) *borgpb.UnknownCopy {
	return &borgpb.UnknownCopy{JobUid: j.uid.String(), Index: index, Attempt: attempt, User: j.key.User, Job: j.key.Name,
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 1_000}, GraceNs: second}
}

// notRemoved wants an op refused in the state of the cell, with these words.
func (l *testLog) notRemoved(op *borgpb.Op, words string) {
	l.t.Helper()
	res, _ := l.apply(op)
	if r := res[0].Refusal; r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE || !strings.Contains(r.GetMessage(), words) {
		l.t.Errorf("%v, want it refused with the words %q", res[0], words)
	}
}

func hearLeft(machine string, left ...*borgpb.UnknownCopy) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_HearMachines{HearMachines: &borgpb.HearMachines{Machines: []*borgpb.HeardMachine{{Machine: machine, Left: left}}}}}
}

// A machine is removed while it is silent, and added again. What it has still is stopped and
// holds a place until it is gone, also of a job that ended meanwhile, and of one that the
// cell has forgotten.
func TestLeftoversAreStopped(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatLeftovers}}})
	l.do(setQuota("u", production, 10_000, 0))
	l.do(submitJob(t, "web", service(1, 200, 1_000, 0)))
	l.do(submitJob(t, "over", service(1, 200, 1_000, 0)))
	l.start("web", 0, "m0")
	l.start("over", 0, "m0")
	room := l.c.machines["m0"].Capacity()
	l.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m0", Term: l.c.Term()}}})
	l.start("web", 0, "m1")
	l.do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "over"}}})

	remove := &borgpb.RemoveMachine{Name: "m0"}
	l.notRemoved(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: remove}}, "nobody has heard the end of 2 copies")
	remove.Force = true
	if res := l.do(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: remove}}); res.LeftRunning != 2 {
		t.Errorf("%d copies may run on, want 2", res.LeftRunning)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m0", Spec: &borgpb.MachineSpec{Addr: "h:1", Capacity: room.Proto()}}}})
	web, over := l.c.Job(JobKey{"u", "web"}), l.c.Job(JobKey{"u", "over"})
	gone := leftOf(web, 0, 1)
	gone.JobUid, gone.Job = UID{Epoch: web.uid.Epoch, Index: web.uid.Index, N: 9}.String(), "gone"
	// The one that runs elsewhere, one that was never begun, and one that is another user's.
	odd := leftOf(web, 0, 1)
	odd.User = "other"
	l.do(hearLeft("m0", leftOf(web, 0, 2), leftOf(web, 0, 3), odd))
	if n := l.c.Machine("m0").NumCopies(); n != 0 {
		t.Fatalf("%d copies are stopped that are none of those given up", n)
	}
	l.do(hearLeft("m0", leftOf(web, 0, 1), leftOf(over, 0, 1), gone))
	l.fine()
	causes := map[string]borgpb.StopCause{"web": borgpb.StopCause_STOP_CAUSE_DUPLICATE, "over": borgpb.StopCause_STOP_CAUSE_KILL, "gone": borgpb.StopCause_STOP_CAUSE_KILL}
	m := l.c.Machine("m0")
	for p := range m.Copies() {
		if p.State() != borgpb.AttemptState_ATTEMPT_STATE_STOPPING || p.Cause() != causes[p.Key().Name] || !strings.Contains(p.StopReason(), "given up its place on m0") {
			t.Errorf("%s is %v, for %v: %s", p.Key(), p.State(), p.Cause(), p.StopReason())
		}
	}
	if m.NumCopies() != 3 || m.Held(true).CPUMilli != 3_000 {
		t.Errorf("%d copies hold %d of cpu until they are gone, want 3 and 3000", m.NumCopies(), m.Held(true).CPUMilli)
	}
	l.notRemoved(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m0"}}}, "hold places")
	for _, u := range []*borgpb.UnknownCopy{leftOf(web, 0, 1), leftOf(over, 0, 1), gone} {
		l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m0", Tasks: []*borgpb.TaskReport{{
			JobUid: u.JobUid, Index: u.Index, Attempt: u.Attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}}}}}}})
	}
	l.fine()
	if n := m.NumCopies(); n != 0 {
		t.Errorf("%d copies hold places, and all have stopped", n)
	}
	if p := web.Task(0).Current(); p == nil || p.Attempt() != 2 || p.Machine().Name() != "m1" {
		t.Errorf("the task's current copy is %v", p)
	}
}
