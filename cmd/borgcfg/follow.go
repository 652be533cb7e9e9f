package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// How often a job is asked for while somebody waits.
const watchEvery = 250 * time.Millisecond

// poll calls f again and again until it is done. again is what to type to go
// on waiting after an interrupt.
func (s *session) poll(what, again string, f func() (done bool, err error)) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		done, err := f()
		if s.ctx.Err() == nil && (err != nil || done) {
			return err
		}
		if s.ctx.Err() == nil {
			select {
			case <-s.ctx.Done():
			case <-tick.C:
				continue
			}
		}
		next := "to watch again: " + again
		if !strings.Contains(again, "--wait") {
			next = "to see how far it is: " + again
		}
		if errors.Is(context.Cause(s.ctx), errTimeout) {
			return cli.Errorf(cli.TimedOut, "%s: not done within %v; it goes on", what, s.flag.Duration("timeout")).Hint("%s", next)
		}
		return cli.Errorf(cli.Interrupted, "%s: interrupted; it goes on without you", what).Hint("%s", next)
	}
}

// follow prints how a job comes up, or how its update rolls, until that is
// done: a service runs, a batch job has finished.
func (s *session) follow(job jobName, again string) error {
	var last string
	rolled := false
	name := s.short(job.user, job.name)
	told := make(map[string]bool)
	looks := 0
	return s.poll(name, again, func() (bool, error) {
		resp, err := s.client.GetJob(s.ctx, &borgrpc.GetJobRequest{User: job.user, Name: job.name})
		if err != nil {
			return false, err
		}
		// The last step of an update may end it between two looks.
		if underWay(resp.Update) {
			rolled = true
		} else if rolled {
			// It may be another than was seen: the rollback of that one.
			s.progress("%s: %s", name, updateSentence(resp.Update))
			rolled = false
			if err := s.stuckUpdate(name, resp.Update); err != nil {
				return false, err
			}
		}
		line := progressLine(resp)
		if line != last {
			s.progress("%s: %s", name, line)
			last = line
		}
		if underWay(resp.Update) {
			if err := s.stuckUpdate(name, resp.Update); err != nil {
				return false, err
			}
		}
		done, err := settled(resp)
		if looks++; !done && err == nil && looks%troubleEvery == 0 {
			s.tellTrouble(job, told)
		}
		return done, err
	})
}

// troubleEvery is after how many looks at a job its tasks are looked at too.
const troubleEvery = 8

// tellTrouble tells, once for each task, of tasks that end instead of running:
// whoever waits for them would wait for ever.
func (s *session) tellTrouble(job jobName, told map[string]bool) {
	resp, err := s.client.ListTasks(s.ctx, &borgrpc.ListTasksRequest{User: job.user, Name: job.name})
	if err != nil {
		return // The next look at the job tells.
	}
	for _, t := range resp.Tasks {
		st := t.GetStatus()
		name := fmt.Sprintf("%s/%d", s.short(job.user, job.name), t.GetIndex())
		if st.GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_BACKOFF || told[name] {
			continue
		}
		told[name] = true
		if e := st.GetLastExit(); e == nil || e.GetError() != "" {
			// It wrote nothing that could be looked at.
			s.progress("%s does not start, and is tried again: %s", name, cmp.Or(e.GetError(), whyBackoff(t)))
			continue
		}
		s.progress("%s ended (%s) and is started again; see: borgcfg logs --stderr %s", name, whyBackoff(t), name)
	}
}

// progressLine is where a job stands, in a line that changes only when
// something does.
func progressLine(resp *borgrpc.GetJobResponse) string {
	st, spec := resp.Job.GetStatus(), resp.Job.GetSpec()
	if u := resp.Update; underWay(u) {
		if st := u.Status; st.WaitsFor != "" {
			return updateLine(u) + "; waits for " + st.WaitsFor
		}
		return updateLine(u)
	}
	if spec.GetKind() == borgpb.JobKind_JOB_KIND_BATCH {
		return fmt.Sprintf("%d of %d finished, %d started, %d waiting%s", st.GetFinished(), numTasks(resp.Job), st.GetStarted(), st.GetPending(), failed(st))
	}
	return fmt.Sprintf("%d of %d started, %d waiting%s", min(st.GetStarted(), numTasks(resp.Job)), numTasks(resp.Job), st.GetPending(), failed(st))
}

func failed(st *borgpb.JobStatus) string {
	if n := st.GetDead() - st.GetFinished(); n > 0 {
		return fmt.Sprintf(", %d dead", n)
	}
	return ""
}

// updateLine is how far an update has come.
func updateLine(u *borgpb.Update) string {
	st := u.GetStatus()
	what := "update"
	if u.GetSpec().GetRollback() {
		what = "rollback"
	}
	line := fmt.Sprintf("%s to version %d: %d changed in place, %d restarted, %d moved, %d to do",
		what, u.GetSpec().GetToVersion(), st.GetInPlace(), st.GetRestarted(), st.GetRescheduled(), st.GetRemaining())
	if st.GetSkipped() > 0 {
		line += fmt.Sprintf(", %d skipped", st.GetSkipped())
	}
	return line
}

// settled tells whether there is nothing left to wait for. A job that cannot
// get there any more is an error.
func settled(resp *borgrpc.GetJobResponse) (bool, error) {
	st, spec := resp.Job.GetStatus(), resp.Job.GetSpec()
	if underWay(resp.Update) {
		return false, nil
	}
	key := resp.Job.GetMeta().GetUser() + "/" + resp.Job.GetMeta().GetName()
	if st.GetState() == borgpb.State_STATE_DEAD {
		if st.GetFinished() == numTasks(resp.Job) {
			return true, nil
		}
		return false, cli.Errorf(cli.Failed, "%s is dead: %s", key, orWord(st.GetReason(), "not all of its tasks ended well")).
			Hint("see: borgcfg tasks %s --attempts", key)
	}
	if spec.GetKind() == borgpb.JobKind_JOB_KIND_BATCH {
		return false, nil
	}
	return st.GetStarted() >= numTasks(resp.Job) && st.GetStopping() == 0, nil
}

func orWord(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
