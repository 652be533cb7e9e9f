package cell

import (
	"testing"

	"borg/proto/borgpb"
)

// TestLastToLeaveAfterLoad ends, in one entry, the last other task of a machine that
// drains and has something new of the daemon's task there: a replica that was loaded
// from its records lets the daemon go in the same entry as one that has lived through
// it all.
func TestLastToLeaveAfterLoad(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: formatTogether}}})
	l.do(addMachine("m1", 4000, 1<<30))
	daemon := service(0, 200, 100, 1<<20)
	daemon.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	uids := []string{
		l.do(submitJob(t, "agent", daemon)).Uid,
		l.do(submitJob(t, "web", service(1, 200, 100, 1<<20))).Uid,
	}
	for _, uid := range uids {
		l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Machine: "m1", Version: 1}}}}})
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m1", Drain: true}}})
	said := func(st attemptState) *borgpb.TaskReport {
		return &borgpb.TaskReport{JobUid: uids[0], Attempt: 1, State: int32(st)}
	}
	report := func(tasks ...*borgpb.TaskReport) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m1", Tasks: tasks}}}}}
	}
	// The daemon is looked at, and found to stay.
	l.do(report(said(attemptStarting)))

	loaded := reload(t, l.c)
	entry := l.entry(report(&borgpb.TaskReport{JobUid: uids[1], Attempt: 1, State: int32(attemptStopped)}, said(attemptRunning)))
	l.c.Apply(l.c.Index()+1, l.term, entry)
	loaded.Apply(loaded.Index()+1, l.term, entry)
	if got, want := loaded.Digest(), l.c.Digest(); got != want {
		t.Fatalf("the digest of the loaded cell is %x, want %x", got, want)
	}
	p := l.c.Machine("m1").copies[0]
	if p.stop == nil {
		t.Fatalf("copy %v of the daemon is not told to stop", p.ID())
	}
}
