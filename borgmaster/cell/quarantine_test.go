package cell

import (
	"fmt"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

func quarantineTask(name string, index uint32) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{User: "u", Name: name, Index: index}}}
}

// start places a task and has its machine say that it runs.
func (l *testLog) start(name string, index uint32, machine string) {
	l.t.Helper()
	l.startJob(l.c.Job(JobKey{"u", name}), index, machine)
}

// startJob is start for a job of any user.
func (l *testLog) startJob(j *Job, index uint32, machine string) {
	l.t.Helper()
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: j.uid.String(), Index: index, LastAttempt: j.rows[index].attempt, Machine: machine}}}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: machine, Tasks: []*borgpb.TaskReport{{
		JobUid: j.uid.String(), Index: index, Attempt: j.rows[index].attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: 7,
	}}}}}}})
}

// A copy in quarantine is charged as one task more, until it is gone from there.
func TestQuarantineIsCharged(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatQuarantine}}})
	l.do(setQuota("u", production, 3_000, 0))
	l.do(submitJob(t, "web", service(2, 200, 1_000, 0)))
	l.start("web", 0, "m0")
	l.start("web", 1, "m1")
	l.do(quarantineTask("web", 0))
	if got := l.c.ChargeOf("u", production).CPUMilli; got != 3_000 {
		t.Errorf("the user is charged %d with a copy in quarantine, want 3000", got)
	}
	l.short(quarantineTask("web", 1), "cpu is missing: 3 granted, 3 used, 1 more")
	l.short(resizeJob("web", 3), "cpu is missing")
	// Nothing that the copy still runs is asked of the others: they become smaller.
	l.do(updateJob(t, "web", service(2, 200, 500, 0)))
	l.fine()
	l.do(&borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: &borgpb.ReleaseTask{User: "u", Name: "web"}}})
	if got := l.c.ChargeOf("u", production).CPUMilli; got > 2_000 {
		t.Errorf("the user is charged %d when the copy was released, want 2000 at most", got)
	}
	l.fine()
	// Of priority 0 nothing is charged.
	l.do(submitJob(t, "free", service(1, 0, 1_000, 0)))
	l.start("free", 0, "m2")
	l.do(quarantineTask("free", 0))
	l.fine()
}

// In a cell in which nothing else happens, the end of a quarantine is waited for.
func TestQuarantineIsDue(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatQuarantine}}})
	l.do(submitJob(t, "web", service(1, 0, 1_000, 0)))
	l.start("web", 0, "m0")
	// Time was looked at.
	l.do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	if due := l.c.DueInNs(); due != 0 {
		t.Errorf("something is due in %d ns before there is a quarantine", due)
	}
	op := quarantineTask("web", 0)
	op.GetQuarantineTask().ForNs = 100 * second
	l.do(op)
	if due := l.c.DueInNs(); due <= 0 || due > 100*second {
		t.Errorf("its end is due in %d ns, want at most 100 s", due)
	}
}

// One user leaves quarantines to others.
func TestQuarantinesOfOneUser(t *testing.T) {
	const tasks = 1_300
	l := latestQuotaLog(t)
	for m := 10; m < 20; m++ {
		l.do(addMachine(fmt.Sprint("m", m), 1_000_000_000, 1<<49))
	}
	l.do(setQuota("u", production, 1_000_000_000, 1<<50))
	l.do(submitJob(t, "web", service(tasks, 200, 1, 1)))
	for n := range maxQuarantinedOfUser {
		i := uint32(n % tasks)
		l.start("web", i, fmt.Sprint("m", 10+(n+n/tasks)%10))
		l.do(quarantineTask("web", i))
	}
	last := uint32(tasks - 1)
	l.start("web", last, "m1")
	res, _ := l.apply(quarantineTask("web", last))
	if r := res[0].Refusal; r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT || !strings.Contains(r.Message, "5000 copies of user u") {
		t.Errorf("one copy more in quarantine: %v, want the limit of the user", r)
	}
	l.do(setQuota("v", production, 1_000, 1<<30))
	l.do(submitBy(t, "v", "web", service(1, 200, 1, 1)))
	j := l.c.Job(JobKey{"v", "web"})
	l.startJob(j, 0, "m2")
	op := quarantineTask("web", 0)
	op.GetQuarantineTask().User = "v"
	l.do(op)
	l.fine()
	l.do(killJob("web"))
	if n := len(l.c.quarantined); n != 1 || l.c.quarantinedBy["u"] != 0 {
		t.Errorf("%d copies are in quarantine after the job's end, %v by user", n, l.c.quarantinedBy)
	}
	l.fine()
}
