package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// silentShown is how many machines of which the same is said are named.
const silentShown = 10

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
	if r.Held {
		s.progress("to place tasks now, although machines may run them already: borgcfg restore go")
	}
	return nil
}

// tellHold says in the status of a cell that was restored that it is held.
func (s *session) tellHold(m *client.Client, c *borgrpc.GetCellResponse) {
	// A cell that was never restored is of epoch 1. Without an elected master the answer
	// would have to wait.
	if c.Epoch < 2 || c.Elected == 0 {
		return
	}
	if r, err := m.GetRestore(s.ctx); err == nil && r.Held {
		s.say("the cell was restored, and nothing is placed until its machines have told what they run: %d of %d have, and it waits for at most %v; see: borgcfg restore status",
			r.Heard, r.Machines, time.Duration(r.HeldForNs).Round(time.Second))
	}
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
	incomplete := tellSilent(s, resp.Silent)
	switch {
	case s.out.format == "name":
		var names []string
		for _, u := range resp.Unknown {
			names = append(names, taskWord(u))
		}
		return cmp.Or(s.out.names(names), incomplete)
	case s.out.machine():
		return cmp.Or(list(s.out, resp.Unknown), incomplete)
	case len(resp.Unknown) == 0 && incomplete != nil:
		return incomplete
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
	return cmp.Or(t.write(s.out, ""), incomplete)
}

func taskWord(u *borgrpc.Unknown) string {
	if u.Runs == nil {
		return fmt.Sprintf("%s/%d", u.Report.JobUid, u.Report.Index)
	}
	return fmt.Sprintf("%s/%s/%d", u.Runs.User, u.Runs.Job, u.Report.Index)
}

// tellSilent names the machines of which it is not known what they run, and returns
// the error of a command whose answer lacks them; nil if there are none.
func tellSilent(s *session, silent []*borgrpc.Silent) error {
	if len(silent) == 0 {
		return nil
	}
	var errs []string
	named := map[string][]string{}
	for _, x := range silent {
		if named[x.Error] == nil {
			errs = append(errs, x.Error)
		}
		named[x.Error] = append(named[x.Error], x.Machine)
	}
	for _, e := range errs {
		names := named[e]
		more := ""
		if n := len(names) - silentShown; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		s.progress("%s%s: %s", strings.Join(names[:min(len(names), silentShown)], ", "), more, e)
	}
	return cli.Errorf(cli.Unreachable, "the cell does not know yet what runs on %s", plural(len(silent), "machine")).
		Hint("how far it is: borgcfg restore status; a machine that is gone for good: borgcfg machine remove MACHINE")
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
	return unknownDone(s, "adopted", resp.Jobs, resp.Silent)
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
	return unknownDone(s, "stopping", resp.Jobs, resp.Silent)
}

func unknownDone(s *session, what string, jobs []*borgrpc.UnknownDone, silent []*borgrpc.Silent) error {
	refused, code := 0, cli.NotFound
	for _, j := range jobs {
		if j.Refusal != nil {
			refused++
			if j.Refusal.Kind != borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND {
				code = cli.Refused
			}
			s.progress("%s: %s", j.Job, j.Refusal.Message)
			continue
		}
		s.say("%s: %s, %d copies", j.Job, what, j.Copies)
	}
	incomplete := tellSilent(s, silent)
	switch {
	case incomplete != nil:
		return incomplete
	case refused > 0:
		return cli.Errorf(code, "%d of %d jobs were left as they are", refused, len(jobs)).Hint("see: borgcfg restore unknown")
	case len(jobs) == 0:
		s.progress("the cell knows all that runs")
	}
	return nil
}

func restoreGo(s *session) error {
	return s.change(&borgpb.Op{Op: &borgpb.Op_EndHold{EndHold: &borgpb.EndHold{}}}, "tasks are placed")
}
