package trace

import (
	"cmp"
	"io"
	"math"
	"slices"
)

// Tier is a band of priorities in Google's trace of 2019.
type Tier uint8

const (
	Free Tier = iota
	Batch
	Mid
	Production
	Monitoring
	NumTiers
)

var tierNames = [NumTiers]string{"free", "batch", "mid", "production", "monitoring"}

func (t Tier) String() string { return tierNames[t] }

// TierOf a priority of ours, which are those of 2019.
func TierOf(priority int32) Tier {
	switch {
	case priority < 100:
		return Free
	case priority < 116:
		return Batch
	case priority < 120:
		return Mid
	case priority < 360:
		return Production
	}
	return Monitoring
}

// One is all of what was asked for, in the units of Use.
const One = 1 << 16

// Use is what a task used in five minutes of what it asked for, in 1/One.
type Use struct {
	CPUMean, CPUPeak, MemMean, MemPeak uint32
}

// maxUse is where what a task used is cut off: a hundred times what it asked
// for. Rows beyond are mistakes of the sample.
const maxUse = 100 * One

// Usage2019 is what tasks used in a sample of Google's trace of 2019, by tier.
// Its rows are no cell: which tasks ran together is not in it.
type Usage2019 struct {
	tiers [NumTiers][]jobUse
	// Rows were read, Used had both a request and a use.
	Rows, Used int
	kept       ledger
}

type jobUse struct {
	job int64
	use Use
}

// LoadUsage2019 reads files of the sample.
func LoadUsage2019(files ...string) (*Usage2019, error) {
	u := &Usage2019{}
	for _, file := range files {
		if err := readFile(file, u.Read); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// Read reads one file of the sample.
func (u *Usage2019) Read(file string, in io.Reader) error {
	u.kept.from(in)
	r := newHeadedRows(file, in)
	job, priority := r.column("job_id"), r.column("priority")
	cpuReq, memReq := r.column("cpu_req"), r.column("mem_req")
	cpuAvg, memAvg := r.column("cpu_avg"), r.column("mem_avg")
	cpuMax, memMax := r.column("cpu_max"), r.column("mem_max")
	const most = 1e6
	for r.next() {
		u.Rows++
		id, hasID := r.maybeInteger(job, math.MinInt64, math.MaxInt64)
		p, hasPriority := r.maybeInteger(priority, 0, 450)
		cpu, _ := r.maybeShare(cpuReq, most)
		mem, _ := r.maybeShare(memReq, most)
		cpuUsed, hasCPU := r.maybeShare(cpuAvg, most)
		memUsed, hasMem := r.maybeShare(memAvg, most)
		cpuPeak, _ := r.maybeShare(cpuMax, most)
		memPeak, _ := r.maybeShare(memMax, most)
		if !hasID || !hasPriority || !hasCPU || !hasMem || cpu == 0 || mem == 0 {
			continue
		}
		u.Used++
		r.keep(&u.kept, keptTextBytes)
		t := TierOf(int32(p))
		// A peak that is blank, or below the mean, is the mean.
		u.tiers[t] = append(u.tiers[t], jobUse{id, Use{
			part(cpuUsed, cpu), part(max(cpuPeak, cpuUsed), cpu), part(memUsed, mem), part(max(memPeak, memUsed), mem),
		}})
	}
	if r.err == nil {
		for t := range u.tiers {
			slices.SortStableFunc(u.tiers[t], func(a, b jobUse) int { return cmp.Compare(a.job, b.job) })
		}
	}
	return r.err
}

func part(used, request float64) uint32 { return uint32(min(used/request*One, maxUse)) }

// Len is the number of rows of a tier.
func (u *Usage2019) Len(t Tier) int { return len(u.tiers[t]) }

// At is one of them.
func (u *Usage2019) At(t Tier, i int) Use { return u.tiers[t][i].use }

// Job is the bounds of the rows of the job that row i is of: a task of that job
// used so much at one time or another.
func (u *Usage2019) Job(t Tier, i int) (first, end int) {
	rows := u.tiers[t]
	job := rows[i].job
	find := func(id int64) int {
		at, _ := slices.BinarySearchFunc(rows, id, func(r jobUse, id int64) int { return cmp.Compare(r.job, id) })
		return at
	}
	if job == math.MaxInt64 {
		return find(job), len(rows)
	}
	return find(job), find(job + 1)
}
