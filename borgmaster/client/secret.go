package client

import (
	"context"
	"time"

	"borg/proto/borgrpc"
)

// SetSecret has the cell keep a value. The request id is kept over all tries like
// that of Mutate. A refusal is a *RefusedError.
func (c *Client) SetSecret(ctx context.Context, req *borgrpc.SetSecretRequest) (*borgrpc.SetSecretResponse, error) {
	if req.RequestId == "" {
		req.RequestId, req.RequestWallNs = NewRequestID(time.Now())
	}
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	resp, err := trySecret(ctx, c, "set secret "+req.Name, func(ctx context.Context, m borgrpc.SecretServiceClient) (*borgrpc.SetSecretResponse, error) {
		return m.SetSecret(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return resp, refused(resp.GetResult())
}

// ListSecrets asks which secrets a user has; no name: all users.
func (c *Client) ListSecrets(ctx context.Context, user string) ([]*borgrpc.SecretStatus, error) {
	resp, err := trySecret(ctx, c, "list the secrets", func(ctx context.Context, m borgrpc.SecretServiceClient) (*borgrpc.ListSecretsResponse, error) {
		return m.ListSecrets(ctx, &borgrpc.ListSecretsRequest{User: user})
	})
	return resp.GetSecrets(), err
}

// RotateCellKey has all secrets sealed with a new key. That may take as long as
// the client waits for anything.
func (c *Client) RotateCellKey(ctx context.Context, req *borgrpc.RotateCellKeyRequest) (*borgrpc.RotateCellKeyResponse, error) {
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	if req.RequestId == "" {
		req.RequestId, _ = NewRequestID(time.Now())
	}
	return tryEach(ctx, c, "rotate the cell key", c.config.Timeout, func(ctx context.Context, r *replica) (*borgrpc.RotateCellKeyResponse, error) {
		return borgrpc.NewSecretServiceClient(r.conn).RotateCellKey(ctx, req)
	})
}

// trySecret is try for what SecretService answers.
func trySecret[R any](ctx context.Context, c *Client, what string, f func(context.Context, borgrpc.SecretServiceClient) (R, error)) (R, error) {
	return tryEach(ctx, c, what, tryTimeout, func(ctx context.Context, r *replica) (R, error) {
		return f(ctx, borgrpc.NewSecretServiceClient(r.conn))
	})
}
