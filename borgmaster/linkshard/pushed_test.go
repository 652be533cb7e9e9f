package linkshard

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Each poll tells the versions of the files that a copy sees, also when nothing else is
// new about its machine.
func TestPollsTellVersions(t *testing.T) {
	l := newLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	write := func(content string) {
		l.do(&borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "alice", Name: "conf/a", Content: []byte(content)}}})
	}
	write("one")
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200,
		Task: &borgpb.TaskSpec{
			Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20},
			Files: []*borgpb.PushedFile{{Name: "conf/a"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	uid := l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "pushed", Spec: spec}}}).Uid
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Machine: "m1", Version: 1}}}}})
	known := &Known{Hash: []byte{1}, Tasks: []*borgpb.TaskReport{{JobUid: uid, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED)}}, Versions: []uint64{1}}
	poll := func() uint64 {
		t.Helper()
		req := known.request(l.cell, l.machine(), "test", 1)
		known.rest(l.cell, l.machine(), req, &Comparison{})
		for _, d := range req.Desired {
			if d.Job == "pushed" && len(d.Files) == 1 && d.Files[0].Name == "conf/a" {
				return d.Files[0].Version
			}
		}
		t.Fatalf("the poll has no file: %v", req)
		return 0
	}
	first := poll()
	write("two")
	if second := poll(); first == 0 || second <= first {
		t.Errorf("version %d, then %d", first, second)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: "alice", Name: "conf/a"}}})
	if gone := poll(); gone != 0 {
		t.Errorf("of a file that was deleted, version %d", gone)
	}
}
