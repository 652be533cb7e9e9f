package main

import (
	"errors"
	"fmt"

	"borg/borgmaster/client"
	"borg/proto/borgrpc"
	"borg/tell"
)

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
	return tell.Why(s.stdout, s.out.color, fmt.Sprintf("%s/%d", s.short(job.user, job.name), index), resp)
}
