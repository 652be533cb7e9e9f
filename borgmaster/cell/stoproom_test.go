package cell

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// waitsFor wants the update of a job of u to wait for something with all of these words.
func (l *testLog) waitsFor(name string, words ...string) {
	l.t.Helper()
	st := l.c.UpdateProto(l.c.Job(JobKey{"u", name})).Status
	for _, w := range words {
		if !strings.Contains(st.WaitsFor, w) {
			l.t.Errorf("the update of %s waits for %q, which says nothing of %q", name, st.WaitsFor, w)
		}
	}
}

// endStopping has so many copies of u end that were told to stop, and tells how many did.
func (l *testLog) endStopping(most int) (ended int) {
	l.t.Helper()
	for _, m := range l.c.machineList {
		for _, p := range slices.Clone(m.copies) {
			if p.state == attemptStopping && p.job.key.User == "u" && ended < most {
				l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: m.name, Tasks: []*borgpb.TaskReport{{
					JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}}}}}}})
				ended++
			}
		}
	}
	return ended
}

func controlUpdate(name string, verb borgpb.UpdateVerb) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "u", Name: name, Verb: verb}}}
}

// stubborn is a service whose tasks take a day to stop.
func stubborn(tasks uint32, cpuMilli int64, round int) *borgpb.JobSpec {
	s := service(tasks, 200, cpuMilli, 1<<20)
	s.Task.GraceNs = maxGraceNs
	s.Task.Env = map[string]string{"ROUND": fmt.Sprint(round)}
	s.Update = &borgpb.UpdatePolicy{BatchSize: tasks}
	return s
}

// TestRollbackWaitsForStops: a rollback, and one with extra tasks, ends no task while what
// stops holds as much as the quota. It goes on as copies end, to its end.
func TestRollbackWaitsForStops(t *testing.T) {
	for _, surge := range []uint32{0, 5} {
		l := latestQuotaLog(t)
		l.do(setQuota("u", production, 10_000, tib))
		tasks := 10 - surge
		next := func(round int) *borgpb.JobSpec {
			s := stubborn(tasks, 1_000, round)
			s.Update.Surge = surge
			return s
		}
		l.do(submitJob(t, "web", next(0)))
		l.startAll("web", 0)
		within := func(what string) {
			t.Helper()
			for range 3 {
				l.startAll("web", 5)
			}
			if got := l.held(); got > 20_000 {
				t.Fatalf("surge %d, %s: %d of cpu are held, with a quota of 10,000", surge, what, got)
			}
			l.fine()
		}
		for round := range 3 {
			l.apply(updateJob(t, "web", next(round+1)))
			within("update")
			l.apply(controlUpdate("web", borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK))
			within("rollback")
		}
		if surge == 0 {
			l.waitsFor("web", "tasks to end: tasks of user u that stop still hold", "u/web")
		}
		for n := 0; l.c.Job(JobKey{"u", "web"}).update.Rolling(); n++ {
			if l.endStopping(1) == 0 || n > 100 {
				t.Fatal("the rollback waits, and nothing stops")
			}
			within("rollback going on")
		}
	}
}

// TestRollbackOfUnusedSurge: an update that makes a job smaller and waits before it has its extra
// tasks is charged for them. That charge does not pay for the tasks that a rollback brings back,
// as long as those that were cut off still stop; when they have ended, it goes through.
func TestRollbackOfUnusedSurge(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 10_000, tib))
	l.do(submitJob(t, "web", stubborn(10, 1_000, 0)))
	l.startAll("web", 0)
	l.do(updateJob(t, "web", stubborn(10, 1_000, 1)))
	l.startAll("web", 1)
	small := stubborn(5, 1_000, 2)
	small.Update.Surge = 5
	l.do(updateJob(t, "web", small))
	j := l.c.Job(JobKey{"u", "web"})
	if j.Size() != 5 || j.surging() != 5 || j.update.Extra() != 0 {
		t.Fatalf("%d tasks, and %d of %d extra ones: the update does not wait", j.Size(), j.update.Extra(), j.surging())
	}
	back := controlUpdate("web", borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK)
	try := func(what string) bool {
		t.Helper()
		results, _ := l.apply(back)
		for range 3 {
			l.startAll("web", 3)
		}
		if got := l.held(); got > 20_000 {
			t.Errorf("%s: %d of cpu are held, with a quota of 10,000", what, got)
		}
		l.fine()
		return results[0].Refusal == nil
	}
	if try("15 copies stop") {
		t.Error("the rollback brings 5 tasks back, and the 5 that were cut off still stop beside 10 others")
	}
	// Paused, it does not go on as copies end.
	l.do(controlUpdate("web", borgpb.UpdateVerb_UPDATE_VERB_PAUSE))
	l.endStopping(10)
	if !try("5 copies stop") {
		t.Error("the rollback is refused, with 5 tasks and 5 that stop of a quota for 10")
	}
}

// TestFullQuotaIsUpdated: the update of a job that fills its quota goes on in place, and a
// batch at a time: each batch waits for the tasks of the last that stop only once they hold as
// much as the quota.
func TestFullQuotaIsUpdated(t *testing.T) {
	for _, batch := range []uint32{1, 3, 10} {
		l := latestQuotaLog(t)
		l.do(setQuota("u", production, 10_000, 100<<20))
		next := func(round int) *borgpb.JobSpec {
			s := stubborn(10, 1_000, round)
			s.Update.BatchSize = batch
			return s
		}
		l.do(submitJob(t, "web", next(0)))
		l.startAll("web", 0)
		u := func() *Update { return l.c.Job(JobKey{"u", "web"}).update }
		// In place.
		s := next(0)
		s.Task.GraceNs--
		l.do(updateJob(t, "web", s))
		if u().Rolling() || u().inPlace != 10 {
			t.Errorf("batch %d: %d of 10 tasks were changed in place", batch, u().inPlace)
		}
		for round := range 2 {
			l.do(updateJob(t, "web", next(round+1)))
			for range 10 {
				l.startAll("web", round+1)
			}
			if rolls := u().Rolling(); rolls != (round > 0) {
				t.Errorf("batch %d: update %d rolls: %v", batch, round, rolls)
			}
		}
		l.fine()
		l.endStopping(100)
		for range 10 {
			l.startAll("web", 4)
		}
		if u().Rolling() {
			t.Errorf("batch %d: the second update does not go on when nothing stops any more", batch)
		}
		l.fine()
	}
}

// TestUpdateWaitsForStopsOfOthers: what stops of one job of a user holds up the update of another,
// which goes on when it has ended, in a cell that was just read as well.
func TestUpdateWaitsForStopsOfOthers(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 10_000, tib))
	l.do(submitJob(t, "old", stubborn(10, 1_000, 0)))
	l.startAll("old", 0)
	l.do(killJob("old"))
	l.do(setQuota("u", production, 20_000, tib))
	l.do(submitJob(t, "a", stubborn(6, 1_000, 0)))
	l.do(submitJob(t, "b", stubborn(4, 1_000, 0)))
	l.do(setQuota("u", production, 10_000, tib))
	l.startAll("a", 1)
	l.startAll("b", 2)
	for _, name := range []string{"a", "b"} {
		spec := stubborn(uint32(len(l.c.Job(JobKey{"u", name}).rows)), 1_000, 1)
		l.do(updateJob(t, name, spec))
		l.waitsFor(name, "still hold 10 of cpu, and with 1 more it would be over 10", "u/old")
	}
	stopped := func(name string, want uint32) {
		t.Helper()
		if got := l.c.Job(JobKey{"u", name}).update.restarted; got != want {
			t.Errorf("%d tasks of %s were restarted, want %d", got, name, want)
		}
	}
	stopped("a", 0)
	l.fine()
	l.endStopping(6)
	stopped("a", 6)
	l.startAll("a", 3)
	stopped("b", 0)
	l.endStopping(4)
	stopped("b", 4)
	l.fine()
}

// TestAllocsThatMove: the allocs of a set whose updates have them move leave their machines while
// what stops in them is within the quota.
func TestAllocsThatMove(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 10_000, tib))
	for _, side := range []string{"a", "b"} {
		op := addMachine("side-"+side, 100_000, tib)
		op.GetAddMachine().Spec.Attributes = map[string]string{"side": side}
		l.do(op)
	}
	next := func(side string) *borgpb.AllocSetSpec {
		s := setSpec(10, 200, 1_000)
		s.Constraints = []*borgpb.Constraint{{Key: "side", Relation: borgpb.Relation_RELATION_EQUAL, Value: side}}
		return s
	}
	l.do(submitSet(t, "pool", next("a")))
	spec := stubborn(10, 1_000, 0)
	spec.AllocSet = "u/pool"
	l.do(submitJob(t, "web", spec))
	s, j := l.c.AllocSet(JobKey{"u", "pool"}), l.c.Job(JobKey{"u", "web"})
	settle := func(side string) {
		t.Helper()
		for range 40 {
			for i, a := range s.allocs {
				if a.state == statePending {
					l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
						Uid: s.uid.String(), Index: uint32(i), LastAttempt: a.attempt, Machine: "side-" + side}}}}})
				}
				if row := j.rows[i]; row.state == statePending && a.state == stateRunning {
					l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
						Uid: j.uid.String(), Index: uint32(i), LastAttempt: row.attempt, Alloc: a.Name()}}}}})
				}
			}
			l.cellNs += 2 * setAgainNs
			l.apply()
			if got := l.heldWithAllocs(); got > 20_000 {
				t.Fatalf("%d of cpu are held, with a quota of 10,000", got)
			}
		}
		l.fine()
		s, j = l.c.AllocSet(JobKey{"u", "pool"}), l.c.Job(JobKey{"u", "web"})
	}
	settle("a")
	for _, side := range []string{"b", "a"} {
		l.do(updateSet(t, "pool", next(side)))
		settle(side)
	}
	if why := l.c.Waits(s); !strings.Contains(why, "still hold 10 of cpu, and with 1 more it would be over 10") {
		t.Errorf("the alloc set waits for %q", why)
	}
}
