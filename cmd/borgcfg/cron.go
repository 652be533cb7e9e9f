package main

import (
	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/cli"
	"borg/proto/borgpb"
)

// cronCommands run cron jobs by hand, and stop and start their slots.
func cronCommands(con *console) *ucli.Command {
	return group("cron", "jobs that run at set times",
		command(con, "run", "run a cron job now, beside its slots", "JOB", 1, 1, cronRun, reasonFlag()),
		command(con, "suspend", "run no slot of a cron job until it is resumed; what runs goes on", "JOB", 1, 1, func(s *session) error { return s.suspendCron(true) }, reasonFlag()),
		command(con, "resume", "run the slots of a cron job again, from the next one on", "JOB", 1, 1, func(s *session) error { return s.suspendCron(false) }, reasonFlag()))
}

// cronRun asks for a run of a cron job as it is now: if it changes meanwhile, the cell
// refuses.
func cronRun(s *session) error {
	n, resp, err := s.getJob(s.args[0])
	if err != nil {
		return err
	}
	name, spec := s.short(n.user, n.name), resp.Job.GetSpec()
	if spec.GetKind() != borgpb.JobKind_JOB_KIND_CRON {
		return cli.Errorf(cli.Refused, "%s is a %s job, not a cron job", name, word(spec.GetKind())).Hint("run it again: borgcfg up FILE")
	}
	run, err := proto.Marshal(borgcell.RunSpec(borgcell.JobKey{User: n.user, Name: n.name}, spec))
	if err != nil {
		return err
	}
	return s.change(&borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{
		User: n.user, Name: n.name, Uid: resp.Job.GetMeta().GetUid(), Version: resp.Job.GetMeta().GetVersion(), Manual: true, Spec: run,
	}}}, "job %s: a run was begun; see: borgcfg events --job %s", name, name)
}

func (s *session) suspendCron(suspend bool) error {
	n, err := s.job(s.args[0])
	if err != nil {
		return err
	}
	op := &borgpb.Op{Op: &borgpb.Op_SuspendCron{SuspendCron: &borgpb.SuspendCron{User: n.user, Name: n.name, Suspend: suspend}}}
	if suspend {
		return s.change(op, "job %s: suspended; no slot is run until: borgcfg cron resume %s", s.short(n.user, n.name), s.short(n.user, n.name))
	}
	return s.change(op, "job %s: resumed; it runs at its next slot", s.short(n.user, n.name))
}
