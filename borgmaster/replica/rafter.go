package replica

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/checkpoint"
)

// maxInbox bounds the messages of others that wait for the raft goroutine;
// raft copes with the loss of any.
const maxInbox = 16_384

// maxAppending is how many appends may be under way when a large batch waits;
// a small one waits for the disk to be free, and grows meanwhile.
const (
	maxAppending    = 4
	largeBatchBytes = 256 << 10
)

// input is what the raft goroutine is given: an event, or a received
// checkpoint.
type input struct {
	event    Event
	snapshot *receivedSnapshot
	// change takes the answer to an event of type Change or Transfer.
	change chan error
}

// receivedSnapshot is a checkpoint that was received whole. decided is closed
// when it is installed, or when raft did not want it.
type receivedSnapshot struct {
	message  *raftpb.Message
	incoming *checkpoint.Incoming
	wanted   bool
	decided  chan struct{}
}

// runRaft is the raft goroutine. It owns the core.
func (r *Replica) runRaft(ctx context.Context) (err error) {
	defer r.catchRaft(&err)
	// A ticker holds at most one tick for a receiver that is late: a replica
	// that was paused sees one catch-up tick and starts no election for the
	// time that it did not live.
	ticker := time.NewTicker(r.cfg.Tick)
	defer ticker.Stop()
	ticks, last := 0, time.Now()
	for {
		var events []Event
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			now := time.Now()
			events = append(events, Tick{LateTicks: uint64(max(now.Sub(last)/r.cfg.Tick-1, 0))})
			last = now
			if ticks++; ticks%r.cfg.ElectionTicks == 0 {
				r.noteIncarnation(ctx)
				peers := r.core.Peers(r.cfg.Tick)
				for i := range peers {
					peers[i].At = now
				}
				r.peers.Store(&peers)
			}
		case <-r.inbox.wake:
		}
		for _, in := range r.inbox.take() {
			if in.snapshot != nil || in.change != nil {
				r.step(ctx, events...)
				events = nil
				r.stepAlone(ctx, in)
				continue
			}
			if _, ok := in.event.(Appended); ok {
				r.appending--
				r.appends.Store(int64(r.appending))
			}
			events = append(events, in.event)
		}
		events = r.askRead(events)
		r.step(ctx, events...)
		r.proposeQueued(ctx)
		r.mu.Lock()
		refused := r.refused
		r.mu.Unlock()
		if refused != nil {
			return refused
		}
	}
}

// stepAlone steps what somebody waits for by itself.
func (r *Replica) stepAlone(ctx context.Context, in input) {
	if in.snapshot != nil {
		r.offerSnapshot(ctx, in.snapshot)
	} else {
		r.stepChange(ctx, in)
	}
}

// step steps the core and hands out its effects.
func (r *Replica) step(ctx context.Context, events ...Event) Effects {
	out := r.core.Step(events...)
	r.handOut(ctx, out, nil)
	return out
}

// handOut does or passes on what the core wants done. rs is the received
// checkpoint that one of the appends installs; nil: none does.
func (r *Replica) handOut(ctx context.Context, out Effects, rs *receivedSnapshot) {
	r.commit.Store(out.State.Commit)
	if out.Changed {
		r.stateChanged(out.State)
	}
	if out.NoHeir {
		r.mu.Lock()
		r.endHandOver()
		r.mu.Unlock()
	}
	for _, done := range out.Reads {
		r.readDone(done)
	}
	r.appending += len(out.Append)
	r.appends.Store(int64(r.appending))
	for _, a := range out.Append {
		r.toAppend.put(appendItem{append: a, received: rs})
	}
	for _, a := range out.Apply {
		r.toApply.put(applyItem{apply: a})
	}
	r.send(ctx, out.Send)
}

// stateChanged tells everybody how the replica stands now.
func (r *Replica) stateChanged(s CoreState) {
	r.mu.Lock()
	was := r.state
	wasLeading := r.leading
	r.setState(s)
	now := r.state
	if wasLeading && (!s.Leading || s.Term != was.Term) {
		// What was appended may yet be committed by the next one elected.
		r.failPending(borgmaster.ErrUnknownOutcome)
		r.failQueued(borgmaster.ErrNotElected)
		r.failChanges(borgmaster.ErrUnknownOutcome)
		r.endHandOver()
	}
	r.mu.Unlock()
	if s.Leading && (!wasLeading || s.Term != was.Term) {
		r.electedAtNs = r.cfg.MonotonicNs()
	}
	if was.Elected != now.Elected || was.Term != now.Term || was.Ready != now.Ready {
		r.toApply.put(applyItem{state: &now})
	}
}

// setState translates the core's state. r.mu is held, or nobody runs yet.
func (r *Replica) setState(s CoreState) {
	r.state = borgmaster.LogState{Replica: r.identity.GetReplica(), Elected: s.Elected, Term: s.Term, Ready: s.Settled}
	r.leading = s.Leading
	r.commit.Store(s.Commit)
}

// send gives messages to the transport, and each checkpoint to a goroutine of
// its own.
func (r *Replica) send(ctx context.Context, messages []*raftpb.Message) {
	n := 0
	for _, m := range messages {
		if m.GetType() == raftpb.MsgSnap {
			// From now on: raft goes on from the index that it asked for, perhaps before it
			// hears that the follower has got a later one.
			r.hold(m.GetTo(), m.GetSnapshot().GetMetadata().GetIndex())
			r.senders.Go(func() { r.sendSnapshot(ctx, m) })
			continue
		}
		messages[n] = m
		n++
	}
	if n > 0 {
		r.transport.Send(messages[:n])
	}
}

// sendSnapshot sends a picture of the records to a follower for which the log
// no longer reaches back far enough. It runs on its own goroutine.
func (r *Replica) sendSnapshot(ctx context.Context, m *raftpb.Message) {
	to := m.GetTo()
	index, err := r.trySendSnapshot(ctx, m)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("checkpoint not sent", "to", to, "index", index, "err", err)
	} else if err == nil {
		r.log.Info("checkpoint sent", "to", to, "index", index)
	}
	r.mu.Lock()
	pause := time.Duration(r.holds.Ended(to, err == nil, r.cfg.MonotonicNs()))
	r.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	r.inbox.put(input{event: SnapshotSent{Member: to, Failed: err != nil}})
}

func (r *Replica) trySendSnapshot(ctx context.Context, m *raftpb.Message) (index uint64, err error) {
	// What is flushed may be from before the follower was a member.
	if err := r.flushNow(ctx); err != nil {
		return 0, err
	}
	p, err := r.store.Picture()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	index = p.Header().GetIndex()
	// Raft asked for a checkpoint of what was flushed then; the picture may be
	// newer, and is what is sent.
	m = proto.CloneOf(m)
	if m.Snapshot, err = checkpoint.HeaderSnapshot(p.Header()); err != nil {
		return index, err
	}
	if err := CheckMember(m.Snapshot, m.GetTo()); err != nil {
		return index, err
	}
	return index, r.transport.SendSnapshot(ctx, m, func(w io.Writer) error { return p.WriteTo(ctx, w) })
}

func (r *Replica) hold(to, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds.Sending(to, index)
}

// needed is the index after which followers that are sent a checkpoint go on.
func (r *Replica) needed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds.From(math.MaxUint64, r.cfg.MonotonicNs())
}

// Deliver implements Inbound.
func (r *Replica) Deliver(m *raftpb.Message) {
	r.inbox.putBounded(input{event: Receive{Message: m}}, maxInbox)
}

// Unreachable implements Inbound.
func (r *Replica) Unreachable(member uint64) {
	r.inbox.putBounded(input{event: Unreachable{Member: member}}, maxInbox)
}

// Ended implements Inbound.
func (r *Replica) Ended(member uint64) {
	r.inbox.putBounded(input{event: Ended{Member: member}}, maxInbox)
}

// DeliverSnapshot implements Inbound: the file goes into a database of its own
// first, and raft is told of it when it is whole.
func (r *Replica) DeliverSnapshot(ctx context.Context, m *raftpb.Message, file io.Reader) error {
	r.mu.Lock()
	if r.stopped || r.receiving {
		r.mu.Unlock()
		return errors.New("this replica takes no checkpoint at this moment")
	}
	r.receiving = true
	r.senders.Add(1)
	r.mu.Unlock()
	defer r.senders.Done()
	defer func() {
		r.mu.Lock()
		r.receiving = false
		r.mu.Unlock()
	}()
	in, err := r.store.Receive(file)
	if err != nil {
		return err
	}
	snap, err := checkpoint.HeaderSnapshot(in.Header())
	if err != nil {
		return errors.Join(err, r.store.Discard(in))
	}
	m = proto.CloneOf(m)
	m.Snapshot = snap
	rs := &receivedSnapshot{message: m, incoming: in, decided: make(chan struct{})}
	r.inbox.put(input{snapshot: rs})
	select {
	case <-rs.decided:
	case <-r.done:
		select {
		case <-rs.decided:
		default:
			// Nobody is there to install it any more.
			return errors.Join(borgmaster.ErrStopped, r.store.Discard(in))
		}
	}
	if !rs.wanted {
		return r.store.Discard(in)
	}
	return nil
}

// offerSnapshot asks raft whether it wants a received checkpoint. If so the
// append goroutine gets it with the effects.
func (r *Replica) offerSnapshot(ctx context.Context, rs *receivedSnapshot) {
	out := r.core.Step(Receive{Message: rs.message})
	for _, a := range out.Append {
		if a.Snapshot.GetMetadata().GetIndex() == rs.incoming.Header().GetIndex() {
			rs.wanted = true
		}
	}
	r.handOut(ctx, out, rs)
	if !rs.wanted {
		close(rs.decided)
	}
}
