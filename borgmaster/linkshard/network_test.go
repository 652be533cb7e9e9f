package linkshard

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// withAlloc puts an alloc with a network of its own on m1, and a task in it, and returns
// the uid of the task's job.
func (l *testLog) withAlloc() (set, job string) {
	l.t.Helper()
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m1", SetAttributes: map[string]string{cell.NetworkAttribute: "own"}}}})
	res := &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}
	spec, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: res, Network: borgpb.Network_NETWORK_OWN})
	if err != nil {
		l.t.Fatal(err)
	}
	set = l.do(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "alice", Name: "pool", Spec: spec}}}).Uid
	if spec, err = proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, AllocSet: "alice/pool", Task: &borgpb.TaskSpec{Args: []string{"/bin/x"}, Resources: res},
	}); err != nil {
		l.t.Fatal(err)
	}
	job = l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "inside", Spec: spec}}}).Uid
	return set, job
}

// Polls name the allocs with networks of their own for as long as they are there, also
// when nothing else is new about the machine; what a task says of its address reaches the
// log once.
func TestAllocNetworks(t *testing.T) {
	l := newLog(t)
	set, job := l.withAlloc()
	known := &Known{}
	named := func() []string { return Build(l.cell, l.machine(), "test", 1, known).AllocNetworks }
	if got := named(); got != nil {
		t.Errorf("before the alloc has a place polls name %q", got)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: set, Machine: "m1", Version: 1}}}}})
	want := []string{"alice/pool/0"}
	if got := named(); !slices.Equal(got, want) {
		t.Errorf("polls name %q, want %q", got, want)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: job, Alloc: "alice/pool/0", Version: 1}}}}})
	shared := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	shared[0].Addr = "10.0.0.9"
	inside := &borgpb.TaskReport{JobUid: job, Attempt: 1, State: int32(running), Pid: 7, StartedWallNs: 1e18, Addr: "10.0.0.7"}
	_, cmp := l.exchange(0, known, nil, append(shared, inside)...)
	l.report(cmp.Reports...)
	p := l.machine().Copy(cell.CopyID{Job: l.cell.Job(cell.JobKey{User: "alice", Name: "inside"}).UID(), Attempt: 1})
	if p.Addr() != "10.0.0.7" || p.State() != running {
		t.Errorf("the task in the alloc is %v at %q", p.State(), p.Addr())
	}
	inside = proto.CloneOf(inside)
	inside.Addr = "10.0.0.8"
	_, cmp = l.exchange(0, known, nil, append(shared, inside)...)
	if len(cmp.Reports) != 1 || cmp.Reports[0].Addr != "10.0.0.8" {
		t.Errorf("of one that moved, and of one that did not ask for its address, is told %v", cmp.Reports)
	}
	l.report(cmp.Reports...)
	for range 2 {
		req, cmp := l.exchange(0, known, nil, append(shared, inside)...)
		known.rest(l.cell, l.machine(), req, cmp)
		if len(cmp.Reports) > 0 || !slices.Equal(req.AllocNetworks, want) {
			t.Errorf("at rest it is told %v, and names %q", cmp.Reports, req.AllocNetworks)
		}
	}
	if !known.rests(l.cell, l.machine()) {
		t.Error("it is not at rest")
	}
}

// A cell that was restored to before networks does not hear of addresses that it does not
// know.
func TestAddrsOfALaterFormat(t *testing.T) {
	l, known := newLog(t), &Known{}
	moved := l.says(0, 1, running)
	moved.Addr = "10.0.0.7"
	_, cmp := l.exchange(0, known, nil, moved, l.says(1, 1, running))
	if len(cmp.Reports) != 2 {
		t.Fatalf("told: %v", cmp.Reports)
	}
	l.report(cmp.Reports...)
	if _, cmp = l.exchange(0, known, nil, moved, l.says(1, 1, running)); len(cmp.Reports) > 0 {
		t.Errorf("told again: %v", cmp.Reports)
	}
}

// Nor of why a process was ended, whatever else is said of its end, until it knows that.
func TestExitReasonsOfALaterFormat(t *testing.T) {
	l, known := newLog(t), &Known{}
	again := func(restarts uint32) *borgpb.TaskReport {
		r := l.says(0, 1, running)
		r.Restarts, r.Exit = restarts, &borgpb.Exit{Signal: 15, Reason: "unhealthy: no answer within 1s"}
		return r
	}
	for restarts, want := range []string{"", "unhealthy: no answer within 1s"} {
		_, cmp := l.exchange(0, known, nil, again(uint32(restarts+1)), l.says(1, 1, running))
		l.report(cmp.Reports...)
		exit := l.machine().Copy(cell.CopyID{Job: l.job().UID(), Attempt: 1}).Exit()
		if exit.GetSignal() != 15 || exit.GetReason() != want {
			t.Errorf("in format %d its process ended so: %v; want the reason %q", l.cell.Format(), exit, want)
		}
		if restarts == 0 {
			l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.FormatExitReasons}}})
		}
	}
}

// Nor of failures in a row, which are no news by themselves.
func TestFailuresOfALaterFormat(t *testing.T) {
	l, known := newLog(t), &Known{}
	crashed := func(failures uint32) *borgpb.TaskReport {
		r := l.says(0, 1, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF)
		r.Failures = failures
		return r
	}
	_, cmp := l.exchange(0, known, nil, crashed(3), l.says(1, 1, running))
	if len(cmp.Reports) != 2 || cmp.Reports[0].Failures != 0 {
		t.Fatalf("told in format %d: %v", l.cell.Format(), cmp.Reports)
	}
	l.report(cmp.Reports...)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.FormatCrashingServices}}})
	if _, cmp = l.exchange(0, known, nil, crashed(4), l.says(1, 1, running)); len(cmp.Reports) > 0 {
		t.Errorf("told again: %v", cmp.Reports)
	}
	again := crashed(4)
	again.Restarts = 1
	if _, cmp = l.exchange(0, known, nil, again, l.says(1, 1, running)); len(cmp.Reports) != 1 || cmp.Reports[0].Failures != 4 {
		t.Errorf("told in format %d: %v", l.cell.Format(), cmp.Reports)
	}
}
