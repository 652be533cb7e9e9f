package linkshard

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// TestNoticeNamesNoForeignWork: a task that gives way is told for whom while the cell is
// open. While it is private, it is told that only of what its user may read.
func TestNoticeNamesNoForeignWork(t *testing.T) {
	l, known := newLog(t), &Known{}
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(cell.Admin)}}})
	both := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	l.report(both...)
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 400, Task: &borgpb.TaskSpec{
		Resources: &borgpb.Resources{CpuMilli: 3900, MemBytes: 1 << 20}, Args: []string{"/bin/x"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "bob", Name: "taker", Spec: spec}}})
	taker := l.cell.Job(cell.JobKey{User: "bob", Name: "taker"})
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
		Uid: taker.UID().String(), Machine: "m1", Version: taker.Version(),
		Victims: []*borgpb.Victim{{JobUid: l.job().UID().String(), Index: 0, Attempt: 1}},
	}}}}})
	told := func() string {
		req, _ := l.exchange(l.ns, known, nil, both...)
		if len(req.Stops) != 1 {
			t.Fatalf("the poll stops %v, want one task", req.Stops)
		}
		return req.Stops[0].Reason
	}
	policy := func(groups ...*borgpb.ShareGroup) {
		l.do(&borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: &borgpb.Visibility{Private: true, Groups: groups}}}})
	}
	if got := told(); !strings.Contains(got, "bob/taker/0") {
		t.Errorf("in an open cell it is told %q", got)
	}
	policy()
	if got := told(); got != "makes room for another user's work (priority 400, monitoring)" {
		t.Errorf("in a private cell it is told %q", got)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{
		Kind: borgpb.Labelled_LABELLED_JOB, User: "bob", Name: "taker", SetLabels: map[string]string{cell.ShareLabel: "team"},
	}}})
	policy(&borgpb.ShareGroup{Name: "team", Users: []string{"alice"}})
	if got := told(); !strings.Contains(got, "bob/taker/0") {
		t.Errorf("of what is shared with its user it is told %q", got)
	}
}
