package scheduler_test

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
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

// packSome lets a scheduler that was just made place a workload in a cell in
// which nothing runs, until so many have places. The cell is the scheduler's
// copy as well.
func packSome(tb testing.TB, c *cell.Cell, cfg scheduler.Config, most int) (*spent, *scheduler.Scheduler) {
	cfg.BatchCount = min(most, 1000)
	cfg.PassChecks = 1 << 30
	sp, s := &spent{}, (*scheduler.Scheduler)(nil)
	w := &world{cell: c, copy: c, wallNs: c.WallNs(), timeNs: c.TimeNs()}
	sp.measure(func() {
		var err error
		if s, err = scheduler.New(cfg); err != nil {
			tb.Fatal(err)
		}
	})
	for sp.placed < most {
		var b scheduler.Batch
		sp.measure(func() { b = s.Pass(c) })
		if b.ID == 0 && !b.More {
			break
		}
		if b.ID == 0 {
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
	return sp, s
}

func pack(tb testing.TB, c *cell.Cell, cfg scheduler.Config) (*spent, *scheduler.Scheduler) {
	tb.Helper()
	return packSome(tb, c, cfg, 1<<30)
}

// again makes another cell of one's records.
func again(tb testing.TB, c *cell.Cell) *cell.Cell {
	tb.Helper()
	o, err := cell.Load(c.Records())
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func (s *spent) perPlacement() float64 { return s.cpu.Seconds() / float64(s.placed) }

// workload10k is what most figures are of.
var workload10k = workload{seed: 1, machines: 10_000, tasks: 150_000}

// BenchmarkScratch packs 150,000 tasks onto 10,000 machines from nothing, then
// does it with each technique off. What is slow is cut off after so many
// placements and compared by the CPU time of one.
func BenchmarkScratch(b *testing.B) {
	empty := loaded(b, workload10k)
	base := scheduler.Config{Seed: 1}
	const all = 1 << 20
	for range b.N {
		// The first one warms up the heap, as the cell that a scheduler follows
		// has long done. Of three more the median counts.
		pack(b, again(b, empty), base)
		type run struct {
			*spent
			s *scheduler.Scheduler
		}
		var runs []run
		for range 3 {
			sp, s := pack(b, again(b, empty), base)
			runs = append(runs, run{sp, s})
		}
		slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.time, b.time) })
		on := runs[1].spent
		report(b, "sched.scratch.10k", on, runs[1].s)
		runs = nil
		for _, v := range []struct {
			name string
			most int
			cfg  scheduler.Config
		}{
			{"no_classes", 20_000, scheduler.Config{Seed: 1, NoClasses: true}},
			{"no_sampling", 20_000, scheduler.Config{Seed: 1, Enough: all}},
			{"no_sampling_no_score_cache", 20_000, scheduler.Config{Seed: 1, Enough: all, NoScoreCache: true}},
			{"all_off", 1_000, scheduler.Config{Seed: 1, Enough: all, NoClasses: true, NoScoreCache: true}},
		} {
			off, _ := packSome(b, again(b, empty), v.cfg, v.most)
			b.ReportMetric(off.perPlacement()/on.perPlacement(), "sched."+v.name+"_over_on.10k.ratio")
		}
		b.ReportMetric(plainPerPlacement(again(b, empty), 20)/on.perPlacement(), "sched.plain_over_on.10k.ratio")
	}
}

// report gives the figures of one packing.
func report(b *testing.B, name string, sp *spent, s *scheduler.Scheduler) {
	st := s.Stats()
	b.ReportMetric(sp.time.Seconds(), name+".seconds")
	b.ReportMetric(sp.cpu.Seconds(), name+".cpu_seconds")
	b.ReportMetric(float64(sp.placed), name+".placed")
	b.ReportMetric(float64(sp.placed)/sp.time.Seconds(), name+".placements_per_s")
	b.ReportMetric(float64(sp.placed)/sp.cpu.Seconds(), name+".placements_per_cpu_s")
	b.ReportMetric(1e9*sp.perPlacement(), name+".cpu_ns_per_placement")
	b.ReportMetric(float64(st.Looked)/float64(st.Placed), name+".looked_per_placement")
	b.ReportMetric(float64(st.Feasible)/float64(st.Placed), name+".feasible_per_placement")
	b.ReportMetric(float64(st.Preempted), name+".evictions")
	cpu, mem := scheduler.Stranded(s)
	b.ReportMetric(float64(cpu), name+".stranded_cpu_percent")
	b.ReportMetric(float64(mem), name+".stranded_mem_percent")
	b.ReportMetric(float64(scheduler.NumClasses(s)), name+".classes")
	b.ReportMetric(float64(st.Searches)/float64(max(scheduler.NumClasses(s), 1)), name+".searches_per_class")
	if n := st.CacheHits + st.CacheMisses; n > 0 {
		b.ReportMetric(100*float64(st.CacheHits)/float64(n), name+".cache_hit_percent")
	}
}

// plainPerPlacement is the CPU time of the reference for a few tasks.
func plainPerPlacement(c *cell.Cell, tasks int) float64 {
	p := newPlain(c, scheduler.Config{Weights: scheduler.DefaultWeights()})
	n, began := 0, cpuTime()
	for j, index := range c.Pending() {
		if _, inside := j.AllocSet(); inside || j.NumTasks() > 1 {
			continue
		}
		p.best(j, index)
		if n++; n == tasks {
			break
		}
	}
	return (cpuTime() - began).Seconds() / float64(n)
}

// BenchmarkExhaustive looks at all machines for every task.
func BenchmarkExhaustive(b *testing.B) {
	empty := loaded(b, workload10k)
	for range b.N {
		sp, s := pack(b, again(b, empty), scheduler.Config{Seed: 1, Enough: 1 << 20})
		report(b, "sched.exhaustive.10k", sp, s)
	}
}

// BenchmarkDistinct packs 150,000 jobs of one task each, no two alike.
func BenchmarkDistinct(b *testing.B) {
	empty := loaded(b, workload{seed: 1, machines: 10_000, tasks: 150_000, distinct: true})
	for range b.N {
		sp, s := pack(b, again(b, empty), scheduler.Config{Seed: 1})
		report(b, "sched.distinct.10k", sp, s)
	}
}

// BenchmarkGrowth packs 1,000,000 tasks onto 100,000 machines, and 15,000 onto
// 1,000, for what a placement costs in each.
func BenchmarkGrowth(b *testing.B) {
	for range b.N {
		small, _ := pack(b, loaded(b, workload{seed: 1, machines: 1_000, tasks: 10_000}), scheduler.Config{Seed: 1})
		large, s := pack(b, loaded(b, workload{seed: 1, machines: 100_000, tasks: 1_000_000}), scheduler.Config{Seed: 1})
		report(b, "sched.scratch.100k", large, s)
		b.ReportMetric(large.perPlacement()/small.perPlacement(), "sched.growth.100k_over_1k.ratio")
		// Of the whole process, with the cell, the ops that made it, and the log's
		// entries.
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.Sys), "sched.scratch.100k.process_bytes")
		runtime.GC()
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapAlloc), "sched.scratch.100k.live_bytes")
		runtime.KeepAlive(s)
	}
}

// full is a cell in which a workload runs, and its scheduler.
func full(tb testing.TB, wl workload) *world {
	c := loaded(tb, wl)
	_, s := pack(tb, c, scheduler.Config{Seed: 1})
	return &world{cell: c, copy: c, s: s, wallNs: c.WallNs(), timeNs: c.TimeNs()}
}

// take applies an op and lets the scheduler see it.
func (w *world) take(tb testing.TB, sp *spent, op *borgpb.Op) {
	r, events := w.apply(op)
	if r.GetRefusal() != nil {
		tb.Fatal(r.GetRefusal())
	}
	sp.measure(func() { w.s.Observe(w.cell, events) })
	w.cell.Flush(nil)
}

// online makes one pass and applies what it decided.
func (w *world) online(tb testing.TB, sp *spent) {
	var b scheduler.Batch
	sp.measure(func() { b = w.s.Pass(w.cell) })
	if b.ID == 0 {
		return
	}
	r, events := w.apply(assign(b.Assign))
	w.s.Observe(w.cell, events)
	if refused := w.s.Settle(w.cell, b.ID, r); refused.Count > 0 {
		tb.Fatalf("refused: %v", refused.First)
	}
	sp.placed += len(b.Assign.Assignments)
}

// BenchmarkOnline is what a scheduler does all day, on a full cell of 10,000
// machines: a pass for 200 tasks of 20 classes that have just come, two of
// which fit nowhere, and one for a single task. What is measured is taking in
// what came, and the pass.
func BenchmarkOnline(b *testing.B) {
	for range b.N {
		w := full(b, workload10k)
		runtime.GC()
		n := 0
		var passes, passesCPU []float64
		for range 100 {
			sp := &spent{}
			for i := range 20 {
				cpuMilli := int64(100 + i*50)
				if i >= 18 {
					cpuMilli = 200_000
				}
				w.take(b, sp, submitJob("zoe", fmt.Sprintf("online%d", n), service(10, []int32{110, 200}[i%2], cpuMilli, int64(i+1)<<28)))
				n++
			}
			w.online(b, sp)
			passes, passesCPU = append(passes, sp.time.Seconds()), append(passesCPU, sp.cpu.Seconds())
			for i := range 2 {
				w.take(b, &spent{}, asUser("zoe", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "zoe", Name: fmt.Sprintf("online%d", n-1-i)}}}))
			}
		}
		b.ReportMetric(1000*percentile(passes, 95), "sched.online200.p95_ms")
		b.ReportMetric(1000*percentile(passesCPU, 50), "sched.online200.cpu_p50_ms")
		var ones, onesCPU []float64
		for range 1000 {
			sp := &spent{}
			w.take(b, sp, submitJob("zoe", fmt.Sprintf("online%d", n), service(1, 200, 300, 1<<29)))
			n++
			w.online(b, sp)
			if sp.placed != 1 {
				b.Fatal("one task found no place")
			}
			ones, onesCPU = append(ones, sp.time.Seconds()), append(onesCPU, sp.cpu.Seconds())
		}
		b.ReportMetric(1000*percentile(ones, 99), "sched.one_task.p99_ms")
		b.ReportMetric(1000*percentile(onesCPU, 50), "sched.one_task.cpu_p50_ms")
		w.failover(b)
		b.ReportMetric(w.allocsPerPlacement(b), "sched.allocs_per_placement")
	}
}

// failover is what a scheduler that was just made needs for its first placement.
func (w *world) failover(b *testing.B) {
	w.take(b, &spent{}, submitJob("zoe", "after-failover", service(1, 200, 300, 1<<29)))
	sp := &spent{}
	sp.measure(func() {
		s, err := scheduler.New(scheduler.Config{Seed: 1})
		if err != nil {
			b.Fatal(err)
		}
		sp.placed = len(s.Pass(w.cell).Assign.GetAssignments())
	})
	if sp.placed == 0 {
		b.Fatal("nothing was placed after the fail-over")
	}
	b.ReportMetric(1000*sp.time.Seconds(), "sched.first_after_failover.ms")
	b.ReportMetric(1000*sp.cpu.Seconds(), "sched.first_after_failover.cpu_ms")
}

// allocsPerPlacement counts what passes of 1,000 placements each allocate, after
// as many as the scheduler remembers.
func (w *world) allocsPerPlacement(tb testing.TB) float64 {
	w.take(tb, &spent{}, submitJob("zoe", "many", service(80_000, 200, 20, 1<<24)))
	for range 70 {
		w.online(tb, &spent{})
	}
	var allocs, placed uint64
	for range 8 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		batch := w.s.Pass(w.cell)
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
		placed += uint64(len(batch.Assign.Assignments))
		r, events := w.apply(assign(batch.Assign))
		w.s.Observe(w.cell, events)
		w.s.Settle(w.cell, batch.ID, r)
	}
	return float64(allocs) / float64(placed)
}

// TestPlacementsAllocateNothing counts: less than one allocation in a hundred
// placements is growth of what is kept.
func TestPlacementsAllocateNothing(t *testing.T) {
	w := full(t, workload{seed: 1, machines: 600, tasks: 1000, fillPercent: 20})
	if n := w.allocsPerPlacement(t); n > 0.01 {
		t.Errorf("%v allocations per placement, want none", n)
	}
}

// BenchmarkSeveral lets one scheduler for services and three for batch work at once
// on a cell of 2,000 machines that is full to 60 %. In each of 200 rounds 40 jobs
// come and as many as came 10 rounds before go; the four take in what the log holds,
// decide on the same state, and send.
func BenchmarkSeveral(b *testing.B) {
	const rounds, jobs, stay = 200, 40, 10
	for range b.N {
		w := full(b, workload{seed: 1, machines: 2_000, tasks: 30_000, fillPercent: 60})
		sv := newSeveral(b, w.cell, scheduler.Config{Seed: 1}, "service", "batch 1/3", "batch 2/3", "batch 3/3")
		for _, s := range sv.schedulers {
			s.lag = 0
		}
		var come []*borgpb.SubmitJob
		for _, op := range (workload{seed: 2, machines: 2_000, tasks: 60_000, plain: true, fillPercent: 120}).ops() {
			if submit := op.GetSubmitJob(); submit != nil && len(come) < rounds*jobs {
				submit.Name = "late-" + submit.Name
				come = append(come, submit)
			}
		}
		if len(come) < jobs*stay {
			b.Fatalf("only %d jobs come", len(come))
		}
		for round := 0; (round+1)*jobs <= len(come); round++ {
			for _, submit := range come[round*jobs : (round+1)*jobs] {
				sv.write(asUser(submit.User, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: submit}}))
			}
			if gone := round - stay; gone >= 0 {
				for _, submit := range come[gone*jobs : (gone+1)*jobs] {
					sv.write(asUser(submit.User, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: submit.User, Name: submit.Name}}}))
					sv.end(submit)
				}
			}
			sv.round(b)
		}
		all := sv.stats()
		b.ReportMetric(float64(all.ConflictFraction())/1000, "sched.conflict_fraction.ratio")
		b.ReportMetric(float64(sv.refused)/float64(max(sv.placed, 1)), "sched.conflicts_per_placement.ratio")
		b.ReportMetric(float64(all.Transactions), "sched.conflict_fraction.transactions")
	}
}

// BenchmarkHandOver is what sharing costs at least: two threads have as much to do
// each, and how much later than alone they are done is what it took to give one of
// them its part and to hear that it is done.
func BenchmarkHandOver(b *testing.B) {
	const work = 50 * time.Microsecond
	busy := func() {
		for began := time.Now(); time.Since(began) < work; {
		}
	}
	var late []float64
	for b.Loop() {
		began := time.Now()
		scheduler.HandOver(busy)
		late = append(late, float64((time.Since(began)-work).Nanoseconds())/1000)
	}
	b.ReportMetric(percentile(late, 50), "sched.threads.handover_us")
}

// BenchmarkThreads places 20,000 tasks looking at all of 10,000 machines, with one
// thread and with two.
func BenchmarkThreads(b *testing.B) {
	empty := loaded(b, workload10k)
	for range b.N {
		took := func(threads int) *spent {
			c := again(b, empty)
			runtime.GC()
			sp, _ := packSome(b, c, scheduler.Config{Seed: 1, Enough: 1 << 20, Threads: threads}, 20_000)
			return sp
		}
		one, two := took(1), took(2)
		b.ReportMetric(one.time.Seconds()/two.time.Seconds(), "sched.exhaustive.10k.two_threads.ratio")
		b.ReportMetric(two.cpu.Seconds()/one.cpu.Seconds(), "sched.exhaustive.10k.two_threads_cpu.ratio")
	}
}

// percentile of figures, by nearest rank.
func percentile(figures []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// BenchmarkExplain asks why a task waits that fits nowhere.
func BenchmarkExplain(b *testing.B) {
	w := full(b, workload{seed: 1, machines: 5_000, tasks: 75_000})
	w.take(b, &spent{}, submitJob("zoe", "huge", service(1, 200, 200_000, 1<<30)))
	for b.Loop() {
		why, err := w.s.Explain(w.cell, cell.JobKey{User: "zoe", Name: "huge"}, 0)
		if err != nil || why.Machines != 5000 || len(why.Changes) == 0 {
			b.Fatalf("why = %+v, %v", why, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "sched.explain_ms")
}

// BenchmarkCompact is onto how few machines the workload fits, by policy and by
// how many machines are looked at: sums over five cells, one trial each.
func BenchmarkCompact(b *testing.B) {
	const all = 1 << 20
	for range b.N {
		sums := make(map[scheduler.Config]float64)
		sampled, exhaustive := scheduler.Config{Seed: 1}, scheduler.Config{Seed: 1, Enough: all}
		bestFit, worstFit := scheduler.Config{Seed: 1, Enough: all, Policy: scheduler.BestFit}, scheduler.Config{Seed: 1, Enough: all, Policy: scheduler.WorstFit}
		for seed := range uint64(5) {
			c := loaded(b, workload{seed: seed, machines: 1_000, tasks: 15_000, fillPercent: 60})
			for _, cfg := range []scheduler.Config{sampled, exhaustive, bestFit, worstFit} {
				n, ok, err := scheduler.Compact(c, cfg, seed)
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					b.Logf("seed %d, %v, enough %d: it does not fit onto all machines", seed, cfg.Policy, cfg.Enough)
				}
				b.Logf("seed %d, %v, enough %d: %d machines", seed, cfg.Policy, cfg.Enough, n)
				sums[cfg] += float64(n)
			}
		}
		b.ReportMetric(sums[sampled]/sums[exhaustive], "sched.sampled_over_all.machines_ratio")
		b.ReportMetric(sums[exhaustive]/sums[bestFit], "sched.hybrid_over_bestfit.machines_ratio")
		b.ReportMetric(sums[bestFit]/sums[worstFit], "sched.bestfit_over_worstfit.machines_ratio")
		b.ReportMetric(sums[exhaustive]/5/1000, "sched.hybrid.compacted_ratio")
	}
}

// BenchmarkPreempt places production tasks on a full cell of 10,000 machines:
// most need others to give way.
func BenchmarkPreempt(b *testing.B) {
	for range b.N {
		w := full(b, workload{seed: 1, machines: 10_000, tasks: 150_000, fillPercent: 95})
		w.take(b, &spent{}, submitJob("zoe", "prod", service(5000, 240, 6000, 16<<30)))
		before, sp := w.s.Stats(), &spent{}
		for range 20 {
			w.online(b, sp)
		}
		after := w.s.Stats()
		b.ReportMetric(float64(sp.placed)/sp.cpu.Seconds(), "sched.preempt.placements_per_cpu_s")
		b.ReportMetric(float64(after.Preempted-before.Preempted)/float64(sp.placed), "sched.preempt.victims_per_placement")
		b.Logf("%d placed, %v CPU, %v", sp.placed, sp.cpu, sp.time)
	}
}
