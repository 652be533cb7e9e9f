package main

import (
	"fmt"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	"borg/cli"
	"borg/proto/borgpb"
)

// updateCommand begins updates, looks at them, and tells them how to go on.
func updateCommand(con *console, flags []ucli.Flag) *ucli.Command {
	cmd := command(con, "update", "give running jobs the specs of a file, task after task", "FILE", 1, 1, updateFile, flags...)
	tell := func(name, usage string, verb borgpb.UpdateVerb, done string) *ucli.Command {
		return command(con, name, usage, "JOB", 1, 1, func(s *session) error { return s.tellUpdate(verb, done) }, reasonFlag(),
			waitFlag("watch it roll until it is done or waits for somebody"))
	}
	cmd.Subcommands = []*ucli.Command{
		command(con, "status", "tell how far the update of a job has come, what it waits for, and whether it can be undone", "JOB", 1, 1, updateStatus, outputFlag()),
		tell("promote", "let all tasks follow the canaries", borgpb.UpdateVerb_UPDATE_VERB_PROMOTE, "promoted: all tasks follow"),
		tell("pause", "disturb no further task", borgpb.UpdateVerb_UPDATE_VERB_PAUSE, "paused: no further task is disturbed"),
		tell("resume", "go on", borgpb.UpdateVerb_UPDATE_VERB_RESUME, "resumed"),
		tell("abort", "end an update and leave every task as it is", borgpb.UpdateVerb_UPDATE_VERB_ABORT, "aborted: every task stays as it is"),
		tell("rollback", "return all tasks to the last healthy spec, as carefully as they were updated", borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK, "rolling back"),
		tell("close", "make an update final: it cannot be rolled back any more", borgpb.UpdateVerb_UPDATE_VERB_CLOSE, "closed: the update is final"),
		tell("pulse", "say to an update that waits for it that all is well", borgpb.UpdateVerb_UPDATE_VERB_PULSE, "told that all is well"),
	}
	return cmd
}

// underWay tells that an update rolls, if only waiting.
func underWay(u *borgpb.Update) bool {
	switch u.GetStatus().GetState() {
	case borgpb.UpdateState_UPDATE_STATE_ROLLING, borgpb.UpdateState_UPDATE_STATE_ROLLING_BACK,
		borgpb.UpdateState_UPDATE_STATE_CANARY, borgpb.UpdateState_UPDATE_STATE_PAUSED:
		return true
	}
	return false
}

// stuckUpdate is what an update says that does not go on, or went wrong, and what to
// type next.
func (s *session) stuckUpdate(name string, u *borgpb.Update) error {
	st := u.GetStatus()
	switch st.GetState() {
	case borgpb.UpdateState_UPDATE_STATE_CANARY:
		if st.GetPromoteLeftNs() > 0 {
			return nil
		}
		return cli.Errorf(cli.NeedsYou, "%s: its canaries are healthy; all other tasks keep the old spec until somebody promotes the update", name).
			Hint("let them follow: borgcfg update promote %s\nor take it back: borgcfg update rollback %s", name, name)
	case borgpb.UpdateState_UPDATE_STATE_PAUSED:
		return cli.Errorf(cli.NeedsYou, "%s: the update is paused", name).Hint("go on: borgcfg update resume %s", name)
	case borgpb.UpdateState_UPDATE_STATE_FAILED, borgpb.UpdateState_UPDATE_STATE_ABORTED:
		ended := "failed"
		if st.GetState() == borgpb.UpdateState_UPDATE_STATE_ABORTED {
			ended = "was aborted"
		}
		err := cli.Errorf(cli.WentWrong, "%s: the update %s: %s", name, ended, st.GetReason())
		if u.GetSpec().GetStableVersion() != 0 {
			return err.Hint("go back to the spec of version %d: borgcfg update rollback %s", u.Spec.StableVersion, name)
		}
		return err.Hint("see: borgcfg update status %s", name)
	case borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK:
		if s.wantsBack {
			return nil
		}
		return cli.Errorf(cli.WentWrong, "%s: the update was rolled back: %s; its tasks have the spec from before it, as version %d", name, st.GetReason(), u.GetSpec().GetToVersion()).Hint("see: borgcfg events --job %s", name)
	}
	return nil
}

// tellUpdate tells the update of a job how to go on.
func (s *session) tellUpdate(verb borgpb.UpdateVerb, done string) error {
	n, err := s.job(s.args[0])
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	op := &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: n.user, Name: n.name, Verb: verb}}}
	if _, err := m.Mutate(s.ctx, s.op(op)); err != nil {
		return err
	}
	name := s.short(n.user, n.name)
	s.say("job %s: %s", name, done)
	if s.flag.Bool("wait") {
		s.wantsBack = verb == borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK
		return s.follow(n, fmt.Sprintf("borgcfg update status %s", name))
	}
	return nil
}

func updateStatus(s *session) error {
	n, resp, err := s.getJob(s.args[0])
	if err != nil {
		return err
	}
	if s.out.machine() {
		return s.out.parts(part{"update", present(resp.Update), false}, part{"job", []proto.Message{resp.Job}, false})
	}
	name := s.short(n.user, n.name)
	if resp.Update == nil {
		s.say("job %s: it was never updated", name)
		return nil
	}
	s.say("job %s: %s", name, updateSentence(resp.Update))
	for _, line := range s.rolloutLines(name, resp.Update) {
		s.say("  %s", line)
	}
	if resp.Job.GetStatus().GetState() == borgpb.State_STATE_DEAD {
		s.say("  the job has ended since: nothing of it runs")
	}
	return nil
}

// updateState is the state of an update as people say it: "rolled back".
func updateState(u *borgpb.Update) string {
	return strings.ReplaceAll(word(u.GetStatus().GetState()), "_", " ")
}

// updateSentence is how an update stands, in one.
func updateSentence(u *borgpb.Update) string {
	state := updateState(u)
	line := updateLine(u) + "; " + state
	// The reason of one that was aborted is "aborted", or begins with it.
	if why := strings.TrimPrefix(strings.TrimPrefix(u.GetStatus().GetReason(), state), ": "); why != "" {
		line += ": " + why
	}
	return line
}

// rolloutLines are what an update waits for, and what can be done about it.
func (s *session) rolloutLines(name string, u *borgpb.Update) (lines []string) {
	st := u.GetStatus()
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	in := func(ns int64) time.Duration { return time.Duration(ns).Round(time.Second) }
	if st.GetOld() > 0 && !underWay(u) {
		add("%s with another version", plural(st.GetOld(), "task")+" "+verb(st.GetOld(), "runs", "run"))
	}
	if st.GetWaitsFor() != "" {
		add("waits for: %s", st.GetWaitsFor())
	}
	if n := st.GetExtra(); n > 0 {
		add("%s, which %s with it", plural(n, "extra task"), verb(n, "ends", "end"))
	}
	if st.GetGateLeftNs() > 0 {
		add("fails in %v unless its gate is within bounds before", in(st.GetGateLeftNs()))
	} else if st.GetGate() != "" && !strings.HasPrefix(st.GetWaitsFor(), "its gate") {
		add("its gate said: %s", st.GetGate())
	}
	if st.GetFailures() > 0 {
		add("failures of tasks that it dealt with: %d", st.GetFailures())
	}
	if st.GetPromoteLeftNs() > 0 {
		add("promotes itself in %v", in(st.GetPromoteLeftNs()))
	}
	if st.GetDeadlineLeftNs() > 0 {
		add("fails in %v unless a task is dealt with before", in(st.GetDeadlineLeftNs()))
	}
	back := u.GetSpec().GetStableVersion()
	switch {
	case back != 0 && st.GetCloseLeftNs() > 0:
		add("can be undone for %v: borgcfg update rollback %s gives all tasks the spec of version %d again; borgcfg update close %s makes it final", in(st.GetCloseLeftNs()), name, back, name)
	case back != 0:
		add("can be undone: borgcfg update rollback %s gives all tasks the spec of version %d again", name, back)
	}
	return lines
}
