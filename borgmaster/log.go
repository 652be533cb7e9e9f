package borgmaster

import (
	"context"
	"errors"
	"io"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// ErrNotElected is returned by Log.Propose on a replica that is not elected.
var ErrNotElected = errors.New("this replica is not elected")

// ErrUnknownOutcome is returned by Log.Propose when the op was handed to the
// log and it cannot be told whether it will be applied (leadership was lost, or
// the context ended). A retry with the same request id is safe.
var ErrUnknownOutcome = errors.New("it is not known whether the op was applied; a retry with the same request id is safe")

// ErrOverloaded is returned by Log.Propose when too much is queued.
var ErrOverloaded = errors.New("too many mutations are waiting")

// ErrStopped is returned by calls to a log that no longer runs.
var ErrStopped = errors.New("this replica has stopped")

// ErrNoMember is returned for a replica that is not a member of the cell; its number follows.
var ErrNoMember = errors.New("there is no member")

// ErrNotKept is returned by Past for what is not, or no longer, there.
var ErrNotKept = errors.New("not kept")

// Log is the replicated log and the cell that it feeds, as the master sees
// them. borgmaster/replica is the raft one, the Fauxmaster has one in memory.
type Log interface {
	// Propose queues an op and returns its result when it has been applied
	// here. Ops queued at the same moment share a log entry. A refusal is a
	// result, not an error.
	Propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error)
	// ReadIndex returns when this replica has applied everything that was
	// committed when it was called. Works on followers too.
	ReadIndex(ctx context.Context) error
	// View calls f with the cell between two Applies. f must not keep the
	// cell, must not change it, and must be short.
	View(f func(c *cell.Cell))
	// State says how this replica stands.
	State() LogState
	// Subscribe registers a listener before the log is started.
	Subscribe(l Listener)
	// Entries returns the committed entries after index that are still held in
	// memory, at most max; ok is false when the next one is no longer held.
	Entries(after uint64, max int) (entries []CommittedEntry, ok bool)
}

// CommittedEntry is one applied entry of the log.
type CommittedEntry struct {
	Index, Term uint64
	Data        []byte
}

// LogState is how a replica stands in the log.
type LogState struct {
	Replica uint64
	// Elected is 0 when nobody is known to be.
	Elected uint64
	Term    uint64
	// Ready: this replica is elected and has applied everything of the terms
	// before its own, so that its cell is the truth.
	Ready   bool
	Applied uint64
	Commit  uint64
}

// Listener hears what happens to the log, from one goroutine and in order. It
// must not block and must not call back into the Log other than by View.
type Listener interface {
	// Applied is called after each entry, with the cell at that index.
	Applied(e CommittedEntry, results []*borgpb.Result, events []cell.Event)
	// StateChanged is called when Elected, Term or Ready changed.
	StateChanged(s LogState)
	// Restored is called when a checkpoint replaced the whole cell.
	Restored(index uint64)
}

// Members is the membership of the cell's replicas.
type Members interface {
	Members() []*borgpb.Member
	// Learners are the ids of members that do not vote yet.
	Learners() []uint64
	// Removed tells a number whose replica was taken out for good.
	Removed(id uint64) bool
	// AllRemoved are all those numbers, ascending. Must not be changed.
	AllRemoved() []uint64
}

// Checkpoints gives the whole cell at a moment.
type Checkpoints interface {
	// Checkpoint writes a checkpoint file of the applied state without holding
	// up the log, and returns the index that it stands for.
	Checkpoint(ctx context.Context, w io.Writer) (index uint64, err error)
}

// Past is what a replica has kept of its cell as it was.
type Past interface {
	// Kept tells what is kept.
	Kept() (*borgrpc.ListCheckpointsResponse, error)
	// OpenKept opens the newest kept checkpoint file that stands for index and for
	// wallNs, or for earlier ones; zero: whichever. It tells for which index it
	// stands, and how many bytes it has.
	OpenKept(index uint64, wallNs int64) (f io.ReadCloser, at uint64, bytes int64, err error)
}
