package linkshard

import (
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// restoredLog is newLog with a machine that was heard once, restored.
func restoredLog(t *testing.T) *testLog {
	l := newLog(t)
	l.report(l.says(0, 1, running), l.says(1, 1, running))
	if err := l.cell.Restore(2); err != nil {
		t.Fatal(err)
	}
	l.term++
	return l
}

// describing is an exchange in which the borglet also describes what it is asked for.
func (l *testLog) describing(now int64, known *Known, tasks ...*borgpb.TaskReport) (*borgrpc.PollRequest, *Comparison) {
	l.t.Helper()
	req := Build(l.cell, l.machine(), "test", 1, known)
	resp := &borgrpc.PollResponse{Tasks: tasks, Highest: req.Fence}
	for range tasks {
		resp.Versions = append(resp.Versions, 1)
	}
	for _, id := range req.Describe {
		resp.Described = append(resp.Described, &borgrpc.Desired{Copy: id, User: "alice", Job: "web", Kind: borgpb.JobKind_JOB_KIND_SERVICE, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 100}}, Version: 1, Ports: []uint32{20000 + id.Index}})
	}
	known.Take(resp)
	return req, Compare(now, l.cell, l.machine(), req, resp, known)
}

func (l *testLog) hear(h *borgpb.HeardMachine) {
	l.t.Helper()
	if h == nil {
		l.t.Fatal("nothing is to be heard")
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_HearMachines{HearMachines: &borgpb.HearMachines{Machines: []*borgpb.HeardMachine{h}}}})
	if err := l.cell.Check(); err != nil {
		l.t.Fatal(err)
	}
}

// A machine that was not heard since the restore is told to start nothing that it does
// not have: it may have ended there. Once it was heard, the cell knows.
func TestUnheardStartsNothing(t *testing.T) {
	l := restoredLog(t)
	known := &Known{}
	req, cmp := l.describing(1e9, known, l.says(0, 1, running))
	if len(req.Desired)+len(req.Stops)+len(req.Forget) > 0 {
		t.Errorf("a machine that was not heard is told %v", req)
	}
	if h := cmp.Heard; h == nil || len(h.Missing) != 1 || h.Missing[0].Index != 1 || h.Unknown != 0 {
		t.Fatalf("the cell hears %v", h)
	}
	req, again := l.describing(1e9+1, known, l.says(0, 1, running))
	if again.Heard != nil {
		t.Error("the same is told twice at once")
	}
	if len(req.Desired) != 1 || req.Desired[0].Copy.Index != 0 {
		t.Errorf("what the machine has is wanted, and nothing else: %v", req.Desired)
	}
	l.hear(cmp.Heard)
	if state := l.job().Task(1).State(); state != borgpb.State_STATE_PENDING {
		t.Errorf("task 1, which the machine does not have, is %v", state)
	}
	if _, cmp := l.describing(9e9, known, l.says(0, 1, running)); cmp.Heard != nil || cmp.Busy {
		t.Errorf("it is heard again: %v", cmp.Heard)
	}
}

// A later attempt is described, and taken; also one that has ended, which is forgotten
// only then.
func TestLaterAttemptIsFound(t *testing.T) {
	l := restoredLog(t)
	known := &Known{}
	ended := l.says(1, 4, borgpb.AttemptState_ATTEMPT_STATE_LOST)
	has := []*borgpb.TaskReport{l.says(0, 3, running), ended}
	if _, cmp := l.describing(1e9, known, has...); cmp.Heard != nil || !cmp.Busy {
		t.Errorf("it is heard before it was described: %v", cmp.Heard)
	}
	req, cmp := l.describing(2e9, known, has...)
	if len(req.Describe) != 2 || len(req.Forget) != 0 {
		t.Fatalf("described should be two copies, and none forgotten: %v", req)
	}
	if h := cmp.Heard; h == nil || len(h.Found) != 2 || len(h.Missing) != 2 || h.Found[0].Ports[0] != 20000 {
		t.Fatalf("the cell hears %v", h)
	}
	l.hear(cmp.Heard)
	if p := l.job().Task(0).Current(); p == nil || p.Attempt() != 3 || p.PID() != 100 {
		t.Errorf("task 0 is %v", p)
	}
	if task := l.job().Task(1); task.Attempt() != 4 || task.State() != borgpb.State_STATE_PENDING {
		t.Errorf("task 1, whose attempt 4 was lost, is %v at attempt %d", task.State(), task.Attempt())
	}
	req, _ = l.describing(3e9, known, has...)
	if len(req.Forget) != 1 || req.Forget[0].Attempt != 4 {
		t.Errorf("forgotten is %v, want attempt 4", req.Forget)
	}
}

// What the cell has no job for is counted and left alone, whatever is known of it;
// of what was stopped nothing is kept.
func TestUnknownIsLeftAlone(t *testing.T) {
	l := restoredLog(t)
	known := &Known{}
	other := func(index uint32, state borgpb.AttemptState) *borgpb.TaskReport {
		r := l.says(index, 1, state)
		r.JobUid = "1-999-0"
		return r
	}
	has := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running), other(0, running), other(1, stopped), other(2, borgpb.AttemptState_ATTEMPT_STATE_FINISHED)}
	_, cmp := l.describing(1e9, known, has...)
	if cmp.Heard == nil || cmp.Heard.Unknown != 1 || len(cmp.Heard.Missing)+len(cmp.Heard.Found) != 0 {
		t.Fatalf("the cell hears %v", cmp.Heard)
	}
	l.hear(cmp.Heard)
	req, cmp := l.describing(9e9, known, has...)
	if cmp.Heard != nil || len(req.Stops) != 0 {
		t.Errorf("heard again %v, stopped %v", cmp.Heard, req.Stops)
	}
	if len(req.Forget) != 1 || req.Forget[0].Index != 1 {
		t.Errorf("forgotten is %v, want what was stopped alone", req.Forget)
	}
	if list := Unknown(l.cell, l.machine(), has); len(list) != 2 {
		t.Errorf("listed is %v", list)
	}
	_, cmp = l.describing(10e9, known, has[0], has[1])
	if cmp.Heard == nil || cmp.Heard.Unknown != 0 {
		t.Errorf("that it is gone is heard as %v", cmp.Heard)
	}
}
