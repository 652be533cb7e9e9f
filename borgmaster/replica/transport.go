package replica

import (
	"context"
	"io"

	"go.etcd.io/raft/v3/raftpb"
)

// Transport carries raft messages to other replicas. The gRPC one is the real
// one; tests have one in memory.
type Transport interface {
	// Send queues messages to their To. It never blocks; what a replica cannot
	// be given is dropped, oldest first.
	Send(messages []*raftpb.Message)
	// SendSnapshot sends m and the checkpoint file that write writes, and
	// returns when the receiver has taken it in or not.
	SendSnapshot(ctx context.Context, m *raftpb.Message, write func(io.Writer) error) error
	// SetMembers says who there is.
	SetMembers(m Membership)
	// Run works until ctx ends.
	Run(ctx context.Context) error
}

// Inbound is what a transport gives what it receives.
type Inbound interface {
	// Deliver takes a message, or drops it when too many wait.
	Deliver(m *raftpb.Message)
	// DeliverSnapshot reads a checkpoint file and returns when it is installed
	// or was not wanted.
	DeliverSnapshot(ctx context.Context, m *raftpb.Message, file io.Reader) error
	// Unreachable says that messages to a member were lost.
	Unreachable(member uint64)
	// Ended says that a stream of messages from a member has ended, as those of a process
	// that is gone do.
	Ended(member uint64)
	// Seen says with which incarnation a member has come.
	Seen(member, incarnation uint64)
	// Refused says that another replica does not let this one in, and never
	// will.
	Refused(err error)
}
