package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// runAll places all tasks of a job.
func (l *testLog) runAll(uid string, tasks uint32) {
	l.t.Helper()
	for i := range tasks {
		l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Index: i, Machine: fmt.Sprintf("m%d", i%10)}}}}})
	}
}

// TestStoppingIsCharged: who submits, kills and submits anew holds at most twice the
// quota; a job that was ended is submitted again at once.
func TestStoppingIsCharged(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("u", production, 20_000, tib))
	spec := service(10, 200, 2_000, 1<<20)
	spec.Task.GraceNs = maxGraceNs
	l.runAll(l.do(submitJob(t, "web", spec)).Uid, 10)
	l.do(killJob("web"))
	if got := l.c.ChargeOf("u", production); got.CPUMilli != 20_000 {
		t.Errorf("charged %+v for what stops", got)
	}
	if got := l.c.StateUseOf("u")[measureTasks]; got != 10 {
		t.Errorf("%d tasks are held, want the 10 that stop", got)
	}
	l.fine()
	l.runAll(l.do(submitJob(t, "web", spec)).Uid, 10)
	l.do(killJob("web"))
	l.fine()
	for _, name := range []string{"web", "other"} {
		l.short(submitJob(t, name, spec), "20 of cpu is missing", "Tasks that stop still hold 40", "u/web (10 tasks, each at most 24 h after it was told to stop)", "try again when they have ended")
	}
	// Not enforced, it is counted; enforced anew, it is charged.
	l.do(enforce(false))
	if got := l.c.ChargeOf("u", production); got.CPUMilli != 40_000 {
		t.Errorf("charged %+v for what stops while nothing is enforced", got)
	}
	l.do(enforce(true))
	l.short(submitJob(t, "other", spec), "is missing")
	l.fine()
}

// TestStoppingIsInTheTaskBudget: at priority 0 as well, where no quota is asked.
func TestStoppingIsInTheTaskBudget(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{User: "u", Amounts: []*borgpb.StateAmount{{Measure: measureTasks, Amount: 10}}}}})
	spec := service(10, 0, 100, 1<<20)
	spec.Task.GraceNs = maxGraceNs
	for range 2 {
		l.runAll(l.do(submitJob(t, "web", spec)).Uid, 10)
		l.do(killJob("web"))
	}
	l.over(submitJob(t, "web", spec), "may hold 10 tasks")
	l.fine()
}
