package borgmaster

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// applyTo applies an op that the cell must take.
func applyTo(tb testing.TB, c *cell.Cell, op *borgpb.Op) {
	tb.Helper()
	data, err := proto.Marshal(op)
	if err != nil {
		tb.Fatal(err)
	}
	index := c.Index() + 1
	entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: int64(index), WallTimeNs: 1e18 + int64(index), Ops: [][]byte{data}})
	if err != nil {
		tb.Fatal(err)
	}
	if results, _ := c.Apply(index, 1, entry); results[0].GetRefusal() != nil {
		tb.Fatalf("%v: %v", op, results[0].GetRefusal())
	}
}

// cellOf has machines, and jobs of so many tasks that wait.
func cellOf(tb testing.TB, machines, jobs int, tasks uint32) *cell.Cell {
	tb.Helper()
	c := cell.New("c", 1)
	for i := range machines {
		applyTo(tb, c, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: fmt.Sprintf("m%d", i), Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}}}}})
	}
	for i := range jobs {
		spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: tasks, Priority: int32(i % 451),
			Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20}, Args: []string{"true"}}})
		if err != nil {
			tb.Fatal(err)
		}
		applyTo(tb, c, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: fmt.Sprintf("j%d", i), Spec: spec}}})
	}
	return c
}

// TestTally counts a cell, and names of what waits the most important jobs.
func TestTally(t *testing.T) {
	c := cellOf(t, 7, 451, 3)
	var got tally
	got.count(c)
	if got.up != 7 || got.down != 0 || got.capacity.CPUMilli != 7000 || got.all != (taskCounts{pending: 3 * 451}) {
		t.Errorf("counted %+v", got)
	}
	for i, want := range []int{91, 240, 4, 16, 100} {
		if got.jobs[i] != want || got.tasks[i].pending != int64(3*want) {
			t.Errorf("band %s: %d jobs, %d tasks pending; want %d, %d", bands[i].name, got.jobs[i], got.tasks[i].pending, want, 3*want)
		}
	}
	if got.prodPending() != 3*(91+240) {
		t.Errorf("%d of production wait, want %d", got.prodPending(), 3*(91+240))
	}
	if len(got.waiting) != maxWaitingNamed || got.waitingMore != 451-maxWaitingNamed || got.waiting[0].priority != 450 || got.waiting[14].priority != 436 {
		t.Errorf("what waits: %+v and %d more", got.waiting, got.waitingMore)
	}
}

// BenchmarkTally is what a scrape costs the log, at most once a second: the cell is
// held for so long.
func BenchmarkTally(b *testing.B) {
	for _, jobs := range []int{1500, 150_000} {
		b.Run(fmt.Sprintf("machines=10000,tasks=150000,jobs=%d", jobs), func(b *testing.B) {
			c := cellOf(b, 10_000, jobs, uint32(150_000/jobs))
			for b.Loop() {
				var t tally
				t.count(c)
			}
		})
	}
}
