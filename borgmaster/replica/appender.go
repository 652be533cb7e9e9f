package replica

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// appendItem is an append, and the received checkpoint that goes with it when
// it has one.
type appendItem struct {
	append   *Append
	received *receivedSnapshot
}

// errStopping ends what waits for another goroutine of a replica that stops.
var errStopping = errors.New("the replica stops")

// runAppend is the append goroutine: it makes durable what raft wants durable.
// All that is queued when it comes back from the disk shares the next sync.
func (r *Replica) runAppend(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.toAppend.wake:
		}
		items := r.toAppend.take()
		for len(items) > 0 {
			n := 1
			if items[0].append.Snapshot != nil {
				if err := r.install(ctx, items[0]); errors.Is(err, errStopping) {
					return nil
				}
			}
			for n < len(items) && items[n].append.Snapshot == nil {
				n++
			}
			if err := r.appendAll(items[:n]); err != nil {
				return r.fatal("the log cannot be written", err)
			}
			items = items[n:]
		}
	}
}

// appendAll writes some appends in one batch and answers them.
func (r *Replica) appendAll(items []appendItem) error {
	var groups [][]*raftpb.Entry
	var hard *raftpb.HardState
	sync := false
	done := make([]input, len(items))
	for i, it := range items {
		if len(it.append.Entries) > 0 {
			groups = append(groups, it.append.Entries)
		}
		if it.append.Hard != nil {
			hard = it.append.Hard
		}
		sync = sync || it.append.Sync
		done[i] = input{event: Appended{Append: it.append}}
	}
	if len(groups) > 0 || hard != nil {
		began := time.Now()
		if err := r.store.Append(groups, hard, sync); err != nil {
			return err
		}
		r.timings.append.Observe(since(began))
	}
	r.inbox.put(done...)
	return nil
}

// install has the apply goroutine put a received checkpoint in the place of
// everything. It is the apply goroutine that writes records and owns the cell,
// so that nothing of the old state can be written to the new database.
func (r *Replica) install(ctx context.Context, it appendItem) error {
	hard := it.append.Hard
	if hard == nil {
		hard = r.store.HardState()
	}
	done := make(chan struct{})
	r.toApply.put(applyItem{install: &installation{received: it.received, hard: hard, done: done}})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errStopping
	}
}
