package replica

import (
	"fmt"

	"google.golang.org/protobuf/proto"

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

// Batches is the way of ops into the log: those that wait for an entry, and
// those whose entry raft has taken. W is who waits for the answer to one op. It
// decides what goes into which entry, and whose entry it was that was applied.
type Batches[W any] struct {
	queue   []waitingOp[W]
	bytes   int
	pending []batchOf[W]
}

type waitingOp[W any] struct {
	op  []byte
	who W
}

// batchOf is the ops of one entry that was taken by raft in a term.
type batchOf[W any] struct {
	term uint64
	ops  []waitingOp[W]
}

// Moment is how a replica stands when it looks for something to propose.
type Moment struct {
	State CoreState
	// Appends handed out and not yet durable.
	Appending int
	// Term of the last applied entry, and the cell time at the first one of it.
	BaseTerm   uint64
	BaseCellNs int64
	// Time since this replica was elected, by its monotonic clock.
	SinceElectedNs int64
	WallNs         int64
}

// Put queues an op; false when too much is queued.
func (b *Batches[W]) Put(op []byte, who W) bool {
	if len(b.queue) >= maxQueuedOps || b.bytes+len(op) > maxQueuedBytes {
		return false
	}
	b.queue = append(b.queue, waitingOp[W]{op, who})
	b.bytes += len(op)
	return true
}

// Next makes the next entry of what is queued; nil: nothing yet. A small batch
// waits until the append before it is durable, and grows meanwhile. Ops for
// which nobody waits any more are left out. What raft then does not take is put
// back with Back.
func (b *Batches[W]) Next(m Moment, gone func(W) bool) []byte {
	if !m.State.Settled || m.BaseTerm != m.State.Term || len(b.queue) == 0 {
		return nil
	}
	if m.Appending >= maxAppending || m.Appending > 0 && b.bytes < largeBatchBytes {
		return nil
	}
	entry := &borgpb.Entry{CellTimeNs: m.BaseCellNs + m.SinceElectedNs, WallTimeNs: m.WallNs}
	batch := batchOf[W]{term: m.State.Term}
	bytes, n := 0, 0
	for _, w := range b.queue {
		if len(batch.ops) == maxEntryOps || bytes+len(w.op)+opOverhead > maxOpsBytes {
			break
		}
		n++
		b.bytes -= len(w.op)
		if gone(w.who) {
			continue
		}
		bytes += len(w.op) + opOverhead
		batch.ops = append(batch.ops, w)
		entry.Ops = append(entry.Ops, w.op)
	}
	b.queue = b.queue[n:]
	if len(batch.ops) == 0 {
		return nil
	}
	data, err := proto.Marshal(entry)
	if err != nil {
		// An entry is integers and byte strings, which can always be encoded.
		panic(fmt.Sprintf("encode a log entry: %v", err))
	}
	// Before raft has it: its result may come on another goroutine.
	b.pending = append(b.pending, batch)
	return data
}

// Waiting counts the ops that wait for an entry, their bytes, and the ops of entries
// that raft has taken.
func (b *Batches[W]) Waiting() (queued, queuedBytes, pending int) {
	for _, batch := range b.pending {
		pending += len(batch.ops)
	}
	return len(b.queue), b.bytes, pending
}

// Back puts the last batch back at the head of the queue.
func (b *Batches[W]) Back() {
	last := b.pending[len(b.pending)-1]
	b.pending = b.pending[:len(b.pending)-1]
	b.queue = append(last.ops, b.queue...)
	for _, w := range last.ops {
		b.bytes += len(w.op)
	}
}

// Mine returns who waits for the results of an applied entry, if it was made
// here: entries of a term are applied in the order in which their leader made
// them, and those without data are raft's own.
func (b *Batches[W]) Mine(term uint64, data []byte) (who []W, ok bool) {
	if len(data) == 0 || len(b.pending) == 0 || b.pending[0].term != term {
		return nil, false
	}
	for _, w := range b.pending[0].ops {
		who = append(who, w.who)
	}
	b.pending = b.pending[1:]
	return who, true
}

// TakePending returns those whose entries raft has taken, and forgets them.
func (b *Batches[W]) TakePending() (who []W) {
	for _, batch := range b.pending {
		for _, w := range batch.ops {
			who = append(who, w.who)
		}
	}
	b.pending = nil
	return who
}

// TakeQueued returns those whose ops are in no entry yet, and forgets them.
func (b *Batches[W]) TakeQueued() (who []W) {
	for _, w := range b.queue {
		who = append(who, w.who)
	}
	b.queue, b.bytes = nil, 0
	return who
}
