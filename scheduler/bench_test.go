package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"borg/borgmaster/cell"
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

// BenchmarkPlace fills an empty cell. What counts is the scheduler's own time:
// passes, and taking in what became of them; not the cell's.
func BenchmarkPlace(b *testing.B) {
	for _, size := range []struct {
		machines int
		metric   string
	}{
		{1000, "scheduler.place_1000.tasks_per_s"},
		{5000, "scheduler.place.tasks_per_s"},
		{10000, "scheduler.place_10000.tasks_per_s"},
	} {
		b.Run(fmt.Sprintf("machines=%d", size.machines), func(b *testing.B) {
			placed, spent := 0, time.Duration(0)
			for range b.N {
				w, tasks := bigWorld(b, size.machines)
				n, d := fill(b, w)
				if n < tasks/2 {
					b.Fatalf("placed %d of %d tasks", n, tasks)
				}
				placed += n
				spent += d
			}
			b.ReportMetric(float64(placed)/spent.Seconds(), size.metric)
		})
	}
}

// fill places what there is room for, and says how many and in what time.
func fill(b *testing.B, w *world) (placed int, spent time.Duration) {
	for {
		began := time.Now()
		batch := w.s.Pass(w.copy)
		spent += time.Since(began)
		if batch.ID == 0 {
			if !batch.More {
				return placed, spent
			}
			continue
		}
		r := w.do(assign(batch.Assign))
		began = time.Now()
		refused := w.s.Settle(w.copy, batch.ID, r)
		spent += time.Since(began)
		if refused.Count > 0 {
			b.Fatalf("refused: %v", refused.First)
		}
		placed += refused.Of
		w.catchUp()
	}
}

// BenchmarkOnlinePass is the pass that a scheduler makes all day: a full cell
// of 5,000 machines in which 20 classes of tasks wait, and one machine changed.
func BenchmarkOnlinePass(b *testing.B) {
	w, _ := bigWorld(b, 5000)
	for i := range 20 {
		w.must(b, submitJob("zoe", fmt.Sprintf("huge%d", i), service(10, 200, int64(100+i)*1000, 1<<30)))
	}
	w.settleAll(b)
	spent := time.Duration(0)
	b.ResetTimer()
	for i := range b.N {
		w.must(b, machineOp("set", options{name: "m00007", words: map[string]string{"touched": fmt.Sprint(i)}}))
		w.catchUp()
		began := time.Now()
		batch := w.s.Pass(w.copy)
		spent += time.Since(began)
		if batch.ID != 0 {
			b.Fatalf("placed %v", batch.Assign)
		}
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "scheduler.online_pass_us")
}

// BenchmarkExplain asks why a task waits that fits nowhere.
func BenchmarkExplain(b *testing.B) {
	w, _ := bigWorld(b, 5000)
	w.must(b, submitJob("zoe", "huge", service(1, 200, 100_000, 1<<30)))
	w.settleAll(b)
	b.ResetTimer()
	for range b.N {
		why, err := w.s.Explain(w.copy, cell.JobKey{User: "zoe", Name: "huge"}, 0)
		if err != nil || why.Machines != 5000 || len(why.Changes) == 0 {
			b.Fatalf("why = %+v, %v", why, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "scheduler.explain_ms")
}
