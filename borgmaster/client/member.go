package client

import (
	"context"

	"borg/proto/borgrpc"
)

// tryMember is try for what MemberService answers.
func tryMember[R any](ctx context.Context, c *Client, what string, f func(context.Context, borgrpc.MemberServiceClient) (R, error)) (R, error) {
	return tryEach(ctx, c, what, tryTimeout, func(ctx context.Context, r *replica) (R, error) {
		return f(ctx, borgrpc.NewMemberServiceClient(r.conn))
	})
}

// ListMembers asks who the replicas are, as the elected one sees them.
func (c *Client) ListMembers(ctx context.Context) (*borgrpc.ListMembersResponse, error) {
	return tryMember(ctx, c, "list the masters", func(ctx context.Context, m borgrpc.MemberServiceClient) (*borgrpc.ListMembersResponse, error) {
		return m.ListMembers(ctx, &borgrpc.ListMembersRequest{})
	})
}

// RemoveMember takes a replica out of the cell, for good. It is asked for again
// when nobody answered; one that is out already is an error then.
func (c *Client) RemoveMember(ctx context.Context, id uint64) error {
	if err := c.checkCell(ctx); err != nil {
		return err
	}
	_, err := tryMember(ctx, c, "take a master out", func(ctx context.Context, m borgrpc.MemberServiceClient) (*borgrpc.RemoveMemberResponse, error) {
		return m.RemoveMember(ctx, &borgrpc.RemoveMemberRequest{Id: id})
	})
	return err
}

// TransferElection has another replica elected; zero: the one that has most of
// the log.
func (c *Client) TransferElection(ctx context.Context, to uint64) (*borgrpc.TransferElectionResponse, error) {
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	return tryMember(ctx, c, "have another master elected", func(ctx context.Context, m borgrpc.MemberServiceClient) (*borgrpc.TransferElectionResponse, error) {
		return m.TransferElection(ctx, &borgrpc.TransferElectionRequest{To: to})
	})
}
