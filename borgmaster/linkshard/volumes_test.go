package linkshard

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// newVolumeLog is newLog with alice/db on m1, a task with a volume that is kept for a
// minute after it.
func newVolumeLog(t *testing.T) (l *testLog, uid string) {
	l = newLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 30, DiskBytes: 1 << 30}}}})
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200,
		Task: &borgpb.TaskSpec{
			Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20},
			Volumes: []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 1 << 20, KeepNs: 60e9}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	uid = l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "db", Spec: spec}}}).Uid
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Machine: "m1", Version: 1}}}}})
	return l, uid
}

// ends kills alice/db, and its copy says that it has ended.
func (l *testLog) ends(uid string) {
	l.t.Helper()
	l.do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "db"}}})
	l.report(&borgpb.TaskReport{JobUid: uid, Attempt: 1, State: int32(stopped), Exit: &borgpb.Exit{Signal: 15, EndedWallNs: 1e18}})
}

// asks says which volumes the next poll of m1 has kept and deleted.
func (l *testLog) asks() string {
	req := Build(l.cell, l.machine(), "test", 1, &Known{})
	return fmt.Sprint("keep ", volumeNames(req.KeepVolumes), ", delete ", volumeNames(req.DeleteVolumes))
}

func volumeNames(all []*borgpb.VolumeName) (names []string) {
	for _, n := range all {
		names = append(names, fmt.Sprintf("%s/%s/%d/%s", n.User, n.Job, n.Index, n.Volume))
	}
	return names
}

// TestVolumesAreKeptThenDeleted: each poll names all volumes of its machine; one is to be
// deleted when it was given up, and then until the log has it that it is gone.
func TestVolumesAreKeptThenDeleted(t *testing.T) {
	l, uid := newVolumeLog(t)
	keeps, deletes := "keep [alice/db/0/data], delete []", "keep [], delete [alice/db/0/data]"
	wants := func(when, want string) {
		t.Helper()
		if got := l.asks(); got != want {
			t.Errorf("%s: a poll says %s, want %s", when, got, want)
		}
	}
	wants("while its task is placed", keeps)
	l.ends(uid)
	wants("when its job has ended", keeps)
	l.do(&borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: "alice", Name: "db", Volume: "data"}}})
	wants("when it was given up", deletes)

	gone := &borgrpc.PollResponse{Hash: []byte{1}, VolumesGone: []*borgpb.VolumeName{{User: "alice", Job: "db", Volume: "data"}}}
	known := &Known{}
	req := known.request(l.cell, l.machine(), "test", 1)
	known.Take(gone)
	cmp := Compare(0, l.cell, l.machine(), req, gone, known)
	if !cmp.Busy || cmp.Volumes == nil || len(cmp.Volumes.VolumesGone) != 1 {
		t.Fatalf("of a volume that is gone the cell is told %v, busy %v", cmp.Volumes, cmp.Busy)
	}
	if again := Compare(1, l.cell, l.machine(), req, gone, known); again.Volumes != nil {
		t.Errorf("it is told again at once: %v", again.Volumes)
	}
	if later := Compare(tellAgainNs, l.cell, l.machine(), req, gone, known); later.Volumes == nil {
		t.Error("what may be lost on its way is not told again")
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{cmp.Volumes}}}})
	wants("when it is gone", "keep [], delete []")
	if n := l.machine().NumVolumes(); n != 0 {
		t.Errorf("the cell has %d volumes", n)
	}
	req = known.request(l.cell, l.machine(), "test", 1)
	if cmp := Compare(2*tellAgainNs, l.cell, l.machine(), req, &borgrpc.PollResponse{Hash: []byte{1}}, known); cmp.Volumes != nil {
		t.Errorf("when all is said, %v is told", cmp.Volumes)
	}
}

// TestVolumesFoundAreTold: what is on a machine and unknown to the cell is told and kept;
// of too many, the rest with later messages.
func TestVolumesFoundAreTold(t *testing.T) {
	l, _ := newVolumeLog(t)
	found := &borgrpc.PollResponse{Hash: []byte{1}}
	for i := range uint32(maxVolumesTold + 3) {
		found.VolumesFound = append(found.VolumesFound, &borgpb.FoundVolume{Name: &borgpb.VolumeName{User: "bob", Job: "old", Index: i, Volume: "data"}, DiskBytes: 1})
	}
	known, now, want := &Known{}, int64(0), []int{maxVolumesTold, 3, 0}
	for _, n := range want {
		req := known.request(l.cell, l.machine(), "test", 1)
		resp := proto.CloneOf(found)
		if known := l.machine().NumVolumes() - 1; known > 0 {
			resp.VolumesFound = resp.VolumesFound[known:]
		}
		known.Take(resp)
		cmp := Compare(now, l.cell, l.machine(), req, resp, known)
		if len(cmp.Volumes.GetVolumesFound()) != n {
			t.Fatalf("told of %d volumes, want %d", len(cmp.Volumes.GetVolumesFound()), n)
		}
		if cmp.Volumes != nil {
			l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{cmp.Volumes}}}})
		}
		now += tellAgainNs
	}
	if n := len(Build(l.cell, l.machine(), "test", 1, &Known{}).KeepVolumes); n != maxVolumesTold+4 {
		t.Errorf("a poll has %d volumes kept, want all %d", n, maxVolumesTold+4)
	}
}

// TestVolumeGivenUpIsNoRest: a machine at rest hears that a volume was given up, although
// nothing else is new about it.
func TestVolumeGivenUpIsNoRest(t *testing.T) {
	l, uid := newVolumeLog(t)
	web := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	l.report(web...)
	l.ends(uid)
	known := &Known{}
	for range 2 {
		req, cmp := l.exchange(0, known, nil, web...)
		known.rest(l.cell, l.machine(), req, cmp)
	}
	if req := known.request(l.cell, l.machine(), "test", 1); len(req.KeepVolumes) != 1 || len(req.DeleteVolumes) != 0 {
		t.Fatalf("at rest a poll says %v", req)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: "alice", Name: "db", Volume: "data"}}})
	if req := known.request(l.cell, l.machine(), "test", 1); len(req.DeleteVolumes) != 1 {
		t.Errorf("when it was given up, a poll says %v", req)
	}
}
