package scheduler_test

import (
	"fmt"
	"testing"

	"borg/scheduler"
)

// bigWorld is a cell of n machines in racks of 40 and power domains of 400, and
// jobs of all sizes that together ask for about two thirds of it.
func bigWorld(tb testing.TB, machines int) (*world, int) {
	w := newWorld(tb, scheduler.Config{Seed: 1})
	for i := range machines {
		w.must(tb, addMachine(fmt.Sprintf("m%05d", i), machineSpec(
			int64(16+16*(i%3))*1000, int64(64+64*(i%3))<<30,
			fmt.Sprintf("rack=r%d", i/40), fmt.Sprintf("power=p%d", i/400), fmt.Sprintf("gen=%d", i%5),
		)))
	}
	tasks := 0
	for i := 0; tasks < machines*10; i++ {
		n := uint32(1 + (i*i*7)%200)
		spec := service(n, []int32{100, 110, 200, 360}[i%4], int64(200+(i%8)*400), int64(1+(i%6)*2)<<30)
		if i%5 == 0 {
			spec.Task.Constraints = constraints([]string{fmt.Sprintf("gen>=%d", i%4)}, false)
		}
		if i%7 == 0 {
			spec.Task.Ports = []string{"http"}
		}
		w.must(tb, submitJob(fmt.Sprintf("user%d", i%9), fmt.Sprintf("job%d", i), spec))
		tasks += int(n)
	}
	w.catchUp()
	return w, tasks
}

// BenchmarkPlace fills an empty cell: search, promises, and the copy's own
// Apply of what was placed. The cell's Apply is outside the clock.
func BenchmarkPlace(b *testing.B) {
	for _, machines := range []int{1000, 5000, 10000} {
		b.Run(fmt.Sprintf("machines=%d", machines), func(b *testing.B) {
			placed := 0
			for range b.N {
				b.StopTimer()
				w, _ := bigWorld(b, machines)
				b.StartTimer()
				for {
					batch := w.s.Pass(w.copy)
					if batch.ID == 0 && !batch.More {
						break
					}
					if batch.ID == 0 {
						continue
					}
					b.StopTimer()
					r := w.do(assign(batch.Assign))
					b.StartTimer()
					refused := w.s.Settle(w.copy, batch.ID, r)
					if refused.Count > 0 {
						b.Fatalf("refused: %v", refused.First)
					}
					placed += refused.Of
					w.catchUp()
				}
			}
			b.ReportMetric(float64(placed)/b.Elapsed().Seconds(), "scheduler.place.tasks_per_s")
		})
	}
}

// BenchmarkIdlePass is a pass over a full cell in which 20 classes wait and one
// machine changed.
func BenchmarkIdlePass(b *testing.B) {
	w, _ := bigWorld(b, 5000)
	for i := range 20 {
		w.must(b, submitJob("zoe", fmt.Sprintf("huge%d", i), service(10, 200, int64(100+i)*1000, 1<<30)))
	}
	w.settleAll(b)
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		w.must(b, machineOp("set", options{name: "m00007", words: map[string]string{"touched": "1"}}))
		w.catchUp()
		b.StartTimer()
		if batch := w.s.Pass(w.copy); batch.ID != 0 {
			b.Fatalf("placed %v", batch.Assign)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "scheduler.online_pass_ms")
}
