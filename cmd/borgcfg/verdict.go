package main

import (
	"cmp"
	"fmt"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// verdict is one sentence: is the job as it should be, and if not, why not.
func (s *session) verdict(resp *borgrpc.GetJobResponse, tasks []*borgpb.Task) string {
	j := resp.Job
	st, n := j.GetStatus(), numTasks(j)
	name := s.short(j.GetMeta().GetUser(), j.GetMeta().GetName())
	backoff, example := inBackoff(name, tasks)
	switch {
	case st.GetState() == borgpb.State_STATE_DEAD:
		return deadVerdict(j, name, tasks)
	case st.GetCron() != nil:
		return cronVerdict(j, name)
	case underWay(resp.Update):
		state := ""
		if resp.Update.Status.State != borgpb.UpdateState_UPDATE_STATE_ROLLING {
			state = ", " + updateState(resp.Update)
		}
		// Extra tasks may run as well.
		return fmt.Sprintf("Updating: %s, %d of %s run%s.", name, min(st.GetStarted(), n), plural(n, "task"), state)
	case resp.Update.GetStatus().GetState() == borgpb.UpdateState_UPDATE_STATE_FAILED:
		return fmt.Sprintf("Failed to update: %s, %d of %s run; see: borgcfg update status %s", name, st.GetStarted(), plural(n, "task"), name)
	case backoff > 0:
		return fmt.Sprintf("Failing: %d of %s of %s %s and %s to be started again (%s).", backoff, plural(n, "task"), name, ended(tasks), verb(backoff, "waits", "wait"), example)
	case st.GetPending() > 0 && st.GetReason() != "":
		// The cell offers its tasks to no scheduler, and says why.
		return fmt.Sprintf("Held back: %d of %s of %s: %s.", st.GetPending(), plural(n, "task"), name, st.GetReason())
	case st.GetPending() > 0:
		return fmt.Sprintf("Waiting for a machine: %d of %s of %s; why: borgcfg why %s/%d", st.GetPending(), plural(n, "task"), name, name, firstPending(tasks))
	case st.GetDead() > st.GetFinished():
		dead := st.GetDead() - st.GetFinished()
		return fmt.Sprintf("Failing: %d of %s of %s %s dead; see: borgcfg tasks %s --attempts", dead, plural(n, "task"), name, verb(dead, "is", "are"), name)
	case j.GetSpec().GetKind() == borgpb.JobKind_JOB_KIND_BATCH:
		return fmt.Sprintf("Running: %s, %d of %s finished.", name, st.GetFinished(), plural(n, "task"))
	case st.GetStarted() < n:
		_, why := unhealthy(name, tasks, borgpb.AttemptState_ATTEMPT_STATE_STARTING)
		return fmt.Sprintf("Starting: %s, %d of %s run%s.", name, st.GetStarted(), plural(n, "task"), why)
	}
	if failing, why := unhealthy(name, tasks, borgpb.AttemptState_ATTEMPT_STATE_RUNNING); failing > 0 {
		return fmt.Sprintf("Running: %s of %s, of which %d %s a health check%s.", every(n), name, failing, verb(failing, "fails", "fail"), why)
	}
	return fmt.Sprintf("Healthy: %s of %s %s.", every(n), name, verb(n, "runs", "run"))
}

// unhealthy counts the tasks in a state of which something is said of their health
// checks, and tells of the first one what.
func unhealthy(name string, tasks []*borgpb.Task, state borgpb.AttemptState) (n uint32, example string) {
	for _, t := range tasks {
		st := t.GetStatus()
		if st.GetAttemptState() != state || t.GetSpec().GetHealth() == nil || st.GetPid() == 0 || st.GetReason() == "" {
			continue
		}
		if n++; n == 1 {
			example = fmt.Sprintf(" (%s/%d: %s)", name, t.GetIndex(), st.GetReason())
		}
	}
	return n, example
}

// whyBackoff says why a task waits to be started again. One whose process was never
// started has no exit, and a reason; one that was ended for its health has a better reason
// than the signal.
func whyBackoff(t *borgpb.Task) string {
	st := t.GetStatus()
	if t.GetSpec().GetHealth() != nil && st.GetReason() != "" {
		return st.GetReason()
	}
	return cmp.Or(exitText(st.GetLastExit()), st.GetReason(), "no exit known")
}

// ended says what happened to the tasks that wait to be started again.
func ended(tasks []*borgpb.Task) string {
	for _, t := range tasks {
		st := t.GetStatus()
		if e := st.GetLastExit(); st.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_BACKOFF && e != nil && e.GetError() == "" {
			return "ended"
		}
	}
	return "did not start"
}

// inBackoff counts the tasks that ended and wait to be started again, and tells
// of the first one how.
func inBackoff(name string, tasks []*borgpb.Task) (n uint32, example string) {
	for _, t := range tasks {
		st := t.GetStatus()
		if st.GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_BACKOFF {
			continue
		}
		if n++; n == 1 {
			example = fmt.Sprintf("%s/%d: %s", name, t.GetIndex(), whyBackoff(t))
		}
	}
	return n, example
}

// deadVerdict says how a job came to its end: all went well, some task failed
// for good, or somebody ended it.
func deadVerdict(j *borgpb.Job, name string, tasks []*borgpb.Task) string {
	st, n := j.GetStatus(), numTasks(j)
	if st.GetFinished() == n {
		return fmt.Sprintf("Finished: %s of %s ended well.", every(n), name)
	}
	failed, _ := failedTasks(tasks)
	var text string
	switch {
	case st.GetReason() != "":
		text = fmt.Sprintf("%s is dead: %s", name, st.GetReason())
	case failed > 0:
		text = fmt.Sprintf("%d of %s of %s failed for good", failed, plural(n, "task"), name)
	default:
		text = name + " was taken down"
	}
	if j.GetSpec().GetKind() == borgpb.JobKind_JOB_KIND_BATCH {
		text += fmt.Sprintf(", %d of %s ended well", st.GetFinished(), plural(n, "task"))
	}
	if st.GetStopping() > 0 {
		return fmt.Sprintf("Stopping: %s; %s still to stop.", text, copies(st.GetStopping()))
	}
	if failed > 0 {
		return fmt.Sprintf("Dead: %s; see: borgcfg tasks %s --attempts", text, name)
	}
	return fmt.Sprintf("Dead: %s.", text)
}

// endedByItself says how a dead job ended of which nobody took a task down: it finished, or as a batch job
// failed. Empty: it was taken down, or is of a kind that is to run for ever.
func (s *session) endedByItself(m *client.Client, j *borgpb.Job) (string, error) {
	st, n := j.GetStatus(), numTasks(j)
	switch {
	case st.GetFinished() == n:
		return "finished", nil
	case j.GetSpec().GetKind() != borgpb.JobKind_JOB_KIND_BATCH:
		return "", nil
	case st.GetReason() != "":
		return "dead: " + st.GetReason(), nil
	}
	resp, err := m.ListAllTasks(s.ctx, &borgrpc.ListTasksRequest{User: j.GetMeta().GetUser(), Name: j.GetMeta().GetName()}, 0)
	if err != nil {
		return "", err
	}
	if !endedAlone(j, resp.Tasks) {
		return "", nil
	}
	failed, how := failedTasks(resp.Tasks)
	return fmt.Sprintf("failed: %d of %s failed for good, the first with %s", failed, plural(n, "task"), how), nil
}

// endedAlone reports whether each task of a dead job finished or failed, so that nobody took one down.
func endedAlone(j *borgpb.Job, tasks []*borgpb.Task) bool {
	failed, _ := failedTasks(tasks)
	return failed+j.GetStatus().GetFinished() >= numTasks(j)
}

// failedTasks counts the tasks that failed for good, and says how the first one ended.
func failedTasks(tasks []*borgpb.Task) (n uint32, how string) {
	for _, t := range tasks {
		st := t.GetStatus()
		switch st.GetAttemptState() {
		case borgpb.AttemptState_ATTEMPT_STATE_FAILED, borgpb.AttemptState_ATTEMPT_STATE_LOST:
			if n++; n == 1 {
				how = cmp.Or(exitText(st.GetLastExit()), st.GetReason(), "no exit known")
			}
		}
	}
	return n, how
}

// every is "the task" or "all 3 tasks".
func every(n uint32) string {
	if n == 1 {
		return "the task"
	}
	return "all " + plural(n, "task")
}

// verb is the form of a verb that goes with so many.
func verb(n uint32, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
