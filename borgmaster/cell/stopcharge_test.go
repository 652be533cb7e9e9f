package cell

import (
	"fmt"
	"slices"
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

// TestStoppingIsCharged: a user who submits and kills in turns holds at most twice the quota. A
// job that was ended can be submitted again at once.
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
		l.short(submitJob(t, name, spec), "20 of cpu is missing", "Tasks that stop still hold 40", "u/web (10 tasks, each at most 1 d after it was told to stop)", "try again when they have ended")
	}
	// It is counted while quotas are not enforced, and charged when they are enforced again.
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
	// Lists show the user and the total count the tasks, also when nothing but them is left.
	if got := l.c.StateUseOf("u")[measureTasks]; got != 20 || l.c.CellStateUse()[measureTasks] != 20 {
		t.Errorf("u holds %d tasks, the cell %d; want 20", got, l.c.CellStateUse()[measureTasks])
	}
	delete(l.c.stateUse.byUser, "u")
	l.c.requests.of, l.c.stateBudgets.list = nil, nil
	if got := l.c.StateUsers(); !slices.Contains(got, "u") {
		t.Errorf("users are %v, want u too", got)
	}
}

// startAll places all tasks of a job of u that wait, away from where earlier copies stop,
// and has them run.
func (l *testLog) startAll(name string, round int) {
	l.t.Helper()
	// Extra tasks may end meanwhile.
	j := l.c.Job(JobKey{"u", name})
	for i := 0; i < len(j.rows); i++ {
		if j.rows[i].state == statePending {
			l.start(name, uint32(i), fmt.Sprintf("m%d", round%10))
		}
	}
}

// held sums up what all copies of u hold that run or stop.
func (l *testLog) held() (cpuMilli int64) {
	for _, m := range l.c.machineList {
		for _, p := range m.copies {
			if p.job.key.User == "u" && p.state.live() {
				cpuMilli += p.res.CPUMilli
			}
		}
	}
	return cpuMilli
}

// TestUpdatesThatStop: a user who keeps updating tasks that ignore SIGTERM, of one job or of
// several, holds at most twice the quota, also while tasks wait for a place.
func TestUpdatesThatStop(t *testing.T) {
	for _, jobs := range []int{1, 2, 5} {
		for _, waits := range []bool{false, true} {
			l := quotaLog(t)
			l.do(setQuota("u", production, 10_000, tib))
			spec := service(uint32(10/jobs), 200, 1_000, 1<<20)
			spec.Task.GraceNs = maxGraceNs
			spec.Update = &borgpb.UpdatePolicy{BatchSize: 10}
			name := func(i int) string { return fmt.Sprintf("web-%d", i) }
			for i := range jobs {
				l.do(submitJob(t, name(i), spec))
				l.startAll(name(i), 0)
			}
			for round := range 8 {
				for i := range jobs {
					spec.Task.Env = map[string]string{"ROUND": fmt.Sprint(round)}
					l.do(updateJob(t, name(i), spec))
					if !waits {
						l.startAll(name(i), round+1)
					}
				}
				for i := range jobs {
					l.startAll(name(i), round+1)
				}
				if got := l.held(); got > 20_000 {
					t.Fatalf("%d jobs, round %d: %d of cpu are held, with a quota of 10,000", jobs, round, got)
				}
				l.fine()
			}
			if got := l.held(); got != 20_000 {
				t.Errorf("%d jobs: %d of cpu are held at last, want twice the quota", jobs, got)
			}
			l.waitsFor(name(0), "tasks of user u that stop still hold 10 of cpu, and with 1 more it would be over 10", "u/web-")
			// Without a quota of their own: as much as runs.
			l.do(&borgpb.Op{Op: &borgpb.Op_DeleteQuota{DeleteQuota: &borgpb.DeleteQuota{User: "u", Band: production}}})
			l.waitsFor(name(0), "with 1 more it would be over 10")
			l.short(updateJob(t, name(0), service(uint32(10/jobs), 200, 1_000, 1<<21)), "no quota for production")
		}
	}
}

// TestUpdatesThatStopAreInTheTaskBudget: at priority 0 as well.
func TestUpdatesThatStopAreInTheTaskBudget(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(stateBudgetOp("u", measureTasks, 10))
	spec := service(10, 0, 100, 1<<20)
	spec.Task.GraceNs = maxGraceNs
	spec.Update = &borgpb.UpdatePolicy{BatchSize: 10}
	l.do(submitJob(t, "web", spec))
	l.startAll("web", 0)
	for round := range 6 {
		spec.Task.Env = map[string]string{"ROUND": fmt.Sprint(round)}
		l.do(updateJob(t, "web", spec))
		l.startAll("web", round+1)
		if got := l.held(); got > 2_000 {
			t.Fatalf("round %d: %d tasks are held, with a budget of 10", round, got/100)
		}
	}
	l.waitsFor("web", "10 tasks of user u still stop, and the user may hold 10")
	l.do(killJob("web"))
	l.over(submitJob(t, "more", service(1, 0, 100, 1<<20)), "may hold 10 tasks")
	l.fine()
}

// TestStopRefusalNamesJobs: a refusal because of what stops tells the longest time of a job's
// copies, and has no clause when there is no job to name.
func TestStopRefusalNamesJobs(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	// The first copy is not the one that may take longest.
	spec := service(4, 0, 100, 1<<20)
	spec.Task.GraceNs = 7200 * second
	spec.Overrides = []*borgpb.TaskOverride{{First: 0, Last: 1, Spec: &borgpb.TaskSpec{GraceNs: 3600 * second}}}
	l.do(submitJob(t, "web", spec))
	l.startAll("web", 0)
	l.do(killJob("web"))
	if got := l.c.describeStopping("u"); got != ": u/web (4 tasks, each at most 2 h after it was told to stop)" {
		t.Errorf("describeStopping = %q", got)
	}
	if got := l.c.describeStopping("v"); got != "" {
		t.Errorf("describeStopping of nobody = %q", got)
	}
}

// TestReplacedRunsAreCharged: a cron job whose runs take each other's place holds at most
// twice the quota.
func TestReplacedRunsAreCharged(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("u", production, 10_000, tib))
	spec := service(10, 200, 1_000, 1<<20)
	spec.Kind = borgpb.JobKind_JOB_KIND_CRON
	spec.Task.GraceNs = maxGraceNs
	spec.Cron = &borgpb.CronSpec{Schedule: "@hourly", Overlap: borgpb.CronOverlap_CRON_OVERLAP_REPLACE}
	l.do(submitJob(t, "often", spec))
	var refused *borgpb.Refusal
	for i := range 4 {
		j := l.c.Job(JobKey{"u", "often"})
		res, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{
			User: "u", Name: "often", Manual: true, Spec: marshal(t, j.RunSpec()), Uid: j.uid.String(), Version: j.version}}})
		refused = res[0].Refusal
		for _, run := range l.c.liveRuns(l.c.Job(JobKey{"u", "often"})) {
			l.startAll(run.key.Name, i)
		}
		if got := l.held(); got > 20_000 {
			t.Fatalf("run %d: %d of cpu are held, with a quota of 10,000", i, got)
		}
		l.fine()
	}
	if refused.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_QUOTA {
		t.Errorf("a run that takes the place of one after the other: %v", refused)
	}
	if got := l.held(); got != 20_000 {
		t.Errorf("%d of cpu are held at last, want twice the quota", got)
	}
}

// TestCrashedCopiesAreCharged: a copy that stops where its task crashed is charged beside
// the one that runs elsewhere.
func TestCrashedCopiesAreCharged(t *testing.T) {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(setQuota("u", production, 10_000, tib))
	spec := service(1, 200, 1_000, 1<<20)
	spec.Task.GraceNs = maxGraceNs
	uid := l.do(submitJob(t, "web", spec)).Uid
	l.start("web", 0, "m0")
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m0", Tasks: []*borgpb.TaskReport{{
		JobUid: uid, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF), Failures: crashesBeforeMoved, Exit: &borgpb.Exit{Code: 1},
	}}}}}}})
	if j := l.c.Job(JobKey{"u", "web"}); j.stopping != 1 {
		t.Fatalf("%d copies stop, want the one that crashed", j.stopping)
	}
	if got := l.c.ChargeOf("u", production).CPUMilli; got != 1_000 {
		t.Errorf("a task that waits is charged %d with its copy that stops, want 1000", got)
	}
	l.start("web", 0, "m1")
	if got := l.c.ChargeOf("u", production).CPUMilli; got != 2_000 {
		t.Errorf("charged %d for a task and its copy that stops, want 2000", got)
	}
	l.fine()
}
