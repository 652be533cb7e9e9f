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

// transferTimeouts election timeouts after a hand-over was begun, at most, another
// replica has written: raft gives up after one.
const transferTimeouts = 5

// Transfer implements borgmaster.MemberChanges.
func (r *Replica) Transfer(ctx context.Context, to uint64) (elected uint64, gap time.Duration, err error) {
	r.mu.Lock()
	term, begun := r.state.Term, r.newTerm
	r.mu.Unlock()
	began := r.cfg.MonotonicNs()
	if err := r.tryChange(ctx, Transfer{To: to}); err != nil {
		return 0, 0, err
	}
	timer := time.NewTimer(transferTimeouts * time.Duration(r.cfg.ElectionTicks) * r.cfg.Tick)
	defer timer.Stop()
	select {
	case <-begun:
	case <-timer.C:
		return 0, 0, errors.New("nobody took over within an election timeout; see who is elected, and try again")
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("%w (%w)", borgmaster.ErrUnknownOutcome, ctx.Err())
	case <-r.done:
		return 0, 0, borgmaster.ErrStopped
	}
	gap = time.Duration(r.cfg.MonotonicNs() - began)
	r.mu.Lock()
	defer r.mu.Unlock()
	if elected = r.state.Elected; to != 0 && elected != to || r.state.Term == term {
		return 0, 0, fmt.Errorf("replica %d did not take over, and replica %d is elected; try again", to, elected)
	}
	r.log.Info("handed over", "to", elected, "gap", gap)
	return elected, gap, nil
}

func (r *Replica) changeMember(ctx context.Context, id uint64, typ raftpb.ConfChangeType) error {
	r.mu.Lock()
	m := r.members.Member(id)
	r.mu.Unlock()
	if m == nil {
		return fmt.Errorf("%w %d in this cell", borgmaster.ErrNoMember, id)
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

// tryChange proposes a change of members and waits until it is applied here; of a
// transfer, until raft has taken it.
func (r *Replica) tryChange(ctx context.Context, ev Event) error {
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

// stepChange gives a change, or a transfer, to raft and notes who waits for it.
func (r *Replica) stepChange(ctx context.Context, in input) {
	ev, isChange := in.event.(Change)
	if isChange {
		r.lastChange++
		ev.ID = r.lastChange
		in.event = ev
	}
	out := r.core.Step(in.event)
	switch err := out.Proposed[0].Err; {
	case errors.Is(err, errNotLeading):
		in.change <- borgmaster.ErrNotElected
	case err != nil || !isChange:
		in.change <- err
	default:
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
