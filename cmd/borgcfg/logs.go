package main

import (
	"errors"
	"fmt"
	"time"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// logs copies what a task wrote: to a terminal what it can show, elsewhere byte for
// byte.
func logs(s *session) error {
	job, index, err := s.task(s.args[0])
	if err != nil {
		return err
	}
	req := &borgrpc.LogsRequest{
		User: job.user, Name: job.name, Index: index, Attempt: s.flag.Uint64("attempt"),
		Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, Follow: s.flag.Bool("follow"),
	}
	if s.flag.Bool("stderr") {
		req.Stream = borgrpc.LogStream_LOG_STREAM_STDERR
	}
	if tail := s.flag.String("tail"); tail != "" {
		if req.TailBytes, err = cfg.ParseBytes(tail); err != nil {
			return cli.Errorf(cli.Usage, "--tail %s: %w", tail, err)
		}
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	if req.Follow && req.Attempt == 0 {
		err = s.followTask(m, req)
	} else {
		var n int64
		if n, err = s.copyLog(m, req); err == nil && n == 0 && req.Attempt == 0 {
			s.tellNotStarted(m, req)
		}
	}
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchTask(job, missing)
	}
	return err
}

// copyLog copies the log of one copy of a task and counts its bytes.
func (s *session) copyLog(m *client.Client, req *borgrpc.LogsRequest) (n int64, err error) {
	err = m.Logs(s.ctx, req, func(resp *borgrpc.LogsResponse) error {
		n += int64(len(resp.Data))
		data := resp.Data
		if s.terminal {
			data = []byte(cli.VisibleLines(string(data)))
		}
		if _, err := s.stdout.Write(data); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
		return nil
	})
	return n, err
}

// followTask copies the log of one copy of a task after another, until the task
// is dead: whoever follows a task means the task, wherever it moves.
func (s *session) followTask(m *client.Client, req *borgrpc.LogsRequest) error {
	name := fmt.Sprintf("%s/%d", s.short(req.User, req.Name), req.Index)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	told := false
	for {
		t, err := s.lookAt(m, req)
		var missing *client.NotFoundError
		if errors.As(err, &missing) && req.Attempt > 0 {
			s.progress("%s is gone", name)
			return nil
		}
		if err != nil {
			return err
		}
		st := t.GetStatus()
		if attempt := st.GetAttempt(); attempt > req.Attempt {
			if req.Attempt > 0 {
				s.progress("%s: attempt %d on machine %s", name, attempt, orWord(st.GetMachine(), "?"))
				req.TailBytes = 0
			}
			req.Attempt, told = attempt, false
			if _, err := s.copyLog(m, req); err != nil {
				return err
			}
			continue
		}
		switch {
		case st.GetState() == borgpb.State_STATE_DEAD:
			s.progress("%s is dead", name)
			return nil
		case st.GetState() == borgpb.State_STATE_PENDING && !told:
			s.progress("%s waits for a machine; why: borgcfg why %s", name, name)
			told = true
		}
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *session) lookAt(m *client.Client, req *borgrpc.LogsRequest) (*borgpb.Task, error) {
	resp, err := m.ListTasks(s.ctx, &borgrpc.ListTasksRequest{User: req.User, Name: req.Name, Index: req.Index, HasIndex: true})
	if err != nil {
		return nil, err
	}
	if len(resp.Tasks) == 0 {
		return nil, cli.Errorf(cli.NotFound, "there is no task %s", taskName(req.User, req.Name, req.Index)).
			Hint("see what there is: borgcfg tasks %s", s.short(req.User, req.Name))
	}
	return resp.Tasks[0], nil
}

// tellNotStarted tells of a task that wrote nothing because it could not even
// be started.
func (s *session) tellNotStarted(m *client.Client, req *borgrpc.LogsRequest) {
	t, err := s.lookAt(m, req)
	if err != nil {
		return // The log was read; that is what counts.
	}
	if e := t.GetStatus().GetLastExit(); e.GetError() != "" {
		s.progress("%s/%d wrote nothing, it could not be started: %s", s.short(req.User, req.Name), req.Index, e.Error)
	}
}
