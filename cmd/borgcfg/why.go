package main

import (
	"errors"
	"fmt"

	"borg/borgmaster/client"
	"borg/proto/borgrpc"
)

// passed is the pseudo reason of machines that passed all tests.
const passed = "fits"

// why prints the funnel: how many machines each test refused, until none is
// left or some are.
func why(s *session) error {
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
	s.say("%s/%d: %s", s.short(job.user, job.name), index, orWord(resp.Summary, word(resp.Task.GetStatus().GetState())))
	if len(resp.Reasons) == 0 {
		return nil
	}
	t := funnel(resp)
	if err := t.write(s.out, "  "); err != nil {
		return err
	}
	if len(resp.Changes) > 0 {
		s.say("to run it now, any one of:")
		var t table
		for _, c := range resp.Changes {
			t.add(c.Change, "fits "+plural(c.Machines, "machine"))
		}
		return t.write(s.out, "  ")
	}
	return nil
}

// funnel is the machines that are left after each test.
func funnel(resp *borgrpc.WhyResponse) *table {
	var t table
	t.head("LEFT", "REFUSED", "TEST", "WHY", "NEAREST")
	t.add(resp.Machines, "", "machines in the cell", "", "")
	left := int64(resp.Machines)
	for _, r := range resp.Reasons {
		if r.Test == passed {
			continue
		}
		left -= int64(r.Machines)
		t.add(left, r.Machines, r.Test, r.Detail, r.Nearest)
	}
	for _, r := range resp.Reasons {
		if r.Test == passed {
			t.add(cell{fmt.Sprint(r.Machines), good}, "", "could hold it", r.Detail, r.Nearest)
		}
	}
	return &t
}
