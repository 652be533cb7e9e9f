package replica

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/borgmaster/late"
	"borg/proto/borgpb"
)

// applyItem is work for the apply goroutine: one of these is set.
type applyItem struct {
	apply   *Apply
	state   *borgmaster.LogState
	install *installation
	// flush is told when everything applied is flushed.
	flush chan error
}

// installation is a received checkpoint to be put in the place of everything.
type installation struct {
	received *receivedSnapshot
	hard     *raftpb.HardState
	done     chan struct{}
}

// flushBudget is the share of the apply goroutine's time for writing records, as entries
// wait meanwhile. Config.FlushRecords bounds what then waits to be written.
const flushBudget late.Budget = 25

// runApply is the apply goroutine: the only one that changes the cell and
// writes records.
func (r *Replica) runApply(ctx context.Context) error {
	timer := time.NewTimer(r.cfg.FlushInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			began := time.Now()
			if err := r.flush(); err != nil {
				return err
			}
			timer.Reset(time.Duration(flushBudget.WaitNs(int64(r.cfg.FlushInterval), int64(time.Since(began)))))
			continue
		case <-r.toApply.wake:
		}
		for _, it := range r.toApply.take() {
			if ctx.Err() != nil {
				return nil
			}
			if err := r.applyOne(it); err != nil {
				return err
			}
		}
	}
}

func (r *Replica) applyOne(it applyItem) error {
	switch {
	case it.apply != nil:
		return r.apply(it.apply)
	case it.state != nil:
		for _, l := range r.listeners {
			l.StateChanged(r.withIndexes(*it.state))
		}
	case it.install != nil:
		return r.installNow(it.install)
	case it.flush != nil:
		it.flush <- r.flush()
	}
	return nil
}

// apply applies committed entries, in order.
func (r *Replica) apply(a *Apply) error {
	for _, e := range a.Entries {
		if err := r.applyEntry(e); err != nil {
			return err
		}
	}
	r.inbox.put(input{event: Applied{Apply: a}})
	if r.cell.Dirty() >= r.cfg.FlushRecords {
		return r.flush()
	}
	return nil
}

func (r *Replica) applyEntry(e Committed) error {
	ce := borgmaster.CommittedEntry{Index: e.Entry.GetIndex(), Term: e.Entry.GetTerm()}
	// What raft puts into the log for itself changes nothing in the cell but
	// its index, and is the same for all who follow the log.
	if e.Entry.GetType() == raftpb.EntryNormal {
		ce.Data = e.Entry.GetData()
	}
	results, events, timeNs, err := r.feed(ce)
	if err != nil {
		return err
	}
	r.applied.Store(ce.Index)

	r.mu.Lock()
	r.recent.add(ce)
	if ce.Term != r.base.term {
		r.base = termBase{term: ce.Term, cellNs: timeNs}
		close(r.newTerm)
		r.newTerm = make(chan struct{})
	}
	if e.Members != nil {
		r.members = *e.Members
	}
	mine, isMine := r.batches.Mine(ce.Term, ce.Data)
	change := r.changes[e.Change]
	delete(r.changes, e.Change)
	elected := r.state.Ready
	r.mu.Unlock()

	for _, l := range r.listeners {
		l.Applied(ce, results, events)
	}
	// Whoever asked or waits hears of it after the listeners: what he looks at
	// next may be theirs.
	r.mu.Lock()
	r.told = ce.Index
	r.answerReads()
	r.mu.Unlock()
	if isMine {
		if err := answerAll(mine, results); err != nil {
			return r.fatal("results do not belong to the ops that were proposed", fmt.Errorf("index %d: %w", ce.Index, err))
		}
	}
	if change != nil {
		change <- e.Refused
	}
	if e.Members != nil {
		r.tellTransport()
		if e.Members.removed(r.identity.GetReplica()) {
			return ErrRemoved
		}
	}
	if op := DigestOp(r.cell, ce.Index); op != nil && elected {
		// A digest that finds no room is not missed: another follows.
		_, _ = r.enqueue(op)
	}
	return nil
}

// feed gives an entry to the cell.
func (r *Replica) feed(e borgmaster.CommittedEntry) (results []*borgpb.Result, events []cell.Event, timeNs int64, err error) {
	r.cellMu.Lock()
	defer r.cellMu.Unlock()
	defer func() {
		// A fault of the cell's own. The cell is in no known state any more, and
		// every replica that applies this entry comes to the same end.
		if p := recover(); p != nil {
			err = r.fatal(fmt.Sprintf("the cell cannot apply entry %d of term %d", e.Index, e.Term), fmt.Errorf("%v\n%s", p, debug.Stack()))
		}
	}()
	began := time.Now()
	results, events = r.cell.Apply(e.Index, e.Term, e.Data)
	r.timings.apply.Observe(since(began))
	if err := r.cell.Diverged(); err != nil {
		return nil, nil, 0, r.fatal("its cell differs from that of the elected replica; remove it from the cell and join with a new number", err)
	}
	return results, events, r.cell.TimeNs(), nil
}

// installNow replaces cell, records and log by a received checkpoint.
func (r *Replica) installNow(in *installation) error {
	if in.received == nil {
		return r.fatal("a checkpoint is to be installed", fmt.Errorf("none was received"))
	}
	h := in.received.incoming.Header()
	if err := r.store.Install(in.received.incoming, in.hard); err != nil {
		return r.fatal("a received checkpoint cannot be installed", err)
	}
	c, err := r.loadCell()
	if err != nil {
		return r.fatal("a received checkpoint cannot be loaded", err)
	}
	r.cellMu.Lock()
	r.cell = c
	r.cellMu.Unlock()
	r.applied.Store(h.GetIndex())
	r.mu.Lock()
	r.members = membershipOf(h)
	r.recent.reset()
	r.base = termBase{term: h.GetTerm(), cellNs: c.TimeNs()}
	r.mu.Unlock()
	r.tellTransport()
	r.log.Info("checkpoint installed", "index", h.GetIndex(), "term", h.GetTerm())
	for _, l := range r.listeners {
		l.Restored(h.GetIndex())
	}
	r.mu.Lock()
	r.told = h.GetIndex()
	r.answerReads()
	r.mu.Unlock()
	close(in.received.decided)
	close(in.done)
	return nil
}

// flush writes changed records with the index that they stand for, and then
// drops what of the log is no longer needed. It belongs to the apply goroutine.
func (r *Replica) flush() error {
	if !NeedsFlush(r.store, r.cell) {
		return nil
	}
	r.mu.Lock()
	m := r.members
	r.mu.Unlock()
	r.cellMu.Lock()
	f, h := PrepareFlush(r.store, r.cell, m)
	r.cellMu.Unlock()

	if err := f.Commit(h); err != nil {
		return r.fatal("the records cannot be written", err)
	}
	if err := r.store.Compact(r.archive.held(), r.needed()); err != nil {
		return r.fatal("the log cannot be compacted", err)
	}
	return nil
}

// flushNow has everything applied so far flushed.
func (r *Replica) flushNow(ctx context.Context) error {
	done := make(chan error, 1)
	r.toApply.put(applyItem{flush: done})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return borgmaster.ErrStopped
	}
}
