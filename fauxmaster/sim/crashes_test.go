package sim

import (
	"fmt"
	"strings"
	"testing"

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
		believe    func(tr *truth, task *cell.Task)
		// Where it is placed then; empty: it waits.
		at string
	}{
		{"what is so", "", func(*truth, *cell.Task) {}, "m2"},
		{"that it waits", "", func(*truth, *cell.Task) {}, ""},
		{"that it did not crash", "S42: u/j/0 is kept away from m1", func(tr *truth, task *cell.Task) { delete(tr.paired.of, task) }, ""},
		{"that it crashed elsewhere", "S42: u/j/0 is placed on m2", func(tr *truth, task *cell.Task) {
			for i := range tr.paired.of[task] {
				tr.paired.of[task][i].machine = "m2"
			}
		}, "m2"},
	} {
		w := &World{marks: map[string]int{}}
		w.truth = newTruth(w)
		tr := w.truth
		apply := func(op *borgpb.Op) {
			data := encode(&borgpb.Entry{CellTimeNs: int64(tr.index+1) * second, WallTimeNs: 1_800_000_000*second + int64(tr.index)*second, Ops: [][]byte{encode(op)}})
			index := tr.index + 1
			results, events := tr.cell.Apply(index, 1, data)
			if r := results[0]; r.GetRefusal() != nil || len(r.GetItems()) > 0 {
				t.Fatalf("%s: %v is refused: %v", c.name, op, r)
			}
			tr.index = index
			tr.pairs(borgmaster.CommittedEntry{Index: index, Term: 1, Data: data}, events)
		}
		apply(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
		for n := range 2 {
			apply(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{
				Name: fmt.Sprintf("m%d", n+1), Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:7101", PortFirst: 20000, PortLast: 20099, Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 30}},
			}}})
		}
		apply(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "j", Spec: encode(&borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: 110, MaxFailures: 9,
			Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20, DiskBytes: 1 << 10}, Args: []string{"/bin/task"}},
		})}}})
		j := tr.cell.Job(cell.JobKey{User: "u", Name: "j"})
		place := func(machine string, last uint64) {
			apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.UID().String(), Machine: machine, LastAttempt: last}}}}})
		}
		for n := range uint64(2) {
			place("m1", n)
			apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m1", Tasks: []*borgpb.TaskReport{{
				JobUid: j.UID().String(), Attempt: n + 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_FAILED), Exit: &borgpb.Exit{},
			}}}}}}})
		}
		c.believe(tr, j.Task(0))
		if c.at != "" {
			place(c.at, 2)
		} else {
			tr.keptAway()
		}
		if said := errorText(w.failure); (c.want == "") != (said == "") || !strings.Contains(said, c.want) {
			t.Errorf("%s: the run says %q, want %q", c.name, said, c.want)
		}
	}
}
