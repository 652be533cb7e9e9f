package replica

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// grpcTransport carries messages by RaftService: one long stream to each other
// replica, and a call of its own for each checkpoint.
type grpcTransport struct {
	in       Inbound
	log      *slog.Logger
	identity *borgpb.ReplicaIdentity
	// Who this replica is, by certificate.
	own *identity.Source

	mu sync.Mutex
	// By id; without this replica. Guarded by mu.
	peers map[uint64]*peer
	// Guarded by mu.
	members Membership
	// changed holds a token when there may be a peer that does not run yet.
	changed chan struct{}
	// done is closed when Run ends, so that streams from others end too.
	done chan struct{}
}

func newGRPCTransport(in Inbound, id *borgpb.ReplicaIdentity, own *identity.Source, log *slog.Logger) *grpcTransport {
	return &grpcTransport{
		in: in, log: log, identity: id, own: own,
		peers: make(map[uint64]*peer), changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

func (t *grpcTransport) register(s grpc.ServiceRegistrar) {
	borgrpc.RegisterRaftServiceServer(s, raftServer{t: t})
}

// Run implements Transport. It owns the peers' goroutines.
func (t *grpcTransport) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(t.done)
	for {
		t.mu.Lock()
		for _, p := range t.peers {
			if p.cancel != nil {
				continue
			}
			var mine context.Context
			mine, p.cancel = context.WithCancel(ctx)
			wg.Go(func() { p.run(mine) })
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-t.changed:
		}
	}
}

// SetMembers implements Transport.
func (t *grpcTransport) SetMembers(m Membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members = m
	for id, p := range t.peers {
		if x := m.Member(id); x == nil || x.GetAddr() != p.addr {
			if p.cancel != nil {
				p.cancel()
			}
			delete(t.peers, id)
		}
	}
	for _, x := range m.Members {
		id := x.GetId()
		if id == t.identity.GetReplica() || t.peers[id] != nil {
			continue
		}
		t.peers[id] = &peer{t: t, id: id, addr: x.GetAddr(), queue: newMailbox[*raftpb.Message]()}
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// Send implements Transport.
func (t *grpcTransport) Send(messages []*raftpb.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range messages {
		if p := t.peers[m.GetTo()]; p != nil {
			p.queue.putDropping(m, maxPeerMessages)
		}
	}
}

// SendSnapshot implements Transport.
func (t *grpcTransport) SendSnapshot(ctx context.Context, m *raftpb.Message, write func(io.Writer) error) error {
	t.mu.Lock()
	p := t.peers[m.GetTo()]
	t.mu.Unlock()
	if p == nil {
		return fmt.Errorf("no address of member %d is known", m.GetTo())
	}
	return p.sendSnapshot(ctx, m, write)
}

// Refusals of RaftService that no retry changes.
const (
	refusedRemoved     = "this replica was removed from the cell"
	refusedIncarnation = "the cell knows this replica with another directory"
)

// caller is the first message of a stream.
type caller interface {
	GetCellId() string
	GetEpoch() uint64
	GetFrom() uint64
	GetTo() uint64
	GetIncarnation() uint64
	GetBeganDigest() []byte
}

// admit checks who opens a stream. Whoever is not known yet may be a new
// member of whom this replica has not heard.
func (t *grpcTransport) admit(ctx context.Context, c caller) error {
	from, to, cellID := c.GetFrom(), c.GetTo(), c.GetCellId()
	if err := SpeaksAs(door.Caller(ctx), from); err != nil {
		return err
	}
	if cellID != t.identity.GetCellId() {
		return status.Errorf(codes.InvalidArgument, "replica %d of cell id %s speaks to replica %d of cell %s (id %s): an address is wrong", from, cellID, t.identity.GetReplica(), t.identity.GetCellName(), t.identity.GetCellId())
	}
	if to != t.identity.GetReplica() {
		return status.Errorf(codes.InvalidArgument, "replica %d speaks to replica %d and has reached %d: an address is wrong", from, to, t.identity.GetReplica())
	}
	if c.GetEpoch() != t.identity.GetEpoch() {
		return status.Errorf(codes.InvalidArgument, "replica %d is of epoch %d of the cell and replica %d of epoch %d: one of them is from before a restore", from, c.GetEpoch(), t.identity.GetReplica(), t.identity.GetEpoch())
	}
	if ours, theirs := t.identity.GetBeganDigest(), c.GetBeganDigest(); len(ours) > 0 && len(theirs) > 0 && !bytes.Equal(ours, theirs) {
		return status.Errorf(codes.InvalidArgument, "replica %d was restored from another checkpoint than replica %d, its cell has the digest %x and not %x: restore all from the same file, to empty directories", from, t.identity.GetReplica(), theirs, ours)
	}
	if err := t.refuse(from, c.GetIncarnation()); err != nil {
		return err
	}
	t.in.Seen(from, c.GetIncarnation())
	return nil
}

// SpeaksAs refuses what comes from a replica and was sent by somebody else.
func SpeaksAs(who identity.Name, replica uint64) error {
	if who.Replica() != replica {
		return status.Errorf(codes.PermissionDenied, "%s speaks as replica %d", who.Words(), replica)
	}
	return nil
}

// refuse tells a replica that it is not let in any more. It is asked again with
// each request: a replica may be removed while its stream is open, and hears of
// it in no other way.
func (t *grpcTransport) refuse(from, incarnation uint64) error {
	t.mu.Lock()
	members := t.members
	t.mu.Unlock()
	if members.removed(from) {
		return status.Error(codes.FailedPrecondition, refusedRemoved)
	}
	if m := members.Member(from); m.GetIncarnation() != 0 && m.GetIncarnation() != incarnation {
		return status.Error(codes.FailedPrecondition, refusedIncarnation)
	}
	return nil
}

// raftServer is the side of grpcTransport that others call. Both sides have a
// method Send.
type raftServer struct {
	borgrpc.UnimplementedRaftServiceServer
	t *grpcTransport
}

// Send implements borgrpc.RaftServiceServer.
func (s raftServer) Send(stream grpc.ClientStreamingServer[borgrpc.SendRequest, borgrpc.SendResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.t.admit(stream.Context(), first); err != nil {
		return err
	}
	defer s.t.in.Ended(first.GetFrom())
	// The receiving goroutine ends when this handler returns, because that ends
	// the stream.
	ended := make(chan error, 1)
	go func() { ended <- s.receive(stream, first) }()
	select {
	case err := <-ended:
		return err
	case <-s.t.done:
		return status.Error(codes.Unavailable, borgmaster.ErrStopped.Error())
	}
}

func (s raftServer) receive(stream grpc.ClientStreamingServer[borgrpc.SendRequest, borgrpc.SendResponse], req *borgrpc.SendRequest) error {
	from, incarnation := req.GetFrom(), req.GetIncarnation()
	for {
		if err := s.t.refuse(from, incarnation); err != nil {
			return err
		}
		for _, data := range req.GetMessages() {
			m := new(raftpb.Message)
			if err := proto.Unmarshal(data, m); err != nil {
				return status.Errorf(codes.InvalidArgument, "a raft message cannot be read: %v", err)
			}
			if m.GetFrom() != from || m.GetTo() != s.t.identity.GetReplica() || m.GetType() == raftpb.MsgSnap {
				return status.Errorf(codes.InvalidArgument, "a raft message %v from %d to %d does not belong here", m.GetType(), m.GetFrom(), m.GetTo())
			}
			s.t.in.Deliver(m)
		}
		var err error
		if req, err = stream.Recv(); err == io.EOF {
			return stream.SendAndClose(&borgrpc.SendResponse{})
		} else if err != nil {
			return err
		}
	}
}

// SendSnapshot implements borgrpc.RaftServiceServer.
func (s raftServer) SendSnapshot(stream grpc.ClientStreamingServer[borgrpc.SendSnapshotRequest, borgrpc.SendSnapshotResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.t.admit(stream.Context(), first); err != nil {
		return err
	}
	m := new(raftpb.Message)
	if err := proto.Unmarshal(first.GetMessage(), m); err != nil || m.GetType() != raftpb.MsgSnap {
		return status.Errorf(codes.InvalidArgument, "the raft message of a checkpoint cannot be read: %v", err)
	}
	if err := s.t.in.DeliverSnapshot(stream.Context(), m, &chunkReader{stream: stream, rest: first.GetChunk()}); err != nil {
		return status.Errorf(codes.Aborted, "%v", err)
	}
	return stream.SendAndClose(&borgrpc.SendSnapshotResponse{})
}

// chunkReader makes one stream of bytes of the chunks of a call.
type chunkReader struct {
	stream grpc.ClientStreamingServer[borgrpc.SendSnapshotRequest, borgrpc.SendSnapshotResponse]
	rest   []byte
}

func (c *chunkReader) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		req, err := c.stream.Recv()
		if err != nil {
			return 0, err
		}
		c.rest = req.GetChunk()
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
