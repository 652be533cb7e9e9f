package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// placesLog is a cell of one large machine, m1.
func placesLog(t *testing.T) *testLog {
	l := budgetLog(t)
	m := addMachine("m1", 1_000_000, 1<<40)
	m.GetAddMachine().Spec.Capacity.DiskBytes = 1 << 40
	l.do(m)
	return l
}

// fillMachine places all tasks of a new job on m1, and returns how many were, and the last refusal.
func (l *testLog) fillMachine(user, name string, spec *borgpb.JobSpec) (placed int, last *borgpb.Refusal) {
	l.t.Helper()
	l.do(submitBy(l.t, user, name, spec))
	return l.placeAll(l.c.Job(JobKey{user, name}).uid, spec.Tasks)
}

// placeAll places n tasks or allocs on m1, and returns how many were, and the last refusal.
func (l *testLog) placeAll(uid UID, n uint32) (placed int, last *borgpb.Refusal) {
	l.t.Helper()
	assign := &borgpb.Assign{}
	for i := range n {
		assign.Assignments = append(assign.Assignments, &borgpb.Assignment{Uid: uid.String(), Index: i, Machine: "m1"})
	}
	res := l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}})
	placed = int(n)
	for _, r := range res.Items {
		if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			placed, last = placed-1, r
		}
	}
	l.fine()
	return placed, last
}

// TestCopiesLeavePlaces: no band fills the places of a machine so that those above it find none.
func TestCopiesLeavePlaces(t *testing.T) {
	l := placesLog(t)
	before := 0
	for _, q := range []struct {
		priority int32
		name     string
		most     int
	}{{0, "free", 2048}, {100, "batch", 2560}, {116, "mid", 3072}, {200, "prod", 3584}, {360, "monitor", 4096}} {
		placed, last := l.fillMachine("u", q.name, service(uint32(q.most-before+3), q.priority, 1, 1))
		if placed != q.most-before || last.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT || !strings.Contains(last.GetMessage(), "m1 holds") {
			t.Errorf("%s: %d are placed beside %d, want %d; the rest: %v", q.name, placed, before, q.most-before, last)
		}
		before = q.most
		j := l.c.Job(JobKey{"u", q.name})
		if f := l.c.Fit(&Placement{Job: j, Index: j.Size() - 1, Machine: l.c.machines["m1"]}, nil); f != FitPlaces {
			t.Errorf("%s: the next one: %v, want %v", q.name, f, FitPlaces)
		}
	}
}

// TestVolumesLeavePlaces: volumes of the free band fill half of a machine's places, and production
// that needs more takes those of ended jobs.
func TestVolumesLeavePlaces(t *testing.T) {
	l := placesLog(t)
	spec := service(626, 0, 1, 1)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		spec.Task.Volumes = append(spec.Task.Volumes, &borgpb.Volume{Name: name, Path: "/" + name, DiskBytes: 1, KeepNs: 1000 * second})
	}
	placed, last := l.fillMachine("mallory", "free", spec)
	if placed != 625 || !strings.Contains(last.GetMessage(), "5000 of the 5000 volumes that band free may fill m1 up to") {
		t.Errorf("%d tasks of 8 volumes are placed, want 625; the last: %v", placed, last)
	}
	j := l.c.Job(JobKey{"mallory", "free"})
	l.do(by("mallory", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "mallory", Name: "free"}}}))
	report := &borgpb.MachineReport{Machine: "m1"}
	for i := range uint32(625) {
		report.Tasks = append(report.Tasks, &borgpb.TaskReport{JobUid: j.uid.String(), Index: i, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)})
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{report}}}})
	if n := l.c.StateUseOf("mallory")[measureVolumes]; n != 5000 {
		t.Errorf("%d volumes are kept, want 5000", n)
	}
	more := service(1, 0, 1, 1)
	more.Task.Volumes = spec.Task.Volumes
	if placed, _ := l.fillMachine("bob", "free", more); placed != 0 {
		t.Error("a free task found a place for its volumes")
	}
	prod := service(470, 200, 1, 1)
	prod.Task.Volumes = spec.Task.Volumes
	if placed, last := l.fillMachine("bob", "prod", prod); placed != 470 {
		t.Errorf("%d tasks of production are placed beside kept volumes, want 470: %v", placed, last)
	}
	given := 0
	for v := range l.c.machines["m1"].Volumes() {
		if v.GivenUp() {
			given++
		}
	}
	if given != 5000+470*8-8750 {
		t.Errorf("%d volumes were given up, want %d", given, 5000+470*8-8750)
	}
}

// TestAllocsLeavePlaces: allocs have places of their own, which bands fill as copies do theirs.
func TestAllocsLeavePlaces(t *testing.T) {
	l := placesLog(t)
	before := 0
	for _, q := range []struct {
		priority int32
		name     string
		most     int
	}{{0, "free", 2048}, {200, "prod", 3584}, {360, "monitor", 4096}} {
		n := uint32(q.most - before + 3)
		set := &borgpb.AllocSetSpec{Priority: q.priority, Allocs: n, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1}}
		submit := &borgpb.SubmitAllocSet{User: "u", Name: q.name, Spec: marshal(l.t, set)}
		if r := l.do(by("u", &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: submit}})); r.GetRefusal() != nil {
			t.Fatal(r.GetRefusal())
		}
		s := l.c.AllocSet(JobKey{"u", q.name})
		placed, last := l.placeAll(s.uid, n)
		if placed != q.most-before || last.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT || !strings.Contains(last.GetMessage(), "allocs") {
			t.Errorf("%s: %d are placed beside %d, want %d; the rest: %v", q.name, placed, before, q.most-before, last)
		}
		before = q.most
		if f := l.c.Fit(&Placement{Set: s, Index: n - 1, Machine: l.c.machines["m1"]}, nil); f != FitPlaces {
			t.Errorf("%s: the next one: %v, want %v", q.name, f, FitPlaces)
		}
	}
	// Copies are not counted with allocs.
	if placed, last := l.fillMachine("u", "tasks", service(5, 0, 1, 1)); placed != 5 {
		t.Errorf("%d tasks are placed beside allocs, want 5: %v", placed, last)
	}
}

// TestGangVolumesLeavePlaces: a gang is refused whose volumes together are more than its machine has
// places for.
func TestGangVolumesLeavePlaces(t *testing.T) {
	for _, q := range []struct {
		tasks  uint32
		placed int
	}{{625, 625}, {626, 0}} {
		l := placesLog(t)
		spec := service(q.tasks, 0, 1, 1)
		spec.Gang = true
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			spec.Task.Volumes = append(spec.Task.Volumes, &borgpb.Volume{Name: name, Path: "/" + name, DiskBytes: 1, KeepNs: 1000 * second})
		}
		if placed, last := l.fillMachine("u", "gang", spec); placed != q.placed {
			t.Errorf("%d of %d tasks of a gang with 8 volumes each are placed, want %d; %v", placed, q.tasks, q.placed, last)
		}
	}
}
