package client

import (
	"context"
	"time"

	"borg/proto/borgrpc"
)

// GetRestore asks how far the cell has come since it was restored.
func (c *Client) GetRestore(ctx context.Context) (*borgrpc.GetRestoreResponse, error) {
	return tryRestore(ctx, c, "ask about the restore", func(ctx context.Context, m borgrpc.RestoreServiceClient) (*borgrpc.GetRestoreResponse, error) {
		return m.GetRestore(ctx, &borgrpc.GetRestoreRequest{})
	})
}

// ListUnknown asks what runs that the cell does not know.
func (c *Client) ListUnknown(ctx context.Context) (*borgrpc.ListUnknownResponse, error) {
	return tryRestore(ctx, c, "ask the machines what they run", func(ctx context.Context, m borgrpc.RestoreServiceClient) (*borgrpc.ListUnknownResponse, error) {
		return m.ListUnknown(ctx, &borgrpc.ListUnknownRequest{})
	})
}

// AdoptUnknown makes jobs of it. The request id is kept over all tries.
func (c *Client) AdoptUnknown(ctx context.Context, req *borgrpc.AdoptUnknownRequest) (*borgrpc.AdoptUnknownResponse, error) {
	if req.RequestId == "" {
		req.RequestId, req.RequestWallNs = NewRequestID(time.Now())
	}
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	return tryRestore(ctx, c, "adopt what runs", func(ctx context.Context, m borgrpc.RestoreServiceClient) (*borgrpc.AdoptUnknownResponse, error) {
		return m.AdoptUnknown(ctx, req)
	})
}

// StopUnknown has it stopped. The request id is kept over all tries.
func (c *Client) StopUnknown(ctx context.Context, req *borgrpc.StopUnknownRequest) (*borgrpc.StopUnknownResponse, error) {
	if req.RequestId == "" {
		req.RequestId, req.RequestWallNs = NewRequestID(time.Now())
	}
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	return tryRestore(ctx, c, "stop what runs", func(ctx context.Context, m borgrpc.RestoreServiceClient) (*borgrpc.StopUnknownResponse, error) {
		return m.StopUnknown(ctx, req)
	})
}

// tryRestore is try for what RestoreService answers: it asks many machines, and may
// take as long as the client waits for anything.
func tryRestore[R any](ctx context.Context, c *Client, what string, f func(context.Context, borgrpc.RestoreServiceClient) (R, error)) (R, error) {
	return tryEach(ctx, c, what, c.config.Timeout, func(ctx context.Context, r *replica) (R, error) {
		return f(ctx, borgrpc.NewRestoreServiceClient(r.conn))
	})
}
