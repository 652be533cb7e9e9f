package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// volumeJob is a job of one task with a volume.
func volumeJob(priority int32, diskBytes int64) *borgpb.JobSpec {
	spec := service(1, priority, 1, 1)
	spec.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: diskBytes, KeepNs: 1000 * second}}
	return spec
}

// place puts the only task of a job on a machine.
func (l *testLog) place(user, name, machine string) *borgpb.Result {
	l.t.Helper()
	j := l.c.Job(JobKey{user, name})
	return l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: j.uid.String(), LastAttempt: j.rows[0].attempt, Machine: machine}}}}})
}

// leave ends a job and its copy, so that its volume is kept.
func (l *testLog) leave(user, name, machine string) {
	l.t.Helper()
	j := l.c.Job(JobKey{user, name})
	p := j.rows[0].cur
	l.do(by(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}))
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: machine, Tasks: []*borgpb.TaskReport{{JobUid: j.uid.String(), Attempt: p.attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}},
	}}}}})
}

// TestKeptDiskBudget: what a user's work leaves on disks is charged to him, at priority 0
// too. Beyond his budget he gets no more work with volumes until he gives some up; what he
// has is kept.
func TestKeptDiskBudget(t *testing.T) {
	l := budgetLog(t)
	m := addMachine("m1", 4000, 1<<30)
	m.GetAddMachine().Spec.Capacity.DiskBytes = 1 << 40
	l.do(m)
	l.do(stateBudgetOp("u", measureKeptDisk, 10<<20))
	l.do(stateBudgetOp("u", measureVolumes, 3))
	for _, name := range []string{"a", "b"} {
		l.do(submitBy(t, "u", name, volumeJob(0, 8<<20)))
		l.place("u", name, "m1")
	}
	if u := l.c.StateUseOf("u"); u[measureVolumes] != 2 || u[measureKeptDisk] != 0 {
		t.Errorf("while jobs work in their volumes %v is used", u)
	}
	l.leave("u", "a", "m1")
	l.do(submitBy(t, "u", "c", volumeJob(0, 1<<20)))
	l.leave("u", "b", "m1")
	if u := l.c.StateUseOf("u"); u[measureVolumes] != 2 || u[measureKeptDisk] != 16<<20 {
		t.Errorf("when both have ended %v is used, want 2 volumes and 16 MiB", u)
	}
	words := []string{"keep 16777216 bytes", "may have 10485760", "borgcfg volume delete", "quota state u kept-disk-bytes=16777216"}
	l.over(submitBy(t, "u", "d", volumeJob(0, 1<<20)), words...)
	l.over(submitBy(t, "u", "d", volumeJob(200, 1<<20)), words...)
	set := &borgpb.AllocSetSpec{Allocs: 1, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}, Volumes: []*borgpb.Volume{{Name: "data", DiskBytes: 1 << 20}}}
	l.over(by("u", &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "u", Name: "s", Spec: marshal(t, set)}}}), words...)
	larger := volumeJob(0, 1<<20)
	larger.Tasks = 2
	l.over(by("u", &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "c", Spec: marshal(t, larger)}}}), words...)
	// Work without volumes, others, and admins are not meant.
	l.do(submitBy(t, "u", "plain", service(1, 0, 1, 1)))
	l.do(submitBy(t, "v", "d", volumeJob(0, 1<<20)))
	l.do(by("root", submitBy(t, "u", "admins", volumeJob(0, 1<<20))))
	l.do(by("root", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "admins"}}}))
	l.do(by("u", &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: "u", Name: "a", Volume: "data"}}}))
	l.do(submitBy(t, "u", "d", volumeJob(0, 1<<20)))
	l.fine()
	// The number of volumes is that on disks: one that was given up counts until it is gone.
	l.place("u", "c", "m1")
	if r := l.place("u", "d", "m1"); len(r.GetItems()) != 1 || r.Items[0].GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
		t.Errorf("a fourth volume: %v, want it refused as beyond a limit", r)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: "m1", VolumesGone: []*borgpb.VolumeName{{User: "u", Job: "a", Volume: "data"}},
	}}}}})
	if r := l.place("u", "d", "m1"); len(r.GetItems()) != 0 && r.Items[0].GetKind() != 0 {
		t.Errorf("a third volume: %v", r)
	}
	l.fine()
}

// manyVolumes is a job of tasks with eight volumes each.
func manyVolumes(tasks uint32, priority int32) *borgpb.JobSpec {
	spec := service(tasks, priority, 1, 1)
	for i := range 8 {
		v := fmt.Sprint("v", i)
		spec.Task.Volumes = append(spec.Task.Volumes, &borgpb.Volume{Name: v, Path: "/" + v, DiskBytes: 1, KeepNs: 1000 * second})
	}
	return spec
}

// leaveAll ends a job all of whose tasks run on a machine, so that their volumes are kept.
func (l *testLog) leaveAll(user, name, machine string) {
	l.t.Helper()
	j := l.c.Job(JobKey{user, name})
	l.do(by(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}))
	report := &borgpb.MachineReport{Machine: machine}
	for _, t := range j.rows {
		report.Tasks = append(report.Tasks, &borgpb.TaskReport{JobUid: j.uid.String(), Index: t.index, Attempt: t.attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)})
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{report}}}})
}

// TestYieldForWhatIsTaken: production has no more volumes given up than it takes places or disk
// for, also on a machine that others have filled beyond its share, or beyond the disk that the
// machine has by now.
func TestYieldForWhatIsTaken(t *testing.T) {
	l := placesLog(t)
	given := 0
	gives := func(what string, want int) {
		t.Helper()
		was := given
		given = 0
		for v := range l.c.machines["m1"].Volumes() {
			if v.GivenUp() {
				given++
			}
		}
		if given-was != want {
			t.Errorf("%s had %d kept volumes given up, want %d", what, given-was, want)
		}
	}
	placed := func(n, want int, last *borgpb.Refusal) {
		t.Helper()
		if n != want {
			t.Fatalf("%d tasks were placed, want %d: %v", n, want, last)
		}
	}
	n, last := l.fillMachine("ann", "batch", manyVolumes(100, 100))
	placed(n, 100, last)
	l.leaveAll("ann", "batch", "m1")
	n, last = l.fillMachine("root", "mon", manyVolumes(1145, 360))
	placed(n, 1145, last)
	gives("monitoring within its share", 0)
	n, last = l.fillMachine("bob", "plain", service(1, 200, 1, 1))
	placed(n, 1, last)
	gives("production without volumes", 0)
	n, last = l.fillMachine("root", "more", manyVolumes(6, 360))
	placed(n, 6, last)
	gives("monitoring beyond its share", 8)
	l.fine()

	smaller := &borgpb.Resources{CpuMilli: 1_000_000, MemBytes: 1 << 40, DiskBytes: 9_900}
	l.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m1", Capacity: smaller}}})
	n, last = l.fillMachine("bob", "again", service(1, 200, 1, 1))
	placed(n, 1, last)
	gives("production without disk", 0)
	l.fine()
}
