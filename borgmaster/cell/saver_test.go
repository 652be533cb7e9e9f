package cell

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// TestSaverSpec wants the spec that the cell writes for what saves a set's allocs to be
// what the protobuf library reads as one, also of a set whose saver comes in two parts.
func TestSaverSpec(t *testing.T) {
	c := New("c", 1)
	c.format = BuildFormat
	set := &borgpb.AllocSetSpec{Allocs: 3, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100}, Saver: &borgpb.Saver{
		TimeNs: 7, Task: &borgpb.TaskSpec{Args: []string{"save", "all"}, Env: map[string]string{"TO": "sink"}, Resources: &borgpb.Resources{CpuMilli: 100}}}}
	more := &borgpb.AllocSetSpec{Saver: &borgpb.Saver{Task: &borgpb.TaskSpec{Args: []string{"again"}}}}
	data := append(marshal(t, set), marshal(t, more)...)
	if err := proto.Unmarshal(data, set); err != nil {
		t.Fatal(err)
	}
	want := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: 200, Task: set.Saver.Task, MaxFailures: maxFailures}
	spec, r := c.saverSpec(JobKey{"ann", "place-save-0-1"}, set.Priority, data)
	if r != nil {
		t.Fatal(r)
	}
	if !proto.Equal(spec.Proto, want) || len(want.Task.Args) != 3 {
		t.Errorf("it is\n%v\nwant\n%v", spec.Proto, want)
	}
}

// savedSet is an alloc set whose saver asks for as much processor as its allocs.
func savedSet(allocs uint32, priority int32) *borgpb.AllocSetSpec {
	s := setSpec(allocs, priority, 900)
	s.Saver = &borgpb.Saver{Task: &borgpb.TaskSpec{Args: []string{"save"}, Resources: &borgpb.Resources{CpuMilli: 900, MemBytes: 1 << 20}}}
	return s
}

func killSet(name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: name}}}
}

// placeAllocs places the allocs of a set that wait, each on the machine.
func (l *testLog) placeAllocs(name, machine string) {
	l.t.Helper()
	s := l.c.AllocSet(JobKey{"u", name})
	for i, a := range s.allocs {
		if a.state == statePending {
			l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
				Uid: s.uid.String(), Index: uint32(i), LastAttempt: a.attempt, Machine: machine}}}}})
		}
	}
}

// tick applies an entry without ops so many seconds later.
func (l *testLog) tick(seconds int64) {
	l.cellNs += seconds * second
	l.apply()
}

// used is what user u is charged of processor for production.
func (l *testLog) used() int64 { return l.c.ChargeOf("u", production).CPUMilli }

// TestSaversAreCharged wants the savers of sets that are submitted and killed again and again to
// stay within the quota.
func TestSaversAreCharged(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 1_800, 1<<30))
	l.short(asUser("u", submitSet(t, "place", savedSet(3, 200))), "1.8 granted, 0 used, 2.7 more")
	l.do(asUser("u", submitSet(t, "place", savedSet(2, 200))))
	l.placeAllocs("place", "m1")
	l.do(killSet("place"))
	if l.used() != 1_800 || l.heldWithAllocs() != 0 {
		t.Errorf("two savers wait: charged %d, held %d; want 1800 and 0", l.used(), l.heldWithAllocs())
	}
	l.tick(1)
	if l.used() != 1_800 || l.heldWithAllocs() != 1_800 {
		t.Errorf("two savers run: charged %d, held %d; want 1800 of both", l.used(), l.heldWithAllocs())
	}
	l.fine()
	l.short(asUser("u", submitSet(t, "place", savedSet(1, 200))), "1.8 granted, 1.8 used")
	// One that is killed counts until it has stopped.
	l.do(killJob("place-save-0-1"))
	if l.used() != 1_800 {
		t.Errorf("a saver stops: charged %d, want 1800", l.used())
	}
	l.do(killJob("place-save-1-1"))
	l.fine()
	l.do(enforce(false))
	l.do(enforce(true))
	if l.used() != 1_800 {
		t.Errorf("counted again: charged %d, want 1800", l.used())
	}
}

// TestSaverWaitsForQuota wants the saver of an alloc that moved to start when the quota has room
// for it beside the alloc.
func TestSaverWaitsForQuota(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(setQuota("u", production, 1_800, 1<<30))
	l.do(asUser("u", submitSet(t, "place", savedSet(1, 200))))
	l.do(submitJob(t, "web", service(1, 200, 900, 1<<20)))
	for round := range 3 {
		l.placeAllocs("place", fmt.Sprintf("m%d", round))
		l.do(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: fmt.Sprintf("m%d", round), Drain: true}}})
		l.tick(1)
	}
	l.tick(30)
	if n := len(l.c.savers); n != 3 || l.heldWithAllocs() != 0 {
		t.Fatalf("%d savers, and what runs holds %d; want 3 that wait", n, l.heldWithAllocs())
	}
	saves := l.c.SavesOf(l.c.AllocSet(JobKey{"u", "place"}))
	if len(saves) != 3 || !strings.Contains(saves[0].Reason, "the quota of user u has no room for it") {
		t.Errorf("%v, want the reason", saves)
	}
	l.fine()
	l.do(setQuota("u", production, 4_500, 1<<30))
	l.tick(30)
	if l.heldWithAllocs() != 2_700 {
		t.Errorf("what runs holds %d, want 2700", l.heldWithAllocs())
	}
	l.fine()
}

// TestSaverIsCheckedAsATask wants a saver to obey the rules of a task.
func TestSaverIsCheckedAsATask(t *testing.T) {
	const field = "spec.saver.task"
	for _, q := range []struct {
		change       func(*borgpb.TaskSpec)
		field, words string
	}{
		{func(s *borgpb.TaskSpec) { s.Resources = nil }, field + ".resources", "must say how much cpu and memory"},
		{func(s *borgpb.TaskSpec) { s.Resources.MemBytes = 0 }, field + ".resources", "must say how much cpu and memory"},
		{func(s *borgpb.TaskSpec) { s.Resources.DiskBytes = 1 << 50 }, field + ".resources", "a saver asks for at most"},
		{func(s *borgpb.TaskSpec) { s.Resources.DiskBytesPerS = 1 << 50 }, field + ".resources", "a saver asks for at most"},
		{func(s *borgpb.TaskSpec) { s.Resources.CpuMilli = 800 }, field + ".resources", "at most 0.5"},
		{func(s *borgpb.TaskSpec) { s.Resources.CpuMilli = 451 }, field + ".resources", "at most the cpu and memory of its alloc, 450 milli-cores"},
		{func(s *borgpb.TaskSpec) { s.GraceNs = maxGraceNs + 1 }, field + ".grace_ns", "is not in"},
		{func(s *borgpb.TaskSpec) { s.Env = map[string]string{"1": "x"} }, field + ".env", "is not the name"},
		{func(s *borgpb.TaskSpec) { s.Cwd = "/a/../b" }, field + ".cwd", "has empty, . or .. parts"},
		{func(s *borgpb.TaskSpec) {
			s.Packages = []*borgpb.Package{{Name: "p", Path: "/p", Credentials: "none"}}
		}, field + ".secrets", "has no secret"},
	} {
		l := latestQuotaLog(t)
		l.do(&borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: &borgpb.SetTaskLimits{User: "u", Max: &borgpb.Resources{CpuMilli: 500}}}})
		spec := savedSet(1, 0)
		spec.Resources.CpuMilli = 450
		spec.Saver.Task.Resources.CpuMilli = 400
		l.do(asUser("u", submitSet(t, "good", spec)))
		q.change(spec.Saver.Task)
		l.malformed(asUser("u", submitSet(t, "bad", spec)), q.field, q.words)
		l.malformed(asUser("u", updateSet(t, "good", spec)), q.field, q.words)
		l.fine()
	}
}

// TestSaversOfOneUser: a user who ends many allocs at once leaves savers to others.
func TestSaversOfOneUser(t *testing.T) {
	l := latestQuotaLog(t)
	set := setSpec(maxSaversOfUser+1, 0, 1)
	set.Saver = &borgpb.Saver{Task: &borgpb.TaskSpec{Args: []string{"save"}, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 10}}}
	l.do(asUser("u", submitSet(t, "place", set)))
	l.placeAllocs("place", "m1")
	l.do(killSet("place"))
	if n := len(l.c.savers); n != maxSaversOfUser {
		t.Errorf("%d savers of one user, want %d", n, maxSaversOfUser)
	}
	l.fine()
}
