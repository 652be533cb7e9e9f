package sim

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// TestAwayFrom: what a task is kept away from, by what became of its copies.
func TestAwayFrom(t *testing.T) {
	crash := func(machine string, version uint64, atNs int64) tried {
		return tried{machine: machine, crashed: true, version: version, wallNs: atNs}
	}
	const hour = 3600 * second
	for _, c := range []struct {
		name  string
		tries []tried
		ns    int64
		want  string
	}{
		{"never placed", nil, 0, ""},
		{"one crash", []tried{crash("a", 1, 0)}, 1, ""},
		{"two", []tried{crash("a", 1, 0), crash("a", 1, 1)}, hour, "a"},
		{"two, an hour ago", []tried{crash("a", 1, 0), crash("a", 1, 1)}, hour + 1, ""},
		{"three, an hour ago", []tried{crash("a", 1, 0), crash("a", 1, 0), crash("a", 1, 1)}, 2 * hour, "a"},
		{"four are as three", []tried{crash("a", 1, 0), crash("a", 1, 0), crash("a", 1, 0), crash("a", 1, 0)}, 2 * hour, ""},
		{"elsewhere since", []tried{crash("a", 1, 0), crash("a", 1, 0), crash("b", 1, 0)}, 1, ""},
		{"elsewhere in between", []tried{crash("a", 1, 0), crash("b", 1, 0), crash("a", 1, 0)}, 1, ""},
		{"another spec", []tried{crash("a", 1, 0), crash("a", 2, 0)}, 1, ""},
		{"the last one did not crash", []tried{crash("a", 1, 0), crash("a", 1, 0), {machine: "a"}}, 1, ""},
		{"the clock was set back", []tried{crash("a", 1, 5), crash("a", 1, 5)}, 4, ""},
	} {
		if got, _ := awayFrom(c.tries, c.ns); got != c.want {
			t.Errorf("%s: kept away from %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPairs has a task crash twice on one machine, and then believes something else of it.
func TestPairs(t *testing.T) {
	for _, c := range []struct {
		name, want string
		format     uint32
		believe    func(tr *truth, task *cell.Task)
		// Where it is placed then; empty: it waits.
		at string
	}{
		{"what is so", "", 10, func(*truth, *cell.Task) {}, "m2"},
		{"that it waits", "", 10, func(*truth, *cell.Task) {}, ""},
		{"that it did not crash", "S42: u/j/0 is kept away from m1", 10, func(tr *truth, task *cell.Task) { delete(tr.paired.of, task) }, ""},
		{"that it crashed elsewhere", "S42: u/j/0 is placed on m2", 10, func(tr *truth, task *cell.Task) {
			for i := range tr.paired.of[task] {
				tr.paired.of[task][i].machine = "m2"
			}
		}, "m2"},
		{"what is so", "", 11, func(*truth, *cell.Task) {}, "m2"},
		{"that it waits", "", 11, func(*truth, *cell.Task) {}, ""},
		{"that it crashed once", "S42: u/j/0 is kept away from m1", 11, func(tr *truth, task *cell.Task) { tr.paired.rows[task].copies = 1 }, ""},
		{"that it crashed three times", "S42: the crashes of u/j/0 are remembered until", 11, func(tr *truth, task *cell.Task) { tr.paired.rows[task].copies = 3 }, ""},
		{"that it crashed elsewhere", "S42: u/j/0 is placed on m2", 11, func(tr *truth, task *cell.Task) { tr.paired.rows[task].machine = "m2" }, "m2"},
	} {
		x := newPairing(t, c.format, borgpb.JobKind_JOB_KIND_BATCH)
		for n := range uint64(2) {
			x.place("m1", n)
			x.report("m1", &borgpb.TaskReport{Attempt: n + 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_FAILED), Exit: &borgpb.Exit{}})
		}
		c.believe(x.tr, x.job.Task(0))
		if c.at != "" {
			x.place(c.at, 2)
		} else {
			x.tr.keptAway()
		}
		x.says(c.name, c.want)
	}
}

// TestCrashRows has a service crash again and again, and then believes something else of it.
func TestCrashRows(t *testing.T) {
	const hour = 3600 * second
	for _, c := range []struct {
		name, want string
		believe    func(tr *truth, task *cell.Task)
	}{
		{"what is so", "", func(*truth, *cell.Task) {}},
		{"that it is forgotten", "and stays there", func(tr *truth, task *cell.Task) { tr.paired.rows[task].ns -= hour }},
		{"that it crashed there", "and stays there", func(tr *truth, task *cell.Task) { tr.paired.rows[task].machine = "m2" }},
	} {
		x := newPairing(t, 11, borgpb.JobKind_JOB_KIND_SERVICE)
		crash := func(machine string, attempt uint64, failures uint32) {
			x.report(machine, &borgpb.TaskReport{Attempt: attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF), Restarts: failures - 1, Failures: failures})
		}
		x.place("m1", 0)
		crash("m1", 1, 4)
		crash("m1", 1, 5)
		x.place("m2", 1)
		c.believe(x.tr, x.job.Task(0))
		crash("m2", 2, 5)
		x.says(c.name, c.want)
	}
	// And in the other direction: it is moved, and should not be.
	x := newPairing(t, 11, borgpb.JobKind_JOB_KIND_SERVICE)
	x.place("m1", 0)
	x.tr.paired.rows[x.job.Task(0)] = &crashRow{machine: "m2", version: 1, copies: 2, ns: x.tr.cell.TimeNs()}
	x.report("m1", &borgpb.TaskReport{Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF), Restarts: 4, Failures: 5})
	x.says("that it crashed elsewhere before", "S42: copy 1-5-0.0.1 is moved from m1 as it crashed, which its task did on m2 too")
}

// TestTiesEndInAnEntry has a copy of an update crash again and again. The deadline of the
// update ends it in the entry of the last report: the copy is moved, which is right then, and
// wrong as long as the update goes on.
func TestTiesEndInAnEntry(t *testing.T) {
	for _, c := range []struct {
		name, want string
		deadlineNs int64
		// The cell is said to have moved it in an entry before the deadline.
		early bool
	}{
		{"the update ends in the entry", "", 5 * second, false},
		{"the update goes on", "", 3600 * second, false},
		{"it is moved while the update goes on", "is moved as it crashed, which is not for that to decide", 3600 * second, true},
	} {
		x := newPairing(t, 12, borgpb.JobKind_JOB_KIND_SERVICE)
		x.place("m1", 0)
		x.report("m1", &borgpb.TaskReport{Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)})
		spec := proto.CloneOf(x.job.Spec())
		spec.Task.Args = []string{"/bin/task", "later"}
		spec.Update = &borgpb.UpdatePolicy{BatchSize: 1, ProgressDeadlineNs: c.deadlineNs}
		x.apply(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: encode(spec)}}})
		x.report("m1", &borgpb.TaskReport{Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_FINISHED), Exit: &borgpb.Exit{}})
		x.place("m2", 1)
		if !x.job.Update().Rolling() {
			t.Fatalf("%s: the update is not under way", c.name)
		}
		crash := func(failures uint32) *borgpb.Op {
			return x.reports("m2", &borgpb.TaskReport{Attempt: 2, State: int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF), Restarts: failures - 1, Failures: failures})
		}
		x.apply(crash(5))
		x.says(c.name, "")
		if c.early {
			all := x.tr.crashingBy(x.entry(crash(6)))
			if len(all) != 1 {
				t.Fatalf("%s: %d copies crash, want one", c.name, len(all))
			}
			x.tr.leftFor(&all[0], true)
			x.says(c.name, c.want)
			continue
		}
		for n := range uint32(8) {
			if p := x.job.Task(0).Current(); p == nil || !x.job.Update().Rolling() {
				break
			}
			x.apply(crash(6 + n))
		}
		if moved, over := x.w.marks["service tried elsewhere"] > 0, !x.job.Update().Rolling(); moved != over || over != (c.deadlineNs < 3600*second) {
			t.Errorf("%s: it is moved: %t, and the update is over: %t", c.name, moved, over)
		}
		x.says(c.name, c.want)
	}
}

// pairing is a cell of three machines with a job of one task, and the model beside it.
type pairing struct {
	t   *testing.T
	w   *World
	tr  *truth
	job *cell.Job
}

func newPairing(t *testing.T, format uint32, kind borgpb.JobKind) *pairing {
	x := &pairing{t: t, w: &World{marks: map[string]int{}}}
	x.w.truth = newTruth(x.w)
	x.tr = x.w.truth
	x.apply(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: format}}})
	for n := range 3 {
		x.apply(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{
			Name: fmt.Sprintf("m%d", n+1), Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:7101", PortFirst: 20000, PortLast: 20099, Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 30}},
		}}})
	}
	x.apply(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "j", Spec: encode(&borgpb.JobSpec{
		Kind: kind, Tasks: 1, Priority: 110, MaxFailures: 9,
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20, DiskBytes: 1 << 10}, Args: []string{"/bin/task"}},
	})}}})
	x.job = x.tr.cell.Job(cell.JobKey{User: "u", Name: "j"})
	return x
}

// entry is the next one of the log. Each is a second after the one before.
func (x *pairing) entry(op *borgpb.Op) []byte {
	index := int64(x.tr.index)
	return encode(&borgpb.Entry{CellTimeNs: (index + 1) * second, WallTimeNs: 1_800_000_000*second + index*second, Ops: [][]byte{encode(op)}})
}

func (x *pairing) apply(op *borgpb.Op) {
	tr := x.tr
	data := x.entry(op)
	index, crashing := tr.index+1, tr.crashingBy(data)
	results, events := tr.cell.Apply(index, 1, data)
	if r := results[0]; r.GetRefusal() != nil || len(r.GetItems()) > 0 {
		x.t.Fatalf("%v is refused: %v", op, r)
	}
	tr.index = index
	tr.pairs(borgmaster.CommittedEntry{Index: index, Term: 1, Data: data}, crashing, events)
}

func (x *pairing) place(machine string, last uint64) {
	x.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: x.job.UID().String(), Machine: machine, LastAttempt: last}}}}})
}

func (x *pairing) report(machine string, r *borgpb.TaskReport) {
	x.apply(x.reports(machine, r))
}

func (x *pairing) reports(machine string, r *borgpb.TaskReport) *borgpb.Op {
	r.JobUid = x.job.UID().String()
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: machine, Tasks: []*borgpb.TaskReport{r}}}}}}
}

func (x *pairing) says(believed, want string) {
	x.t.Helper()
	if said := errorText(x.w.failure); (want == "") != (said == "") || !strings.Contains(said, want) {
		x.t.Errorf("%s: the run says %q, want %q", believed, said, want)
	}
}
