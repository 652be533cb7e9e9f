package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/tell"
)

// mostAsked is how many tasks of a job are asked about, each of which costs the
// scheduler a look at all machines. Tasks of one job mostly wait for the same.
const mostAsked = 16

// why prints the funnel: how many machines each test refused, until none is
// left or some are.
func why(s *session) error {
	if !isTask(s.args[0]) {
		return s.whyAll(s.args[0])
	}
	job, index, err := s.task(s.args[0])
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.Why(s.ctx, &borgrpc.WhyRequest{User: job.user, Name: job.name, Index: index})
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchTask(job, missing)
	}
	if err != nil {
		return err
	}
	if s.out.machine() {
		return s.out.one(resp)
	}
	if s.out.format == "name" {
		return s.out.names([]string{taskName(job.user, job.name, index)})
	}
	if err := s.tellWhy(fmt.Sprintf("%s/%d", s.short(job.user, job.name), index), resp); err != nil {
		return err
	}
	if resp.GetTask().GetStatus().GetState() == borgpb.State_STATE_PENDING {
		s.tellSetGone(job)
	}
	return nil
}

// tellWhy prints why a task waits, or what its place was chosen for.
func (s *session) tellWhy(name string, resp *borgrpc.WhyResponse) error {
	var text bytes.Buffer
	if err := tell.Why(&text, s.out.color, name, resp); err != nil {
		return err
	}
	if _, err := fmt.Fprint(s.stdout, s.typed(text.String())); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// alike is tasks of which the same is said.
type alike struct {
	names []string
	resp  *borgrpc.WhyResponse
}

// whyAll says why those of a job's tasks, or of a set's allocs, wait that do, once
// for all that wait for the same.
func (s *session) whyAll(arg string) error {
	job, err := s.job(arg)
	if err != nil {
		return err
	}
	waiting, total, err := s.waiting(job)
	if err != nil {
		return err
	}
	asked := waiting[:min(len(waiting), mostAsked)]
	var groups []*alike
	var answers []*borgrpc.WhyResponse
	byText := map[string]*alike{}
	for _, index := range asked {
		resp, err := s.client.Why(s.ctx, &borgrpc.WhyRequest{User: job.user, Name: job.name, Index: index})
		if err != nil {
			return err
		}
		answers = append(answers, resp)
		var text bytes.Buffer
		if err := tell.Why(&text, false, "", resp); err != nil {
			return err
		}
		g := byText[text.String()]
		if g == nil {
			g = &alike{resp: resp}
			byText[text.String()], groups = g, append(groups, g)
		}
		g.names = append(g.names, fmt.Sprintf("%s/%d", s.short(job.user, job.name), index))
	}
	switch {
	case s.out.machine():
		return list(s.out, answers)
	case s.out.format == "name":
		var names []string
		for _, index := range waiting {
			names = append(names, taskName(job.user, job.name, index))
		}
		return s.out.names(names)
	case len(waiting) == 0:
		return s.noneWaits(job, total)
	}
	for i, g := range groups {
		if i > 0 {
			fmt.Fprintln(s.stdout)
		}
		if err := s.tellWhy(strings.Join(g.names, ", "), g.resp); err != nil {
			return err
		}
	}
	if more := len(waiting) - len(asked); more > 0 {
		s.progress("%d more wait; ask about one of them: borgcfg why %s/%d", more, s.short(job.user, job.name), waiting[mostAsked])
	}
	s.tellSetGone(job)
	return nil
}

// noneWaits says how those are of which none waits for a place: the tasks of a job, the
// allocs of a set, or the runs of a cron job, which has no tasks of its own.
func (s *session) noneWaits(n jobName, total int) error {
	v, err := s.find(n)
	if err != nil {
		return err
	}
	name := s.short(n.user, n.name)
	switch {
	case v.set.GetStatus().GetState() == borgpb.State_STATE_DEAD:
		s.say("%s: the alloc set has ended", name)
		s.progress("who ended it: borgcfg audit %s; make it again: borgcfg up FILE", name)
		return nil
	case v.job.GetStatus().GetCron() != nil && v.job.GetStatus().GetState() != borgpb.State_STATE_DEAD:
		s.say("%s", cronVerdict(v.job, name))
		s.progress("its runs are jobs of their own: borgcfg status %s", name)
		return nil
	}
	if dead, err := s.whyDead(n); dead || err != nil {
		return err
	}
	s.say("%s: none of %d waits for a place", name, total)
	if v.job != nil {
		tasks, err := s.client.ListAllTasks(s.ctx, &borgrpc.ListTasksRequest{User: n.user, Name: n.name}, 0)
		if err != nil {
			return err
		}
		if k, example := inBackoff(name, tasks.Tasks); k > 0 {
			s.say("%s to be started again: %s", plural(int(k), "task")+" "+verb(k, "waits", "wait"), example)
		}
	}
	s.progress("what the place of one was chosen for: borgcfg why %s/0", name)
	return nil
}

// waiting is which tasks of a job, or allocs of a set, wait for a place, of how many.
func (s *session) waiting(n jobName) (indices []uint32, total int, err error) {
	v, err := s.find(n)
	if err != nil {
		return nil, 0, err
	}
	if v.set != nil {
		resp, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: n.user, Name: n.name})
		if err != nil {
			return nil, 0, err
		}
		for _, a := range resp.Allocs {
			if a.GetStatus().GetState() == borgpb.State_STATE_PENDING {
				indices = append(indices, a.GetIndex())
			}
		}
		return indices, len(resp.Allocs), nil
	}
	resp, err := s.client.ListAllTasks(s.ctx, &borgrpc.ListTasksRequest{User: n.user, Name: n.name}, 0)
	if err != nil {
		return nil, 0, err
	}
	for _, t := range resp.Tasks {
		if t.GetStatus().GetState() == borgpb.State_STATE_PENDING {
			indices = append(indices, t.GetIndex())
		}
	}
	return indices, len(resp.Tasks), nil
}
