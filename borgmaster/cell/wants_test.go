package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// asUser is an op as a user's raw client sends it.
func asUser(user string, op *borgpb.Op) *borgpb.Op {
	op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER}
	return op
}

// TestNothingIsFree holds that a task is never without limits, whatever its priority:
// it would be charged nothing and take what others paid for.
func TestNothingIsFree(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	refused := func(op *borgpb.Op, field, says string) {
		t.Helper()
		results, _ := l.apply(asUser("u", op))
		r := results[0].Refusal
		if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID || r.Field != field || !strings.Contains(r.Message, says) {
			t.Errorf("got %v, want INVALID of %s that says %q", r, field, says)
		}
	}
	for _, priority := range []int32{0, 200, 450} {
		refused(submitJob(t, "none", service(1, priority, 0, 0)), "spec.task.resources", "how much cpu and memory")
		refused(submitJob(t, "no-memory", service(1, priority, 1000, 0)), "spec.task.resources", "how much cpu and memory")
		refused(submitJob(t, "no-cpu", service(1, priority, 0, 1<<30)), "spec.task.resources", "how much cpu and memory")
		partly := service(2, priority, 1000, 1<<30)
		partly.Overrides = []*borgpb.TaskOverride{{First: 1, Last: 1, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1}}}}
		refused(submitJob(t, "partly", partly), "spec.overrides.resources", "how much cpu and memory")
		refused(submitSet(t, "pool", &borgpb.AllocSetSpec{Allocs: 1, Priority: priority, Resources: &borgpb.Resources{CpuMilli: 1000}}), "spec.resources", "how much cpu and memory")
	}
	l.do(asUser("u", submitJob(t, "good", service(1, 200, 1000, 1<<30))))
	gang := service(3, 200, 1000, 1<<30)
	gang.Gang, gang.MaxRunning = true, 2
	refused(submitJob(t, "gang", gang), "spec.max_running", "a gang starts as a whole")
	refused(updateJob(t, "good", service(1, 200, 1000, 0)), "spec.task.resources", "how much cpu and memory")

	// What the cell fills in counts, and the cell itself is not asked.
	l.do(&borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: &borgpb.SetTaskLimits{
		User: "u", Default: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20}}}})
	l.do(asUser("u", submitJob(t, "filled", service(1, 200, 0, 0))))
	l.do(submitJob(t, "recorded", service(1, 200, 1, 0)))
}

func submitSet(t testing.TB, name string, spec *borgpb.AllocSetSpec) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "u", Name: name, Spec: marshal(t, spec)}}}
}

// TestPriorityInAllocSet holds that a job in an alloc set is never of a higher priority
// than the set, whichever of them comes or changes last: its tasks are charged nothing.
func TestPriorityInAllocSet(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	refused := func(op *borgpb.Op, says string) {
		t.Helper()
		results, _ := l.apply(asUser("u", op))
		r := results[0].Refusal
		if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID || r.Field != "spec.priority" || !strings.Contains(r.Message, says) {
			t.Errorf("got %v, want INVALID of spec.priority that says %q", r, says)
		}
	}
	set := func(priority int32) *borgpb.AllocSetSpec {
		return &borgpb.AllocSetSpec{Allocs: 1, Priority: priority, Resources: &borgpb.Resources{CpuMilli: 4000, MemBytes: 4 << 30}}
	}
	in := func(priority int32) *borgpb.JobSpec {
		s := service(1, priority, 1000, 1<<30)
		s.AllocSet = "u/pool"
		return s
	}
	l.do(asUser("u", submitSet(t, "pool", set(0))))
	refused(submitJob(t, "web", in(450)), "the set paid for the room")
	refused(submitJob(t, "web", in(1)), "priority 1 in alloc set u/pool, which has priority 0")
	l.do(asUser("u", submitJob(t, "web", in(0))))
	refused(updateJob(t, "web", in(110)), "the set paid for the room")

	update := func(spec *borgpb.AllocSetSpec) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{User: "u", Name: "pool", Spec: marshal(t, spec)}}}
	}
	l.do(asUser("u", update(set(200))))
	l.do(asUser("u", updateJob(t, "web", in(200))))
	refused(update(set(110)), "job u/web is to run in this alloc set and has priority 200")

	// Another set of that name, while the job waits for it.
	l.do(&borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: "pool"}}})
	if j := l.c.Job(JobKey{"u", "web"}); j.State() == borgpb.State_STATE_DEAD {
		t.Fatal("the job ended with its alloc set")
	}
	refused(submitSet(t, "pool", set(0)), "job u/web is to run in this alloc set and has priority 200")
	l.do(asUser("u", submitSet(t, "pool", set(200))))
}
