package watch

import (
	"fmt"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/proto/borgpb"
)

// BenchmarkWatchChange is what a change of one of 10,000 tasks costs where it is
// applied, with one watch that it matches and with 199 others beside it.
func BenchmarkWatchChange(b *testing.B) {
	const jobs, each = 200, 50
	costs := map[int]float64{}
	for _, watches := range []int{1, jobs} {
		b.Run(fmt.Sprint("watches=", watches), func(b *testing.B) {
			l := newLog(b, Config{Changes: 1000})
			l.apply(l.machine("m"))
			for i := range jobs {
				l.apply(submit(fmt.Sprint("j", i), each, map[string]string{"app": fmt.Sprint("a", i)}))
			}
			var all []*Watch
			for i := range watches {
				s, err := selector.Parse(fmt.Sprintf("app=a%d", i))
				if err != nil {
					b.Fatal(err)
				}
				w := l.watch(Query{Kind: tasks, Selector: s}, nil)
				drain(b, w)
				all = append(all, w)
			}
			looked := l.h.Looked()
			var took time.Duration
			for n := 0; b.Loop(); n++ {
				op := &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: "j0", Tasks: each + uint32(n+1)%2}}}
				l.applyCell(op)
				began := time.Now()
				l.h.Applied(l.c)
				took += time.Since(began)
				if got := len(drain(b, all[0])); got != 1 {
					b.Fatalf("the watch that it matches has %d messages", got)
				}
			}
			if n := l.h.Looked() - looked; n != uint64(b.N) {
				b.Errorf("%d changes were looked at by %d watches", b.N, n)
			}
			for i, w := range all[1:] {
				if len(drain(b, w)) > 0 {
					b.Errorf("watch %d is told of what it does not match", i+1)
				}
			}
			costs[watches] = float64(took.Nanoseconds()) / float64(b.N)
		})
	}
	b.ReportMetric(costs[1], "watch.change_with_1.ns")
	b.ReportMetric(costs[jobs], "watch.change_with_200.ns")
	b.ReportMetric(costs[jobs]/costs[1], "watch.change_with_200.ratio")
}

// BenchmarkWatchKilledJob is how long the log waits for a hub when a job of 100,000
// tasks that were placed is killed.
func BenchmarkWatchKilledJob(b *testing.B) {
	const count = 100_000
	var worst time.Duration
	for b.Loop() {
		l := newLog(b, Config{})
		l.apply(l.machine("m"), submit("big", count, nil))
		j := l.c.Job(cell.JobKey{User: "alice", Name: "big"})
		for first := uint32(0); first < count; first += 5000 {
			var some []*borgpb.Op
			for i := first; i < first+5000; i++ {
				some = append(some, assign(j, i, "m"))
			}
			l.apply(some...)
		}
		l.applyCell(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "big"}}})
		began := time.Now()
		l.h.Applied(l.c)
		worst = max(worst, time.Since(began))
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "watch.killed_job_100k.ms")
}
