package watch

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/proto/borgpb"
)

// log is a cell that is fed with ops, and a hub behind it.
type log struct {
	t  testing.TB
	c  *cell.Cell
	h  *Hub
	ns int64
	// It goes on when an op is refused.
	mayRefuse bool
}

func newLog(t testing.TB, cfg Config) *log {
	l := &log{t: t, c: cell.New("watched", 1), h: New(cfg)}
	l.apply()
	l.h.Reset(l.c)
	return l
}

func (l *log) apply(ops ...*borgpb.Op) []*borgpb.Result {
	l.t.Helper()
	results := l.applyCell(ops...)
	if l.h.index != 0 {
		l.h.Applied(l.c)
	}
	return results
}

// applyCell applies, and has the hub hear nothing of it.
func (l *log) applyCell(ops ...*borgpb.Op) []*borgpb.Result {
	l.t.Helper()
	l.ns += 1e6
	e := &borgpb.Entry{CellTimeNs: l.ns, WallTimeNs: 1_800_000_000e9 + l.ns}
	for i, op := range ops {
		op.RequestId, op.RequestWallNs = fmt.Sprintf("%020d-%05d", l.c.Index(), i), e.WallTimeNs
		op.Principal = &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}
		e.Ops = append(e.Ops, marshal(op))
	}
	results, _ := l.c.Apply(l.c.Index()+1, 1, marshal(e))
	for _, r := range results {
		if r.Refusal != nil && !l.mayRefuse {
			l.t.Fatal(r.Refusal)
		}
	}
	return results
}

func submit(name string, tasks uint32, labels map[string]string) *borgpb.Op {
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200, Task: &borgpb.TaskSpec{Args: []string{"x"}, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1}}}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Labels: labels, Spec: marshal(spec)}}}
}

func label(name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: name, SetAttributes: map[string]string{"n": fmt.Sprint(name)}}}}
}

func (l *log) machine(name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{Addr: name + ":1", Capacity: &borgpb.Resources{CpuMilli: 1e6, MemBytes: 1 << 40}}}}}
}

func assign(j *cell.Job, index uint32, machine string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.UID().String(), Index: index, Machine: machine, LastAttempt: j.Task(index).Attempt()}}}}}
}

func kill(name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: name}}}
}

// place submits a job and places all of its tasks, 500 on a machine.
func (l *log) place(name string, count uint32) {
	l.t.Helper()
	l.apply(submit(name, count, nil))
	j := l.c.Job(cell.JobKey{User: "alice", Name: name})
	for i := uint32(0); i < count; i += 500 {
		machine := fmt.Sprint("of-", name, i)
		ops := []*borgpb.Op{l.machine(machine)}
		for index := i; index < min(i+500, count); index++ {
			ops = append(ops, assign(j, index, machine))
		}
		l.apply(ops...)
	}
	if _, running, _ := j.Counts(); running != count {
		l.t.Fatalf("%d of %d tasks are placed", running, count)
	}
}

func (l *log) watch(q Query, from *From) *Watch {
	l.t.Helper()
	w, err := l.h.Watch(q, from, func() {})
	if err != nil {
		l.t.Fatal(err)
	}
	return w
}

// drain takes all that there is.
func drain(t testing.TB, w *Watch) (all []*Message) {
	t.Helper()
	for {
		m, again, err := w.Next()
		switch {
		case err != nil:
			t.Fatal(err)
		case m != nil:
			all = append(all, m)
		case !again:
			return all
		}
	}
}

const (
	jobs     = borgpb.ObjectKind_OBJECT_KIND_JOB
	tasks    = borgpb.ObjectKind_OBJECT_KIND_TASK
	machines = borgpb.ObjectKind_OBJECT_KIND_MACHINE
)

// TestAChangeCostsItsWatches: 200 watches by label on 10,000 tasks, and a change is
// looked at by those that it matches.
func TestAChangeCostsItsWatches(t *testing.T) {
	l := newLog(t, Config{})
	l.apply(l.machine("m"))
	for i := range 200 {
		l.apply(submit(fmt.Sprint("j", i), 50, map[string]string{"app": fmt.Sprint("a", i)}))
	}
	var watches []*Watch
	for i := range 200 {
		s, err := selector.Parse(fmt.Sprintf("app=a%d", i))
		if err != nil {
			t.Fatal(err)
		}
		w := l.watch(Query{Kind: tasks, Selector: s}, nil)
		if m := drain(t, w); len(m) != 1 || m[0].Changes() != 50 || !m[0].State || m[0].More {
			t.Fatalf("the state came in %d messages, the first of %d objects", len(m), m[0].Changes())
		}
		watches = append(watches, w)
	}
	before := l.h.Looked()
	l.apply(assign(l.c.Job(cell.JobKey{User: "alice", Name: "j7"}), 3, "m"))
	if n := l.h.Looked() - before; n != 1 {
		t.Errorf("a change of one task was looked at by %d of 200 watches, want 1", n)
	}
	for i, w := range watches {
		m := drain(t, w)
		if i != 7 && len(m) > 0 || i == 7 && (len(m) != 1 || m[0].Changes() != 1) {
			t.Errorf("watch %d has %d messages", i, len(m))
		}
		if i == 8 {
			if b := w.Bookmark(); b == nil || b.Index != l.c.Index() || w.Bookmark() != nil {
				t.Error("a bookmark tells of the index once")
			}
		}
	}
}

// TestAKilledJobCostsLittle: what the log waits for while all tasks of a job change is
// that they are looked at; they are put into words when somebody is told of them.
func TestAKilledJobCostsLittle(t *testing.T) {
	const count = 20_000
	l := newLog(t, Config{QueueChanges: 2 * count, QueueBytes: 1 << 30})
	l.place("big", count)
	w := l.watch(Query{Kind: tasks}, nil)
	for _, m := range drain(t, w) {
		for _, c := range m.Proto().Changes {
			if c.Object.GetTask().Status.State != borgpb.State_STATE_RUNNING {
				t.Fatalf("the state has %v", c.Object)
			}
		}
	}
	l.applyCell(kill("big"))
	looked := l.h.Looked()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.h.Applied(l.c)
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > count/5 {
		t.Errorf("%d pieces of memory are taken to look at %d tasks, want far fewer", n, count)
	}
	if n := l.h.Looked() - looked; n > count/100 {
		t.Errorf("the watch was looked at %d times for %d changes at one index, want far fewer", n, count)
	}
	// What is told is how it was at that index, whatever became of it.
	at := l.c.Index()
	l.apply(l.machine("other"), submit("big", 1, nil))
	seen := 0
	for _, m := range drain(t, w) {
		for _, c := range m.Proto().Changes {
			if m.Index != at {
				continue
			}
			seen++
			if was, is := c.Previous.GetTask().Status, c.Object.GetTask().Status; was.State != borgpb.State_STATE_RUNNING || is.State != borgpb.State_STATE_DEAD || is.AttemptState != borgpb.AttemptState_ATTEMPT_STATE_STOPPING || is.Machine == "" {
				t.Fatalf("a killed task was %v, and is %v", was, is)
			}
		}
	}
	if seen != count {
		t.Errorf("%d tasks are told to be killed, want %d", seen, count)
	}
}

// TestAStateBesideManyChanges: what changes while a state is handed out is told after
// it, however much that is.
func TestAStateBesideManyChanges(t *testing.T) {
	const count = 3 * lookedAtOnce
	l := newLog(t, Config{})
	l.place("big", count)
	w := l.watch(Query{Kind: tasks}, nil)
	at := l.c.Index()
	l.apply(kill("big"))
	got := map[borgpb.State]int{}
	for _, m := range drain(t, w) {
		for _, c := range m.Proto().Changes {
			if got[c.Object.GetTask().Status.State]++; m.State != (m.Index == at) {
				t.Fatalf("a state of index %d, want %d", m.Index, at)
			}
		}
	}
	if got[borgpb.State_STATE_RUNNING] != count || got[borgpb.State_STATE_DEAD] != count {
		t.Errorf("told were %v, want %d that run and then %d that are dead", got, count, count)
	}
}

func TestTheStateIsOfOneIndex(t *testing.T) {
	l := newLog(t, Config{MessageChanges: 2})
	l.apply(l.machine("m"), submit("a", 3, nil), submit("b", 3, nil))
	w := l.watch(Query{Kind: tasks}, nil)
	first, _, _ := w.Next()
	at := l.c.Index()
	// What comes, goes and changes meanwhile is no part of it.
	l.apply(assign(l.c.Job(cell.JobKey{User: "alice", Name: "b"}), 2, "m"))
	l.apply(submit("c", 1, nil))
	l.apply(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: "b", Tasks: 1}}})
	n := first.Changes()
	var later []uint64
	for _, m := range drain(t, w) {
		if !m.State {
			later = append(later, m.Index)
			continue
		}
		n += m.Changes()
		for _, c := range m.Proto().Changes {
			if task := c.Object.GetTask(); m.Index != at || task.Status.State != borgpb.State_STATE_PENDING {
				t.Errorf("index %d has %v in state %v", m.Index, task.Meta.Name, task.Status.State)
			}
		}
	}
	if n != 6 || fmt.Sprint(later) != fmt.Sprint([]uint64{at + 1, at + 2, at + 3}) {
		t.Errorf("the state of index %d has %d tasks, and then come %v", at, n, later)
	}
}

func TestWhoIsSlowIsCutOff(t *testing.T) {
	l := newLog(t, Config{QueueChanges: 3})
	l.apply(l.machine("m"))
	slow, quick := l.watch(Query{Kind: machines}, nil), l.watch(Query{Kind: machines}, nil)
	drain(t, slow)
	told := l.c.Index()
	for i := range 6 {
		drain(t, quick)
		l.apply(label("m"), l.machine(fmt.Sprint("n", i)))
	}
	var cut *CutOffError
	if _, _, err := slow.Next(); !errors.As(err, &cut) || cut.Resume != told {
		t.Fatalf("a watch that is six changes behind ends with %v, want one that is cut off at %d", err, told)
	}
	if l.h.Watches() != 1 {
		t.Errorf("%d watches are left, want the quick one", l.h.Watches())
	}
	again := l.watch(Query{Kind: machines}, &From{Index: cut.Resume, Epoch: 1})
	if m := drain(t, again); len(m) != 6 || m[0].Index != told+1 || m[5].Index != l.c.Index() {
		t.Errorf("it goes on with %d messages", len(m))
	}
	// One index is taken whatever its size.
	var many []*borgpb.Op
	for i := range 10 {
		many = append(many, l.machine(fmt.Sprint("k", i)))
	}
	l.apply(many...)
	if m := drain(t, again); len(m) != 1 || m[0].Changes() != 10 {
		t.Errorf("ten machines came in %d messages", len(m))
	}
}

func TestRelist(t *testing.T) {
	l := newLog(t, Config{Changes: 2})
	var relist *RelistError
	for i := range 5 {
		l.apply(l.machine(fmt.Sprint("m", i)))
	}
	if _, err := l.h.Watch(Query{Kind: machines}, &From{Index: 2}, func() {}); !errors.As(err, &relist) || relist.Oldest != l.h.Oldest() {
		t.Errorf("from an index that is not held: %v", err)
	}
	if m := drain(t, l.watch(Query{Kind: machines}, &From{Index: l.h.Oldest()})); len(m) != 2 {
		t.Errorf("from the oldest index that is held come %d changes, want 2", len(m))
	}
	if _, err := l.h.Watch(Query{Kind: machines}, &From{Index: 3, Epoch: 2}, func() {}); !errors.As(err, &relist) {
		t.Errorf("from another epoch: %v", err)
	}
	var ahead *AheadError
	if _, err := l.h.Watch(Query{Kind: machines}, &From{Index: l.c.Index() + 1}, func() {}); !errors.As(err, &ahead) {
		t.Errorf("from an index to come: %v", err)
	}
	w := l.watch(Query{Kind: machines}, &From{Index: l.c.Index()})
	l.h.Reset(l.c)
	if _, _, err := w.Next(); !errors.As(err, &relist) {
		t.Errorf("after a checkpoint was installed: %v", err)
	}
}

func TestOldChangesAreForgotten(t *testing.T) {
	l := newLog(t, Config{KeepNs: 5e6})
	for i := range 20 {
		l.apply(l.machine(fmt.Sprint("m", i)))
	}
	if changes, _ := l.h.Held(); changes != 6 {
		t.Errorf("%d changes of the last 5 ms are held, of one each ms", changes)
	}
	l.h.Forget()
	if changes, bytes := l.h.Held(); changes != 0 || bytes != 0 || l.h.Oldest() != l.c.Index() {
		t.Error("something is held after Forget")
	}
}

func TestLeavingASelectorIsTold(t *testing.T) {
	l := newLog(t, Config{})
	spec := submit("a", 1, map[string]string{"tier": "x"})
	l.apply(spec)
	s, err := selector.Parse("tier=x")
	if err != nil {
		t.Fatal(err)
	}
	w := l.watch(Query{Kind: jobs, Selector: s}, nil)
	drain(t, w)
	l.apply(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "alice", Name: "a", Labels: map[string]string{"tier": "y"}, Spec: spec.GetSubmitJob().Spec}}})
	l.apply(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "a"}}})
	m := drain(t, w)
	if len(m) != 1 {
		t.Fatalf("%d messages, want that it left and no more", len(m))
	}
	c := m[0].Proto().Changes[0]
	if !c.Gone || c.IsCreate || c.Object.GetJob().GetMeta().GetLabels()["tier"] != "y" || c.Previous.GetJob().GetMeta().GetLabels()["tier"] != "x" {
		t.Errorf("it left as %v", c)
	}
	if proto.Equal(c.Object, c.Previous) {
		t.Error("it is as it was")
	}
}
