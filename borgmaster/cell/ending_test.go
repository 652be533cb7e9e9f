package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// endingLog is a cell in which a user has so many jobs that all end with job j0, directly or
// through each other.
func endingLog(t testing.TB, n int, depends func(i int, s *borgpb.JobSpec)) *testLog {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(addMachine("m1", 1_000_000, 1<<40))
	for i := range n {
		s := service(1, 0, 1, 1)
		s.Kind = borgpb.JobKind_JOB_KIND_BATCH
		if i > 0 {
			depends(i, s)
		}
		l.do(submitBy(t, "u", fmt.Sprint("j", i), s))
	}
	return l
}

func after(s *borgpb.JobSpec, jobs ...int) {
	s.AfterFailure = borgpb.AfterFailure_AFTER_FAILURE_DIE
	for _, i := range jobs {
		s.StartAfter = append(s.StartAfter, fmt.Sprint("u/j", i))
	}
}

// endingWays are the ways in which thousands of jobs end with one.
var endingWays = []struct {
	name    string
	depends func(i int, s *borgpb.JobSpec)
}{
	{"chain of followers", func(i int, s *borgpb.JobSpec) { after(s, i-1) }},
	{"chain of children", func(i int, s *borgpb.JobSpec) { s.Parent = fmt.Sprint("u/j", i-1) }},
	{"children of one", func(i int, s *borgpb.JobSpec) { s.Parent = "u/j0" }},
	{"followers of one", func(i int, s *borgpb.JobSpec) { after(s, 0) }},
	{"followers of many", func(i int, s *borgpb.JobSpec) {
		for k := max(0, i-maxStartAfter); k < i; k++ {
			after(s, k)
		}
	}},
	{"tree of both", func(i int, s *borgpb.JobSpec) { s.Parent = fmt.Sprint("u/j", (i-1)/3); after(s, (i-1)/2) }},
}

// TestEndingIsBounded wants the end of one job to change a bounded number of others with each
// entry, whatever depends on it, and all of them to end.
func TestEndingIsBounded(t *testing.T) {
	const jobs = 2*maxEndedJobs + 500
	for _, way := range endingWays {
		t.Run(way.name, func(t *testing.T) {
			l := endingLog(t, jobs, way.depends)
			live := func() (n int) {
				for j := range l.c.Jobs() {
					if j.deathSeq == 0 {
						n++
					}
				}
				return n
			}
			kill := asUser("u", killJob("j0"))
			if got := l.c.Work(kill); got < jobs/2 {
				t.Errorf("the kill counts as %d, and ends %d jobs", got, jobs)
			}
			l.do(kill)
			entries := 1
			for was := jobs; ; entries++ {
				now := live()
				// Another job is forgotten for each that dies, at most.
				if ended, changed := was-now, len(l.c.Changed().Jobs); ended > maxEndedJobs+1 || changed > 2*maxEndedJobs+2 {
					t.Fatalf("entry %d ends %d jobs and changes %d; at most %d are ended because of another", entries, ended, changed, maxEndedJobs)
				}
				if was = now; !l.c.Ending() {
					break
				}
				if due := l.c.DueInNs(); due <= 0 || due > endingPauseNs {
					t.Errorf("the next portion is due in %d ns", due)
				}
				l.fine()
				before := live()
				if l.apply(); live() != before {
					t.Error("more jobs end before the pause is over")
				}
				l.cellNs += endingPauseNs
				l.apply()
				if entries > 20 {
					t.Fatalf("%d jobs live after %d entries", live(), entries)
				}
			}
			if n := live(); n != 0 || entries < 3 {
				t.Errorf("%d jobs live after %d entries, want none after 3", n, entries)
			}
			l.fine()
		})
	}
}

// TestEndingOfTasks wants jobs of many tasks to end in portions of tasks.
func TestEndingOfTasks(t *testing.T) {
	l := endingLog(t, 40, func(i int, s *borgpb.JobSpec) { s.Parent, s.Tasks = "u/j0", 1_500 })
	l.do(killJob("j0"))
	ended := 0
	for j := range l.c.Jobs() {
		if j.deathSeq != 0 {
			ended += len(j.rows)
		}
	}
	if ended < maxEndedTasks || ended > maxEndedTasks+1_500+1 || !l.c.Ending() {
		t.Errorf("the first entry ends %d tasks, want about %d", ended, maxEndedTasks)
	}
	l.fine()
}

// TestEndingGoesOn wants what is still to be ended to keep its name until then, to go on after a
// reload as without, and not to hold up what others end.
func TestEndingGoesOn(t *testing.T) {
	l := endingLog(t, 2*maxEndedJobs, endingWays[0].depends)
	for i := range 3 {
		s := service(1, 0, 1, 1)
		if i > 0 {
			s.Parent = "ann/a0"
		}
		l.do(submitBy(t, "ann", fmt.Sprint("a", i), s))
	}
	l.do(killJob("j0"))
	if !l.c.Ending() {
		t.Fatal("nothing is left to be ended")
	}
	name := l.c.endings.queue[0].key.Name
	if r := l.refusalOf(submitBy(t, "u", name, service(1, 0, 1, 1))); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		t.Errorf("%v, want the name refused while jobs end with the one that had it", r)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "ann", Name: "a0"}}})
	for i := range 3 {
		if j := l.c.Job(JobKey{"ann", fmt.Sprint("a", i)}); j.deathSeq == 0 {
			t.Errorf("job %v goes on", j.key)
		}
	}
	other := &testLog{t: t, c: reload(t, l.c), term: l.term, cellNs: l.cellNs, wallNs: l.wallNs}
	for range 5 {
		for _, x := range []*testLog{l, other} {
			x.cellNs += endingPauseNs
			x.apply()
		}
		if l.c.Digest() != other.c.Digest() {
			t.Fatal("the cell that was read back goes another way")
		}
	}
	if l.c.Ending() {
		t.Error("jobs are still being ended")
	}
	l.do(submitBy(t, "u", name, service(1, 0, 1, 1)))
	l.fine()
}
