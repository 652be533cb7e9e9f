package cell

import (
	"fmt"
	"slices"
	"testing"

	"borg/proto/borgpb"
)

func setSpec(allocs uint32, priority int32, cpuMilli int64) *borgpb.AllocSetSpec {
	return &borgpb.AllocSetSpec{Allocs: allocs, Priority: priority, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 20}}
}

func updateSet(t testing.TB, name string, spec *borgpb.AllocSetSpec) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: "u", Name: name, Spec: marshal(t, spec)}}}
}

func resizeSetOp(name string, allocs uint32) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: "u", Name: name, Allocs: allocs}}}
}

// latestQuotaLog is quotaLog of the latest format.
func latestQuotaLog(t testing.TB) *testLog {
	l := quotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	return l
}

// fillSet places the allocs of a set that wait, and the tasks of a job in them.
func (l *testLog) fillSet(name, job string, round int) {
	l.t.Helper()
	s, j := l.c.AllocSet(JobKey{"u", name}), l.c.Job(JobKey{"u", job})
	for i, a := range s.allocs {
		if a.state == statePending {
			l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
				Uid: s.uid.String(), Index: uint32(i), LastAttempt: a.attempt, Machine: fmt.Sprintf("m%d", round%10)}}}}})
		}
	}
	for i, t := range j.rows {
		if t.state == statePending && i < len(s.allocs) {
			l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
				Uid: j.uid.String(), Index: uint32(i), LastAttempt: t.attempt, Alloc: s.allocs[i].Name()}}}}})
		}
	}
}

// heldWithAllocs is what copies outside allocs, and allocs, hold.
func (l *testLog) heldWithAllocs() (cpuMilli int64) {
	for _, m := range l.c.machineList {
		for _, p := range m.copies {
			if p.alloc == nil && p.state.live() {
				cpuMilli += p.res.CPUMilli
			}
		}
		for _, a := range m.allocs {
			cpuMilli += a.room.capacity.CPUMilli
		}
	}
	return cpuMilli
}

// TestTasksOfAllocsThatStop: a task that stops has lost its alloc, and the charge of the
// alloc with it. A user who ends allocs in turns holds at most twice the quota.
func TestTasksOfAllocsThatStop(t *testing.T) {
	for _, way := range []string{"kill", "resize"} {
		l := latestQuotaLog(t)
		l.do(setQuota("u", production, 10_000, tib))
		submit := submitSet(t, "pool", setSpec(10, 200, 1_000))
		l.do(submit)
		spec := service(10, 200, 1_000, 1<<20)
		spec.Task.GraceNs, spec.AllocSet = maxGraceNs, "u/pool"
		l.do(submitJob(t, "web", spec))
		refused := false
		for round := range 8 {
			l.fillSet("pool", "web", round)
			end, again := resizeSetOp("pool", 1), resizeSetOp("pool", 10)
			if way == "kill" {
				end, again = &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: "pool"}}}, submit
			}
			l.do(end)
			res, _ := l.apply(again)
			refused = res[0].Refusal.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_QUOTA
			if got := l.heldWithAllocs(); got > 20_000 {
				t.Fatalf("%s, round %d: %d of cpu are held, with a quota of 10,000", way, round, got)
			}
			l.fine()
			if refused {
				break
			}
		}
		if !refused {
			t.Errorf("%s: allocs that come and go are never refused", way)
		}
	}
}

// TestStopsHoldUpUpdates: no alloc set and no daemon job is updated while what stops holds
// more than the quota.
func TestStopsHoldUpUpdates(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 12_000, tib))
	l.do(submitSet(t, "small", setSpec(1, 200, 1_000)))
	agent := service(0, 200, 100, 1<<20)
	agent.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	l.do(submitJob(t, "agent", agent))
	spec := service(10, 200, 1_000, 1<<20)
	spec.Task.GraceNs = maxGraceNs
	for range 2 {
		l.do(submitJob(t, "web", spec))
		l.startAll("web", 0)
		l.do(killJob("web"))
	}
	agent.Task.Env = map[string]string{"A": "b"}
	for what, op := range map[string]*borgpb.Op{"an alloc set": updateSet(t, "small", setSpec(1, 200, 900)), "a daemon job": updateJob(t, "agent", agent)} {
		l.short(op, "tasks of user u that stop still hold 20 of cpu, more than the quota for production", "u/web")
		if t.Failed() {
			t.Fatal(what)
		}
	}
	l.fine()
	for _, p := range slices.Clone(l.c.Machine("m0").copies) {
		l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m0", Tasks: []*borgpb.TaskReport{{
			JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}}}}}}})
	}
	l.do(updateSet(t, "small", setSpec(1, 200, 900)))
	l.do(updateJob(t, "agent", agent))
	l.fine()
}

// TestDaemonsThatComeAndGo: who has a daemon job leave its machines and come back, again and
// again, holds at most twice the quota.
func TestDaemonsThatComeAndGo(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 10_000, tib))
	agent := func(round int) *borgpb.JobSpec {
		s := service(0, 200, 1_000, 1<<20)
		s.Kind, s.Task.GraceNs = borgpb.JobKind_JOB_KIND_DAEMON, maxGraceNs
		if round%2 == 1 {
			s.Task.Constraints = []*borgpb.Constraint{{Key: "nowhere", Relation: borgpb.Relation_RELATION_PRESENT}}
		}
		return s
	}
	l.do(submitJob(t, "agent", agent(0)))
	refused := false
	for round := range 12 {
		j := l.c.Job(JobKey{"u", "agent"})
		for i, row := range j.rows {
			if m := j.Seat(uint32(i)); m != nil && row.state == statePending {
				l.start("agent", uint32(i), m.name)
			}
		}
		res, _ := l.apply(updateJob(t, "agent", agent(round+1)))
		refused = refused || res[0].Refusal.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_QUOTA
		if got := l.held(); got > 20_000 {
			t.Fatalf("round %d: %d of cpu are held, with a quota of 10,000", round, got)
		}
		l.fine()
	}
	if !refused {
		t.Error("a daemon job that comes and goes is never refused")
	}
}

// TestPreemptingOnesOwn: work whose own user's work takes its place is charged while it
// stops, and preempts no more of its own once that holds as much as the quota. Another user's
// preemption charges nothing.
func TestPreemptingOnesOwn(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 100_000, tib))
	l.do(setQuota("u", borgpb.Band_BAND_BATCH, 1_000, tib))
	l.do(setQuota("v", production, 100_000, tib))
	low := service(1, 100, 1_000, 1<<20)
	low.Task.GraceNs = 600 * second
	l.do(submitJob(t, "low", low))
	preempt := func(user, name string) *borgpb.Refusal {
		t.Helper()
		high := service(1, 200, 1_000, 1<<20)
		high.PreemptWaitNs = 600 * second
		uid := l.do(by(user, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: marshal(t, high)}}})).Uid
		cur := l.c.Job(JobKey{"u", "low"}).rows[0].cur
		res, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Machine: cur.machine.name,
			Victims: []*borgpb.Victim{{JobUid: cur.job.uid.String(), Attempt: cur.attempt}}}}}}})
		if len(res[0].Items) > 0 && res[0].Items[0].Kind != 0 {
			return res[0].Items[0]
		}
		return nil
	}
	charged := func(want int64) {
		t.Helper()
		if got := l.c.ChargeOf("u", borgpb.Band_BAND_BATCH).CPUMilli; got != want {
			t.Errorf("the lower work is charged %d, want %d", got, want)
		}
		if got := reload(t, l.c).ChargeOf("u", borgpb.Band_BAND_BATCH).CPUMilli; got != want {
			t.Errorf("after a reload it is charged %d, want %d", got, want)
		}
		l.fine()
	}
	l.start("low", 0, "m0")
	if r := preempt("v", "theirs"); r != nil {
		t.Fatal(r)
	}
	l.start("low", 0, "m1")
	charged(1_000)
	var refused *borgpb.Refusal
	for i := range 4 {
		if refused = preempt("u", fmt.Sprint("high", i)); refused != nil {
			break
		}
		l.start("low", 0, fmt.Sprintf("m%d", i+2))
		charged(int64(i+2) * 1_000)
	}
	if refused.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT {
		t.Fatalf("work that preempts its own without end is refused with %v", refused)
	}
	if l.c.PreemptsOwn("u", borgpb.Band_BAND_BATCH) || !l.c.PreemptsOwn("u", production) {
		t.Error("the cell says otherwise of which bands it may preempt")
	}
	if r := preempt("v", "theirs-too"); r != nil {
		t.Errorf("another user's work may not take the place: %v", r)
	}
	l.fine()
}

// TestStopCauseIsKept: a record says every cause, whatever its number.
func TestStopCauseIsKept(t *testing.T) {
	for n := range borgpb.StopCause_name {
		l := latestQuotaLog(t)
		l.do(setQuota("u", production, 1_000, tib))
		l.do(submitJob(t, "web", service(1, 200, 1_000, 1<<20)))
		l.start("web", 0, "m0")
		p := l.c.Job(JobKey{"u", "web"}).rows[0].cur
		l.do(killJob("web"))
		p.stop.cause = borgpb.StopCause(n)
		for _, q := range reload(t, l.c).Machine("m0").copies {
			if q.stop.cause != borgpb.StopCause(n) {
				t.Errorf("cause %v is read as %v", borgpb.StopCause(n), q.stop.cause)
			}
		}
	}
}
