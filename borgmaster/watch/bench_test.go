package watch

import (
	"fmt"
	"testing"
	"time"

	"borg/borgmaster/selector"
	"borg/proto/borgpb"
)

// BenchmarkWatchChange is what a change of one of 10,000 tasks costs where it is
// applied, with one watch that it matches and with 199 others beside it.
func BenchmarkWatchChange(b *testing.B) {
	one, many := newWatched(b, 1), newWatched(b, watchedJobs)
	for n := 0; b.Loop(); n++ {
		// In turn: who comes second finds the processor warm.
		first, second := one, many
		if n%2 == 1 {
			first, second = many, one
		}
		first.change(n)
		second.change(n)
	}
	many.others()
	each := func(x *watched) float64 { return float64(x.took.Nanoseconds()) / float64(b.N) }
	b.ReportMetric(each(one), "watch.change_with_1.ns")
	b.ReportMetric(each(many), "watch.change_with_200.ns")
	b.ReportMetric(each(many)/each(one), "watch.change_with_200.ratio")
}

const watchedJobs, watchedEach = 200, 50

// watched is a cell of 10,000 tasks of as many labels as there are jobs, with watches of
// one label each.
type watched struct {
	*log
	watches []*Watch
	// How long the log has waited for the hub.
	took time.Duration
}

func newWatched(b *testing.B, watches int) *watched {
	x := &watched{log: newLog(b, Config{Changes: 1000})}
	for i := range watchedJobs {
		x.apply(submit(fmt.Sprint("j", i), watchedEach, map[string]string{"app": fmt.Sprint("a", i)}))
	}
	for i := range watches {
		s, err := selector.Parse(fmt.Sprintf("app=a%d", i))
		if err != nil {
			b.Fatal(err)
		}
		w := x.watch(Query{Kind: tasks, Selector: s}, nil)
		drain(b, w)
		x.watches = append(x.watches, w)
	}
	return x
}

// change adds a task to the first job, or takes it away.
func (x *watched) change(n int) {
	x.applyCell(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: "j0", Tasks: watchedEach + uint32(n+1)%2}}})
	before, began := x.h.Looked(), time.Now()
	x.h.Applied(x.c)
	x.took += time.Since(began)
	if looked, told := x.h.Looked()-before, len(drain(x.t, x.watches[0])); looked != 1 || told != 1 {
		x.t.Fatalf("a change was looked at by %d watches, and the one that it matches has %d messages; want 1 and 1", looked, told)
	}
}

// others fails when a watch was told of what it does not match.
func (x *watched) others() {
	for i, w := range x.watches[1:] {
		if n := len(drain(x.t, w)); n > 0 {
			x.t.Errorf("watch %d has %d messages of what it does not match", i+1, n)
		}
	}
}

// BenchmarkWatchKilledJob is how long the log waits for a hub when a job of 100,000
// tasks that were placed is killed, beside how long it waits for the cell.
func BenchmarkWatchKilledJob(b *testing.B) {
	const count = 100_000
	var worst, apply time.Duration
	for b.Loop() {
		l := newLog(b, Config{})
		l.place("big", count)
		began := time.Now()
		l.applyCell(kill("big"))
		apply = max(apply, time.Since(began))
		began = time.Now()
		l.h.Applied(l.c)
		worst = max(worst, time.Since(began))
	}
	b.ReportMetric(float64(apply.Microseconds())/1000, "watch.killed_job_100k_apply.ms")
	b.ReportMetric(float64(worst.Microseconds())/1000, "watch.killed_job_100k.ms")
}
