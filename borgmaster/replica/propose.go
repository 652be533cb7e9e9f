package replica

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/proto/borgpb"
)

// Bounds of a log entry and of what may wait for one.
const (
	maxEntryBytes = 1 << 20
	maxEntryOps   = 4096
	// maxOpsBytes leaves room for the entry's own fields, maxOpBytes for those
	// around each op.
	maxOpsBytes    = maxEntryBytes - 64
	maxOpBytes     = maxOpsBytes - opOverhead
	maxQueuedOps   = 65_536
	maxQueuedBytes = 64 << 20
	opOverhead     = 8
)

// proposal is an op on its way through the log.
type proposal struct {
	op []byte
	// done takes the one answer.
	done chan answer
	// givenUp: nobody waits any more. Guarded by Replica.mu.
	givenUp bool
}

type answer struct {
	result *borgpb.Result
	err    error
}

// proposalQueue is what waits for the next entry.
type proposalQueue struct {
	items []*proposal
	bytes int
}

// batch is the ops of one entry that was taken by raft in a term.
type batch struct {
	term      uint64
	proposals []*proposal
}

func (b *batch) answer(results []*borgpb.Result) error {
	if len(results) != len(b.proposals) {
		return fmt.Errorf("%d ops and %d results", len(b.proposals), len(results))
	}
	for i, p := range b.proposals {
		p.done <- answer{result: results[i]}
	}
	return nil
}

// Propose implements borgmaster.Log.
func (r *Replica) Propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	p, err := r.enqueue(op)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-p.done:
		return a.result, a.err
	case <-ctx.Done():
		r.mu.Lock()
		p.givenUp = true
		r.mu.Unlock()
		return nil, fmt.Errorf("%w (%w)", borgmaster.ErrUnknownOutcome, ctx.Err())
	}
}

// enqueue queues an op for the next entry.
func (r *Replica) enqueue(op *borgpb.Op) (*proposal, error) {
	data, err := proto.Marshal(op)
	if err != nil {
		return nil, fmt.Errorf("encode the op: %w", err)
	}
	if len(data) > maxOpBytes {
		return nil, fmt.Errorf("the op has %d bytes and a log entry may have %d", len(data), maxOpBytes)
	}
	p := &proposal{op: data, done: make(chan answer, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return nil, ErrStopped
	case !r.leading:
		return nil, borgmaster.ErrNotElected
	case len(r.queue.items) >= maxQueuedOps || r.queue.bytes+len(data) > maxQueuedBytes:
		return nil, borgmaster.ErrOverloaded
	}
	r.queue.items = append(r.queue.items, p)
	r.queue.bytes += len(data)
	r.inbox.poke()
	return p, nil
}

// proposeQueued makes entries of what is queued. A small batch waits until the
// append before it is durable, and grows meanwhile.
func (r *Replica) proposeQueued(ctx context.Context) {
	for {
		b, data := r.nextBatch()
		if b == nil || !r.proposeBatch(ctx, b, data) {
			return
		}
	}
}

// nextBatch takes what goes into the next entry; nil: nothing yet.
func (r *Replica) nextBatch() (*batch, []byte) {
	s := r.core.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.Settled || r.base.term != s.Term || len(r.queue.items) == 0 {
		return nil, nil
	}
	if r.appending >= maxAppending || r.appending > 0 && r.queue.bytes < largeBatchBytes {
		return nil, nil
	}
	entry := &borgpb.Entry{
		CellTimeNs: r.base.cellNs + r.cfg.MonotonicNs() - r.electedAtNs,
		WallTimeNs: r.cfg.WallNs(),
	}
	b := &batch{term: s.Term}
	bytes, n := 0, 0
	for _, p := range r.queue.items {
		if len(b.proposals) == maxEntryOps || bytes+len(p.op)+opOverhead > maxOpsBytes {
			break
		}
		n++
		r.queue.bytes -= len(p.op)
		if p.givenUp {
			continue
		}
		bytes += len(p.op) + opOverhead
		b.proposals = append(b.proposals, p)
		entry.Ops = append(entry.Ops, p.op)
	}
	r.queue.items = r.queue.items[n:]
	if len(b.proposals) == 0 {
		return nil, nil
	}
	data, err := proto.Marshal(entry)
	if err != nil {
		// An entry is integers and byte strings, which can always be encoded.
		panic(fmt.Sprintf("encode a log entry: %v", err))
	}
	// Before raft has it: its result may come on another goroutine.
	r.pending = append(r.pending, b)
	return b, data
}

// proposeBatch gives an entry to raft. What raft does not take was certainly
// not appended: it waits on, until raft takes entries again (it is handing
// over, or too much is not yet committed) or another replica is elected.
func (r *Replica) proposeBatch(ctx context.Context, b *batch, data []byte) (taken bool) {
	out := r.core.Step(Propose{Data: data})
	if out.Proposed[0].Err != nil {
		r.mu.Lock()
		r.pending = r.pending[:len(r.pending)-1]
		r.queue.items = append(b.proposals, r.queue.items...)
		for _, p := range b.proposals {
			r.queue.bytes += len(p.op)
		}
		r.mu.Unlock()
	}
	r.handOut(ctx, out, nil)
	return out.Proposed[0].Err == nil
}

// ownBatch is the batch that an applied entry was made of, if this replica
// made it: entries of a term are applied in the order in which their leader
// made them. r.mu is held.
func (r *Replica) ownBatch(e borgmaster.CommittedEntry) *batch {
	if len(e.Data) == 0 || len(r.pending) == 0 || r.pending[0].term != e.Term {
		return nil
	}
	b := r.pending[0]
	r.pending = r.pending[1:]
	return b
}

// failPending answers those whose entries raft has taken. r.mu is held.
func (r *Replica) failPending(err error) {
	for _, b := range r.pending {
		for _, p := range b.proposals {
			p.done <- answer{err: err}
		}
	}
	r.pending = nil
}

// failQueued answers those whose ops are in no entry yet. r.mu is held.
func (r *Replica) failQueued(err error) {
	for _, p := range r.queue.items {
		p.done <- answer{err: err}
	}
	r.queue = proposalQueue{}
}

// failProposals answers everybody when the replica stops. r.mu is held.
func (r *Replica) failProposals(err error) {
	r.failPending(fmt.Errorf("%w (%w)", borgmaster.ErrUnknownOutcome, err))
	r.failQueued(err)
}
