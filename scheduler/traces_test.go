package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
	"borg/scheduler/reservation"
)

// What follows is measured on cells that others have recorded. They are not in
// the tree: BORG_TRACES names the folder that holds them.

func realTrace(tb testing.TB, path ...string) string {
	tb.Helper()
	dir := os.Getenv("BORG_TRACES")
	if dir == "" {
		tb.Skip("packs real traces; set BORG_TRACES to the folder that holds them")
	}
	return filepath.Join(append([]string{dir}, path...)...)
}

func usage2019(tb testing.TB) *trace.Usage2019 {
	tb.Helper()
	u, err := trace.LoadUsage2019(realTrace(tb, "google-borg-2019-sample", "tasks-cells1-4.csv.zst"), realTrace(tb, "google-borg-2019-sample", "tasks-cells5-8.csv.zst"))
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

// borg2011 is Google's cell at time 0 of its trace, and what ran where.
func borg2011(tb testing.TB) (*cell.Cell, *trace.Cell) {
	tb.Helper()
	t, err := trace.LoadGoogle2011(realTrace(tb, "google-borg-2011", "raw-google-format"), 0, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return cellOf(tb, t), t
}

// cellOf makes a cell of one of a trace; all of its tasks wait.
func cellOf(tb testing.TB, t *trace.Cell) *cell.Cell {
	tb.Helper()
	w := &world{cell: cell.New("trace", 1), wallNs: 1_800_000_000_000_000_000, timeNs: 1e9}
	for op := range t.Ops() {
		w.must(tb, op)
		w.log = w.log[:0]
	}
	w.cell.Flush(nil)
	return w.cell
}

// reservationSeed is what uses are drawn with, for every figure the same.
const reservationSeed = 2019

// drawnReservations gives every task a use drawn from the rows of its tier, and
// the reservation that a task comes to that goes on using that much: of CPU the
// mean of the five minutes, of memory the peak.
func drawnReservations(u *trace.Usage2019, set reservation.Setting) scheduler.Reserved {
	cfg := set.Config()
	return func(j *cell.Job, index uint32) cell.Resources {
		res := j.Need(index).Resources
		tier := trace.TierOf(j.Priority())
		r := rand.New(rand.NewPCG(reservationSeed^j.UID().Index<<32, uint64(index)))
		use := u.At(tier, r.IntN(u.Len(tier)))
		limit := reservation.Amounts{CPUMilli: res.CPUMilli, MemBytes: res.MemBytes}
		t := reservation.Begin(0, limit)
		t.Use(100*cfg.HalfLifeNs, limit, reservation.Amounts{
			CPUMilli: min(of(use.CPUMean, res.CPUMilli), res.CPUMilli), MemBytes: min(of(use.MemPeak, res.MemBytes), res.MemBytes),
		}, false, cfg)
		res.CPUMilli, res.MemBytes = t.Reserved().CPUMilli, t.Reserved().MemBytes
		return res
	}
}

// of is a share of an amount, as trace gives it.
func of(share uint32, amount int64) int64 {
	return amount/trace.One*int64(share) + amount%trace.One*int64(share)/trace.One
}

func everyMachine(*cell.Machine) bool { return true }

// BenchmarkTrace2011 packs Google's cell of 2011 from nothing: production by
// limits, the rest by reservations. The trace tells no use (and no racks), so
// the reservations are drawn per tier from the sample of 2019.
func BenchmarkTrace2011(b *testing.B) {
	c, _ := borg2011(b)
	reserved := drawnReservations(usage2019(b), reservation.Medium)
	for range b.N {
		// The first one warms up the heap.
		var p scheduler.Packed
		for range 2 {
			sp, err := &spent{}, error(nil)
			sp.measure(func() { p, err = scheduler.PackReserved(c, scheduler.Config{Seed: 1}, everyMachine, reserved) })
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(sp.time.Seconds(), "sched.borg2011.seconds")
			b.ReportMetric(sp.cpu.Seconds(), "sched.borg2011.cpu_seconds")
		}
		b.ReportMetric(float64(p.Placed), "sched.borg2011.placed")
		b.ReportMetric(float64(p.Pending), "sched.borg2011.pending")
		b.ReportMetric(float64(p.ProdPending), "sched.borg2011.prod_pending")
		b.ReportMetric(float64(p.StrandedCPUPercent), "sched.borg2011.stranded_cpu_percent")
		b.ReportMetric(float64(p.StrandedMemPercent), "sched.borg2011.stranded_mem_percent")
		cpu, mem := reclaimedPercent(p)
		b.ReportMetric(cpu, "sched.borg2011.reclaimed_cpu_percent")
		b.ReportMetric(mem, "sched.borg2011.reclaimed_mem_percent")
		limits, err := scheduler.Pack(c, scheduler.Config{Seed: 1}, everyMachine)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(limits.Pending), "sched.borg2011.by_limits.pending")
		b.ReportMetric(float64(limits.ProdPending), "sched.borg2011.by_limits.prod_pending")
	}
}

// BenchmarkTraceOpenb places the pods of openb by its published protocol: one by
// one on the machines with GPUs, until they ask for 130 % of these, none ever
// leaves, and one that does not fit is dropped. What counts is the part of the GPUs
// that is given out, in the mean of ten seeds. Best fit reached 93.1.
func BenchmarkTraceOpenb(b *testing.B) {
	o, err := trace.LoadOpenb(realTrace(b, "openb-gpu-2023", "machines.csv"), realTrace(b, "openb-gpu-2023", "tasks.csv"))
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		for _, v := range []struct {
			name string
			cfg  scheduler.Config
		}{
			{"default", scheduler.Config{Seed: 1}},
			{"exhaustive", scheduler.Config{Seed: 1, Enough: 1 << 20}},
			{"best_fit", scheduler.Config{Seed: 1, Enough: 1 << 20, Policy: scheduler.BestFit}},
		} {
			mean, least := givenOut(b, o, v.cfg)
			b.ReportMetric(mean, "sched.openb."+v.name+".gpu_alloc_pct")
			b.ReportMetric(least, "sched.openb."+v.name+".gpu_alloc_least_pct")
		}
	}
}

// BenchmarkFauxOpenb does the same for each of the mixes of openb and looks at every
// machine for every pod, as the published policies do. It prints the best that was
// published of any of them (that of Weng et al., always) beside it.
func BenchmarkFauxOpenb(b *testing.B) {
	for _, mix := range []struct {
		name, file string
		published  float64
	}{
		{"default", "tasks.csv", 95.39},
		{"gpushare100", "tasks-gpushare100.csv", 86.90},
		{"gpuspec33", "tasks-gpuspec33.csv", 94.55},
		{"multigpu50", "tasks-multigpu50.csv", 97.18},
		{"cpu050", "tasks-cpu050.csv", 95.21},
	} {
		b.Run(mix.name, func(b *testing.B) {
			o, err := trace.LoadOpenb(realTrace(b, "openb-gpu-2023", "machines.csv"), realTrace(b, "openb-gpu-2023", mix.file))
			if err != nil {
				b.Fatal(err)
			}
			for range b.N {
				mean, least := givenOut(b, o, scheduler.Config{Seed: 1, Enough: 1 << 20})
				b.ReportMetric(mean, "faux.openb."+mix.name+".gpu_alloc_pct")
				b.ReportMetric(least, "faux.openb."+mix.name+".gpu_alloc_least_pct")
				b.ReportMetric(mix.published, "faux.openb."+mix.name+".published_pct")
			}
		})
	}
}

// givenOut is the percentage of the GPUs that is given out when those asked for
// are 130 % of what there is: in the mean of ten seeds, and in the worst of them.
func givenOut(b *testing.B, o *trace.Openb, cfg scheduler.Config) (mean, least float64) {
	gpus := int64(0)
	for _, m := range o.Machines {
		gpus += m.GPUs
	}
	sum, least := 0.0, 100.0
	for seed := range uint64(10) {
		pods, err := o.Inflate(42+seed, 130)
		if err != nil {
			b.Fatal(err)
		}
		p, err := scheduler.Pack(cellOf(b, o.Cell(pods)), cfg, everyMachine)
		if err != nil {
			b.Fatal(err)
		}
		share := float64(p.Limits.Device("gpu")) / float64(10*gpus)
		sum, least = sum+share, min(least, share)
	}
	return sum / 10, least
}

// reclaimedPercent is how much of the work runs on what others asked for and do
// not use.
func reclaimedPercent(p scheduler.Packed) (cpu, mem float64) {
	return 100 * float64(p.Reclaimed.CPUMilli) / float64(p.Limits.CPUMilli), 100 * float64(p.Reclaimed.MemBytes) / float64(p.Limits.MemBytes)
}

// bySetting from the one that keeps most to the one that keeps least.
var bySetting = []reservation.Setting{reservation.Conservative, reservation.Medium, reservation.Aggressive}

// BenchmarkTraceReclaim says how many machines the mixed workload of the other
// benchmarks needs by limits and by reservations, and how much of it then runs
// in reclaimed resources: sums over five cells, one trial each.
func BenchmarkTraceReclaim(b *testing.B) {
	u := usage2019(b)
	for range b.N {
		byLimits := 0
		machines := make([]int, len(bySetting))
		var all scheduler.Packed
		for seed := range uint64(5) {
			c := loaded(b, workload{seed: seed, machines: 1_000, tasks: 15_000, fillPercent: 60})
			cfg := scheduler.Config{Seed: 1}
			n, ok, err := scheduler.Compact(c, cfg, seed)
			if err != nil || !ok {
				b.Fatalf("seed %d by limits: %d machines, %v, %v", seed, n, ok, err)
			}
			byLimits += n
			b.Logf("seed %d by limits: %d machines", seed, n)
			for i, set := range bySetting {
				reserved := drawnReservations(u, set)
				n, ok, err := scheduler.CompactReserved(c, cfg, seed, reserved)
				if err != nil || !ok {
					b.Fatalf("seed %d, %v: %d machines, %v, %v", seed, set, n, ok, err)
				}
				machines[i] += n
				p, err := scheduler.PackReserved(c, cfg, scheduler.TrialMachines(c, seed, n), reserved)
				if err != nil {
					b.Fatal(err)
				}
				cpu, mem := reclaimedPercent(p)
				b.Logf("seed %d, %v: %d machines, %.1f %% of the CPU and %.1f %% of the memory in reclaimed resources", seed, set, n, cpu, mem)
				if set == reservation.Medium {
					all.Limits, all.Reclaimed = all.Limits.Add(p.Limits), all.Reclaimed.Add(p.Reclaimed)
				}
			}
		}
		for i, set := range bySetting {
			b.ReportMetric(float64(machines[i])/float64(byLimits), fmt.Sprintf("sched.reclaim.%v.machines_ratio", set))
			if i > 0 && machines[i] >= machines[i-1] {
				b.Errorf("%v needs %d machines, %v %d", set, machines[i], bySetting[i-1], machines[i-1])
			}
		}
		cpu, mem := reclaimedPercent(all)
		b.ReportMetric(cpu, "sched.reclaim.work_cpu_percent")
		b.ReportMetric(mem, "sched.reclaim.work_mem_percent")
	}
}

// The time series of BenchmarkTracePredict: five-minute windows.
const (
	windowNs       = 300e9
	seriesWindows  = 48 * 12
	oracleWindows  = 24 * 12
	firstWindow    = 3 * 12
	lookWindows    = 6
	predictedCells = 500
)

// series is what one task uses in each window, from first on.
type series struct {
	id    uint64
	limit int64
	first int
	used  []int64
}

// life makes the tasks of one slot of a machine: one for as long as the series
// lasts, or, below production, one after another, four hours each in the mean.
// What a task uses comes from the rows of the job of a row that is drawn, and
// changes every half hour in the mean; the order in time is ours, since the
// sample has none.
func life(r *rand.Rand, u *trace.Usage2019, tier trace.Tier, limit int64, share func(trace.Use) uint32, nextID func() uint64) (all []series) {
	for at := 0; at < seriesWindows; {
		n := seriesWindows - at
		if tier < trace.Production {
			n = min(n, 1+int(r.ExpFloat64()*48))
		}
		s := series{id: nextID(), limit: limit, first: at, used: make([]int64, n)}
		row := r.IntN(u.Len(tier))
		first, end := u.Job(tier, row)
		for i := range s.used {
			if r.IntN(6) == 0 {
				row = first + r.IntN(end-first)
			}
			s.used[i] = min(of(share(u.At(tier, row)), limit), limit)
		}
		all = append(all, s)
		at += n
	}
	return all
}

// peakOf is the oracle: the highest sum of what the tasks that are there at a
// window use from then on.
func peakOf(tasks []series, at int) (most int64) {
	var sums [oracleWindows]int64
	for i := range tasks {
		s := &tasks[i]
		if at < s.first || at >= s.first+len(s.used) {
			continue
		}
		for k, used := range s.used[at-s.first:] {
			if k == oracleWindows {
				break
			}
			sums[k] += used
			most = max(most, sums[k])
		}
	}
	return most
}

// BenchmarkTracePredict sets the estimates beside each other: on machines with
// the tasks that Google's cell had on them at time 0 of the trace of 2011, which
// use what tasks of their tier in the sample of 2019 did. Savings is the share of
// the limits that is given to others, a violation a prediction below the oracle.
func BenchmarkTracePredict(b *testing.B) {
	_, t := borg2011(b)
	u := usage2019(b)
	for range b.N {
		for _, resource := range []struct {
			name  string
			limit func(*borgpb.Resources) int64
			share func(trace.Use) uint32
		}{
			{"cpu", (*borgpb.Resources).GetCpuMilli, func(use trace.Use) uint32 { return use.CPUMean }},
			{"mem", (*borgpb.Resources).GetMemBytes, func(use trace.Use) uint32 { return use.MemPeak }},
		} {
			type slot struct {
				tier  trace.Tier
				limit int64
			}
			slots := make(map[string][]slot)
			for _, j := range t.Jobs {
				for i, m := range j.Machines {
					if m != "" {
						slots[m] = append(slots[m], slot{trace.TierOf(j.Spec.Priority), resource.limit(requestOf(j.Spec, uint32(i)))})
					}
				}
			}
			names := []string{"share_90", "conservative", "medium", "aggressive", "n_sigma", "percentiles", "peak"}
			looks, saved, violated := 0, make([]float64, len(names)), make([]int, len(names))
			r := rand.New(rand.NewPCG(reservationSeed, 0))
			for at := range predictedCells {
				// Machines from all over the list.
				name := t.Machines[at*len(t.Machines)/predictedCells].Name
				var tasks []series
				id := uint64(0)
				nextID := func() uint64 { id++; return id }
				for _, s := range slots[name] {
					if s.limit > 0 {
						tasks = append(tasks, life(r, u, s.tier, s.limit, resource.share, nextID)...)
					}
				}
				predictors := []reservation.Predictor{
					&reservation.Share{Permille: 900},
					&reservation.Reservations{Config: reservation.Conservative.Config()},
					&reservation.Reservations{Config: reservation.Medium.Config()},
					&reservation.Reservations{Config: reservation.Aggressive.Config()},
					&reservation.NSigma{N: 5}, &reservation.Percentiles{Percent: 95}, reservation.NewPeak(),
				}
				for now := range seriesWindows - oracleWindows {
					var windows []reservation.Window
					limits := int64(0)
					for i := range tasks {
						if s := &tasks[i]; now >= s.first && now < s.first+len(s.used) {
							windows = append(windows, reservation.Window{Task: s.id, Limit: s.limit, Used: s.used[now-s.first]})
							limits += s.limit
						}
					}
					for _, p := range predictors {
						p.Observe(int64(now+1)*windowNs, windows)
					}
					if now < firstWindow || now%lookWindows != 0 || limits == 0 {
						continue
					}
					looks++
					oracle := peakOf(tasks, now)
					for i, p := range predictors {
						saved[i] += float64(limits-p.Peak()) / float64(limits)
						if p.Peak() < oracle {
							violated[i]++
						}
					}
				}
			}
			for i, name := range names {
				b.ReportMetric(100*saved[i]/float64(looks), fmt.Sprintf("sched.reclaim.%s.%s.savings_percent", resource.name, name))
				b.ReportMetric(100*float64(violated[i])/float64(looks), fmt.Sprintf("sched.reclaim.%s.%s.violations_percent", resource.name, name))
			}
			if !(saved[1] < saved[2] && saved[2] < saved[3]) {
				b.Errorf("%s: the settings save %v, want them in order", resource.name, saved[1:4])
			}
		}
	}
}

// requestOf is what a task of a spec asks for.
func requestOf(spec *borgpb.JobSpec, index uint32) *borgpb.Resources {
	request := spec.Task.Resources
	for _, o := range spec.Overrides {
		if o.First <= index && index <= o.Last {
			request = o.Spec.Resources
		}
	}
	return request
}

// TestPackReserved packs a cell in both views: production by limits, the rest by
// reservations, which are half of the limits.
func TestPackReserved(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	for i := range 10 {
		w.must(t, addMachine(fmt.Sprintf("m%d", i), machineSpec(10_000, 100<<30)))
	}
	// Production takes half of the cell, batch asks for all of it.
	w.must(t, submitJob("ann", "prod", service(10, 200, 5000, 50<<30)))
	w.must(t, submitJob("ann", "batch", service(100, 110, 1000, 10<<30)))
	half := func(j *cell.Job, index uint32) cell.Resources {
		r := j.Need(index).Resources
		r.CPUMilli /= 2
		r.MemBytes /= 2
		return r
	}
	for _, c := range []struct {
		name     string
		reserved scheduler.Reserved
		placed   int
		// reclaimed is the least that cannot be on machines by limits.
		reclaimed int64
	}{
		{"by limits", func(j *cell.Job, index uint32) cell.Resources { return j.Need(index).Resources }, 10 + 50, 0},
		{"by reservations", half, 10 + 100, 50_000},
	} {
		p, err := scheduler.PackReserved(w.cell, scheduler.Config{Seed: 1, Enough: 100}, everyMachine, c.reserved)
		if err != nil {
			t.Fatal(err)
		}
		if p.Placed != c.placed || p.ProdPending != 0 || p.Limits.CPUMilli != int64(50_000+1000*(c.placed-10)) {
			t.Errorf("%s: %+v, want %d placed", c.name, p, c.placed)
		}
		if got := p.Reclaimed.CPUMilli; got < c.reclaimed || c.reclaimed == 0 && got > 0 {
			t.Errorf("%s: %d of %d CPU are reclaimed, want %d", c.name, got, p.Limits.CPUMilli, c.reclaimed)
		}
	}
	// More production finds no place: it is not put where others save.
	w.must(t, submitJob("ann", "more", service(11, 210, 5000, 1<<30)))
	p, err := scheduler.PackReserved(w.cell, scheduler.Config{Seed: 1, Enough: 100}, everyMachine, half)
	if err != nil || p.ProdPending != 1 {
		t.Errorf("%+v, %v; want 1 task of production without a place", p, err)
	}
}
