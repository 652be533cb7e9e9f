package client

import (
	"context"

	"borg/proto/borgrpc"
)

// Exec runs a program in a task. f is called with each message that comes of it, and
// begun once, before the first of them, with what sends the program its input; send may
// be called until Exec returns, by one goroutine at a time. It is not taken up again
// once anything has come. The program ends with ctx.
func (c *Client) Exec(ctx context.Context, req *borgrpc.ExecRequest, begun func(send func(*borgrpc.ExecInput) error), f func(*borgrpc.ExecResponse) error) error {
	what := "run a program in " + taskName(req.User, req.Name, req.Index)
	return c.stream(ctx, what, false, func(ctx context.Context, r *replica, alive func()) error {
		// No deadline goes with it: that it has passed is for this side alone to say.
		call, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		s, err := borgrpc.NewExecServiceClient(r.conn).Exec(call)
		if err != nil {
			return err
		}
		// That it could not be sent is told by what is received.
		_ = s.Send(req)
		first := true
		return once(ctx, what, s, alive, func(resp *borgrpc.ExecResponse) error {
			if first && resp.GetStarted() != "" {
				begun(func(in *borgrpc.ExecInput) error { return s.Send(&borgrpc.ExecRequest{Input: in}) })
			}
			first = false
			return f(resp)
		})
	})
}
