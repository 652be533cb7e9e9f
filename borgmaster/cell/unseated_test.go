package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// TestDaemonsNeedQuota: a daemon job is submitted while no machine matches. Those that match later
// get tasks only as far as its user has quota, and the others as soon as there is more of it: by a
// grant, or because something else of the user ends. Replicas that load it meanwhile agree.
func TestDaemonsNeedQuota(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	spec := service(0, 200, 1000, 0)
	spec.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "disk", Relation: borgpb.Relation_RELATION_EQUAL, Value: "fast"}}
	l.short(submitJob(t, "agent", spec), "user u has no quota for production")
	l.do(setQuota("u", production, 2000, 0))
	l.do(submitJob(t, "agent", spec))
	want := func(when string, seated, unseated int) {
		t.Helper()
		l.fine()
		j := l.c.Job(JobKey{"u", "agent"})
		st := j.Alone().Status
		if len(j.daemon.at) != seated || int(st.Unseated) != unseated {
			t.Errorf("%s: %d machines have a task, and %d wait, want %d and %d", when, len(j.daemon.at), st.Unseated, seated, unseated)
		}
		if got := l.c.ChargeOf("u", production).CPUMilli; got > max(1000*int64(seated), 4000) {
			t.Errorf("%s: the user is charged %d", when, got)
		}
	}
	matches := func(n int, value string) {
		t.Helper()
		l.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: fmt.Sprint("m", n), SetAttributes: map[string]string{"disk": value}}}})
	}
	for n := range 4 {
		matches(n, "fast")
	}
	want("four machines match", 2, 2)
	l.do(setQuota("u", production, 3000, 0))
	want("there is quota for three", 3, 1)
	matches(1, "slow")
	want("one of three matches no longer", 3, 0)
	matches(1, "fast")
	want("it does again", 3, 1)
	l.short(submitJob(t, "web", service(1, 200, 1000, 0)))
	l.do(setQuota("u", production, 4000, 0))
	want("there is quota for four", 4, 0)
	matches(4, "fast")
	want("a fifth comes", 4, 1)
	l.do(killJob("agent"))
	l.fine()
	if len(l.c.unseated) != 0 {
		t.Error("machines wait for a job that has ended")
	}
	l.do(submitJob(t, "web", service(3, 200, 1000, 0)))
	l.short(submitJob(t, "agent", spec), "of cpu is missing")
	for n := range 4 {
		matches(n, "slow")
	}
	l.do(submitJob(t, "agent", spec))
	for n := range 4 {
		matches(n, "fast")
	}
	want("beside three tasks of another job", 1, 4)
	l.do(killJob("web"))
	want("when that has ended", 4, 1)
	l.do(enforce(false))
	want("when quotas are not enforced", 5, 0)
}
