package main

import (
	"fmt"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// quarantineCommands take copies out of service, and let them go.
func quarantineCommands(con *console) []*ucli.Command {
	attempt := func(usage string) ucli.Flag { return &ucli.Uint64Flag{Name: "attempt", Usage: usage} }
	return []*ucli.Command{
		command(con, "quarantine", "take a task's copy out of service, keep it to be looked at, and have another one run in its place", "TASK", 1, 1, quarantineTask, reasonFlag(),
			&ucli.DurationFlag{Name: "for", DefaultText: "24h", Usage: "it ends by itself after `DURATION`"},
			attempt("only if the present copy has this `NUMBER`")),
		command(con, "release", "stop the copies of a task that are in quarantine", "TASK", 1, 1, releaseTask, reasonFlag(),
			attempt("only the copy with this `NUMBER`")),
	}
}

func quarantineTask(s *session) error {
	job, index, err := s.task(s.args[0])
	if err != nil {
		return err
	}
	if s.flag.Duration("for") < 0 {
		return cli.Errorf(cli.Usage, "--for %v: a quarantine is not over before it begins", s.flag.Duration("for"))
	}
	o := &borgpb.QuarantineTask{User: job.user, Name: job.name, Index: index, Attempt: s.flag.Uint64("attempt"), ForNs: int64(s.flag.Duration("for"))}
	if err := s.mutate(&borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: o}}); err != nil {
		return err
	}
	name := fmt.Sprintf("%s/%d", s.short(job.user, job.name), index)
	s.say("task %s: its copy is in quarantine%s", name, s.afterQuarantine(o))
	s.say("  see it: borgcfg tasks --attempts %s; end it: borgcfg release %s", s.short(job.user, job.name), name)
	return nil
}

// afterQuarantine says what becomes of the task of a copy in quarantine.
func (s *session) afterQuarantine(o *borgpb.QuarantineTask) string {
	jobs, err := s.client.GetJob(s.ctx, &borgrpc.GetJobRequest{User: o.User, Name: o.Name})
	if err != nil {
		return "" // The quarantine has begun; that is what counts.
	}
	if hasVolumes(jobs.GetJob().GetSpec(), o.Index) {
		return " and goes on working in its volume: the task waits, and no other copy starts before it is released"
	}
	return ", and another one takes its place as soon as a machine has room"
}

// hasVolumes reports whether a task of a job works in volumes.
func hasVolumes(spec *borgpb.JobSpec, index uint32) bool {
	for _, o := range spec.GetOverrides() {
		if o.First <= index && index <= o.Last && len(o.GetSpec().GetVolumes()) > 0 {
			return true
		}
	}
	return len(spec.GetTask().GetVolumes()) > 0
}

func releaseTask(s *session) error {
	job, index, err := s.task(s.args[0])
	if err != nil {
		return err
	}
	o := &borgpb.ReleaseTask{User: job.user, Name: job.name, Index: index, Attempt: s.flag.Uint64("attempt")}
	if err := s.mutate(&borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: o}}); err != nil {
		return err
	}
	s.say("task %s/%d: released; what was in quarantine is told to stop", s.short(job.user, job.name), index)
	return nil
}

// mutate asks for one op.
func (s *session) mutate(op *borgpb.Op) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	_, err = m.Mutate(s.ctx, s.op(op))
	return err
}

// quarantineText is why a copy is kept, and how long it is still.
func quarantineText(q *borgpb.Quarantine) string {
	text := "for " + time.Duration(q.GetLeftNs()).Round(time.Second).String() + " more"
	if q.GetUser() != "" {
		text = "by " + q.GetUser() + ", " + text
	}
	if q.GetReason() != "" {
		text += ": " + q.GetReason()
	}
	return text
}
