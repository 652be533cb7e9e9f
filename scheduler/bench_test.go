package scheduler_test

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/scheduler"
)

// spent is what a scheduler did for a workload, and what it took: its own time,
// not that of the cell that applies the batches.
type spent struct {
	placed int
	time   time.Duration
	// cpu is of the whole process, the collector too: on a machine that others
	// use it says more than time.
	cpu time.Duration
}

// measure adds what f takes.
func (s *spent) measure(f func()) {
	began, cpu := time.Now(), cpuTime()
	f()
	s.time += time.Since(began)
	s.cpu += cpuTime() - cpu
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pack lets a scheduler that was just made place a workload in a cell in which
// nothing runs. The cell is the scheduler's copy as well.
func pack(tb testing.TB, c *cell.Cell, cfg scheduler.Config) (*spent, *scheduler.Scheduler) {
	tb.Helper()
	s, err := scheduler.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{cell: c, copy: c, s: s, wallNs: c.WallNs(), timeNs: c.TimeNs()}
	sp := &spent{}
	for {
		var b scheduler.Batch
		sp.measure(func() { b = s.Pass(c) })
		if b.ID == 0 {
			if !b.More {
				return sp, s
			}
			continue
		}
		r, events := w.apply(assign(b.Assign))
		sp.measure(func() {
			s.Observe(c, events)
			refused := s.Settle(c, b.ID, r)
			if refused.Count > 0 {
				tb.Fatalf("refused: %v", refused.First)
			}
			sp.placed += refused.Of
		})
		c.Flush(nil)
	}
}

// loaded makes a cell of a workload in which nothing has a place yet.
func loaded(tb testing.TB, wl workload) *cell.Cell {
	tb.Helper()
	w := &world{cell: cell.New("bench", 1), wallNs: 1_800_000_000_000_000_000, timeNs: 1e9}
	for _, op := range wl.ops() {
		w.must(tb, op)
		w.log = w.log[:0]
	}
	w.cell.Flush(nil)
	return w.cell
}

// BenchmarkScratch packs 150,000 tasks onto 10,000 machines from nothing.
func BenchmarkScratch(b *testing.B) {
	for range b.N {
		b.StopTimer()
		c := loaded(b, workload{seed: 1, machines: 10_000, tasks: 150_000})
		runtime.GC()
		b.StartTimer()
		sp, s := pack(b, c, scheduler.Config{Seed: 1})
		st := s.Stats()
		b.ReportMetric(sp.time.Seconds(), "sched.scratch.10k.seconds")
		b.ReportMetric(sp.cpu.Seconds(), "sched.scratch.10k.cpu_seconds")
		b.ReportMetric(float64(sp.placed), "sched.scratch.10k.placed")
		b.ReportMetric(float64(st.Looked)/float64(sp.placed), "sched.scratch.10k.looked_per_placement")
		b.Logf("%+v, %d pending", st, pendingTasks(c))
	}
}

func pendingTasks(c *cell.Cell) (n int) {
	for range c.Pending() {
		n++
	}
	return n
}
