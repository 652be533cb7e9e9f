package cell

import (
	"fmt"
	"testing"
)

// rollingBeside has a user whose copies stop while so many updates wait for tasks of their own.
func rollingBeside(tb testing.TB, updates int, stops uint32) *testLog {
	l := latestQuotaLog(tb)
	l.do(setQuota("u", production, 1_000_000, tib))
	for i := range updates {
		name := fmt.Sprintf("job-%d", i)
		spec := stubborn(2, 1, 0)
		spec.Update.BatchSize = 1
		l.do(submitJob(tb, name, spec))
		l.startAll(name, i)
		spec.Task.Env["ROUND"] = "1"
		l.do(updateJob(tb, name, spec))
	}
	l.do(submitJob(tb, "old", stubborn(stops, 1, 0)))
	l.startAll("old", 0)
	l.do(killJob("old"))
	return l
}

// BenchmarkStopsEnd is the end of one copy while other updates of its user roll.
func BenchmarkStopsEnd(b *testing.B) {
	for _, updates := range []int{10, 1_000} {
		b.Run(fmt.Sprintf("updates=%d", updates), func(b *testing.B) {
			const stops = 500
			for range b.N {
				b.StopTimer()
				l := rollingBeside(b, updates, stops)
				b.StartTimer()
				if n := l.endStopping(stops); n != stops {
					b.Fatalf("%d copies ended", n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*stops), "us/end")
		})
	}
}

// TestStopsEndLookAtHeldUpdates: the end of a copy reviews the updates that may wait for it, and
// not those that wait for tasks of their own, in a cell that was just read as well.
func TestStopsEndLookAtHeldUpdates(t *testing.T) {
	const updates, stops = 40, 200
	l := rollingBeside(t, updates, stops)
	l.do(submitJob(t, "held", stubborn(2, 1, 0)))
	l.startAll("held", 3)
	l.do(setQuota("u", production, updates+stops, tib))
	l.do(updateJob(t, "held", stubborn(2, 1, 1)))
	l.waitsFor("held", "still hold 0.24 of cpu")
	rolling := 0
	for j := range l.c.jobs.each() {
		if j.update.Rolling() {
			rolling++
		}
	}
	for _, c := range []*Cell{l.c, reload(t, l.c)} {
		if got := c.mayWait["u"]; len(got) != 1 || got[0].key.Name != "held" || rolling != updates+1 {
			t.Errorf("of %d updates that roll %d may wait for copies that stop, want one of %d", rolling, len(got), updates+1)
		}
	}
	l.endStopping(1)
	if n := l.c.Job(JobKey{"u", "held"}).update.restarted; n != 1 {
		t.Errorf("%d tasks were restarted when one copy had stopped, want 1", n)
	}
	l.endStopping(100)
	if n := l.c.Job(JobKey{"u", "held"}).update.restarted; n != 2 {
		t.Errorf("%d tasks were restarted when 100 more had, want 2", n)
	}
	l.fine()
}
