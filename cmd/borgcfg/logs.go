package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// logs copies what a task wrote: to a terminal what it can show, elsewhere byte for
// byte.
func logs(s *session) error {
	whole := !isTask(s.args[0])
	var job jobName
	var index uint32
	var err error
	if whole {
		job, err = s.job(s.args[0])
	} else {
		job, index, err = s.task(s.args[0])
	}
	if err != nil {
		return err
	}
	req, err := s.logsRequest(job, index)
	if err != nil {
		return err
	}
	if whole {
		return s.jobLogs(job, req)
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	if req.Follow && req.Attempt == 0 {
		err = s.followTask(m, req)
	} else {
		var n int64
		if n, err = s.copyLog(m, req); err == nil && n == 0 {
			if !s.tellOtherStream(m, req) && req.Attempt == 0 {
				s.tellNotStarted(m, req)
			}
		}
	}
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchTask(job, missing)
	}
	return err
}

// isTask tells a task, which ends in its number, from a job.
func isTask(arg string) bool {
	at := strings.LastIndexByte(arg, '/')
	if at < 0 {
		return false
	}
	_, err := strconv.Atoi(arg[at+1:]) // -1 is meant as a number too; no job has that name.
	return err == nil || arg[at+1:] == ""
}

// logsRequest is what the flags ask of one task.
func (s *session) logsRequest(job jobName, index uint32) (*borgrpc.LogsRequest, error) {
	req := &borgrpc.LogsRequest{
		User: job.user, Name: job.name, Index: index, Attempt: s.flag.Uint64("attempt"),
		Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, Follow: s.flag.Bool("follow"), Previous: s.flag.Bool("previous"),
	}
	if s.flag.Bool("stderr") {
		req.Stream = borgrpc.LogStream_LOG_STREAM_STDERR
	}
	var err error
	if tail := s.flag.String("tail"); tail != "" {
		if req.TailBytes, err = cfg.ParseBytes(tail); err != nil {
			return nil, cli.Errorf(cli.Usage, "--tail %s: %w", tail, err)
		}
	}
	if req.SinceWallNs, err = s.moment("since"); err != nil {
		return nil, err
	}
	req.Times = req.SinceWallNs > 0
	if req.Previous && req.Follow {
		return nil, cli.Errorf(cli.Usage, "--previous and --follow: the run before has ended; there is nothing to follow")
	}
	return req, nil
}

// copyLog copies the log of one copy of a task and counts its bytes.
func (s *session) copyLog(m *client.Client, req *borgrpc.LogsRequest) (n int64, err error) {
	name := fmt.Sprintf("%s/%d", s.short(req.User, req.Name), req.Index)
	told := false
	// part is the beginning of a character that goes on in the next piece.
	var part []byte
	err = m.Logs(s.ctx, req, func(resp *borgrpc.LogsResponse) error {
		if note := s.logNote(name, req, resp, &told); note != "" {
			s.progress("%s", note)
		}
		n += int64(len(resp.Data))
		data := resp.Data
		if s.terminal {
			whole := append(part, data...)
			end := len(whole) - openRune(whole)
			data, part = []byte(cli.VisibleLines(string(whole[:end]))), bytes.Clone(whole[end:])
		}
		if _, err := s.stdout.Write(data); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
		return nil
	})
	if len(part) > 0 {
		fmt.Fprint(s.stdout, cli.VisibleLines(string(part)))
	}
	return n, err
}

// logNote is what people are to be told of a piece of a log, in a line; mostly
// nothing. That times are not known is said once.
func (s *session) logNote(name string, req *borgrpc.LogsRequest, resp *borgrpc.LogsResponse, told *bool) string {
	if resp.LostBytes > 0 {
		return fmt.Sprintf("%s: ... %s lost here: its machine keeps no more of it ...", name, bytesText(resp.LostBytes))
	}
	if req.SinceWallNs > 0 && len(resp.Data) > 0 && resp.WallNs == 0 && !*told {
		*told = true
		return name + ": the borglet of its machine is older and knows no times; what follows may be of before --since"
	}
	return ""
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
				req.TailBytes, req.SinceWallNs = 0, 0
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

// tellOtherStream tells of a task that wrote nothing to the stream that was asked for, and
// something to the other one. It reports whether that is so.
func (s *session) tellOtherStream(m *client.Client, req *borgrpc.LogsRequest) bool {
	other, flag, name := proto.CloneOf(req), " --stderr", "standard error"
	other.Stream, other.TailBytes, other.Follow = borgrpc.LogStream_LOG_STREAM_STDERR, 1, false
	if req.Stream == borgrpc.LogStream_LOG_STREAM_STDERR {
		other.Stream, flag, name = borgrpc.LogStream_LOG_STREAM_STDOUT, "", "standard output"
	}
	wrote := false
	err := m.Logs(s.ctx, other, func(resp *borgrpc.LogsResponse) error {
		wrote = wrote || len(resp.Data) > 0
		return nil
	})
	if err != nil || !wrote {
		return false // The log was read; that is what counts.
	}
	task := fmt.Sprintf("%s/%d", s.short(req.User, req.Name), req.Index)
	s.progress("%s wrote nothing there; what it wrote to %s: borgcfg logs%s %s", task, name, flag, task)
	return true
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
