package workload

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// Synthetic is a workload that nobody recorded: jobs that arrive at random times, more
// of them by day than by night, most of them mice and a few hogs. What a job asks for and
// how long it runs are Pareto distributed, as measured in real cells: with an
// index near 1 the largest few do most of the work.
type Synthetic struct {
	// JobsPerHour arrive in the mean.
	JobsPerHour float64
	// DayPart is by how much the rate goes up and down over a day: 0 to 1 of the mean.
	DayPart float64
	// Alpha is the index of the Pareto distribution of how much a job is (tasks times
	// time), below 2: heavy.
	Alpha float64
	// Tasks and Seconds are those of the smallest job; MostTasks and MostSeconds
	// cut the largest off.
	Tasks, Seconds         float64
	MostTasks, MostSeconds float64
	// CPUMilli and MemMiB are what the smallest task asks for.
	CPUMilli, MemMiB float64
	// ProdPart of the jobs are production, FreePart free; the rest is batch.
	ProdPart, FreePart float64
	// Used is the share of its limits that a task uses.
	Used float64
	// FailPart of the tasks fail once.
	FailPart float64
}

// DefaultSynthetic is what is not said.
func DefaultSynthetic() Synthetic {
	return Synthetic{
		JobsPerHour: 600, DayPart: 0.5, Alpha: 1.2, Tasks: 1, Seconds: 60, MostTasks: 2000, MostSeconds: 86_400, CPUMilli: 100, MemMiB: 128,
		ProdPart: 0.05, FreePart: 0.4, Used: 0.5, FailPart: 0.02,
	}
}

// knobs are the values by the names that ParseSynthetic knows, with their bounds.
func (s *Synthetic) knobs() []knob {
	return []knob{
		{"jobs-per-hour", &s.JobsPerHour, 0.001, 1e6}, {"day-part", &s.DayPart, 0, 1}, {"alpha", &s.Alpha, 0.5, 10},
		{"tasks", &s.Tasks, 1, 1e5}, {"seconds", &s.Seconds, 1, 1e7}, {"most-tasks", &s.MostTasks, 1, 5000}, {"most-seconds", &s.MostSeconds, 1, 1e8},
		{"cpu-milli", &s.CPUMilli, 1, 1e6}, {"mem-mib", &s.MemMiB, 1, 1e7},
		{"prod-part", &s.ProdPart, 0, 1}, {"free-part", &s.FreePart, 0, 1}, {"used", &s.Used, 0.01, 1}, {"fail-part", &s.FailPart, 0, 1},
	}
}

type knob struct {
	name      string
	value     *float64
	low, high float64
}

// SyntheticWords are the names of the values, with what they are unless said
// otherwise.
func SyntheticWords() string {
	s := DefaultSynthetic()
	var words []string
	for _, k := range s.knobs() {
		words = append(words, fmt.Sprintf("%s (%g)", k.name, *k.value))
	}
	return strings.Join(words, ", ")
}

// ParseSynthetic reads NAME=VALUE, separated by commas; "default" says nothing.
func ParseSynthetic(text string) (Synthetic, error) {
	s := DefaultSynthetic()
	if text == "default" {
		return s, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		at := slices.IndexFunc(s.knobs(), func(k knob) bool { return k.name == name })
		if at < 0 {
			return s, fmt.Errorf("there is no %q: want default, or NAME=VALUE of %s", name, SyntheticWords())
		}
		k := s.knobs()[at]
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= k.low && v <= k.high) {
			return s, fmt.Errorf("%s: %q is no number from %g to %g", name, value, k.low, k.high)
		}
		*k.value = v
	}
	return s, nil
}

// AddTo has what a seed makes up arrive at a workload, until untilNs.
func (s Synthetic) AddTo(w *Workload, seed uint64, untilNs int64) error {
	if s.ProdPart+s.FreePart > 1 {
		return fmt.Errorf("production and free are %g of the jobs together: want at most 1", s.ProdPart+s.FreePart)
	}
	w.MadeUp = true
	if w.Cell.QuotasEnforced() {
		// Nobody has granted anything to users that are made up.
		enforce := false
		w.Arrivals = append(w.Arrivals, trace.Arrival{Op: &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &enforce}}}})
	}
	r := rand.New(rand.NewPCG(seed, 0x73796e7468))
	const hourNs = 3600e9
	// Thinned out from the highest rate: what is left comes at the rate of its moment.
	highest := s.JobsPerHour * (1 + s.DayPart)
	n := 0
	for at := 0.0; ; {
		at += r.ExpFloat64() / highest * hourNs
		if at >= float64(untilNs) {
			break
		}
		if r.Float64()*highest > s.rate(at/hourNs) {
			continue
		}
		w.Arrivals = append(w.Arrivals, s.job(r, int64(at)/1e6*1e6, n))
		n++
	}
	slices.SortStableFunc(w.Arrivals, func(a, b trace.Arrival) int { return cmp.Compare(a.AtNs, b.AtNs) })
	return nil
}

// rate is that of an hour: it is lowest at the beginning of each day and highest
// twelve hours later.
func (s Synthetic) rate(hour float64) float64 {
	return s.JobsPerHour * (1 - s.DayPart*math.Cos(2*math.Pi*hour/24))
}

// pareto draws a multiple of the smallest.
func pareto(r *rand.Rand, alpha float64) float64 {
	return math.Pow(1-r.Float64(), -1/alpha)
}

// job makes one up.
func (s Synthetic) job(r *rand.Rand, atNs int64, n int) trace.Arrival {
	// Half of what makes a hog is that it is wide, half that it is long: both have
	// twice the index, and their product about the one that was asked for.
	tasks := int(min(s.Tasks*pareto(r, 2*s.Alpha), s.MostTasks))
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: uint32(tasks), MaxFailures: 10,
		Task: &borgpb.TaskSpec{Args: []string{"/bin/true"}, AppClass: borgpb.AppClass_APP_CLASS_BATCH, Resources: &borgpb.Resources{
			// No single task is larger than what the larger machines have in common.
			CpuMilli: int64(min(s.CPUMilli*pareto(r, 2), 16*s.CPUMilli)), MemBytes: int64(min(s.MemMiB*pareto(r, 2), 16*s.MemMiB)) << 20,
		}},
	}
	switch band := r.Float64(); {
	case band < s.ProdPart:
		spec.Priority, spec.Task.AppClass = 200, borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE
	case band < s.ProdPart+s.FreePart:
		spec.Priority = 25
	default:
		spec.Priority = 105
	}
	seconds := min(s.Seconds*pareto(r, 2*s.Alpha), s.MostSeconds)
	histories := make([]trace.History, tasks)
	for i := range histories {
		h := &histories[i]
		h.CPUPermille, h.MemPermille = uint32(1000*s.Used), uint32(1000*s.Used)
		// Tasks of a job take about as long as each other.
		ns := int64(min(seconds*(0.8+0.4*r.Float64()), s.MostSeconds)*1e3) * 1e6
		if r.Float64() < s.FailPart {
			h.Runs = append(h.Runs, trace.Run{RunNs: int64(float64(ns/1e6)*r.Float64()) * 1e6, End: trace.Failed})
		}
		h.Runs = append(h.Runs, trace.Run{RunNs: ns, End: trace.Finished})
	}
	j := trace.Job{User: fmt.Sprintf("user-%d", 1+r.IntN(40)), Name: fmt.Sprintf("synthetic-%d", n), Spec: spec}
	return trace.Arrival{AtNs: atNs, Histories: histories, Op: j.Op()}
}
