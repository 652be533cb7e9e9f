package linkshard

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// testLog is a cell and the log that feeds it.
type testLog struct {
	t    testing.TB
	cell *cell.Cell
	term uint64
	ns   int64
}

// newLog has machine m1 and a job of two tasks, alice/web, placed on it.
func newLog(t *testing.T) *testLog { return newLogOf(t, 2) }

func newLogOf(t testing.TB, tasks uint32) *testLog {
	l := &testLog{t: t, cell: cell.New("c1", 1), term: 1}
	l.do(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m1", Spec: &borgpb.MachineSpec{
		Addr: "h:1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 1 << 30}, PortFirst: 20000, PortLast: 20999,
		Attributes: map[string]string{"kernel": "6.1", "rack": "r1"},
	}}}})
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200, Task: &borgpb.TaskSpec{
		Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}, Args: []string{"/bin/x"}, Ports: []string{"http"}, GraceNs: 5e9,
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "web", Spec: spec}}})
	l.place()
	return l
}

// do applies one op, which must be done.
func (l *testLog) do(op *borgpb.Op) *borgpb.Result {
	l.t.Helper()
	l.ns += 1e9
	data, err := proto.Marshal(op)
	if err != nil {
		l.t.Fatal(err)
	}
	entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: l.ns, WallTimeNs: 1e18 + l.ns, Ops: [][]byte{data}})
	if err != nil {
		l.t.Fatal(err)
	}
	results, _ := l.cell.Apply(l.cell.Index()+1, l.term, entry)
	if results[0].Refusal != nil {
		l.t.Fatalf("%v was refused: %v", op, results[0].Refusal)
	}
	for _, item := range results[0].Items {
		if item.Kind != 0 {
			l.t.Fatalf("%v: %v", op, item)
		}
	}
	return results[0]
}

func (l *testLog) job() *cell.Job { return l.cell.Job(cell.JobKey{User: "alice", Name: "web"}) }

// place assigns what waits to m1.
func (l *testLog) place() {
	l.t.Helper()
	assign := &borgpb.Assign{}
	for j, index := range l.cell.Pending() {
		assign.Assignments = append(assign.Assignments, &borgpb.Assignment{
			Uid: j.UID().String(), Index: index, LastAttempt: j.Task(index).Attempt(), Machine: "m1", Version: j.Version(), Ports: []uint32{20000 + index},
		})
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}})
}

func (l *testLog) report(tasks ...*borgpb.TaskReport) {
	l.t.Helper()
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m1", Tasks: tasks}}}}})
}

func (l *testLog) machine() *cell.Machine { return l.cell.Machine("m1") }

// says is a report on task index of the job.
func (l *testLog) says(index uint32, attempt uint64, state borgpb.AttemptState) *borgpb.TaskReport {
	t := &borgpb.TaskReport{JobUid: l.job().UID().String(), Index: index, Attempt: attempt, State: int32(state)}
	switch {
	case terminal(t.State):
		t.Exit = &borgpb.Exit{Signal: 15, EndedWallNs: 1e18}
	default:
		t.Pid, t.StartedWallNs = int64(100+index), 1e18
	}
	return t
}

const (
	starting = borgpb.AttemptState_ATTEMPT_STATE_STARTING
	running  = borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	stopped  = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
)

// exchange is one poll: what the borglet answers, in the form of its tasks and
// the versions that it holds.
func (l *testLog) exchange(now int64, known *Known, highest *borgrpc.Fence, tasks ...*borgpb.TaskReport) (*borgrpc.PollRequest, *Comparison) {
	l.t.Helper()
	req := known.request(l.cell, l.machine(), "test", 1)
	resp := &borgrpc.PollResponse{Hash: []byte{1}, Tasks: tasks, Highest: highest}
	for range tasks {
		resp.Versions = append(resp.Versions, 1)
	}
	known.Take(resp)
	return req, Compare(now, l.cell, l.machine(), req, resp, known)
}

func TestSpecsAreSentUntilTheyAreHeld(t *testing.T) {
	l, known := newLog(t), &Known{}
	req, cmp := l.exchange(0, known, nil, l.says(0, 1, starting))
	if len(req.Desired) != 2 || req.Desired[0].Spec == nil || req.Desired[1].Spec == nil {
		t.Fatalf("first poll wants %v, want both tasks with their specs", req.Desired)
	}
	d := req.Desired[0]
	if d.User != "alice" || d.Job != "web" || d.Cell != "test" || d.Ports[0] != 20000 || d.Spec.Args[0] != "/bin/x" || d.Version != 1 {
		t.Errorf("task 0 is wanted as %v", d)
	}
	if f := req.Fence; f.CellId != "c1" || f.Epoch != 1 || f.Term != 1 || f.Index != l.cell.Index() {
		t.Errorf("the fence is %v, want the cell's position in the log", f)
	}
	if !cmp.Busy || len(cmp.Reports) != 1 {
		t.Errorf("while task 0 starts: busy %v, reports %v, want busy and one report", cmp.Busy, cmp.Reports)
	}
	req, _ = l.exchange(1e9, known, nil, l.says(0, 1, running), l.says(1, 1, running))
	if req.Desired[0].Spec != nil || req.Desired[1].Spec == nil {
		t.Errorf("second poll: specs %v and %v, want that of task 1 alone", req.Desired[0].Spec, req.Desired[1].Spec)
	}
}

func TestDifferencesAreToldWithPauses(t *testing.T) {
	l, known := newLog(t), &Known{}
	tasks := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	var told []int64
	for now := int64(0); now < 20e9; now += 500e6 {
		if _, cmp := l.exchange(now, known, nil, tasks...); len(cmp.Reports) == 2 {
			told = append(told, now/1e9)
		}
	}
	if want := []int64{0, 1, 3, 7, 15}; !equal(told, want) {
		t.Errorf("a difference that the cell does not take is told after %v s, want %v", told, want)
	}
	// Something new is told at once.
	tasks[0].Restarts = 1
	if _, cmp := l.exchange(20e9, known, nil, tasks...); len(cmp.Reports) != 1 || cmp.Reports[0].Restarts != 1 {
		t.Errorf("after a restart %v is told, want the restart alone", cmp.Reports)
	}
	l.report(tasks...)
	if _, cmp := l.exchange(60e9, known, nil, tasks...); len(cmp.Reports) != 0 || cmp.Busy || len(cmp.Unknown) != 0 {
		t.Errorf("what the cell has is told again: %v", cmp)
	}
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestStopsUntilReportedThenForget(t *testing.T) {
	l, known := newLog(t), &Known{}
	both := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	l.report(both...)
	l.exchange(0, known, nil, both...)
	l.do(&borgpb.Op{RequestId: "k", RequestWallNs: 1e18, Principal: &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER},
		Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}})
	req, cmp := l.exchange(1e9, known, nil, both...)
	if len(req.Desired) != 0 || len(req.Stops) != 2 || len(req.Forget) != 0 {
		t.Fatalf("after a kill the poll is %v, want two stops", req)
	}
	if s := req.Stops[0]; s.Cause != borgpb.StopCause_STOP_CAUSE_KILL || s.GraceNs != 5e9 || s.Index != l.cell.Index() {
		t.Errorf("the stop is %v, want the cause kill, 5 s and the index of the op", s)
	}
	if len(cmp.Reports) != 0 || !cmp.Busy {
		t.Errorf("while they stop: %v, want nothing to tell, and busy", cmp)
	}
	gone := []*borgpb.TaskReport{l.says(0, 1, stopped), l.says(1, 1, stopped)}
	_, cmp = l.exchange(2e9, known, nil, gone...)
	if len(cmp.Reports) != 2 {
		t.Fatalf("stopped copies are told as %v, want both", cmp.Reports)
	}
	l.report(cmp.Reports...)
	req, cmp = l.exchange(3e9, known, nil, gone...)
	if len(req.Stops) != 0 || len(req.Forget) != 2 || len(cmp.Reports) != 0 || len(cmp.Unknown) != 0 {
		t.Errorf("once the log has the end the poll is %v (%v), want two to forget and nothing else", req, cmp)
	}
}

func TestStopOfWhatNeverArrived(t *testing.T) {
	l, known := newLog(t), &Known{}
	l.do(&borgpb.Op{RequestId: "k", RequestWallNs: 1e18, Principal: &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER},
		Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}})
	_, cmp := l.exchange(0, known, nil)
	if len(cmp.Reports) != 2 || cmp.Reports[0].State != int32(stopped) {
		t.Fatalf("copies that the machine never had are told as %v, want both stopped", cmp.Reports)
	}
	l.report(cmp.Reports...)
	if n := l.machine().NumCopies(); n != 0 {
		t.Errorf("the machine still holds %d copies", n)
	}
}

func TestUnknownCopies(t *testing.T) {
	l, known := newLog(t), &Known{}
	// Made at an index that this replica has not applied.
	fresh := &borgpb.TaskReport{JobUid: "1-900-0", Attempt: 1, State: int32(running), Pid: 5}
	ended := &borgpb.TaskReport{JobUid: "1-900-0", Index: 1, Attempt: 1, State: int32(stopped)}
	ahead := &borgrpc.Fence{CellId: "c1", Epoch: 1, Term: 1, Index: l.cell.Index() + 1}
	if _, cmp := l.exchange(0, known, ahead, fresh, ended); len(cmp.Unknown) != 0 || len(cmp.Reports) != 0 {
		t.Errorf("copies ordered by a replica that is ahead are %v, want them left alone", cmp)
	}
	req, cmp := l.exchange(0, known, FenceOf(l.cell), fresh, ended)
	if len(cmp.Unknown) != 2 || len(req.Stops) != 0 || len(req.Forget) != 0 {
		t.Errorf("copies that nobody ordered are %v (poll %v), want both unknown and left alone", cmp, req)
	}
	// A copy of a job that was here and is forgotten: over, if it has ended.
	old := &borgpb.TaskReport{JobUid: "1-1-7", Attempt: 1, State: int32(stopped)}
	_, cmp = l.exchange(0, known, FenceOf(l.cell), old)
	if len(cmp.Unknown) != 0 {
		t.Errorf("an ended copy of a forgotten job is unknown: %v", cmp.Unknown)
	}
	if req := Build(l.cell, l.machine(), "test", 1, known); len(req.Forget) != 1 {
		t.Errorf("an ended copy of a forgotten job: poll %v, want it forgotten", req)
	}
	// A name that cannot be read is nothing to act on.
	if _, cmp := l.exchange(0, known, nil, &borgpb.TaskReport{JobUid: "?", State: int32(stopped)}); len(cmp.Unknown) != 1 {
		t.Errorf("a report that cannot be read: %v, want it listed", cmp)
	}
}

func TestMachineThatIsDown(t *testing.T) {
	l, known := newLog(t), &Known{}
	both := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	l.report(both...)
	l.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m1", Term: 1}}})
	ended := l.says(1, 1, stopped)
	req, cmp := l.exchange(0, known, nil, both[0], ended)
	if len(req.Desired) != 0 || len(req.Stops) != 0 || !cmp.Down || cmp.Busy || len(cmp.Unknown) != 0 {
		t.Errorf("poll of a machine that is down: %v, %v, want no orders", req, cmp)
	}
	if len(cmp.Reports) != 1 || !proto.Equal(cmp.Reports[0], ended) {
		t.Errorf("told %v, want the end alone", cmp.Reports)
	}
}

// TestSpecsOfWhatRunsAreNotGuessed: a replica that takes a machine over sends no specs of
// what runs there, and then those that the borglet turns out not to hold, or to hold an
// older version of; before that the machine is not at rest.
func TestSpecsOfWhatRunsAreNotGuessed(t *testing.T) {
	l, known := newLog(t), &Known{}
	l.report(l.says(0, 1, running))
	req, cmp := l.exchange(0, known, nil, l.says(1, 1, starting))
	if req.Desired[0].Spec != nil || req.Desired[1].Spec == nil {
		t.Errorf("the first poll sends %v, want the spec of task 1 alone", req.Desired)
	}
	if !cmp.Busy {
		t.Error("the borglet lacks a task, and is not polled soon")
	}
	req, _ = l.exchange(0, known, nil, l.says(0, 1, running), l.says(1, 1, running))
	if req.Desired[0].Spec == nil || req.Desired[1].Spec != nil {
		t.Errorf("the second poll sends %v, want the spec of task 0 alone", req.Desired)
	}

	l.report(l.says(1, 1, running))
	known = &Known{}
	req, cmp = l.exchange(0, known, nil, l.says(0, 1, running), l.says(1, 1, running))
	known.rest(l.cell, l.machine(), req, cmp)
	if known.rests(l.cell, l.machine()) {
		t.Error("the machine rests after a poll that did not know which versions it holds")
	}
	known.Versions = []uint64{1, 0}
	if req, _ = l.exchange(0, known, nil, l.says(0, 1, running), l.says(1, 1, running)); req.Desired[0].Spec != nil || req.Desired[1].Spec == nil {
		t.Errorf("task 1 is held in an older version, and %v is sent", req.Desired)
	}
}

// TestRestsOnlyOnOrdersOfNow: what the cell comes to want while a poll is out is not in
// the orders that its answer finds obeyed.
func TestRestsOnlyOnOrdersOfNow(t *testing.T) {
	l, known := newLog(t), &Known{}
	both := []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}
	l.report(both...)
	l.exchange(0, known, nil, both...)
	req, cmp := l.exchange(0, known, nil, both...)
	l.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: "m1", Addr: "elsewhere:1"}}})
	known.rest(l.cell, l.machine(), req, cmp)
	if known.rests(l.cell, l.machine()) {
		t.Error("the machine rests on orders from before a change")
	}
	req, cmp = l.exchange(0, known, nil, both...)
	known.rest(l.cell, l.machine(), req, cmp)
	if !known.rests(l.cell, l.machine()) {
		t.Error("nothing has changed since, and the machine does not rest")
	}
}

func TestUnchangedAnswersAreComparedAgain(t *testing.T) {
	l, known := newLog(t), &Known{}
	known.Take(&borgrpc.PollResponse{Hash: []byte{1}, Tasks: []*borgpb.TaskReport{l.says(0, 1, running), l.says(1, 1, running)}, Versions: []uint64{1, 1}})
	req := Build(l.cell, l.machine(), "test", 1, known)
	if string(req.KnownHash) != "\x01" {
		t.Errorf("the poll knows hash %x, want 01", req.KnownHash)
	}
	resp := &borgrpc.PollResponse{Hash: []byte{1}, Unchanged: true}
	known.Take(resp)
	if cmp := Compare(0, l.cell, l.machine(), req, resp, known); len(cmp.Reports) != 2 {
		t.Errorf("an unchanged answer that the cell does not have yet tells %v, want both tasks", cmp.Reports)
	}
}

func TestChangeOfAMachine(t *testing.T) {
	spec := func(cpu int64, attributes ...string) *borgpb.MachineSpec {
		s := &borgpb.MachineSpec{Capacity: &borgpb.Resources{CpuMilli: cpu}, PortFirst: 1, PortLast: 9, Attributes: map[string]string{}}
		for i := 0; i < len(attributes); i += 2 {
			s.Attributes[attributes[i]] = attributes[i+1]
		}
		return s
	}
	tests := []struct {
		name                  string
		present, before, word *borgpb.MachineSpec
		want                  *borgpb.SetMachine
	}{
		{"alike", spec(1, "arch", "a"), nil, spec(1, "arch", "a"), nil},
		{"says nothing", spec(1), nil, nil, nil},
		{"capacity", spec(1), nil, spec(2), &borgpb.SetMachine{Name: "m", Capacity: &borgpb.Resources{CpuMilli: 2}}},
		{"a fact", spec(1, "kernel", "1"), nil, spec(1, "kernel", "2"), &borgpb.SetMachine{Name: "m", SetAttributes: map[string]string{"kernel": "2"}}},
		{"an operator's attribute", spec(1, "rack", "r7"), nil, spec(1, "rack", "r1"), nil},
		{"an operator's attribute, again", spec(1, "rack", "r7"), spec(1, "rack", "r1"), spec(1, "rack", "r1"), nil},
		{"a changed word", spec(1, "rack", "r7"), spec(1, "rack", "r1"), spec(1, "rack", "r2"), &borgpb.SetMachine{Name: "m", SetAttributes: map[string]string{"rack": "r2"}}},
		{"a word taken back", spec(1, "rack", "r1"), spec(1, "rack", "r1"), spec(1), &borgpb.SetMachine{Name: "m", RemoveAttributes: []string{"rack"}}},
		{"a word taken back that an operator changed", spec(1, "rack", "r7"), spec(1, "rack", "r1"), spec(1), nil},
		{"ports follow from the range", &borgpb.MachineSpec{Capacity: &borgpb.Resources{CpuMilli: 1, Ports: 9}, PortFirst: 1, PortLast: 9}, nil, spec(1), nil},
	}
	for _, tt := range tests {
		if got := Change(cell.BuildFormat, "m", tt.present, tt.before, tt.word); !proto.Equal(got, tt.want) {
			t.Errorf("%s: Change = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestHealthIsTold: what is said of the health of a copy reaches the log when it
// changes; other words do not by themselves.
func TestHealthIsTold(t *testing.T) {
	l := newLog(t)
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, Task: &borgpb.TaskSpec{
		Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}, Args: []string{"/bin/x"}, Ports: []string{"db"}, Health: &borgpb.HealthCheck{},
	}})
	if err != nil {
		t.Fatal(err)
	}
	plain := l.says(0, 1, running)
	l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "db", Spec: spec}}})
	db := l.cell.Job(cell.JobKey{User: "alice", Name: "db"})
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: db.UID().String(), Machine: "m1", Version: db.Version(), Ports: []uint32{20100}}}}}})
	checked := proto.CloneOf(plain)
	checked.JobUid, checked.Text = db.UID().String(), "no health check has passed yet"
	checked.State = int32(starting)
	other := l.says(1, 1, running)
	l.report(plain, other, checked)
	known := &Known{}
	now := int64(1e9)
	poll := func() []*borgpb.TaskReport {
		t.Helper()
		now += 1e9
		_, cmp := l.exchange(now, known, nil, plain, other, checked)
		return cmp.Reports
	}
	if got := poll(); len(got) != 0 {
		t.Errorf("what is known is told: %v", got)
	}
	if n := l.cell.JobProto(db).GetStatus().GetStarted(); n != 0 {
		t.Errorf("%d tasks count as started before a check has passed", n)
	}
	plain.Text = "its shim died"
	if got := poll(); len(got) != 0 {
		t.Errorf("words alone are told: %v", got)
	}
	for _, text := range []string{"no health check has passed yet: connection refused", "", "health check fails: 503", ""} {
		checked = proto.CloneOf(checked)
		if checked.Text = text; text == "" {
			checked.State = int32(running)
		}
		got := poll()
		if len(got) != 1 || got[0].JobUid != checked.JobUid || got[0].Text != text {
			t.Fatalf("%q is not told, but %v", text, got)
		}
		l.report(got...)
		if got := l.cell.TaskProto(db, 0, false).GetStatus().GetReason(); got != text {
			t.Errorf("the cell says %q, want %q", got, text)
		}
		if got := poll(); len(got) != 0 {
			t.Errorf("what is known is told: %v", got)
		}
	}
}
