package scheduler_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// unlikes are jobs of the free band that wait, by what makes no two alike.
var unlikes = map[string]func(spec *borgpb.JobSpec, i int){
	// Attributes that no machine has, of which one must be there.
	"attributes": func(spec *borgpb.JobSpec, i int) {
		like(spec, func(k int) (string, string) { return fmt.Sprintf("k%d-%d", i, k), "x" })
	},
	// Values of an attribute that machines have, of which one must be there.
	"values": func(spec *borgpb.JobSpec, i int) {
		like(spec, func(k int) (string, string) { return "rack", fmt.Sprintf("r%d-%d", i, k) })
	},
	// What no machine is large enough for.
	"large": func(spec *borgpb.JobSpec, i int) {
		like(spec, func(k int) (string, string) { return fmt.Sprintf("k%d-%d", i, k), "x" })
		spec.Task.Constraints = spec.Task.Constraints[1:]
		spec.Task.Resources.CpuMilli, spec.Task.Resources.MemBytes = int64(33_000+i), int64(64<<30-i<<10)
	},
}

// like gives a job one hard constraint and 29 soft ones.
func like(spec *borgpb.JobSpec, of func(k int) (key, value string)) {
	for k := range 30 {
		key, value := of(k)
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{
			Key: key, Relation: borgpb.Relation_RELATION_EQUAL, Value: value, Soft: k > 0,
		})
	}
}

// BenchmarkUnlike measures how long a production task waits for the scheduler to place it
// while one user has many pending jobs of the free band, no two alike. It is also how long
// the scheduler is busy when the task has ended, and what it holds for each of those jobs.
func BenchmarkUnlike(b *testing.B) {
	for _, machines := range []int{2, 1000} {
		for _, jobs := range []int{0, 5000, 20_000} {
			for _, name := range slices.Sorted(maps.Keys(unlikes)) {
				b.Run(fmt.Sprintf("machines=%d/jobs=%d/%s", machines, jobs, name), func(b *testing.B) {
					for range b.N {
						benchUnlike(b, machines, jobs, unlikes[name])
					}
				})
			}
		}
	}
}

func benchUnlike(b *testing.B, machines, jobs int, unlike func(*borgpb.JobSpec, int)) {
	w := newWorld(b, scheduler.Config{Seed: 1})
	w.copy = w.cell
	for i := range machines {
		w.must(b, addMachine(fmt.Sprintf("m%05d", i), machineSpec(32_000, 64<<30, "rack=r", "arch=x")))
	}
	empty := heapBytes()
	for i := range jobs {
		spec := service(5, 0, int64(i+1), 1<<20)
		unlike(spec, i)
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
