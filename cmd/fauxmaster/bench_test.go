package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/cli"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/workload"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// realTrace is a file or folder of the real traces, whose place BORG_TRACES names;
// without it the test is skipped.
func realTrace(tb testing.TB, path ...string) string {
	tb.Helper()
	dir := os.Getenv("BORG_TRACES")
	if dir == "" {
		tb.Skip("reads real traces; set BORG_TRACES to the folder that holds them")
	}
	return filepath.Join(append([]string{dir}, path...)...)
}

// import2011 makes a checkpoint of Google's cell at time 0 of its trace, in which
// tasks reserve what drawn ones of 2019 would.
func import2011(tb testing.TB) string {
	tb.Helper()
	ckpt := filepath.Join(tb.TempDir(), "google.ckpt")
	var out, errs bytes.Buffer
	args := []string{
		"fauxmaster", "import", "google2011", realTrace(tb, "google-borg-2011", "raw-google-format"), "-o", ckpt,
		"--usage", realTrace(tb, "google-borg-2019-sample", "tasks-cells1-4.csv.zst"), "--usage", realTrace(tb, "google-borg-2019-sample", "tasks-cells5-8.csv.zst"),
	}
	if code := run(context.Background(), args, &out, &errs); code != cli.OK {
		tb.Fatalf("exit code %d: %s", code, errs.String())
	}
	tb.Log(out.String())
	return ckpt
}

// TestReal2011 holds the checkpoint of Google's cell to what is known of it.
func TestReal2011(t *testing.T) {
	p, err := openPath(import2011(t))
	if err != nil {
		t.Fatal(err)
	}
	capacity, running, pending := sums(p.Cell)
	n := count(p.Cell)
	if n.Machines != 12_477 || n.Running != 132_982 || n.Pending != 11_357 {
		t.Errorf("%+v, want 12,477 machines, 132,982 running and 11,357 pending tasks", n)
	}
	// Its README: capacity 6,603.25 and 5,862.75 of the largest machine; requests
	// of what runs 113.5 % and 93.3 % of it.
	if cpu, mem := capacity.CPUMilli/64_000, capacity.MemBytes/(256<<30); cpu != 6603 || mem != 5862 {
		t.Errorf("capacity %d and %d, want 6,603 and 5,862", cpu, mem)
	}
	if cpu, mem := 1000*running.CPUMilli/capacity.CPUMilli, running.MemBytes/(capacity.MemBytes/1000); cpu != 1134 && cpu != 1135 || mem != 932 && mem != 933 {
		t.Errorf("what runs asks for %d and %d thousandths, want 1,135 and 933", cpu, mem)
	}
	if pending.CPUMilli == 0 {
		t.Error("what waits asks for nothing")
	}
}

func sums(c *cell.Cell) (capacity, running, pending cell.Resources) {
	for m := range c.Machines() {
		capacity = capacity.Add(m.Capacity())
	}
	for j := range c.Jobs() {
		for i, task := range j.Tasks() {
			if need := j.Need(i).Resources; task.State() == borgpb.State_STATE_RUNNING {
				running = running.Add(need)
			} else {
				pending = pending.Add(need)
			}
		}
	}
	return capacity, running, pending
}

// BenchmarkFauxOpen opens the checkpoint of Google's cell, and proves it sound.
func BenchmarkFauxOpen(b *testing.B) {
	ckpt := import2011(b)
	for b.Loop() {
		if _, err := openPath(ckpt); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "faux.borg2011.open.seconds")
}

// BenchmarkFauxSimulate lets the 8.5 hours of the slice of Google's trace of 2011 happen.
func BenchmarkFauxSimulate(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "google")
	faux := func(args ...string) []byte {
		var out, errs bytes.Buffer
		if code := run(context.Background(), append([]string{"fauxmaster"}, args...), &out, &errs); code != cli.OK {
			b.Fatalf("exit code %d: %s", code, errs.String())
		}
		return out.Bytes()
	}
	b.Log(string(faux("import", "google2011", realTrace(b, "google-borg-2011"), "--until", "8h30m", "-o", dir,
		"--usage", realTrace(b, "google-borg-2019-sample", "tasks-cells1-4.csv.zst"), "--usage", realTrace(b, "google-borg-2019-sample", "tasks-cells5-8.csv.zst"))))
	for range b.N {
		began, cpuNs := time.Now(), cpuTimeNs()
		data := faux("simulate", dir, "-o", "json")
		b.ReportMetric(time.Since(began).Seconds(), "faux.borg2011.simulate.seconds")
		b.ReportMetric(float64(cpuTimeNs()-cpuNs)/1e9, "faux.borg2011.simulate.cpu_seconds")
		var r workload.Report
		if err := json.Unmarshal(data, &r); err != nil || r.Gap == nil {
			b.Fatalf("the report: %v, gap %v", err, r.Gap)
		}
		b.ReportMetric(r.Gap.Pending, "faux.borg2011.simulate.gap_pending_tasks")
		b.ReportMetric(r.Gap.Running, "faux.borg2011.simulate.gap_running_tasks")
		b.ReportMetric(r.Gap.Evicted, "faux.borg2011.simulate.gap_evicted_tasks")
	}
}

// BenchmarkFauxCompact compacts Google's cell by the paper's method: production by
// limits, the rest by reservations drawn per tier from the sample of 2019.
func BenchmarkFauxCompact(b *testing.B) {
	p, err := openPath(import2011(b))
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		// The second time one task in ten thousand (14) may find no place: one that asks for
		// two thirds of the largest machines, and comes last, decides for all otherwise.
		needed, almost := make(map[scheduler.Policy]int), make(map[scheduler.Policy]int)
		for _, policy := range []scheduler.Policy{scheduler.Hybrid, scheduler.BestFit} {
			r, err := compact(context.Background(), p.Cell, scheduler.Config{Seed: 1, Policy: policy}, plan.Of{Pending: 14}, plan.Trials, runtime.NumCPU(), &probes{}, newProgressLine(os.Stderr))
			if err != nil {
				b.Fatal(err)
			}
			almost[policy] = r.Machines
			b.Logf("%v, almost all: %+v", policy, r)
			began := time.Now()
			r, err = compact(context.Background(), p.Cell, scheduler.Config{Seed: 1, Policy: policy}, plan.Of{}, plan.Trials, runtime.NumCPU(), &probes{}, newProgressLine(os.Stderr))
			if err != nil {
				b.Fatal(err)
			}
			needed[policy] = r.Machines
			b.Logf("%v: %+v", policy, r)
			if policy == scheduler.Hybrid {
				b.ReportMetric(time.Since(began).Seconds(), "faux.borg2011.compact.seconds")
				b.ReportMetric(float64(r.Machines), "faux.borg2011.compact.machines")
				b.ReportMetric(float64(r.Most-r.Least), "faux.borg2011.compact.spread_machines")
			}
		}
		b.ReportMetric(float64(almost[scheduler.Hybrid]), "faux.borg2011.compact.almost_all_machines")
		b.ReportMetric(float64(almost[scheduler.Hybrid])/float64(almost[scheduler.BestFit]), "faux.borg2011.compact.almost_all_hybrid_to_best_fit_ratio")
		b.ReportMetric(float64(needed[scheduler.Hybrid])/float64(needed[scheduler.BestFit]), "faux.borg2011.compact.hybrid_to_best_fit_ratio")
	}
}
