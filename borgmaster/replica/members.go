package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"borg/borgmaster"
	"borg/proto/borgpb"
)

// Members implements borgmaster.Members.
func (r *Replica) Members() []*borgpb.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members.Members
}

// Learners implements borgmaster.Members.
func (r *Replica) Learners() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members.Learners
}

// Removed implements borgmaster.Members.
func (r *Replica) Removed(id uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members.removed(id)
}

// AllRemoved implements borgmaster.Members.
func (r *Replica) AllRemoved() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members.Removed
}

// AddLearner takes a new replica into the cell. It is sent the log, and is
// given its vote by itself when it has caught up. Its number must never have
// been used before.
func (r *Replica) AddLearner(ctx context.Context, m *borgpb.Member) error {
	return r.change(ctx, Change{Type: raftpb.ConfChangeAddLearnerNode, Member: m})
}

// Promote gives a learner its vote.
func (r *Replica) Promote(ctx context.Context, id uint64) error {
	return r.changeMember(ctx, id, raftpb.ConfChangeAddNode)
}

// RemoveMember takes a replica out of the cell, for good.
func (r *Replica) RemoveMember(ctx context.Context, id uint64) error {
	return r.changeMember(ctx, id, raftpb.ConfChangeRemoveNode)
}

func (r *Replica) changeMember(ctx context.Context, id uint64, typ raftpb.ConfChangeType) error {
	r.mu.Lock()
	m := r.members.Member(id)
	r.mu.Unlock()
	if m == nil {
		return fmt.Errorf("there is no member %d in this cell", id)
	}
	return r.change(ctx, Change{Type: typ, Member: m})
}

// change has a change of members done, after the one that may be under way.
func (r *Replica) change(ctx context.Context, ev Change) error {
	retry := time.NewTicker(r.cfg.Tick)
	defer retry.Stop()
	for {
		err := r.tryChange(ctx, ev)
		if !errors.Is(err, errChanging) {
			return err
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

// tryChange proposes a change of members and waits until it is applied here.
func (r *Replica) tryChange(ctx context.Context, ev Change) error {
	done := make(chan error, 1)
	r.inbox.put(input{event: ev, change: done})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", borgmaster.ErrUnknownOutcome, ctx.Err())
	case <-r.done:
		return borgmaster.ErrStopped
	}
}

// stepChange gives a change to raft and notes who waits for it.
func (r *Replica) stepChange(ctx context.Context, in input) {
	ev := in.event.(Change)
	r.lastChange++
	ev.ID = r.lastChange
	out := r.core.Step(ev)
	if err := out.Proposed[0].Err; err != nil {
		if errors.Is(err, errNotLeading) {
			err = borgmaster.ErrNotElected
		}
		in.change <- err
	} else {
		r.mu.Lock()
		r.changes[ev.ID] = in.change
		r.mu.Unlock()
	}
	r.handOut(ctx, out, nil)
}

// Seen implements Inbound.
func (r *Replica) Seen(member, incarnation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) < 1024 || r.members.Member(member) != nil {
		r.seen[member] = incarnation
	}
}

// Refused implements Inbound. The raft goroutine ends the replica.
func (r *Replica) Refused(err error) {
	r.mu.Lock()
	r.refused = err
	r.mu.Unlock()
	r.inbox.poke()
}

// noteIncarnation has the elected replica log the directory of a member that
// was not yet seen with one. From then on the member is let in with no other.
func (r *Replica) noteIncarnation(ctx context.Context) {
	if !r.core.State().Settled {
		return
	}
	r.mu.Lock()
	var m *borgpb.Member
	for _, x := range r.members.Members {
		if inc := r.seen[x.GetId()]; x.GetIncarnation() == 0 && inc != 0 {
			m = &borgpb.Member{Id: x.GetId(), Addr: x.GetAddr(), Incarnation: inc}
			break
		}
	}
	r.mu.Unlock()
	if m != nil {
		r.handOut(ctx, r.core.Step(Change{Type: raftpb.ConfChangeUpdateNode, Member: m}), nil)
	}
}

// failChanges answers those who wait for a change. r.mu is held.
func (r *Replica) failChanges(err error) {
	for id, done := range r.changes {
		done <- err
		delete(r.changes, id)
	}
}

// tellTransport says who there is. A replica that has not heard yet goes by
// what it was initialised with.
func (r *Replica) tellTransport() {
	r.mu.Lock()
	m := r.members
	r.mu.Unlock()
	if len(m.Members) == 0 {
		m.Members = r.identity.GetMembers()
	}
	r.transport.SetMembers(m)
}

func (m Membership) removed(id uint64) bool { return slices.Contains(m.Removed, id) }

// Checkpoint implements borgmaster.Checkpoints.
func (r *Replica) Checkpoint(ctx context.Context, w io.Writer) (uint64, error) {
	if err := r.flushNow(ctx); err != nil {
		return 0, err
	}
	p, err := r.store.Picture()
	if err != nil {
		return 0, err
	}
	defer p.Close()
	return p.Header().GetIndex(), p.WriteTo(ctx, w)
}
