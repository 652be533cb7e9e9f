package replica

import (
	"context"
	"slices"

	"borg/borgmaster"
	"borg/borgmaster/cell"
)

// maxReads bounds the readers that wait.
const maxReads = 65_536

// reader waits until its replica has applied what was committed when it came.
type reader struct{ done chan struct{} }

// readBatch is readers that share one question to raft. index is set when raft
// has answered.
type readBatch struct {
	id      uint64
	index   uint64
	readers []*reader
}

// ReadIndex implements borgmaster.Log. Readers that come while a question is
// under way share the next one.
func (r *Replica) ReadIndex(ctx context.Context) error {
	rd := &reader{done: make(chan struct{})}
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return borgmaster.ErrStopped
	}
	if len(r.reads) >= maxReads {
		r.mu.Unlock()
		return borgmaster.ErrOverloaded
	}
	r.reads = append(r.reads, rd)
	r.mu.Unlock()
	r.inbox.poke()
	select {
	case <-rd.done:
		return nil
	case <-ctx.Done():
		r.mu.Lock()
		r.reads = slices.DeleteFunc(r.reads, func(x *reader) bool { return x == rd })
		r.mu.Unlock()
		return ctx.Err()
	case <-r.done:
		return borgmaster.ErrStopped
	}
}

// askRead adds the question of those who wait, unless one is under way. It
// belongs to the raft goroutine.
func (r *Replica) askRead(events []Event) []Event {
	if r.asked != nil {
		return events
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reads) == 0 {
		return events
	}
	r.lastRead++
	r.asked = &readBatch{id: r.lastRead, readers: r.reads}
	r.reads = nil
	return append(events, Read{ID: r.lastRead})
}

// readDone lets readers go, or has them wait for the index.
func (r *Replica) readDone(done ReadDone) {
	if r.asked == nil || r.asked.id != done.ID {
		return
	}
	b := r.asked
	b.index, r.asked = done.Index, nil
	r.mu.Lock()
	r.waiting = append(r.waiting, b)
	r.answerReads()
	more := len(r.reads) > 0
	r.mu.Unlock()
	if more {
		r.inbox.poke()
	}
}

// answerReads lets those go whose index is applied and told. r.mu is held.
func (r *Replica) answerReads() {
	r.waiting = slices.DeleteFunc(r.waiting, func(b *readBatch) bool {
		if b.index > r.told {
			return false
		}
		for _, rd := range b.readers {
			close(rd.done)
		}
		return true
	})
}

// View implements borgmaster.Log.
func (r *Replica) View(f func(c *cell.Cell)) {
	r.cellMu.RLock()
	defer r.cellMu.RUnlock()
	f(r.cell)
}

// State implements borgmaster.Log.
func (r *Replica) State() borgmaster.LogState {
	r.mu.Lock()
	s := r.state
	r.mu.Unlock()
	return r.withIndexes(s)
}

func (r *Replica) withIndexes(s borgmaster.LogState) borgmaster.LogState {
	s.Applied, s.Commit = r.applied.Load(), max(r.commit.Load(), r.applied.Load())
	return s
}

// Entries implements borgmaster.Log.
func (r *Replica) Entries(after uint64, limit int) ([]borgmaster.CommittedEntry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recent.after(after, limit, r.applied.Load())
}

// Bounds of the applied entries held for those who follow the log.
const (
	maxRecentEntries = 16_384
	maxRecentBytes   = 16 << 20
)

// recentEntries are the newest applied entries, without a gap.
type recentEntries struct {
	entries []borgmaster.CommittedEntry
	bytes   int
}

func (x *recentEntries) add(e borgmaster.CommittedEntry) {
	x.entries = append(x.entries, e)
	x.bytes += len(e.Data)
	for len(x.entries) > maxRecentEntries || x.bytes > maxRecentBytes && len(x.entries) > 1 {
		x.bytes -= len(x.entries[0].Data)
		x.entries[0].Data = nil
		x.entries = x.entries[1:]
	}
}

func (x *recentEntries) reset() { *x = recentEntries{} }

func (x *recentEntries) after(after uint64, limit int, applied uint64) ([]borgmaster.CommittedEntry, bool) {
	if after >= applied {
		return nil, true
	}
	if len(x.entries) == 0 || x.entries[0].Index > after+1 {
		return nil, false
	}
	from := x.entries[after+1-x.entries[0].Index:]
	return slices.Clone(from[:min(limit, len(from))]), true
}
