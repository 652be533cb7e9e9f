package main

import (
	"fmt"
	"slices"
	"strings"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// tenant is a job that runs in an alloc set.
type tenant struct {
	jobName
	tasks uint32
}

// tenants are the jobs that run in the alloc sets among the victims and are no victims
// themselves: their tasks stop with the allocs, and wait.
func (s *session) tenants(victims []victim) ([]tenant, error) {
	sets := make(map[string]bool)
	for _, v := range victims {
		if v.set != nil && v.set.GetStatus().GetState() != borgpb.State_STATE_DEAD {
			sets[v.String()] = true
		}
	}
	if len(sets) == 0 {
		return nil, nil
	}
	resp, err := s.client.ListJobs(s.ctx, &borgrpc.ListJobsRequest{})
	if err != nil {
		return nil, err
	}
	var stay []tenant
	for _, j := range resp.Jobs {
		if sets[j.GetSpec().GetAllocSet()] && j.GetStatus().GetState() != borgpb.State_STATE_DEAD && !endsWith(victims, j) {
			stay = append(stay, tenant{jobName{j.GetMeta().GetUser(), j.GetMeta().GetName()}, numTasks(j)})
		}
	}
	return stay, nil
}

// endsWith reports whether a job is one of the victims, or was made by one and ends with it.
func endsWith(victims []victim, j *borgpb.Job) bool {
	return slices.ContainsFunc(victims, func(v victim) bool {
		if v.job == nil || v.user != j.GetMeta().GetUser() {
			return false
		}
		run := j.GetStatus().GetCronSlotWallNs() != 0 && strings.HasPrefix(j.GetMeta().GetName(), v.name+"-")
		return run || v.name == j.GetMeta().GetName() || j.GetSpec().GetParent() == v.String()
	})
}

// tenantWords names jobs, with how many tasks they have.
func (s *session) tenantWords(all []tenant) (words, names string) {
	var parts, each []string
	for _, t := range all {
		name := s.short(t.user, t.name)
		parts, each = append(parts, fmt.Sprintf("%s (%s)", name, plural(t.tasks, "task"))), append(each, name)
	}
	return strings.Join(parts, ", "), strings.Join(each, " ")
}

// keepsTenants refuses to end alloc sets in which jobs run that are to go on, unless --yes
// says so.
func (s *session) keepsTenants(victims []victim) error {
	stay, err := s.tenants(victims)
	if err != nil || len(stay) == 0 {
		return err
	}
	words, names := s.tenantWords(stay)
	if s.flag.Bool("yes") {
		s.progress("the tasks of these jobs stop, and wait for allocs: %s", words)
		return nil
	}
	args := s.sameFiles()
	return cli.Errorf(cli.Refused, "jobs run in what is to end: %s; their tasks would stop, and wait for allocs", words).
		Hint("end the jobs too: borgcfg down %s %s\nend the alloc sets alone: borgcfg down --yes %s", names, args, args)
}

// tellTenants says which jobs go on without the alloc sets that --prune ends.
func (s *session) tellTenants(ends []victim) error {
	stay, err := s.tenants(ends)
	if err == nil && len(stay) > 0 {
		words, _ := s.tenantWords(stay)
		s.progress("the tasks of these jobs stop, and wait for allocs: %s", words)
	}
	return err
}

// tellSetGone says what to type for a job that waits for an alloc set which has ended.
func (s *session) tellSetGone(n jobName) {
	v, err := s.find(n)
	if err != nil || v.job.GetSpec().GetAllocSet() == "" || v.job.GetStatus().GetState() == borgpb.State_STATE_DEAD {
		return
	}
	user, name, _ := strings.Cut(v.job.GetSpec().GetAllocSet(), "/")
	set, err := s.find(jobName{user, name})
	if err == nil && set.set.GetStatus().GetState() != borgpb.State_STATE_DEAD {
		return
	}
	s.progress("alloc set %s has ended; make it again: borgcfg up FILE\nor end the job: borgcfg down %s", s.short(user, name), s.short(n.user, n.name))
}
