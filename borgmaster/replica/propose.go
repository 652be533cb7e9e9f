package replica

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/proto/borgpb"
)

// proposal is an op on its way through the log.
type proposal struct {
	// done takes the one answer.
	done chan answer
	// givenUp: nobody waits any more. Guarded by Replica.mu.
	givenUp bool
}

type answer struct {
	result *borgpb.Result
	err    error
}

// Propose implements borgmaster.Log.
func (r *Replica) Propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	began := time.Now()
	p, err := r.enqueue(op)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-p.done:
		if a.err == nil {
			r.timings.commit.Observe(since(began))
		}
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
	// The cell compares what two tries of a request ask for.
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(op)
	if err != nil {
		return nil, fmt.Errorf("encode the op: %w", err)
	}
	if len(data) > maxOpBytes {
		return nil, fmt.Errorf("the op has %d bytes and a log entry may have %d", len(data), maxOpBytes)
	}
	p := &proposal{done: make(chan answer, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return nil, borgmaster.ErrStopped
	case !r.leading:
		return nil, borgmaster.ErrNotElected
	case !r.batches.Put(LaneOf(op), data, p):
		return nil, borgmaster.ErrOverloaded
	}
	r.inbox.poke()
	return p, nil
}

// proposeQueued makes entries of what is queued.
func (r *Replica) proposeQueued(ctx context.Context) {
	for {
		data := r.nextEntry()
		if data == nil || !r.proposeEntry(ctx, data) {
			return
		}
	}
}

// nextEntry takes what goes into the next entry; nil: nothing yet.
func (r *Replica) nextEntry() []byte {
	s := r.core.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches.Next(Moment{
		State:          s,
		Appending:      r.appending,
		Uncommitted:    r.core.Uncommitted(),
		BaseTerm:       r.base.term,
		BaseCellNs:     r.base.cellNs,
		SinceElectedNs: r.cfg.MonotonicNs() - r.electedAtNs,
		WallNs:         r.cfg.WallNs(),
	}, func(p *proposal) bool { return p.givenUp })
}

// proposeEntry gives an entry to raft. What raft does not take was certainly
// not appended: it waits on, until raft takes entries again (it is handing
// over, or too much is not yet committed) or another replica is elected.
func (r *Replica) proposeEntry(ctx context.Context, data []byte) (taken bool) {
	out := r.core.Step(Propose{Data: data})
	if out.Proposed[0].Err != nil {
		r.mu.Lock()
		r.batches.Back()
		r.mu.Unlock()
	}
	r.handOut(ctx, out, nil)
	return out.Proposed[0].Err == nil
}

// answerAll gives the results of an entry to those who wait for them.
func answerAll(who []*proposal, results []*borgpb.Result) error {
	if len(results) != len(who) {
		return fmt.Errorf("%d ops and %d results", len(who), len(results))
	}
	for i, p := range who {
		p.done <- answer{result: results[i]}
	}
	return nil
}

func fail(who []*proposal, err error) {
	for _, p := range who {
		p.done <- answer{err: err}
	}
}

// failPending answers those whose entries raft has taken. r.mu is held.
func (r *Replica) failPending(err error) { fail(r.batches.TakePending(), err) }

// failQueued answers those whose ops are in no entry yet. r.mu is held.
func (r *Replica) failQueued(err error) { fail(r.batches.TakeQueued(), err) }

// failProposals answers everybody when the replica stops. r.mu is held.
func (r *Replica) failProposals(err error) {
	r.failPending(fmt.Errorf("%w (%w)", borgmaster.ErrUnknownOutcome, err))
	r.failQueued(err)
}
