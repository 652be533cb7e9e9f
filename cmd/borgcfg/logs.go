package main

import (
	"fmt"

	"borg/cfg"
	"borg/cli"
	"borg/proto/borgrpc"
)

// logs copies what a task wrote, byte for byte.
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
	return m.Logs(s.ctx, req, func(resp *borgrpc.LogsResponse) error {
		if _, err := s.stdout.Write(resp.Data); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
		return nil
	})
}
