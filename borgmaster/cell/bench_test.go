package cell

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"borg/proto/borgpb"
)

const (
	benchMachines = 1_000
	benchTasks    = 20_000
	benchBatch    = 500
)

// benchEntries are a cell's life in batches: machines, a job, all of its tasks
// assigned and reported running.
func benchEntries(b *testing.B) (setup, assigns, reports [][]byte) {
	l := newTestLog(b)
	for i := range benchMachines {
		setup = append(setup, l.entry(addMachine(fmt.Sprintf("m%05d", i), 1<<20, 1<<40)))
	}
	spec := service(benchTasks, 200, 100, 1<<20)
	spec.Task.Ports = []string{"http"}
	setup = append(setup, l.entry(submitJob(b, "web", spec)))
	uid := UID{1, benchMachines + 1, 0}.String()
	for first := 0; first < benchTasks; first += benchBatch {
		a, r := new(borgpb.Assign), new(borgpb.Reports)
		for i := first; i < first+benchBatch; i++ {
			m := fmt.Sprintf("m%05d", i%benchMachines)
			a.Assignments = append(a.Assignments, &borgpb.Assignment{
				Uid: uid, Index: uint32(i), Machine: m, Ports: []uint32{20000 + uint32(i/benchMachines)}, Version: 1,
			})
			r.Machines = append(r.Machines, &borgpb.MachineReport{Machine: m, Tasks: []*borgpb.TaskReport{
				{JobUid: uid, Index: uint32(i), Attempt: 1, State: 3, Pid: int64(i + 1), StartedWallNs: l.wallNs},
			}})
		}
		assigns = append(assigns, l.entry(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: a}}))
		reports = append(reports, l.entry(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: r}}))
	}
	return setup, assigns, reports
}

// newBench is an empty cell of the latest format, as one that runs.
func newBench() *Cell {
	c := New("bench", 1)
	c.format = BuildFormat
	return c
}

func applyAll(b *testing.B, c *Cell, entries [][]byte) {
	for _, e := range entries {
		results, _ := c.Apply(c.Index()+1, 1, e)
		if r := results[0]; r.Refusal != nil || r.Items != nil {
			b.Fatalf("refused: %v", r)
		}
	}
}

// BenchmarkApply applies assignments and reports in batches of 500, and
// flushes what changed as a replica does.
func BenchmarkApply(b *testing.B) {
	setup, assigns, reports := benchEntries(b)
	for _, name := range []string{"assign", "report"} {
		entries := assigns
		if name == "report" {
			entries = reports
		}
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				c := newBench()
				applyAll(b, c, setup)
				if name == "report" {
					applyAll(b, c, assigns)
				}
				c.Flush(func(k, v []byte) {})
				b.StartTimer()
				applyAll(b, c, entries)
			}
			b.ReportMetric(float64(b.N)*benchTasks/b.Elapsed().Seconds(), "cell.apply."+name+"s_per_s")
		})
	}
	b.Run("ops", func(b *testing.B) {
		flushed := 0
		for range b.N {
			b.StopTimer()
			c := newBench()
			applyAll(b, c, setup)
			b.StartTimer()
			applyAll(b, c, assigns)
			applyAll(b, c, reports)
			c.Flush(func(k, v []byte) { flushed += len(v) })
		}
		b.ReportMetric(2*float64(b.N)*benchTasks/b.Elapsed().Seconds(), "cell.apply.ops_per_s")
	})
}

// BenchmarkLoad reads a cell of running tasks.
func BenchmarkLoad(b *testing.B) {
	setup, assigns, reports := benchEntries(b)
	c := newBench()
	applyAll(b, c, setup)
	applyAll(b, c, assigns)
	applyAll(b, c, reports)
	for b.Loop() {
		reload(b, c)
	}
	b.ReportMetric(float64(b.N)*benchTasks/b.Elapsed().Seconds(), "cell.load.tasks_per_s")
}

// BenchmarkBytesPerTask weighs a running task in memory.
func BenchmarkBytesPerTask(b *testing.B) {
	setup, assigns, reports := benchEntries(b)
	var perTask float64
	for range b.N {
		c := newBench()
		applyAll(b, c, setup)
		c.Flush(nil)
		before := heapBytes()
		applyAll(b, c, assigns)
		applyAll(b, c, reports)
		c.Flush(func(k, v []byte) {})
		perTask = float64(heapBytes()-before) / benchTasks
		runtime.KeepAlive(c)
	}
	// Rows are made at submit.
	row := float64(unsafe.Sizeof(Task{}) + unsafe.Sizeof(&Task{}))
	b.ReportMetric(perTask+row, "cell.bytes_per_task")
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
