package main

import (
	"fmt"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func restoreCommands(con *console) *ucli.Command {
	all := func(usage string) ucli.Flag {
		return &ucli.BoolFlag{DisableDefaultText: true, Name: "all", Usage: usage}
	}
	return group("restore", "what runs in a cell that was restored from a checkpoint, which is older",
		command(con, "status", "say what the cell waits for, and what runs that it does not know", "", 0, 0, restoreStatus, outputFlag()),
		command(con, "unknown", "list what runs that the cell does not know", "", 0, 0, restoreUnknown, outputFlag()),
		command(con, "adopt", "make jobs of it, running where they are", "JOB... | --all", 0, -1, restoreAdopt, reasonFlag(), all("everything that can be adopted")),
		command(con, "stop", "stop it", "JOB... | --all", 0, -1, restoreStop, reasonFlag(), all("everything that the cell does not know")),
		command(con, "go", "place tasks although not all machines have told what they run: what they run may be started a second time", "", 0, 0, restoreGo, reasonFlag()),
	)
}

func restoreStatus(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	r, err := m.GetRestore(s.ctx)
	if err != nil {
		return err
	}
	if s.out.machine() {
		return list(s.out, []*borgrpc.GetRestoreResponse{r})
	}
	if !r.Restored {
		s.say("the cell was never restored")
		return nil
	}
	unknown := uint32(0)
	for _, u := range r.Unknown {
		unknown += u.Copies
	}
	s.say("epoch %d began %s with index %d of %s", r.Epoch, began(s, r.RestoredWallNs), r.FromIndex, time.Unix(0, r.FromWallNs).UTC().Format(time.RFC3339))
	if r.Held {
		s.say("held: nothing is placed until the machines have told what they run, at most for %v", time.Duration(r.HeldForNs).Round(time.Second))
	} else {
		s.say("not held: tasks are placed, but on no machine that runs what the cell does not know")
	}
	s.say("machines heard: %d of %d%s", r.Heard, r.Machines, notYet(r.Unheard))
	s.say("unknown copies: %d on %d machines", unknown, len(r.Unknown))
	s.say("tasks that wait for a place: %d", r.Pending)
	if unknown > 0 {
		s.progress("see them: borgcfg restore unknown")
	}
	return nil
}

func began(s *session, wallNs int64) string {
	if wallNs == 0 {
		return "just now"
	}
	return ago(s.now(), wallNs) + " ago"
}

func notYet(machines []string) string {
	if len(machines) == 0 {
		return ""
	}
	return "; not yet " + strings.Join(machines, ", ")
}

func restoreUnknown(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListUnknown(s.ctx)
	if err != nil {
		return err
	}
	tellSilent(s, resp.Silent)
	switch {
	case s.out.format == "name":
		var names []string
		for _, u := range resp.Unknown {
			names = append(names, taskWord(u))
		}
		return s.out.names(names)
	case s.out.machine():
		return list(s.out, resp.Unknown)
	case len(resp.Unknown) == 0:
		s.progress("the cell knows all that runs")
		return nil
	}
	var t table
	t.head("TASK", "ATTEMPT", "MACHINE", "STATE", "SINCE", "SPEC", "UID", "CANNOT BE ADOPTED")
	for _, u := range resp.Unknown {
		since := "-"
		if u.Report.StartedWallNs != 0 {
			since = ago(s.now(), u.Report.StartedWallNs)
		}
		state := strings.ToLower(strings.TrimPrefix(borgpb.AttemptState(u.Report.State).String(), "ATTEMPT_STATE_"))
		t.add(taskWord(u), u.Report.Attempt, u.Machine, state, since, u.SpecHash, u.Report.JobUid, u.WhyNot)
	}
	return t.write(s.out, "")
}

func taskWord(u *borgrpc.Unknown) string {
	if u.Runs == nil {
		return fmt.Sprintf("%s/%d", u.Report.JobUid, u.Report.Index)
	}
	return fmt.Sprintf("%s/%s/%d", u.Runs.User, u.Runs.Job, u.Report.Index)
}

func tellSilent(s *session, silent []*borgrpc.Silent) {
	for _, x := range silent {
		s.progress("machine %s did not answer: %s", x.Machine, x.Error)
	}
}

// unknownJobs are the jobs that are named, or none for all.
func unknownJobs(s *session) ([]string, error) {
	if s.flag.Bool("all") == (len(s.args) > 0) {
		return nil, cli.Errorf(cli.Usage, "name jobs, or say --all").Hint("see them: borgcfg restore unknown")
	}
	var jobs []string
	for _, arg := range s.args {
		n, err := s.job(arg)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, n.user+"/"+n.name)
	}
	return jobs, nil
}

func restoreAdopt(s *session) error {
	jobs, err := unknownJobs(s)
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.AdoptUnknown(s.ctx, &borgrpc.AdoptUnknownRequest{Jobs: jobs, Command: s.command(), Reason: s.flag.String("reason")})
	if err != nil {
		return err
	}
	tellSilent(s, resp.Silent)
	return unknownDone(s, "adopted", resp.Jobs)
}

func restoreStop(s *session) error {
	jobs, err := unknownJobs(s)
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.StopUnknown(s.ctx, &borgrpc.StopUnknownRequest{Jobs: jobs, All: s.flag.Bool("all"), Command: s.command(), Reason: s.flag.String("reason")})
	if err != nil {
		return err
	}
	tellSilent(s, resp.Silent)
	return unknownDone(s, "stopping", resp.Jobs)
}

func unknownDone(s *session, what string, jobs []*borgrpc.UnknownDone) error {
	refused := 0
	for _, j := range jobs {
		if j.Refusal != nil {
			refused++
			s.progress("%s: %s", j.Job, j.Refusal.Message)
			continue
		}
		s.say("%s: %s, %d copies", j.Job, what, j.Copies)
	}
	switch {
	case len(jobs) == 0:
		s.progress("the cell knows all that runs")
	case refused > 0:
		return cli.Errorf(cli.Refused, "%d of %d jobs were left as they are", refused, len(jobs)).Hint("see: borgcfg restore unknown")
	}
	return nil
}

func restoreGo(s *session) error {
	return s.change(&borgpb.Op{Op: &borgpb.Op_EndHold{EndHold: &borgpb.EndHold{}}}, "tasks are placed")
}
