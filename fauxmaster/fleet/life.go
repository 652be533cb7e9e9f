package fleet

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Life says what becomes of the tasks of pretended machines. Each time is drawn
// between half of what is said and one and a half.
type Life struct {
	// From the start of a shim until its process runs; 0: 5 to 80 ms.
	StartDelay time.Duration `json:"start_delay_ns,omitempty"`
	// How long the process of a batch task runs; 0: for ever, like a service's.
	RunTime time.Duration `json:"run_time_ns,omitempty"`
	// Of so many in a thousand runs the process fails, after RunTime at most, or
	// after ten minutes where there is none.
	FailPermille int `json:"fail_permille,omitempty"`
	// How much of their limits tasks use on average. Per cent; 0: 40.
	UsagePercent int `json:"usage_percent,omitempty"`
	// After so long usage has come to where it was: from half of the average to one
	// and a half and back. 0: ten minutes.
	UsagePeriod time.Duration `json:"usage_period_ns,omitempty"`
}

const (
	failWithin    = 10 * time.Minute
	failCode      = 1
	usagePercent  = 40
	usagePeriodNs = int64(10 * time.Minute)
	// Memory swings by this part of what the processor does.
	memSwing = 4
	// Within one time between polls usage peaks so far above its mean.
	peakPercent = 120
	diskUsed    = 1 << 20
)

// around draws a time between half of d and one and a half.
func around(r *rand.Rand, d time.Duration) int64 { return int64(d)/2 + r.Int64N(int64(d)+1) }

func (l Life) startNs(r *rand.Rand) int64 {
	if l.StartDelay == 0 {
		return 5e6 + r.Int64N(75e6)
	}
	return around(r, l.StartDelay)
}

// lasts draws how long the process of a run runs, and how it ends; 0: for ever.
func (l Life) lasts(r *rand.Rand, d *borgrpc.Desired) (ns int64, code int32) {
	switch d.GetKind() {
	case borgpb.JobKind_JOB_KIND_BATCH, borgpb.JobKind_JOB_KIND_CRON:
		if l.RunTime > 0 {
			ns = around(r, l.RunTime)
		}
	}
	if l.FailPermille > 0 && r.IntN(1000) < l.FailPermille {
		within := ns
		if within == 0 {
			within = int64(failWithin)
		}
		return 1 + r.Int64N(within), failCode
	}
	return ns, 0
}

// uses is what a copy uses after its process has run for so long. It depends on
// nothing else, so that the same task has the same curve wherever it runs.
func (l Life) uses(id borglet.ID, d *borgrpc.Desired, ageNs int64) *borgrpc.Usage {
	percent, periodNs := int64(l.UsagePercent), int64(l.UsagePeriod)
	if percent == 0 {
		percent = usagePercent
	}
	if periodNs == 0 {
		periodNs = usagePeriodNs
	}
	h := fnv.New64a()
	h.Write([]byte(id.JobUID))
	phaseNs := int64((h.Sum64() ^ uint64(id.Index)*0x9e3779b97f4a7c15) % uint64(periodNs))
	swing := triangle(ageNs+phaseNs, periodNs)
	limit := d.GetSpec().GetResources()
	cpu := limit.GetCpuMilli() * percent / 100 * (1000 + swing) / 1000
	mem := limit.GetMemBytes() / 100 * percent * (1000 + swing/memSwing) / 1000
	return &borgrpc.Usage{
		Copy:         &borgrpc.CopyID{JobUid: id.JobUID, Index: id.Index, Attempt: id.Attempt},
		CpuMilliMean: min(cpu, limit.GetCpuMilli()), CpuMilliPeak: min(cpu*peakPercent/100, limit.GetCpuMilli()),
		MemBytesMean: min(mem, limit.GetMemBytes()), MemBytesPeak: min(mem, limit.GetMemBytes()),
		DiskBytes: diskUsed,
	}
}

// Use has all tasks use just so much of their limits, in per cent, from now on; 0: as
// their Life says again.
func (f *Fleet) Use(percent int) { f.using.Store(int64(percent)) }

// usesJust is what a copy uses that uses that part of its limits, and keeps to it.
func usesJust(id borglet.ID, d *borgrpc.Desired, percent int64) *borgrpc.Usage {
	limit := d.GetSpec().GetResources()
	cpu, mem := limit.GetCpuMilli()*percent/100, limit.GetMemBytes()*percent/100
	return &borgrpc.Usage{
		Copy:         &borgrpc.CopyID{JobUid: id.JobUID, Index: id.Index, Attempt: id.Attempt},
		CpuMilliMean: cpu, CpuMilliPeak: cpu, MemBytesMean: mem, MemBytesPeak: mem, DiskBytes: diskUsed,
	}
}

// triangle is a wave between -500 and 500.
func triangle(ns, periodNs int64) int64 {
	at := ns % periodNs * 2000 / periodNs
	if at > 1000 {
		at = 2000 - at
	}
	return at - 500
}
