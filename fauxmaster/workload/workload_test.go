package workload

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cockroachdb/datadriven"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/fauxmaster"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
)

const wallNs = 1_800_000_000e9

// TestTranscripts runs small traces in the tables of Google's of 2011, through an
// archive, and shows what came of them. Commands:
//
//	simulate until=DURATION every=DURATION [from=MICROSECONDS] [without-unplaced]
//	    tables, each after a line "== NAME"
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var until, every string
			d.ScanArgs(t, "until", &until)
			d.ScanArgs(t, "every", &every)
			cfg := Config{Search: scheduler.Config{Seed: 1}, UntilNs: duration(t, until), EveryNs: duration(t, every), WithoutUnplaced: d.HasArg("without-unplaced")}
			g := trace.NewGoogle2011(0)
			g.Follow(600e6 + cfg.UntilNs/1000)
			for part := range strings.SplitSeq("\n"+d.Input, "\n== ") {
				name, text, _ := strings.Cut(part, "\n")
				read := map[string]func(string, io.Reader) error{
					"": func(string, io.Reader) error { return nil }, "machine_events": g.ReadMachineEvents, "task_events": g.ReadTaskEvents,
				}[strings.TrimSpace(name)]
				if err := read(name, strings.NewReader(text)); err != nil {
					return err.Error() + "\n"
				}
			}
			from, err := g.Cell()
			if err != nil {
				return err.Error() + "\n"
			}
			w := throughArchive(t, from)
			var b strings.Builder
			for _, a := range w.Arrivals {
				fmt.Fprintf(&b, "%v %s\n", time.Duration(a.AtNs), opWords(a.Op))
			}
			r := mustRun(t, w, cfg)
			reportText(&b, r)
			return b.String()
		})
	})
}

func duration(t *testing.T, text string) int64 {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return int64(d)
}

// throughArchive writes a cell of a trace into an archive and reads that.
func throughArchive(t *testing.T, from *trace.Cell) *Workload {
	t.Helper()
	c, _, err := plan.Make("test", wallNs, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "archive")
	refused, err := Write(dir, "test", c, from.Arrivals, from.LastNs)
	if err != nil || len(refused) > 0 {
		t.Fatalf("write the archive: %v, refused %v", err, refused)
	}
	past, err := fauxmaster.OpenPast(dir)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := past.Verify(fauxmaster.Replay{}); err != nil {
		t.Fatal(err)
	} else if _, differ := v.Compared(); differ != 0 {
		t.Fatalf("%d digests of the archive differ", differ)
	}
	w, err := Recorded(past, fauxmaster.Moment{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mustRun(t *testing.T, w *Workload, cfg Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Cell.Check(); err != nil {
		t.Fatal(err)
	}
	return r
}

func opWords(op *borgpb.Op) string {
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		return fmt.Sprintf("submit %s/%s", o.SubmitJob.User, o.SubmitJob.Name)
	case *borgpb.Op_KillJob:
		return fmt.Sprintf("kill %s/%s", o.KillJob.User, o.KillJob.Name)
	case *borgpb.Op_AddMachine:
		return "add " + o.AddMachine.Name
	case *borgpb.Op_RemoveMachine:
		return "remove " + o.RemoveMachine.Name
	case *borgpb.Op_SetMachine:
		return fmt.Sprintf("%s has %d milli", o.SetMachine.Name, o.SetMachine.Capacity.GetCpuMilli())
	}
	return fmt.Sprintf("%T", op.Op)
}

func reportText(b *strings.Builder, r *Report) {
	for i, s := range r.Samples {
		fmt.Fprintf(b, "%v: pending %d running %d evicted %d finished %d failed %d, cpu %.0f %%", time.Duration(s.AtNs), s.Pending.Sum(), s.Running.Sum(), s.Evicted.Sum(), s.Finished, s.Failed, 100*s.LimitCPU)
		if i < len(r.Recorded) {
			o := r.Recorded[i]
			fmt.Fprintf(b, "; recorded %d %d %d", o.Pending.Sum(), o.Running.Sum(), o.Evicted.Sum())
		}
		b.WriteByte('\n')
	}
	if g := r.Gap; g != nil {
		fmt.Fprintf(b, "gap: pending %.2f running %.2f evicted %.2f\n", g.Pending, g.Running, g.Evicted)
	}
	if r.Unplaced+r.LeftOut > 0 {
		fmt.Fprintf(b, "unplaced %d, left out %d\n", r.Unplaced, r.LeftOut)
	}
	for words, n := range r.Refused {
		fmt.Fprintf(b, "refused %d: %s\n", n, words)
	}
}

// emptyCell has machines of 16 cores and 64 GiB.
func emptyCell(t *testing.T, machines int) *cell.Cell {
	t.Helper()
	from := &trace.Cell{}
	for i := range machines {
		from.Machines = append(from.Machines, trace.Machine{Name: fmt.Sprintf("m%d", i), Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 16_000, MemBytes: 64 << 30},
		}})
	}
	c, _, err := plan.Make("test", wallNs, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func madeUp(t *testing.T, machines int, seed uint64, untilNs int64, text string) *Workload {
	t.Helper()
	w, err := Of(emptyCell(t, machines))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSynthetic(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddTo(w, seed, untilNs); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestRepeats wants the same of the same seed, in a cell that is too small.
func TestRepeats(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	cfg := Config{Search: scheduler.Config{Seed: seed}, UntilNs: 4 * 3600e9}
	var reports []*Report
	for range 2 {
		r := mustRun(t, madeUp(t, 3, seed, cfg.UntilNs, "jobs-per-hour=120,seconds=600,cpu-milli=1000"), cfg)
		r.PassSeconds, r.LongestPass, r.Seconds = 0, 0, 0
		reports = append(reports, r)
	}
	if !reflect.DeepEqual(reports[0], reports[1]) {
		t.Errorf("two runs differ:\n%+v\n%+v", reports[0], reports[1])
	}
	if r := reports[0]; r.Submitted == 0 || r.Finished == 0 || r.Evicted.Sum() == 0 {
		t.Errorf("nothing to see: %d submitted, %d finished, %d evicted", r.Submitted, r.Finished, r.Evicted.Sum())
	}
}

// TestRecorded simulates, writes down what happens as a live cell would, and simulates
// that: as there is room for all, it must come to the same, and what was recorded must be
// what happened.
func TestRecorded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	cfg := Config{Search: scheduler.Config{Seed: seed}, UntilNs: 6 * 3600e9}
	w := madeUp(t, 200, seed, cfg.UntilNs, "jobs-per-hour=60,most-tasks=50,fail-part=0.1")
	dir := filepath.Join(t.TempDir(), "archive")
	if _, err := Write(dir, "test", w.Cell, nil, 0); err != nil {
		t.Fatal(err)
	}
	out, err := checkpoint.OpenArchiveWriter(nil, dir, &borgpb.ReplicaIdentity{CellName: "test", CellId: w.Cell.ID()}, w.Cell.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	live, err := newRun(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	live.logs = func(index, term uint64, data []byte) {
		if err := out.Append([]checkpoint.PastEntry{{Index: index, Term: term, Data: data}}, wallNs); err != nil {
			t.Fatal(err)
		}
	}
	first, err := live.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	past, err := fauxmaster.OpenPast(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Recorded(past, fauxmaster.Moment{})
	if err != nil {
		t.Fatal(err)
	}
	second := mustRun(t, again, cfg)
	if first.Submitted < 200 || first.Failed == 0 || first.Evicted.Sum() > 0 || len(first.Samples) != len(second.Samples) {
		t.Fatalf("nothing to compare: %d submitted, %d failed, %d evicted, %d and %d samples", first.Submitted, first.Failed, first.Evicted.Sum(), len(first.Samples), len(second.Samples))
	}
	if n := len(second.Recorded); n < len(first.Samples)/2 {
		t.Fatalf("only %d samples are of the recording", n)
	}
	for i := range second.Recorded {
		a, b, c := first.Samples[i], second.Samples[i], second.Recorded[i]
		if a.Running != b.Running || a.Pending != b.Pending || a.Finished != b.Finished || a.Failed != b.Failed {
			t.Fatalf("at %v: first %+v, then %+v", time.Duration(a.AtNs), a, b)
		}
		if c.Running != a.Running || c.Pending != a.Pending {
			t.Fatalf("at %v: it was %+v and was read as %+v", time.Duration(a.AtNs), a, c)
		}
	}
}

// TestRecordedCronRuns: a run of a cron job arrives when it was made in the recording, as a job.
func TestRecordedCronRuns(t *testing.T) {
	c := emptyCell(t, 1)
	task := &borgpb.TaskSpec{Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}}
	run := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: 110, Task: task, Parent: "ann/tick"}
	tick := proto.CloneOf(run)
	tick.Kind, tick.Parent, tick.Cron = borgpb.JobKind_JOB_KIND_CRON, "", &borgpb.CronSpec{Schedule: "* * * * *"}
	dir := filepath.Join(t.TempDir(), "archive")
	refused, err := Write(dir, "test", c, []trace.Arrival{
		{AtNs: 1e9, Op: (&trace.Job{User: "ann", Name: "tick", Spec: tick}).Op()},
		{AtNs: 60e9, Op: &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{User: "ann", Name: "tick", Version: 1, Manual: true, Spec: marshal(run)}}}},
	}, 120e9)
	if err != nil || len(refused) > 0 {
		t.Fatalf("write the archive: %v, refused %v", err, refused)
	}
	past, err := fauxmaster.OpenPast(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Recorded(past, fauxmaster.Moment{})
	if err != nil {
		t.Fatal(err)
	}
	var runs []string
	for _, a := range w.Arrivals {
		if a.Op.GetFireCron() != nil {
			t.Error("the slot is decided again")
		}
		if o := a.Op.GetSubmitJob(); o != nil && o.Name != "tick" {
			runs = append(runs, o.Name)
		}
	}
	r := mustRun(t, w, Config{Search: scheduler.Config{Seed: 1}, UntilNs: 120e9})
	if len(runs) != 1 || r.Submitted < 1 || len(r.Refused) > 0 {
		t.Errorf("runs %v, %d tasks submitted, refused %v; want one run that arrives", runs, r.Submitted, r.Refused)
	}
}

// TestSyntheticWithQuotas: what is made up arrives though its users have no quota.
func TestSyntheticWithQuotas(t *testing.T) {
	c, enforce := emptyCell(t, 10), true
	c.Apply(c.Index()+1, 1, marshal(&borgpb.Entry{CellTimeNs: c.TimeNs(), WallTimeNs: c.WallNs(), Ops: [][]byte{
		marshal(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &enforce}}}),
	}}))
	if !c.QuotasEnforced() {
		t.Fatal("the cell does not enforce quotas")
	}
	w, err := Of(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSynthetic("jobs-per-hour=100")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddTo(w, 1, 3600e9); err != nil {
		t.Fatal(err)
	}
	r := mustRun(t, w, Config{Search: scheduler.Config{Seed: 1}, UntilNs: 3600e9})
	if r.Submitted == 0 || len(r.Refused) > 0 {
		t.Errorf("%d tasks submitted, refused %v", r.Submitted, r.Refused)
	}
}

// TestInterrupted wants the report of the time until then.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := Config{UntilNs: 4 * 3600e9, Progress: func(nowNs int64) {
		if nowNs >= 3600e9 {
			cancel()
		}
	}}
	r, err := Run(ctx, madeUp(t, 20, 1, cfg.UntilNs, "default"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.UntilNs < 3600e9 || r.UntilNs >= 2*3600e9 || len(r.Samples) < 12 || r.Placed == 0 {
		t.Errorf("it came to %v, with %d samples and %d places", time.Duration(r.UntilNs), len(r.Samples), r.Placed)
	}
}

// TestSynthetic holds what is made up to what was asked for.
func TestSynthetic(t *testing.T) {
	const days = 20
	w := madeUp(t, 1, 7, days*24*3600e9, "jobs-per-hour=100,day-part=0.8,alpha=1.1,most-tasks=5000")
	night, day, largest, tasks := 0, 0, 0, 0
	for _, a := range w.Arrivals {
		switch hour := a.AtNs / 3600e9 % 24; {
		case hour < 6 || hour >= 18:
			night++
		default:
			day++
		}
		tasks += len(a.Histories)
		largest = max(largest, len(a.Histories))
	}
	if n := len(w.Arrivals); n < 100*24*days*9/10 || n > 100*24*days*11/10 {
		t.Errorf("%d jobs in %d days at 100 an hour", n, days)
	}
	// The day has 1 + 0.8*2/pi of the mean, the night 1 - that.
	if part := float64(day) / float64(night); part < 2.5 || part > 3.8 {
		t.Errorf("%d jobs by day and %d by night; want about 3.1 times as many", day, night)
	}
	if mean := float64(tasks) / float64(len(w.Arrivals)); mean > 3 || largest < 20 {
		t.Errorf("%.1f tasks in the mean, %d in the largest job: want mice and hogs", mean, largest)
	}
	for _, bad := range []string{"", "tasks=0", "alpha=x", "day-part=2", "what=1"} {
		if _, err := ParseSynthetic(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
