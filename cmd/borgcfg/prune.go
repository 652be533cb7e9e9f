package main

import (
	"slices"

	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// pruned are the jobs and alloc sets, jobs first, that the files do not say any more: of the
// users of the files, with the labels that --prune names, and alive. What the cell made for
// another job, runs of cron jobs and children, goes with that; who has no labels was never
// told apart, and stays.
func (s *session) pruned(objects []declared) ([]victim, error) {
	selector := s.flag.String("prune")
	if !s.flag.IsSet("prune") {
		return nil, nil
	}
	if selector == "" {
		return nil, cli.Errorf(cli.Usage, "--prune needs a SELECTOR: it ends all that has such labels and is not in the files").
			Hint("give all of them a label of their own, such as app=shop, and say --prune app=shop")
	}
	said := make(map[jobName]bool)
	var users []string
	for _, o := range objects {
		said[jobName{o.User, o.Name}] = true
		if !slices.Contains(users, o.User) {
			users = append(users, o.User)
		}
	}
	gone := func(m *borgpb.Meta, state borgpb.State) bool {
		return len(m.GetLabels()) > 0 && state != borgpb.State_STATE_DEAD && !said[jobName{m.GetUser(), m.GetName()}]
	}
	var jobs, sets []victim
	for _, user := range users {
		resp, err := s.client.ListJobs(s.ctx, &borgrpc.ListJobsRequest{User: user, Selector: selector})
		if err != nil {
			return nil, err
		}
		for _, j := range resp.Jobs {
			if gone(j.Meta, j.GetStatus().GetState()) && j.GetSpec().GetParent() == "" && j.GetStatus().GetCronSlotWallNs() == 0 {
				jobs = append(jobs, victim{jobName: jobName{user, j.Meta.Name}, job: j})
			}
		}
		allocs, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: user, Selector: selector})
		if err != nil {
			return nil, err
		}
		for _, a := range allocs.AllocSets {
			if gone(a.Meta, a.GetStatus().GetState()) {
				sets = append(sets, victim{jobName: jobName{user, a.Meta.Name}, set: a})
			}
		}
	}
	return append(jobs, sets...), nil
}

// showPruned prints a line for each that would be ended.
func (s *session) showPruned(victims []victim) {
	for _, v := range victims {
		kind := cfg.KindJob
		if v.set != nil {
			kind = cfg.KindAllocSet
		}
		s.say("- %s %s: not in the files, ended", kind, s.short(v.user, v.name))
	}
}
