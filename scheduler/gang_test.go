package scheduler_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/scheduler"
)

// TestLargestGang places a gang of 10,000, with ports, in one op that fits into
// an entry of the log; and nothing of it where one task finds no place.
func TestLargestGang(t *testing.T) {
	const tasks = 10_000
	for _, machines := range []int{99, 100} {
		w := newWorld(t, scheduler.Config{})
		for i := range machines {
			w.must(t, addMachine(fmt.Sprintf("machine-%04d", i), machineSpec(100_001, 1<<40)))
		}
		spec := service(tasks, 200, 1000, 1<<20)
		spec.Gang, spec.Task.Ports = true, []string{"http", "admin"}
		w.must(t, submitJob("ann", "gang", spec))
		w.must(t, submitJob("bob", "one", service(1, 110, 1, 1<<20)))
		w.catchUp()
		most := 0
		for {
			b := w.s.Pass(w.copy)
			if b.ID == 0 && !b.More {
				break
			}
			if n := len(b.Assign.GetAssignments()); n > 0 {
				most = max(most, n)
				op := assign(b.Assign)
				if size := proto.Size(op); size > cell.MaxEntryBytes-64 {
					t.Fatalf("%d assignments in %d bytes do not fit into an entry", n, size)
				}
				if refused := w.s.Settle(w.copy, b.ID, w.must(t, op)); refused.Count > 0 {
					t.Fatalf("refused: %v", refused.First)
				}
			}
			w.catchUp()
		}
		want := 0
		if machines == 100 {
			want = tasks
		}
		_, running, _ := w.cell.Job(cell.JobKey{User: "ann", Name: "gang"}).Counts()
		if int(running) != want || max(most, 1) != max(want, 1) {
			t.Errorf("on %d machines %d of the gang run, placed by batches of up to %d; want %d at once", machines, running, most, want)
		}
		if _, running, _ := w.cell.Job(cell.JobKey{User: "bob", Name: "one"}).Counts(); running != 1 {
			t.Errorf("on %d machines the task beside the gang does not run", machines)
		}
	}
}
