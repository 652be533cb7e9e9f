package cell

import (
	"testing"

	"borg/proto/borgpb"
)

func TestRetryDelay(t *testing.T) {
	for failures, want := range map[uint32]int64{0: 0, 1: 0, 2: 2 * second, 3: 4 * second, 4: 8 * second, 9: 256 * second, 10: 300 * second, maxRetriesCounted: 300 * second} {
		if got := retryDelayNs(failures); got != want {
			t.Errorf("retryDelayNs(%d) = %d s, want %d s", failures, got/second, want/second)
		}
	}
}

// failingJob is a job of which task 0 is placed and fails, as often as it is told.
type failingJob struct {
	*testLog
	job *Job
}

func newFailingJob(t *testing.T, gang bool) *failingJob {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(addMachine("m1", 8000, 32<<30))
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Priority: 100, Tasks: 2, MaxFailures: 99, Gang: gang,
		Task: &borgpb.TaskSpec{Args: []string{"/bin/true"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}},
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "j", Spec: marshal(t, spec)}}})
	return &failingJob{l, l.c.Job(JobKey{"u", "j"})}
}

// place places those of the first n tasks that wait, and returns the refusal of the first.
func (f *failingJob) place(n uint32) *borgpb.Refusal {
	f.t.Helper()
	op := new(borgpb.Assign)
	for i := range n {
		if task := f.job.Task(i); task.state == statePending {
			op.Assignments = append(op.Assignments, &borgpb.Assignment{Uid: f.job.uid.String(), Index: i, Machine: "m1", LastAttempt: task.attempt})
		}
	}
	items := f.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: op}}).Items
	if len(items) == 0 || items[0].Kind == borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
		return nil
	}
	return items[0]
}

// fail has the present attempt of task 0 fail after it ran for so long.
func (f *failingJob) fail(ranNs int64) {
	f.t.Helper()
	f.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: "m1",
		Tasks: []*borgpb.TaskReport{{
			JobUid: f.job.uid.String(), Attempt: f.job.Task(0).attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_FAILED),
			StartedWallNs: f.wallNs, Exit: &borgpb.Exit{Code: 1, EndedWallNs: f.wallNs + ranNs}, Text: "exit code 1",
		}},
	}}}}})
	if err := f.c.Check(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *failingJob) pass(ns int64) { f.cellNs, f.wallNs = f.cellNs+ns, f.wallNs+ns }

// TestRetriesWait: the wait is refused at its edge, told, kept by a cell that is loaded, and over
// after a healthy run.
func TestRetriesWait(t *testing.T) {
	f := newFailingJob(t, false)
	for _, wait := range []int64{0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		if r := f.place(1); r != nil {
			t.Fatalf("before the wait of %d s: %v", wait, r)
		}
		f.fail(second)
		if wait == 0 {
			continue
		}
		reason := "exit code 1; next attempt " + spanWords(wait*second) + " after this one"
		if got := f.job.Task(0).Reason(); got != reason {
			t.Errorf("after a failure: %q, want %q", got, reason)
		}
		f.pass(wait*second - 1)
		if r := f.place(1); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE {
			t.Errorf("just before %d s have passed: %v", wait, r)
		}
		other := reload(t, f.c)
		if other.RetryWords(other.Job(f.job.key), 0) == "" || other.RetryNs(other.Job(f.job.key)) != f.cellNs+1 {
			t.Errorf("a cell that was loaded has forgotten a wait of %d s", wait)
		}
		for index := range f.c.PendingOf(f.job) {
			if index != 1 {
				t.Errorf("task %d is offered before %d s have passed", index, wait)
			}
		}
		f.pass(1)
	}
	if r := f.place(1); r != nil {
		t.Fatal(r)
	}
	f.fail(retryHealthyNs)
	if r := f.place(1); r != nil {
		t.Errorf("after a healthy run: %v", r)
	}
}

// TestGangRetriesTogether: while one task of a gang waits after failures, none is offered.
func TestGangRetriesTogether(t *testing.T) {
	f := newFailingJob(t, true)
	for range 2 {
		if r := f.place(2); r != nil {
			t.Fatal(r)
		}
		f.fail(second)
		f.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
			Machine: "m1",
			Tasks:   []*borgpb.TaskReport{{JobUid: f.job.uid.String(), Index: 1, Attempt: f.job.Task(1).attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_LOST)}},
		}}}}})
	}
	for index := range f.c.PendingOf(f.job) {
		t.Errorf("task %d is offered while task 0 waits", index)
	}
	if f.c.HeldBack(f.job) == "" || f.c.RetryWords(f.job, 1) == "" {
		t.Error("nothing says why the gang waits")
	}
	f.pass(2 * second)
	if r := f.place(2); r != nil {
		t.Errorf("after the wait: %v", r)
	}
}
