package sim

import (
	"fmt"
	"maps"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S46: no task of a job is placed before the jobs that it starts after have finished, or
// have failed and the job runs all the same; a job that ends with them ends with them; one
// that may start does. How those jobs ended is counted here from the events of their tasks.

// leadersOfUser is how many jobs of a user others start after.
const leadersOfUser = 2

// lead is a job that others start after.
type lead struct {
	uid      cell.UID
	tasks    int
	finished map[uint32]bool
}

// followModel is what is known of jobs that others start after.
type followModel struct {
	leads map[cell.JobKey]*lead
	// may says which jobs could start after the entry before.
	may map[cell.UID]bool
}

// outcome is how a job stands that another one starts after.
type outcome int

const (
	leadLives outcome = iota
	leadFinished
	leadFailed
	leadAbsent
)

// followOp submits and kills jobs that start after others, and those others.
func (c *client) followOp() *borgpb.Op {
	r, user := c.rand, c.user()
	n := r.IntN(leadersOfUser)
	first, then := fmt.Sprintf("lead%d", n), fmt.Sprintf("then%d", r.IntN(3))
	switch k := r.IntN(12); {
	case k < 5:
		spec := c.shortSpec()
		spec.Task.Args = []string{"/bin/task", fmt.Sprint(50 + r.IntN(800)), fmt.Sprint(r.IntN(3) / 2)}
		spec.MaxFailures = uint32(r.IntN(2))
		return c.submit(first, spec)
	case k < 6:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: first}}}
	case k < 7:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: then}}}
	}
	spec := c.shortSpec()
	spec.StartAfter = []string{cell.JobKey{User: user, Name: first}.String()}
	if r.IntN(3) == 0 {
		spec.StartAfter = append(spec.StartAfter, cell.JobKey{User: user, Name: fmt.Sprintf("lead%d", (n+1)%leadersOfUser)}.String())
	}
	spec.AfterFailure = borgpb.AfterFailure(r.IntN(4))
	return c.submit(then, spec)
}

// startsAfter follows one entry and holds the cell against it.
func (t *truth) startsAfter(events []cell.Event) {
	if !t.w.swarm.follows {
		return
	}
	m := &t.follow
	if m.leads == nil {
		m.leads = map[cell.JobKey]*lead{}
	}
	for i := range events {
		t.leadEvent(&events[i])
		if e := &events[i]; e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_JOB && e.Cause == borgpb.StopCause_STOP_CAUSE_AFTER_FAILURE {
			t.w.mark("ended with the job before")
		}
	}
	before, now := m.may, map[cell.UID]bool{}
	for j := range t.cell.Jobs() {
		if len(j.Spec().GetStartAfter()) > 0 && j.State() != borgpb.State_STATE_DEAD {
			now[j.UID()] = t.mayStart(j)
			t.endsWithLead(j)
		}
	}
	m.may = now
	for i := range events {
		e := &events[i]
		if e.Kind != borgpb.EventKind_EVENT_KIND_SCHEDULE || e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
			continue
		}
		j := t.cell.JobByUID(e.UID)
		if j == nil || len(j.Spec().GetStartAfter()) == 0 {
			continue
		}
		if !before[e.UID] && !now[e.UID] {
			t.w.fail("S46: task %v/%d is placed at index %d, before what it starts after has ended so that it may", e.Key, e.Task, e.Index)
		}
		t.markStart(j)
	}
}

// leadEvent counts how jobs end that others start after.
func (t *truth) leadEvent(e *cell.Event) {
	leads := t.follow.leads
	l := leads[e.Key]
	switch {
	case e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_JOB && e.Kind == borgpb.EventKind_EVENT_KIND_SUBMIT:
		if j := t.cell.JobByUID(e.UID); j != nil {
			leads[e.Key] = &lead{uid: e.UID, tasks: int(j.NumTasks()), finished: map[uint32]bool{}}
		}
	case l == nil || l.uid != e.UID:
	case e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK && e.Kind == borgpb.EventKind_EVENT_KIND_FINISH:
		l.finished[e.Task] = true
	}
}

// outcomeOf is how a job stands by what its events said.
func (t *truth) outcomeOf(name string) outcome {
	key, err := cell.ParseJobKey(name)
	if err != nil {
		t.w.fail("S46: %q is no job", name)
	}
	j, l := t.cell.Job(key), t.follow.leads[key]
	switch {
	case j == nil || l == nil:
		return leadAbsent
	case j.State() != borgpb.State_STATE_DEAD:
		return leadLives
	case len(l.finished) == l.tasks:
		return leadFinished
	}
	return leadFailed
}

// mayStart reports whether what a job starts after has ended so that it may.
func (t *truth) mayStart(j *cell.Job) bool {
	runs := j.Spec().GetAfterFailure() == borgpb.AfterFailure_AFTER_FAILURE_RUN
	for _, name := range j.Spec().GetStartAfter() {
		switch t.outcomeOf(name) {
		case leadLives:
			return false
		case leadFailed, leadAbsent:
			if !runs {
				return false
			}
		}
	}
	return true
}

// endsWithLead: a job of which nothing runs, and that ends with what it starts after, is
// not there when that has failed.
func (t *truth) endsWithLead(j *cell.Job) {
	_, running, _ := j.Counts()
	for _, name := range j.Spec().GetStartAfter() {
		if running > 0 || t.outcomeOf(name) != leadFailed {
			continue
		}
		switch j.Spec().GetAfterFailure() {
		case borgpb.AfterFailure_AFTER_FAILURE_DIE:
			t.w.fail("S46: %v waits at index %d for %s, which has failed, and should have ended with it", j.Key(), t.index, name)
		case borgpb.AfterFailure_AFTER_FAILURE_RUN:
		default:
			t.w.mark("waits for a job that failed")
		}
	}
}

// markStart says for which reason a job with something before it starts.
func (t *truth) markStart(j *cell.Job) {
	for _, name := range j.Spec().GetStartAfter() {
		switch t.outcomeOf(name) {
		case leadFinished:
			t.w.mark("started after another job finished")
		case leadFailed:
			t.w.mark("started after another job failed")
		}
	}
}

// followersUnsettled names a job that may start and does not; empty: there is none.
func (w *World) followersUnsettled() string {
	t := w.truth
	for _, uid := range slices.SortedFunc(maps.Keys(t.follow.may), cell.UID.Compare) {
		j := t.cell.JobByUID(uid)
		if j == nil || !t.follow.may[uid] || w.swarm.tight {
			continue
		}
		if pending, _, _ := j.Counts(); pending > 0 && t.cell.HeldBack(j) == "" {
			return fmt.Sprintf("%v pends, and what it starts after has ended", j.Key())
		}
	}
	return ""
}
