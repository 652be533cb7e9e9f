package client

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgrpc"
)

// Watch calls f with what is watched, as WatchService sends it, until ctx ends or f
// returns an error. When the replica that sends it goes away, or we are too slow for
// it, another one goes on behind the last index that came in full; what came of a
// later one in part, or of a state, comes again from its first part. When changes are
// not held any more that were not told, the error is a *RelistError: begin with
// from_index 0.
func (c *Client) Watch(ctx context.Context, req *borgrpc.WatchRequest, f func(*borgrpc.WatchResponse) error) error {
	next := proto.CloneOf(req)
	for {
		err := c.stream(ctx, "watch", true, func(ctx context.Context, r *replica, alive func()) error {
			s, err := borgrpc.NewWatchServiceClient(r.conn).Watch(ctx, next)
			for err == nil {
				var resp *borgrpc.WatchResponse
				if resp, err = s.Recv(); err != nil {
					break
				}
				alive()
				if err := f(resp); err != nil {
					return &stopError{err}
				}
				if !resp.More {
					next.FromIndex, next.Epoch = resp.Index, resp.Epoch
				}
			}
			switch status.Code(err) {
			case codes.Aborted:
				return nil
			case codes.OutOfRange:
				return &stopError{&RelistError{From: next.FromIndex, Message: status.Convert(err).Message()}}
			}
			return endOf(err)
		})
		if err != nil || ctx.Err() != nil {
			return err
		}
		wait(ctx, maxPause/4)
	}
}

// RelistError ends a watch that cannot be gone on with: what changed is not held.
type RelistError struct {
	// All up to this index was told.
	From    uint64
	Message string
}

func (e *RelistError) Error() string { return e.Message }
