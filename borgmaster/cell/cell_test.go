package cell

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// bench is a cell with what feeds it.
type testLog struct {
	t    testing.TB
	c    *Cell
	term uint64
	// Stamps of the next entry.
	cellNs, wallNs int64
}

func newTestLog(t testing.TB) *testLog {
	return &testLog{t: t, c: New("test-cell", 1), term: 1, wallNs: 1_700_000_000 * second}
}

func marshal(t testing.TB, m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (l *testLog) entry(ops ...*borgpb.Op) []byte {
	e := &borgpb.Entry{CellTimeNs: l.cellNs, WallTimeNs: l.wallNs}
	for _, op := range ops {
		e.Ops = append(e.Ops, marshal(l.t, op))
	}
	return marshal(l.t, e)
}

func (l *testLog) apply(ops ...*borgpb.Op) ([]*borgpb.Result, []Event) {
	return l.c.Apply(l.c.Index()+1, l.term, l.entry(ops...))
}

// do applies one op that must be done.
func (l *testLog) do(op *borgpb.Op) *borgpb.Result {
	l.t.Helper()
	res, _ := l.apply(op)
	if res[0].Refusal != nil {
		l.t.Fatalf("refused: %v", res[0].Refusal)
	}
	return res[0]
}

func addMachine(name string, cpuMilli, memBytes int64) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
		Addr: name + ":7101", Capacity: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes},
		PortFirst: 20000, PortLast: 20999,
	}}}}
}

func submitJob(t testing.TB, name string, spec *borgpb.JobSpec) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: name, Spec: marshal(t, spec)}}}
}

func service(tasks uint32, priority int32, cpuMilli, memBytes int64) *borgpb.JobSpec {
	return &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: priority,
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes}},
	}
}

// reload writes a cell down and reads it again.
func reload(t testing.TB, c *Cell) *Cell {
	t.Helper()
	n, err := Load(c.Records())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.Digest(), c.Digest(); got != want {
		t.Fatalf("digest after Load is %x, want %x", got, want)
	}
	return n
}

func TestLifeOfATask(t *testing.T) {
	l := newTestLog(t)
	l.do(addMachine("m1", 4000, 1<<30))
	spec := service(2, 200, 1000, 1<<20)
	spec.Task.Ports = []string{"http"}
	uid := l.do(submitJob(t, "web", spec)).Uid
	j := l.c.Job(JobKey{"u", "web"})
	if j == nil || j.State() != borgpb.State_STATE_PENDING || j.UID().String() != uid {
		t.Fatalf("job %v after submit", j)
	}
	for i := range uint32(2) {
		l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
			{Uid: uid, Index: i, Machine: "m1", Ports: []uint32{20000 + i}, Version: 1},
		}}}})
	}
	if j.State() != borgpb.State_STATE_RUNNING || l.c.Machine("m1").NumCopies() != 2 {
		t.Fatalf("job is %v with %d copies on m1", j.State(), l.c.Machine("m1").NumCopies())
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: "m1", Tasks: []*borgpb.TaskReport{{JobUid: uid, Index: 1, Attempt: 1, State: 3, Pid: 77}},
	}}}}})
	if p := j.Task(1).Current(); p.State() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING || p.PID() != 77 {
		t.Fatalf("copy is %v, pid %d", p.State(), p.PID())
	}
	if err := l.c.Check(); err != nil {
		t.Fatal(err)
	}
	l.c = reload(t, l.c)
	l.do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "web"}}})
	l.c = reload(t, l.c)
	for p := range l.c.Machine("m1").Copies() {
		if p.State() != borgpb.AttemptState_ATTEMPT_STATE_STOPPING || p.Cause() != borgpb.StopCause_STOP_CAUSE_KILL {
			t.Errorf("copy %v is %v, cause %v", p.ID(), p.State(), p.Cause())
		}
	}
}
