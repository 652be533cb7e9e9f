package workload

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestReservedWithinLimits simulates cells with allocs that are not full, volumes and jobs
// that the cell refuses. No sample may reserve more than the limits, and the report tells
// what was refused and why.
func TestReservedWithinLimits(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0x5e))
		cfg := Config{Search: scheduler.Config{Seed: seed}, UntilNs: 4 * 3600e9}
		w := madeUp(t, 3, seed, cfg.UntilNs, "jobs-per-hour=60,seconds=600,cpu-milli=1000")
		for i := range 3 {
			set := &borgpb.AllocSetSpec{Allocs: 1 + uint32(r.IntN(3)), Priority: 200, Resources: &borgpb.Resources{CpuMilli: int64(1+r.IntN(4)) * 1000, MemBytes: 4 << 30}}
			task := &borgpb.TaskSpec{Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: 500, MemBytes: 1 << 30}}
			job := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, Task: task}
			name := string(rune('a' + i))
			if i > 0 {
				job.AllocSet = "ann/" + name
			}
			for _, op := range []*borgpb.Op{plan.Submit("ann", name, nil, set), plan.Submit("ann", name+"-in", job, nil)} {
				w.Arrivals = append(w.Arrivals, trace.Arrival{AtNs: int64(r.IntN(3600)) * 1e9, Op: op})
			}
			w.Arrivals = append(w.Arrivals, trace.Arrival{AtNs: 3 * 3600e9, Op: plan.Submit("ann", name+"-twice", job, nil)}, trace.Arrival{AtNs: 3 * 3600e9, Op: plan.Submit("ann", name+"-twice", job, nil)})
		}
		slices.SortStableFunc(w.Arrivals, func(a, b trace.Arrival) int { return int(a.AtNs/1e9) - int(b.AtNs/1e9) })
		report := mustRun(t, w, cfg)
		for _, s := range report.Samples {
			if s.ReservedCPU > s.LimitCPU || s.ReservedMem > s.LimitMem {
				t.Errorf("seed %d: at %d s %.3f of the CPU is reserved and %.3f are the limits; memory %.3f and %.3f", seed, s.AtNs/1e9, s.ReservedCPU, s.LimitCPU, s.ReservedMem, s.LimitMem)
			}
		}
		told := 0
		for words, n := range report.Refused {
			if strings.HasPrefix(words, "submit job (already_exists): ") {
				told += n
			}
		}
		if told != 3 {
			t.Errorf("seed %d: the report tells of %v, want three jobs that exist already", seed, report.Refused)
		}
	}
}
