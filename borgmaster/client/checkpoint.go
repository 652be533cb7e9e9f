package client

import (
	"context"
	"errors"

	"borg/proto/borgrpc"
)

// KeptBy is what one replica has kept of the past, or why it did not say.
type KeptBy struct {
	Addr string
	Kept *borgrpc.ListCheckpointsResponse
	Err  error
}

// ListCheckpoints asks every replica what it has kept, one after the other.
func (c *Client) ListCheckpoints(ctx context.Context) []KeptBy {
	all := make([]KeptBy, len(c.config.Masters))
	for i, r := range c.named() {
		ctx, cancel := context.WithTimeout(ctx, min(tryTimeout, c.config.Timeout))
		kept, err := borgrpc.NewCheckpointServiceClient(r.conn).ListCheckpoints(ctx, &borgrpc.ListCheckpointsRequest{})
		cancel()
		all[i] = KeptBy{Addr: r.addr, Kept: kept}
		if err != nil {
			all[i].Err = answer("list the checkpoints", err)
		}
	}
	return all
}

// SaveCheckpoint calls f with the pieces of a checkpoint file, from the replica at
// addr; from any when that is empty. Like Logs it is not taken up again once
// something has come.
func (c *Client) SaveCheckpoint(ctx context.Context, addr string, req *borgrpc.SaveCheckpointRequest, f func(*borgrpc.SaveCheckpointResponse) error) error {
	const what = "get a checkpoint"
	for _, r := range c.all() {
		if r.addr == addr {
			s, err := borgrpc.NewCheckpointServiceClient(r.conn).SaveCheckpoint(ctx, req)
			if err == nil {
				err = once(ctx, what, s, func() {}, f)
			}
			var stop *stopError
			switch {
			case err == nil:
				return nil
			case errors.As(err, &stop):
				return stop.err
			case ctx.Err() != nil:
				return context.Cause(ctx)
			}
			return answer(what, err)
		}
	}
	return c.stream(ctx, what, false, func(ctx context.Context, r *replica, alive func()) error {
		s, err := borgrpc.NewCheckpointServiceClient(r.conn).SaveCheckpoint(ctx, req)
		if err != nil {
			return err
		}
		return once(ctx, what, s, alive, f)
	})
}
