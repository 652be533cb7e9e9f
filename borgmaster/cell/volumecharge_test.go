package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// volumeQuotaLog is a cell of one machine with 1 TiB of disk, in which user u may have 64 MiB of
// production disk.
func volumeQuotaLog(t *testing.T) *testLog {
	l := budgetLog(t)
	m := addMachine("m1", 4000, 1<<34)
	m.GetAddMachine().Spec.Capacity.DiskBytes = 1 << 40
	l.do(m)
	l.do(volumeQuota(64 << 20))
	l.do(enforce(true))
	return l
}

func volumeQuota(diskBytes int64) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{
		User: "u", Band: production, Limit: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30, DiskBytes: diskBytes}}}}
}

// wantDisk wants that user u is charged so much production disk, by each way to count it.
func (l *testLog) wantDisk(want int64, when string) {
	l.t.Helper()
	if got := l.c.ChargeOf("u", production).DiskBytes; got != want {
		l.t.Errorf("%s: %d MiB of production disk is charged, want %d", when, got>>20, want>>20)
	}
	l.fine()
	l.do(enforce(false))
	if got := l.c.ChargeOf("u", production).DiskBytes; got != want {
		l.t.Errorf("%s, without enforcement: %d MiB of production disk is charged, want %d", when, got>>20, want>>20)
	}
	l.fine()
	l.do(enforce(true))
	if got := l.c.ChargeOf("u", production).DiskBytes; got != want {
		l.t.Errorf("%s, enforced again: %d MiB of production disk is charged, want %d", when, got>>20, want>>20)
	}
	l.c = reload(l.t, l.c)
	l.fine()
}

// TestKeptVolumesStayCharged: who submits and kills production jobs in turns never holds more
// disk than the quota, as the volumes that they leave are charged until they are given up.
func TestKeptVolumesStayCharged(t *testing.T) {
	l := volumeQuotaLog(t)
	for i := range 2 {
		name := fmt.Sprintf("j%d", i)
		l.do(submitBy(t, "u", name, volumeJob(200, 30<<20)))
		l.place("u", name, "m1")
		l.wantDisk(int64(i+1)*30<<20, "while "+name+" runs")
		l.leave("u", name, "m1")
		l.wantDisk(int64(i+1)*30<<20, "when "+name+" has ended")
	}
	l.short(submitBy(t, "u", "j2", volumeJob(200, 30<<20)), "of disk is missing", "Volumes that are kept hold 60MiB", "borgcfg volume delete")
	// As much of the free band is charged nothing, and another job of a name has its volume back.
	l.do(submitBy(t, "u", "free", volumeJob(0, 1<<30)))
	l.place("u", "free", "m1")
	l.leave("u", "free", "m1")
	l.do(submitBy(t, "u", "j1", volumeJob(200, 34<<20)))
	l.wantDisk(64<<20, "with a larger volume of the same name")
	l.short(submitBy(t, "u", "j2", volumeJob(200, 1<<20)))
	l.place("u", "j1", "m1")
	l.leave("u", "j1", "m1")
	l.wantDisk(64<<20, "when that has ended")
	// A smaller quota takes nothing, and what is deleted is free again.
	l.do(volumeQuota(1 << 20))
	l.wantDisk(64<<20, "with a smaller quota")
	l.do(volumeQuota(64 << 20))
	l.do(by("u", &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: "u", Name: "j0", Volume: "data"}}}))
	l.wantDisk(34<<20, "when one is deleted")
	l.do(submitBy(t, "u", "j2", volumeJob(200, 30<<20)))
}

// TestVolumeOfOtherName: a job that has the name of an ended one and does not name its volume,
// or is of the free band and is not placed, takes nothing off the charge.
func TestVolumeOfOtherName(t *testing.T) {
	l := volumeQuotaLog(t)
	l.do(submitBy(t, "u", "a", volumeJob(200, 60<<20)))
	l.place("u", "a", "m1")
	l.leave("u", "a", "m1")
	renamed := volumeJob(200, 60<<20)
	renamed.Task.Volumes[0].Name = "other"
	l.short(submitBy(t, "u", "a", renamed))
	smaller := volumeJob(200, 1<<20)
	l.do(submitBy(t, "u", "a", smaller))
	l.wantDisk(60<<20, "with a job that asks for less of the volume")
	l.do(by("u", killJob("a")))
	l.wantDisk(60<<20, "when that was killed")
	l.do(submitBy(t, "u", "a", volumeJob(0, 60<<20)))
	l.wantDisk(60<<20, "with a free job that waits")
	l.place("u", "a", "m1")
	l.wantDisk(0, "with a free job in the volume")
	l.leave("u", "a", "m1")
	// A production job that is not placed in it keeps nobody from taking it.
	plain := service(1, 200, 1, 1)
	l.do(submitBy(t, "u", "a", plain))
	l.place("u", "a", "m1")
	l.leave("u", "a", "m1")
	for v := range l.c.Volumes() {
		if !v.Yields() {
			t.Errorf("the volume of a free job does not yield")
		}
	}
	l.wantDisk(0, "when a job without the volume has ended")
}

// TestUpdateLeavesVolumes: the volumes that updates no longer name, and those of tasks that a
// smaller job has no more, stay charged.
func TestUpdateLeavesVolumes(t *testing.T) {
	l := volumeQuotaLog(t)
	spec := volumeJob(200, 20<<20)
	spec.Tasks = 2
	l.do(submitBy(t, "u", "a", spec))
	j := l.c.Job(JobKey{"u", "a"})
	for i := range uint32(2) {
		l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.uid.String(), Index: i, Machine: "m1"}}}}})
	}
	l.wantDisk(40<<20, "while it runs")
	l.do(by("u", resizeJob("a", 1)))
	l.wantDisk(40<<20, "with one task less")
	l.do(by("u", resizeJob("a", 2)))
	l.wantDisk(40<<20, "with two tasks again")
	renamed := volumeJob(200, 20<<20)
	renamed.Tasks, renamed.Task.Volumes[0].Name = 2, "other"
	l.short(by("u", updateJob(t, "a", renamed)))
	plain := service(2, 200, 1, 1)
	l.do(by("u", updateJob(t, "a", plain)))
	l.do(by("u", killJob("a")))
	l.wantDisk(40<<20, "when a job that no longer names them was killed")
	set := &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20},
		Volumes: []*borgpb.Volume{{Name: "data", DiskBytes: 24 << 20}}}
	submit := func(name string) *borgpb.Op {
		return by("u", &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "u", Name: name, Spec: marshal(t, set)}}})
	}
	l.do(submit("s"))
	l.wantDisk(64<<20, "with an alloc set")
	l.placeAllocs("s", "m1")
	l.do(by("u", &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: "s"}}}))
	l.wantDisk(64<<20, "when that was killed")
	l.short(submit("s2"))
	l.do(submit("s"))
	l.wantDisk(64<<20, "when it is back")
}

// TestSmallVolumesPayForTheirPlaces: a quota that pays for two places leaves two volumes at most,
// however small they are, of jobs as of alloc sets.
func TestSmallVolumesPayForTheirPlaces(t *testing.T) {
	l := volumeQuotaLog(t)
	l.do(volumeQuota(2 * minVolumeChargeBytes))
	for i := range 2 {
		name := fmt.Sprintf("j%d", i)
		l.do(submitBy(t, "u", name, volumeJob(200, 1)))
		l.place("u", name, "m1")
		l.wantDisk(int64(i+1)*minVolumeChargeBytes, "while "+name+" runs")
		l.leave("u", name, "m1")
		l.wantDisk(int64(i+1)*minVolumeChargeBytes, "when "+name+" has ended")
	}
	l.short(submitBy(t, "u", "j2", volumeJob(200, 1)), "of disk is missing", "each counts as 16 MiB at least")
	// A user who has the volume back is not charged for it a second time.
	l.do(submitBy(t, "u", "j1", volumeJob(200, minVolumeChargeBytes)))
	l.wantDisk(2*minVolumeChargeBytes, "with its volume back")
	set := chargeOfSet(&borgpb.AllocSetSpec{Priority: 200, Volumes: []*borgpb.Volume{{DiskBytes: 1}, {DiskBytes: 1}}}, 3)
	if got, want := set.words(), chargeOf(production, &Resources{DiskBytes: 6 * minVolumeChargeBytes}, 1).words(); got != want {
		t.Errorf("an alloc set with small volumes is charged %s, want %s", got, want)
	}
}
