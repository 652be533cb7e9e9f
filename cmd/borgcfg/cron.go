package main

import (
	"fmt"
	"strings"
	"time"
	// The zones of schedules, wherever it runs.
	_ "time/tzdata"

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

// cronVerdict says when a cron job runs next.
func cronVerdict(j *borgpb.Job, name string) string {
	k, zone := j.GetStatus().GetCron(), cronZone(j)
	when := fmt.Sprintf("%s runs at %q (%s)", name, j.GetSpec().GetCron().GetSchedule(), zone)
	if k.Live > 0 {
		when += fmt.Sprintf("; %s under way", plural(k.Live, "run"))
	}
	switch {
	case k.Suspended:
		return fmt.Sprintf("Suspended: %s; no slot is run until: borgcfg cron resume %s", when, name)
	case k.NextSlotWallNs == 0:
		return fmt.Sprintf("Scheduled: %s; no slot comes.", when)
	}
	return fmt.Sprintf("Scheduled: %s; next slot: %s", when, slotText(k.NextSlotWallNs, zone))
}

// cronState is the state of a cron job, which has no tasks of its own: those are
// its runs'.
func cronState(st *borgpb.JobStatus) cell {
	switch {
	case st.GetState() == borgpb.State_STATE_DEAD:
		return stateCell(st.GetState())
	case st.GetCron().GetSuspended():
		return cell{"suspended", plainStyle}
	}
	return cell{"scheduled", plainStyle}
}

func cronZone(j *borgpb.Job) string { return orWord(j.GetSpec().GetCron().GetTimeZone(), "UTC") }

// lastRun is the name of the newest run of a cron job; empty: it is no cron job. One that has
// not run yet is an error.
func (s *session) lastRun(n jobName) (string, error) {
	v, err := s.find(n)
	if err != nil || v.job.GetSpec().GetKind() != borgpb.JobKind_JOB_KIND_CRON {
		return "", err
	}
	name := s.short(n.user, n.name)
	// They are newest first.
	for _, r := range v.job.GetStatus().GetCron().GetRuns() {
		if r.Job != "" {
			return r.Job, nil
		}
	}
	return "", cli.Errorf(cli.NotFound, "%s is a cron job that has not run yet", name).Hint("when it does: borgcfg status %s\nrun it now: borgcfg cron run %s", name, name)
}

// cronTable prints what became of the slots of a cron job; it has no tasks of its own.
func (s *session) cronTable(j *borgpb.Job) error {
	k, zone := j.GetStatus().GetCron(), cronZone(j)
	if len(k.Runs) == 0 {
		s.say("no slot has been decided yet")
		return nil
	}
	var t table
	t.head("SLOT", "RUN", "OUTCOME", "ENDED", "REASON")
	for _, r := range k.Runs {
		slot := slotText(r.SlotWallNs, zone)
		switch {
		case r.Manual:
			slot += " by hand"
		case r.Slots > 1:
			slot += fmt.Sprintf(", %d slots", r.Slots)
		}
		outcome := cell{strings.ToLower(strings.TrimPrefix(r.Outcome.String(), "CRON_OUTCOME_")), plainStyle}
		switch r.Outcome {
		case borgpb.CronOutcome_CRON_OUTCOME_FAILED, borgpb.CronOutcome_CRON_OUTCOME_KILLED:
			outcome.style = bad
		case borgpb.CronOutcome_CRON_OUTCOME_FINISHED:
			outcome.style = good
		}
		ended := ""
		if r.EndedWallNs != 0 {
			ended = slotText(r.EndedWallNs, zone)
		}
		t.add(slot, r.Job, outcome, ended, r.Reason)
	}
	return t.write(s.out, "")
}

// slotText says a time in the zone of the schedule, or in UTC if it is not known here.
func slotText(ns int64, zone string) string {
	at := time.Unix(0, ns).UTC()
	if in, err := time.LoadLocation(zone); err == nil {
		at = at.In(in)
	}
	return at.Format(time.RFC3339)
}
