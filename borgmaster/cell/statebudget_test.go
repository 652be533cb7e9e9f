package cell

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// budgetLog is a cell of the latest format with the admin "root".
func budgetLog(t testing.TB) *testLog {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(Admin)}}})
	return l
}

func stateBudgetOp(user string, m Measure, n int64) *borgpb.Op {
	return &borgpb.Op{Principal: &borgpb.Principal{User: "root"}, Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{
		User: user, Amounts: []*borgpb.StateAmount{{Measure: m, Amount: n}}}}}
}

// by makes an op one of a user's.
func by(user string, op *borgpb.Op) *borgpb.Op {
	op.Principal = &borgpb.Principal{User: user}
	return op
}

func submitBy(t testing.TB, user, name string, spec *borgpb.JobSpec) *borgpb.Op {
	return by(user, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: marshal(t, spec)}}})
}

func submitSetBy(t testing.TB, user, name string, allocs uint32) *borgpb.Op {
	spec := &borgpb.AllocSetSpec{Allocs: allocs, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}}
	return by(user, &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: name, Spec: marshal(t, spec)}}})
}

// over wants an op refused as beyond a budget, with all of these words.
func (l *testLog) over(op *borgpb.Op, words ...string) {
	l.t.Helper()
	res, _ := l.apply(op)
	r := res[0].Refusal
	if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
		l.t.Fatalf("%v, want it refused as beyond a limit", res[0])
	}
	for _, w := range words {
		if !strings.Contains(r.Message, w) {
			l.t.Errorf("%q says nothing of %q", r.Message, w)
		}
	}
}

// TestTaskBudget: a user has as many tasks as his budget, at priority 0 too, by submit,
// resize and update; what he ends is free again; an admin may have the rest.
func TestTaskBudget(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("u", measureTasks, 10))
	l.do(submitBy(t, "u", "a", service(6, 0, 1, 1)))
	l.over(submitBy(t, "u", "b", service(5, 0, 1, 1)), "may hold 10 tasks", "holds 6", "asks for 5 more", "borgcfg quota state u tasks=11")
	l.do(submitBy(t, "u", "b", service(4, 0, 1, 1)))
	l.over(by("u", resizeJob("b", 5)), "holds 10")
	l.over(by("u", updateJob(t, "b", service(5, 0, 2, 1))), "holds 10")
	l.do(by("u", resizeJob("a", 5)))
	l.do(by("u", updateJob(t, "b", service(5, 0, 2, 1))))
	l.do(submitBy(t, "v", "a", service(100, 0, 1, 1)))
	l.do(by("root", resizeJob("b", 50)))
	l.over(submitBy(t, "u", "c", service(1, 0, 1, 1)), "holds 55")
	l.do(by("u", killJob("b")))
	l.do(submitBy(t, "u", "c", service(5, 0, 1, 1)))
	l.do(stateBudgetOp("u", measureTasks, 0))
	l.do(submitBy(t, "u", "d", service(100, 0, 1, 1)))
	l.fine()
}

// TestAllocBudget: alloc sets are within the budget of allocs, by submit, resize and
// update.
func TestAllocBudget(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("", measureAllocs, 8))
	l.over(submitSetBy(t, "u", "s", 9), "may hold 8 allocs", "quota state u allocs=9")
	l.do(submitSetBy(t, "u", "s", 6))
	l.over(submitSetBy(t, "u", "t", 3), "holds 6")
	resize := func(n uint32) *borgpb.Op {
		return by("u", &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: "u", Name: "s", Allocs: n}}})
	}
	l.over(resize(9), "3 more")
	l.do(resize(8))
	spec := &borgpb.AllocSetSpec{Allocs: 9, Resources: &borgpb.Resources{CpuMilli: 50, MemBytes: 1 << 20}}
	l.over(by("u", &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: "u", Name: "s", Spec: marshal(t, spec)}}}), "1 more")
	l.do(by("u", &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: "s"}}}))
	l.do(submitSetBy(t, "u", "t", 8))
	l.fine()
}

// TestDefaultAllocBudget: the alloc sets of one user do not fill the cell.
func TestDefaultAllocBudget(t *testing.T) {
	l := budgetLog(t)
	l.do(submitSetBy(t, "u", "s0", maxAllocsOfUser))
	l.over(submitSetBy(t, "u", "s1", 1), fmt.Sprint("may hold ", maxAllocsOfUser))
	l.do(submitSetBy(t, "v", "s1", 1))
}

// TestObjectBudget: jobs and alloc sets are counted together, cron jobs apart too.
func TestObjectBudget(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("u", measureObjects, 3))
	l.do(stateBudgetOp("u", measureCronJobs, 1))
	cron := service(1, 0, 1, 1)
	cron.Kind, cron.Cron = borgpb.JobKind_JOB_KIND_CRON, &borgpb.CronSpec{Schedule: "0 3 * * *", TimeZone: "UTC"}
	l.do(submitBy(t, "u", "nightly", cron))
	l.over(submitBy(t, "u", "nightly2", cron), "may hold 1 cron jobs")
	l.do(submitSetBy(t, "u", "s", 1))
	l.do(submitBy(t, "u", "a", service(1, 0, 1, 1)))
	l.over(submitBy(t, "u", "b", service(1, 0, 1, 1)), "may hold 3 jobs and alloc sets")
	l.over(submitSetBy(t, "u", "t", 1), "holds 3")
	l.do(by("u", killJob("a")))
	l.do(submitBy(t, "u", "b", service(1, 0, 1, 1)))
	l.fine()
}

// TestByteBudget: specs as merged, labels and annotations are charged; other versions of a
// spec while a task may run them.
func TestByteBudget(t *testing.T) {
	l := budgetLog(t)
	spec := service(1, 0, 1, 1)
	specWeight, _ := weighSpec(jobShape, marshal(t, spec))
	size := specWeight + runBytes
	texts := weight.Map(map[string]string{"k": strings.Repeat("x", 99)})
	l.do(stateBudgetOp("u", measureBytes, size+texts))
	l.do(submitBy(t, "u", "a", spec))
	label := func(n int) *borgpb.Op {
		return by("u", &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{Kind: borgpb.Labelled_LABELLED_JOB, User: "u", Name: "a",
			SetAnnotations: map[string]string{"k": strings.Repeat("x", n-1)}}}})
	}
	l.over(label(101), "bytes of specs, labels, annotations, notes and secrets")
	l.do(label(100))
	if got := l.c.StateUseOf("u")[measureBytes]; got != size+texts {
		t.Errorf("%d bytes, want %d", got, size+texts)
	}
	big := service(1, 0, 1, 1)
	big.Overrides = []*borgpb.TaskOverride{{First: 0, Last: 0, Spec: &borgpb.TaskSpec{Args: []string{"x"}}}}
	l.over(by("u", updateJob(t, "a", big)), "bytes of specs")
	l.over(submitBy(t, "u", "b", service(1, 0, 1, 1)), "bytes of specs")
	l.fine()
}

// TestStateReserve: what is below production leaves a part of the cell's total, which
// production and admins may use.
func TestStateReserve(t *testing.T) {
	l := budgetLog(t)
	total, reserved := StateTotal(measureTasks)
	for m := range measures {
		if m == int(measureTasks) {
			l.do(stateBudgetOp("", measureTasks, total))
		}
	}
	n := (total - reserved) / maxTasksPerJob
	for i := range n {
		l.do(submitBy(t, "u", fmt.Sprint("j", i), service(maxTasksPerJob, 0, 1, 1)))
	}
	l.over(submitBy(t, "v", "low", service(1, 119, 1, 1)), "reserved for production and admins")
	l.do(submitBy(t, "v", "high", service(10, 120, 1, 1)))
	l.do(by("root", submitBy(t, "v", "low", service(10, 0, 1, 1))))
	rest := uint32(reserved - 20)
	l.do(submitBy(t, "v", "rest", service(rest/2, 120, 1, 1)))
	l.do(submitBy(t, "v", "rest2", service(rest-rest/2, 120, 1, 1)))
	l.over(submitBy(t, "v", "more", service(1, 120, 1, 1)))
}

// TestDeadBudget: a user's dead jobs push out his own, and nobody else's.
func TestDeadBudget(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("", measureDeadObjects, 5))
	end := func(user, name string) {
		l.do(submitBy(t, user, name, service(2, 0, 1, 1)))
		l.do(by(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}))
	}
	end("v", "old")
	for i := range 20 {
		end("u", fmt.Sprint("j", i))
		end("u", "again")
	}
	if l.c.Job(JobKey{"v", "old"}) == nil {
		t.Error("the dead job of another user is gone")
	}
	if u := l.c.StateUseOf("u"); u[measureDeadObjects] != 5 || u[measureDeadTasks] != 10 || l.c.Job(JobKey{"u", "again"}) == nil || l.c.Job(JobKey{"u", "j16"}) == nil {
		t.Errorf("%v is dead of u", u)
	}
	l.do(stateBudgetOp("u", measureDeadTasks, 3))
	if u := l.c.StateUseOf("u"); u[measureDeadObjects] != 1 {
		t.Errorf("%v is dead of u with a smaller budget", u)
	}
	l.fine()
}

// TestDeadTotals: all dead together are within the totals of the cell, by number, tasks
// and bytes; the oldest go first, whoever's they are.
func TestDeadTotals(t *testing.T) {
	l := budgetLog(t)
	for _, m := range []Measure{measureDeadObjects, measureDeadTasks, measureDeadBytes} {
		l.do(stateBudgetOp("", m, measures[m].cell))
	}
	fill := func(s *borgpb.JobSpec) { s.Task.Args = make([]string, 30_000) }
	end := func(user, name string, tasks uint32, change func(*borgpb.JobSpec)) {
		spec := service(tasks, 0, 1, 1)
		change(spec)
		l.do(submitBy(t, user, name, spec))
		l.do(by(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}))
	}
	within := func() {
		t.Helper()
		for _, m := range []Measure{measureDeadObjects, measureDeadTasks, measureDeadBytes} {
			if u := l.c.CellStateUse(); u[m] > measures[m].cell {
				t.Fatalf("the cell has %d %s, at most %d", u[m], measures[m].what, measures[m].cell)
			}
		}
	}
	end("v", "old", 1, fill)
	weight := l.c.StateUseOf("v")[measureDeadBytes]
	n := int64(maxDeadBytes)/weight + 2
	for i := range n {
		end(fmt.Sprint("u", i%7), fmt.Sprint("j", i), 1, fill)
		within()
	}
	if l.c.Job(JobKey{"v", "old"}) != nil {
		t.Error("the oldest dead job is remembered beyond the total of bytes")
	}
	if got := l.c.CellStateUse()[measureDeadBytes]; got < maxDeadBytes-2*weight {
		t.Errorf("%d bytes are dead, which is far below the total of %d", got, maxDeadBytes)
	}
	plain := func(*borgpb.JobSpec) {}
	for i := range maxDeadTasks/maxTasksPerJob + 2 {
		end("w", fmt.Sprint("j", i), maxTasksPerJob, plain)
		within()
	}
	l.fine()
}

// TestFollowedDeadAreRemembered holds that a dead job which a live one starts after is
// forgotten last: that one has to be told how it ended.
func TestFollowedDeadAreRemembered(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("", measureDeadObjects, 5))
	end := func(name string) {
		l.do(submitBy(t, "u", name, service(2, 0, 1, 1)))
		l.do(by("u", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: name}}}))
	}
	l.do(submitBy(t, "u", "first", service(1, 0, 1, 1)))
	after := service(1, 0, 1, 1)
	after.StartAfter = []string{"u/first"}
	l.do(submitBy(t, "u", "second", after))
	l.do(by("u", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "first"}}}))
	for i := range 20 {
		end(fmt.Sprint("j", i))
	}
	second := l.c.Job(JobKey{"u", "second"})
	if got, want := l.c.HeldBack(second), "starts after u/first, which has failed for good or was ended; submit that again, end this one, or have it start all the same: after_failure = \"run\""; got != want {
		t.Errorf("it is held back because it %s, want %s", got, want)
	}
	if u := l.c.StateUseOf("u"); u[measureDeadObjects] != 5 || l.c.Job(JobKey{"u", "j19"}) == nil || l.c.Job(JobKey{"u", "j15"}) != nil {
		t.Errorf("%v is dead of u", u)
	}
	l.fine()
	l.do(by("u", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "second"}}}))
	end("last")
	if l.c.Job(JobKey{"u", "first"}) != nil {
		t.Error("nobody starts after it any more, and it is remembered before what died later")
	}
	l.fine()
}

// TestFollowedDeadAreNotRewritten: where all that the cell may remember is dead jobs that live ones
// start after, the end of another job forgets that job alone, and writes nothing of the others.
func TestFollowedDeadAreNotRewritten(t *testing.T) {
	l := budgetLog(t)
	for _, m := range []Measure{measureDeadObjects, measureTasks} {
		l.do(stateBudgetOp("", m, measures[m].cell))
	}
	kill := func(user, name string) *borgpb.Op {
		return by(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}})
	}
	for i := range maxDeadObjects / maxStartAfter {
		after := service(1, 0, 1, 1)
		for k := range maxStartAfter {
			name := fmt.Sprintf("first-%d-%d", i, k)
			after.StartAfter = append(after.StartAfter, "u/"+name)
			l.do(submitBy(t, "u", name, service(1, 0, 1, 1)))
		}
		l.do(submitBy(t, "u", fmt.Sprintf("second-%d", i), after))
		for k := range maxStartAfter {
			l.do(kill("u", fmt.Sprintf("first-%d-%d", i, k)))
		}
	}
	const spare = maxDeadObjects % maxStartAfter
	for i := range spare + 20 {
		l.do(submitBy(t, "v", fmt.Sprint("j", i), service(1, 0, 1, 1)))
		l.c.Flush(func(_, _ []byte) {})
		l.do(kill("v", fmt.Sprint("j", i)))
		written := 0
		l.c.Flush(func(_, _ []byte) { written++ })
		if written > 20 {
			t.Fatalf("the end of job %d writes %d records", i, written)
		}
	}
	if l.c.Job(JobKey{"u", "first-0-0"}) == nil || l.c.CellStateUse()[measureDeadObjects] != maxDeadObjects {
		t.Errorf("%d objects are remembered, and the first one is not", l.c.CellStateUse()[measureDeadObjects])
	}
	l.fine()
}

// TestFileBudget: the number of files and their bytes are of the budget too.
func TestFileBudget(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("u", measureFiles, 2))
	l.do(stateBudgetOp("u", measureFileBytes, 10))
	write := func(name string, n int) *borgpb.Op {
		return by("u", &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "u", Name: name, Content: make([]byte, n)}}})
	}
	l.over(write("a", 11), "quota state u file-bytes=11")
	l.do(write("a", 9))
	l.do(write("b", 1))
	l.over(write("c", 0), "quota state u files=3")
	l.fine()
}

// TestStateBudgetOps: who may change budgets, and to what.
func TestStateBudgetOps(t *testing.T) {
	l := budgetLog(t)
	res, _ := l.apply(by("u", stateBudgetOp("u", measureTasks, 1)))
	if res[0].Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("%v, want it refused to a user", res[0])
	}
	for _, odd := range []*borgpb.Op{stateBudgetOp("u", 0, 1), stateBudgetOp("u", measureTasks, -1), stateBudgetOp("u", measureTasks, maxLiveTasks+1), stateBudgetOp("U", measureTasks, 1)} {
		if res, _ := l.apply(odd); res[0].Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID {
			t.Errorf("%v: %v", odd, res[0])
		}
	}
	l.do(stateBudgetOp("", measureTasks, 7))
	l.do(stateBudgetOp("u", measureTasks, 9))
	if a, b := l.c.StateBudget("u", measureTasks), l.c.StateBudget("v", measureTasks); a != 9 || b != 7 {
		t.Errorf("budgets of %d and %d tasks, want 9 and 7", a, b)
	}
	l.fine()
	l.do(stateBudgetOp("u", measureTasks, 0))
	l.do(stateBudgetOp("", measureTasks, 0))
	if a := l.c.StateBudget("u", measureTasks); a != maxTasksOfUser {
		t.Errorf("a budget of %d tasks, want the default", a)
	}
	l.fine()
}

// TestForgottenAreFreed: a dead job that was forgotten is in no queue and no heap any more,
// whatever would have been due of its update, and entries that no longer count are dropped.
func TestForgottenAreFreed(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("u", measureDeadObjects, 3))
	var freed atomic.Int64
	const jobs = 2000
	for i := range jobs {
		name := fmt.Sprint("j", i)
		spec := service(1, 0, 1, 1)
		l.do(by("u", &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: name, Spec: marshal(t, spec)}}}))
		j := l.c.Job(JobKey{"u", name})
		spec.Task.Args = []string{name}
		spec.Update = &borgpb.UpdatePolicy{WatchNs: second, ProgressDeadlineNs: maxUpdateWaitNs}
		l.do(by("u", &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: name, Spec: marshal(t, spec)}}}))
		if j.updateDueNs == 0 {
			t.Fatalf("nothing is due of the update of %s", name)
		}
		runtime.AddCleanup(j, func(struct{}) { freed.Add(1) }, struct{}{})
		l.do(by("u", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: name}}}))
		l.c.Flush(func(_, _ []byte) {})
	}
	if n := len(l.c.updateDues.heap); n > 3*minDropAt {
		t.Errorf("%d entries wait for updates of jobs, all of which are dead", n)
	}
	if n := len(l.c.graveyard.queue); n > 3*minDropAt {
		t.Errorf("%d graves are kept for %d dead jobs", n, l.c.graveyard.objects)
	}
	const want = jobs - 10
	for range 100 {
		if freed.Load() >= want {
			break
		}
		runtime.GC()
	}
	if n := freed.Load(); n < want {
		t.Errorf("%d of %d jobs were freed; %d are remembered", n, jobs, l.c.graveyard.objects)
	}
	runtime.KeepAlive(l)
}
