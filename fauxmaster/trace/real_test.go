package trace_test

import (
	"os"
	"path/filepath"
	"testing"

	"borg/fauxmaster/trace"
)

// realTrace is a file or folder of the real traces, whose place BORG_TRACES
// names; without it the test is skipped.
func realTrace(t testing.TB, path ...string) string {
	t.Helper()
	dir := os.Getenv("BORG_TRACES")
	if dir == "" {
		t.Skip("reads real traces; set BORG_TRACES to the folder that holds them")
	}
	return filepath.Join(append([]string{dir}, path...)...)
}

// TestRealGoogle2011 holds the cell at time 0 to what is known of it, and wants
// a cell to take it.
func TestRealGoogle2011(t *testing.T) {
	c, err := trace.LoadGoogle2011(realTrace(t, "google-borg-2011", "raw-google-format"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var cpuMilli, memBytes int64
	for _, m := range c.Machines {
		cpuMilli += m.Spec.Capacity.CpuMilli
		memBytes += m.Spec.Capacity.MemBytes
	}
	running, pending := 0, 0
	for _, j := range c.Jobs {
		for _, m := range j.Machines {
			if m == "" {
				pending++
			} else {
				running++
			}
		}
	}
	if len(c.Machines) != 12477 || running != 132982 || pending != 11357 || c.Strangers != 13 || c.Unknown != 0 {
		t.Errorf("%d machines, %d tasks run and %d wait, %d on machines that are not there, %d unknown; want 12477, 132982, 11357, 13, 0",
			len(c.Machines), running, pending, c.Strangers, c.Unknown)
	}
	if cpu, mem := float64(cpuMilli)/64000, float64(memBytes)/(256<<30); int(cpu) != 6603 || int(mem) != 5862 {
		t.Errorf("its machines have %.2f CPU and %.2f memory, want 6603.25 and 5862.75", cpu, mem)
	}
	if o := mustTake(t, c); o.NumMachines() != 12477 {
		t.Errorf("the cell has %d machines", o.NumMachines())
	}
}

// TestRealGoogle2011Day holds what becomes of the tasks in the first 8.5 hours to the
// rows of the slice: each attempt that was submitted by then is a run.
func TestRealGoogle2011Day(t *testing.T) {
	c, err := trace.LoadGoogle2011(realTrace(t, "google-borg-2011"), 0, 30_600e6)
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		end trace.End
		ran bool
	}
	got, tasks := make(map[kind]int), 0
	add := func(all []trace.History) {
		tasks += len(all)
		for _, h := range all {
			for _, r := range h.Runs {
				got[kind{r.End, r.RunNs != trace.NeverRan}]++
			}
		}
	}
	running, pending := 0, 0
	for _, j := range c.Jobs {
		all, err := trace.Histories(j.Spec)
		if err != nil {
			t.Fatal(err)
		}
		add(all)
		for _, m := range j.Machines {
			if m == "" {
				pending++
			} else {
				running++
			}
		}
	}
	for _, a := range c.Arrivals {
		add(a.Histories)
	}
	if len(c.Machines) != 12477 || running != 132982 || pending != 11357 || c.Strangers != 13 || c.Unknown != 0 || tasks != 346928 {
		t.Errorf("%d machines, %d tasks run and %d wait, %d on machines that are not there, %d unknown, %d in all; want 12477, 132982, 11357, 13, 0, 346928",
			len(c.Machines), running, pending, c.Strangers, c.Unknown, tasks)
	}
	runs := 0
	for _, n := range got {
		runs += n
	}
	if runs != 420_809 {
		t.Errorf("%d runs; want 420,809, the attempts that were submitted", runs)
	}
	for k, want := range map[kind]int{
		{trace.Finished, true}: 142_760, {trace.Failed, true}: 8_633, {trace.Killed, true}: 69_798, {trace.Killed, false}: 6_268,
		{trace.Evicted, true}: 35_442, {trace.Evicted, false}: 38,
	} {
		if got[k] != want {
			t.Errorf("%d runs ended as %v (ran: %v); want %d", got[k], k.end, k.ran, want)
		}
	}
}

func TestRealOpenb(t *testing.T) {
	o, err := trace.LoadOpenb(realTrace(t, "openb-gpu-2023", "machines.csv"), realTrace(t, "openb-gpu-2023", "tasks.csv"))
	if err != nil {
		t.Fatal(err)
	}
	with, gpus, milli := 0, int64(0), int64(0)
	for _, m := range o.Machines {
		gpus += m.GPUs
		if m.GPUs > 0 {
			with++
		}
	}
	for _, p := range o.Pods {
		milli += p.MilliGPUs()
	}
	if len(o.Machines) != 1523 || with != 1213 || gpus != 6212 || len(o.Pods) != 8152 || milli != 6_086_800 {
		t.Errorf("%d machines, %d with %d GPUs; %d pods ask for %d thousandths; want 1523, 1213, 6212, 8152, 6086800", len(o.Machines), with, gpus, len(o.Pods), milli)
	}
}

func TestRealUsage2019(t *testing.T) {
	u, err := trace.LoadUsage2019(realTrace(t, "google-borg-2019-sample", "tasks-cells1-4.csv.zst"), realTrace(t, "google-borg-2019-sample", "tasks-cells5-8.csv.zst"))
	if err != nil {
		t.Fatal(err)
	}
	if u.Rows != 405120 || u.Used < 340_000 {
		t.Errorf("%d rows, %d used; want 405120 and most of them", u.Rows, u.Used)
	}
	for tier := range trace.NumTiers {
		if u.Len(tier) < 10_000 {
			t.Errorf("%v has %d rows", tier, u.Len(tier))
		}
	}
}
