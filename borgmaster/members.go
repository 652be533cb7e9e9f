package borgmaster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// MemberChanges changes the membership of the replicas; only the elected one
// can.
type MemberChanges interface {
	// AddLearner takes in a replica that does not vote yet. Its id must never
	// have been used.
	AddLearner(ctx context.Context, member *borgpb.Member) error
	// Promote gives a learner that has caught up its vote.
	Promote(ctx context.Context, id uint64) error
	RemoveMember(ctx context.Context, id uint64) error
	// Transfer has another voter elected and returns when it has begun to write:
	// who it is, and for how long nothing was written. Zero: the one that has most
	// of the log.
	Transfer(ctx context.Context, to uint64) (elected uint64, gap time.Duration, err error)
}

// memberAPI serves MemberService.
type memberAPI struct {
	borgrpc.UnimplementedMemberServiceServer
	m *Master
}

func (a *memberAPI) ListMembers(ctx context.Context, req *borgrpc.ListMembersRequest) (*borgrpc.ListMembersResponse, error) {
	return onElected(ctx, a.m, true,
		func(context.Context) (*borgrpc.ListMembersResponse, error) { return a.m.listMembers(), nil },
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ListMembersResponse, error) {
			return borgrpc.NewMemberServiceClient(conn).ListMembers(ctx, req)
		})
}

// heardLately is how long ago a replica was heard that may still answer at once.
const heardLately = 2 * time.Second

func (m *Master) listMembers() *borgrpc.ListMembersResponse {
	state := m.cfg.Log.State()
	learners := m.cfg.Members.Learners()
	live := m.duty.live()
	var peers []Peer
	if m.cfg.Insides != nil {
		peers = m.cfg.Insides.Vitals().Peers
	}
	resp := &borgrpc.ListMembersResponse{Term: state.Term, Removed: m.cfg.Members.AllRemoved()}
	for _, id := range resp.Removed {
		resp.NextId = max(resp.NextId, id+1)
	}
	for _, member := range m.cfg.Members.Members() {
		resp.NextId = max(resp.NextId, member.Id+1)
		status := &borgrpc.MemberStatus{
			Member: member, Learner: slices.Contains(learners, member.Id),
			Elected: member.Id == state.Elected, Live: slices.Contains(live, member.Id),
		}
		if i := slices.IndexFunc(peers, func(p Peer) bool { return p.ID == member.Id }); i >= 0 {
			status.HeardNs, status.Behind, status.Current = int64(peers[i].Heard), peers[i].Behind, peers[i].Current
			if p := peers[i]; p.Following && p.Match == 0 && p.Heard > heardLately {
				// It has acknowledged no entry of this term: how far it is nobody knows.
				status.HeardNs = -1
			}
		} else {
			// Of a log that tells nothing of its insides there is only what the shards say.
			status.Current = status.Elected || m.cfg.Insides == nil && status.Live
		}
		resp.Members = append(resp.Members, status)
	}
	return resp
}

func (a *memberAPI) AddMember(ctx context.Context, req *borgrpc.AddMemberRequest) (*borgrpc.AddMemberResponse, error) {
	if req.GetMember().GetId() == 0 || req.GetMember().GetAddr() == "" {
		return nil, status.Error(codes.InvalidArgument, "a member needs an id, from 1 and never used before, and an address")
	}
	err := a.change(ctx, "AddMember", req.Member.Id,
		func(ctx context.Context, c MemberChanges) error { return c.AddLearner(ctx, req.Member) },
		func(ctx context.Context, c borgrpc.MemberServiceClient) error {
			_, err := c.AddMember(ctx, req)
			return err
		})
	return &borgrpc.AddMemberResponse{}, err
}

func (a *memberAPI) PromoteMember(ctx context.Context, req *borgrpc.PromoteMemberRequest) (*borgrpc.PromoteMemberResponse, error) {
	err := a.change(ctx, "PromoteMember", req.GetId(),
		func(ctx context.Context, c MemberChanges) error { return c.Promote(ctx, req.GetId()) },
		func(ctx context.Context, c borgrpc.MemberServiceClient) error {
			_, err := c.PromoteMember(ctx, req)
			return err
		})
	return &borgrpc.PromoteMemberResponse{}, err
}

func (a *memberAPI) RemoveMember(ctx context.Context, req *borgrpc.RemoveMemberRequest) (*borgrpc.RemoveMemberResponse, error) {
	err := a.change(ctx, "RemoveMember", req.GetId(),
		func(ctx context.Context, c MemberChanges) error { return c.RemoveMember(ctx, req.GetId()) },
		func(ctx context.Context, c borgrpc.MemberServiceClient) error {
			_, err := c.RemoveMember(ctx, req)
			return err
		})
	return &borgrpc.RemoveMemberResponse{}, err
}

func (a *memberAPI) TransferElection(ctx context.Context, req *borgrpc.TransferElectionRequest) (*borgrpc.TransferElectionResponse, error) {
	resp := new(borgrpc.TransferElectionResponse)
	err := a.change(ctx, "TransferElection", req.GetTo(),
		func(ctx context.Context, c MemberChanges) error {
			if req.GetTo() == a.m.cfg.Replica {
				resp.Elected = req.GetTo()
				return nil
			}
			elected, gap, err := c.Transfer(ctx, req.GetTo())
			resp.Elected, resp.GapNs = elected, int64(gap)
			return err
		},
		func(ctx context.Context, c borgrpc.MemberServiceClient) error {
			// Who is asked is to be no longer elected, and has not failed when it is not.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), electionWait)
			defer cancel()
			answer, err := c.TransferElection(ctx, req)
			resp.Elected, resp.GapNs = answer.GetElected(), answer.GetGapNs()
			return err
		})
	return resp, err
}

// change makes an admin's change of the members on the elected master.
func (a *memberAPI) change(ctx context.Context, verb string, replica uint64, local func(context.Context, MemberChanges) error, remote func(context.Context, borgrpc.MemberServiceClient) error) error {
	_, err := onElected(ctx, a.m, false,
		func(ctx context.Context) (struct{}, error) {
			// Here, where the latest is known.
			err := a.m.believes(ctx)
			if err == nil {
				err = a.m.forAdmins(door.Caller(ctx))
			}
			if err != nil {
				return struct{}{}, err
			}
			if a.m.cfg.MemberChanges == nil {
				return struct{}{}, status.Error(codes.Unimplemented, "the members of this cell cannot be changed")
			}
			err = local(ctx, a.m.cfg.MemberChanges)
			if _, ok := status.FromError(err); err != nil && !ok && grpcCode(err) == codes.Internal {
				err = status.Error(codes.FailedPrecondition, a.m.withoutPaths(err))
			}
			if err == nil {
				a.m.noteDone(ctx, verb, fmt.Sprintf("replica %d", replica))
			}
			return struct{}{}, err
		},
		func(ctx context.Context, conn *grpc.ClientConn) (struct{}, error) {
			return struct{}{}, remote(ctx, borgrpc.NewMemberServiceClient(conn))
		})
	return err
}

func grpcCode(err error) codes.Code { return status.Code(grpcError(err)) }
