package scheduler_test

import (
	"fmt"
	"runtime"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// BenchmarkUnlike measures how long a production task waits for the scheduler to place it
// while one user has many pending jobs, no two alike, of the free band. Each has a hard
// constraint that no machine meets, and 29 soft ones.
func BenchmarkUnlike(b *testing.B) {
	for _, machines := range []int{2, 1000} {
		for _, jobs := range []int{0, 5000, 20_000} {
			b.Run(fmt.Sprintf("machines=%d/jobs=%d", machines, jobs), func(b *testing.B) {
				for range b.N {
					benchUnlike(b, machines, jobs)
				}
			})
		}
	}
}

func benchUnlike(b *testing.B, machines, jobs int) {
	w := newWorld(b, scheduler.Config{Seed: 1})
	w.copy = w.cell
	for i := range machines {
		w.must(b, addMachine(fmt.Sprintf("m%05d", i), machineSpec(32_000, 64<<30, "rack=r", "arch=x")))
	}
	empty := heapBytes()
	for i := range jobs {
		spec := service(5, 0, int64(i+1), 1<<20)
		for k := range 30 {
			spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{
				Key: fmt.Sprintf("k%d-%d", i, k), Relation: borgpb.Relation_RELATION_EQUAL, Value: "x", Soft: k > 0,
			})
		}
		w.must(b, submitJob("mallory", fmt.Sprint("job", i), spec))
	}
	full := heapBytes()
	w.online(b, &spent{})
	if jobs > 0 {
		b.ReportMetric(float64(full-empty)/float64(jobs), "cell_B/job")
		b.ReportMetric(float64(heapBytes()-full)/float64(jobs), "B/job")
	}
	var starts, ends []float64
	for i := range 30 {
		name := fmt.Sprint("prod", i)
		sp := &spent{}
		w.take(b, sp, submitJob("bob", name, service(1, 200, 50, 1<<20)))
		w.online(b, sp)
		starts = append(starts, 1000*sp.time.Seconds())
		j := w.cell.Job(cell.JobKey{User: "bob", Name: name})
		p := j.Task(0).Current()
		if p == nil {
			b.Fatal("a production task waits")
		}
		sp = &spent{}
		w.take(b, sp, asUser("bob", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "bob", Name: name}}}))
		w.take(b, sp, reported(j, 0, p.Machine().Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
		w.online(b, sp)
		ends = append(ends, 1000*sp.time.Seconds())
	}
	b.ReportMetric(percentile(starts, 50), "start_p50_ms")
	b.ReportMetric(percentile(starts, 95), "start_p95_ms")
	b.ReportMetric(percentile(ends, 50), "end_p50_ms")
}

// heapBytes is what lives on the heap.
func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
