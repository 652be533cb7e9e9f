package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/tell"
)

// auditShown is how many records people get to see unless they ask for more.
const auditShown = 50

// auditTrail tells who did what.
func auditTrail(s *session) error {
	req := &borgrpc.AuditRequest{User: s.flag.String("by"), Verb: s.flag.String("verb"), Refused: s.flag.Bool("refused"), Ops: s.out.machine(),
		PeopleOnly: !s.flag.Bool("all") && !s.flag.IsSet("verb")}
	var err error
	if req.SinceWallNs, err = s.moment("since"); err != nil {
		return err
	}
	if req.UntilWallNs, err = s.moment("until"); err != nil {
		return err
	}
	cut := false
	if len(s.args) == 1 {
		req.Object = s.args[0]
	}
	switch {
	case s.flag.IsSet("last"):
		req.Last = uint32(min(s.flag.Uint64("last"), 1<<32-1))
	case !s.out.machine() && req.SinceWallNs == 0 && req.UntilWallNs == 0:
		req.Last, cut = auditShown, true
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	all, shown := []*borgpb.AuditRecord{}, 0
	err = m.Audit(s.ctx, req, func(resp *borgrpc.AuditResponse) error {
		for _, silent := range resp.Silent {
			s.progress("replica %d: what it alone refused is not shown: %s", silent.Replica, cli.Visible(silent.Why))
		}
		for _, r := range resp.Records {
			shown++
			if s.out.machine() {
				all = append(all, r)
			} else if _, err := fmt.Fprintln(s.stdout, s.auditLine(r)); err != nil {
				return fmt.Errorf("write to standard output: %w", err)
			}
		}
		return nil
	})
	var invalid *client.InvalidError
	if errors.As(err, &invalid) {
		e := cli.Errorf(cli.Usage, "audit: %w", err)
		if near := cli.Nearest(req.Verb, verbsOfOps()); near != "" {
			return e.Hint("did you mean --verb %s?", near)
		}
		return e
	}
	if err != nil {
		return err
	}
	if shown == 0 {
		s.tellNearUser(m, req)
		s.noteNoObject(m, req.Object)
	}
	if s.out.machine() {
		if err := list(s.out, all); err != nil {
			return err
		}
		return s.tellNoted(shown)
	}
	if shown == 0 {
		s.progress("nothing of that is kept; a user who is no admin sees what the user did, and what was done to what the user owns")
	}
	s.tellCut(cut, shown, auditShown)
	return s.tellNoted(shown)
}

// verbsOfOps are the verbs of the records of ops.
func verbsOfOps() (verbs []string) {
	fields := (&borgpb.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range fields.Len() {
		verbs = append(verbs, strings.ReplaceAll(string(fields.Get(i).Name()), "_", "-"))
	}
	return verbs
}

// tellNearUser offers a name like that of a user of whom nothing is known.
func (s *session) tellNearUser(m *client.Client, req *borgrpc.AuditRequest) {
	if req.User == "" {
		return
	}
	var names []string
	if users, err := m.ListUsers(s.ctx); err == nil {
		for _, u := range users {
			names = append(names, u.Name)
		}
	}
	if jobs, err := m.ListJobs(s.ctx, &borgrpc.ListJobsRequest{Dead: true}); err == nil {
		for _, j := range jobs.Jobs {
			names = append(names, j.GetMeta().GetUser())
		}
	}
	if near := cli.Nearest(req.User, names); near != "" && near != req.User {
		s.progress("the cell has nothing of user %s; did you mean --by %s?", req.User, near)
	}
}

// noteNoObject notes an object that the cell does not have, with a name like it. Where the cell does not say
// what it has, nothing is noted.
func (s *session) noteNoObject(m *client.Client, object string) {
	if object == "" || strings.Count(object, "/") > 1 {
		return
	}
	jobs, err := m.ListJobs(s.ctx, &borgrpc.ListJobsRequest{Dead: true})
	if err != nil {
		return
	}
	machines, err := m.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return
	}
	sets, err := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{})
	if err != nil {
		return
	}
	var alive, dead []string
	add := func(meta *borgpb.Meta, state borgpb.State) {
		names := []string{s.short(meta.GetUser(), meta.GetName()), meta.GetUser() + "/" + meta.GetName()}
		if state == borgpb.State_STATE_DEAD {
			dead = append(dead, names...)
		} else {
			alive = append(alive, names...)
		}
	}
	for _, j := range jobs.Jobs {
		add(j.GetMeta(), j.GetStatus().GetState())
	}
	for _, a := range sets.AllocSets {
		add(a.GetMeta(), a.GetStatus().GetState())
	}
	for _, x := range machines.Machines {
		alive = append(alive, x.GetMeta().GetName())
	}
	if slices.Contains(alive, object) || slices.Contains(dead, object) {
		return
	}
	if h, err := s.holder(object); !strings.Contains(object, "/") && (err != nil || h.known) {
		return
	}
	e := cli.Errorf(cli.NotFound, "the cell has no job, alloc set, machine or user %s", object)
	if near := nearOf(object, alive, dead); near != "" {
		e = e.Hint("did you mean: borgcfg audit %s?", near)
	}
	s.missed = e
}

// tellCut says that only the newest are shown, where that was not asked for.
func (s *session) tellCut(cut bool, shown, most int) {
	if cut && shown >= most {
		s.progress("only the newest %d are shown; for more: --last N, or --since TIME", most)
	}
}

// auditLine is one record: when, where in the log, who, what, what came of it,
// and how it was asked for.
func (s *session) auditLine(r *borgpb.AuditRecord) string {
	if s.out.format == "name" {
		return cli.Visible(cmp.Or(r.Object, r.Verb, r.Who))
	}
	return tell.Audit(r)
}

// moment reads a flag that is a time, or how long ago.
func (s *session) moment(flag string) (int64, error) {
	text := s.flag.String(flag)
	if text == "" {
		return 0, nil
	}
	if d, err := cli.ParseDuration(text); err == nil && d >= 0 {
		return s.now().Add(-d).UnixNano(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly} {
		t, err := time.ParseInLocation(layout, text, time.Local)
		if err != nil {
			continue
		}
		if t.Unix() <= 0 || t.Unix() > math.MaxInt64/int64(time.Second)-1 {
			return 0, cli.Errorf(cli.Usage, "--%s %q is not a time from 1970 to 2262", flag, text)
		}
		return t.UnixNano(), nil
	}
	return 0, cli.Errorf(cli.Usage, "--%s %q is not a time", flag, text).Hint("how long ago, 90m or 3d, or a time: 2026-11-21T22:00:00Z")
}
