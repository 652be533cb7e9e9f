package borgmaster

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
)

// TestCertificatesOfTasksThatEnded: the certificate of a task is good for as long as the task
// lives, and not for a later job of its name. A copy of the cell that is behind does not know.
func TestCertificatesOfTasksThatEnded(t *testing.T) {
	const minute = int64(time.Minute)
	c := cell.New("test", 1)
	at := func(wallNs int64, op *borgpb.Op) {
		t.Helper()
		data, err := proto.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: wallNs, WallTimeNs: wallNs, Ops: [][]byte{data}})
		if err != nil {
			t.Fatal(err)
		}
		if results, _ := c.Apply(c.Index()+1, 1, entry); results[0].GetRefusal() != nil {
			t.Fatalf("%v: %v", op, results[0])
		}
	}
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 2, Task: &borgpb.TaskSpec{Args: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	submitted := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "web", Spec: spec}}}
	clock := &borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}}
	gate := &Gate{}
	check := func(when, task string, issuedNs int64, want bool) {
		t.Helper()
		if got := gate.Revoked(c, identity.Name{Cell: "test", Role: identity.Task, ID: task}, issuedNs); got != want {
			t.Errorf("%s, revoked: %v, want %v", when, got, want)
		}
	}
	at(100*minute, clock)
	check("the job is not known yet", "alice/web/1", 101*minute, false)
	at(101*minute, submitted)
	check("the task lives", "alice/web/1", 102*minute, false)
	at(110*minute, clock)
	check("of a job that is not known, long after", "alice/gone/0", 102*minute, true)
	check("of a job that is not known, a moment after", "alice/gone/0", 109*minute, false)
	at(111*minute, &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: "web", Tasks: 1}}})
	check("the job has become smaller", "alice/web/1", 102*minute, true)
	check("the other task lives", "alice/web/0", 102*minute, false)
	at(112*minute, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}})
	check("the job was killed", "alice/web/0", 102*minute, true)
	at(120*minute, submitted)
	check("of an earlier job of that name", "alice/web/0", 102*minute, true)
	check("of the new one", "alice/web/0", 120*minute, false)
}
