package replica

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Bounds of a log entry and of what may wait for one, in each lane.
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
	// What reports and schedulers ask for gets an entry of its own so often at most, while
	// it has fewer bytes than that.
	entryRestNs     = 20e6
	fewPatientBytes = 4 << 10
)

// Lane is a queue for the log. What the masters do by themselves, and then what borglets
// report, goes before all else: it is little, and what everybody relies on. Schedulers and
// users take turns.
type Lane int

const (
	LaneOwn Lane = iota
	LaneReports
	LaneScheduler
	LaneUsers
	lanes
)

// LaneOf is the lane of an op, by who asks.
func LaneOf(op *borgpb.Op) Lane {
	switch op.GetPrincipal().GetRole() {
	case borgpb.Role_ROLE_USER, borgpb.Role_ROLE_TASK:
		return LaneUsers
	case borgpb.Role_ROLE_SCHEDULER:
		return LaneScheduler
	}
	switch {
	case op.GetReports() == nil:
		return LaneOwn
	case mutant.Planted(mutant.BorgletsInUserLane):
		return LaneUsers
	}
	return LaneReports
}

// Batches is the way of ops into the log: those that wait for an entry, and
// those whose entry raft has taken. W is who waits for the answer to one op. It
// decides what goes into which entry, and whose entry it was that was applied.
type Batches[W any] struct {
	queues [lanes]laneQueue[W]
	// Entries made so far.
	made    int
	pending []batchOf[W]
	// In this term reports and schedulers wait until so long after the election, unless
	// others have an entry made.
	restTerm    uint64
	restUntilNs int64
}

type laneQueue[W any] struct {
	ops   []waitingOp[W]
	bytes int
}

type waitingOp[W any] struct {
	lane Lane
	op   []byte
	who  W
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
	// An entry is in the log that is not committed.
	Uncommitted bool
	// Term of the last applied entry, and the cell time at the first one of it.
	BaseTerm   uint64
	BaseCellNs int64
	// Time since this replica was elected, by its monotonic clock.
	SinceElectedNs int64
	WallNs         int64
}

// Put queues an op; false when too much is queued in its lane.
func (b *Batches[W]) Put(lane Lane, op []byte, who W) bool {
	q := &b.queues[lane]
	if len(q.ops) >= maxQueuedOps || q.bytes+len(op) > maxQueuedBytes {
		return false
	}
	q.ops = append(q.ops, waitingOp[W]{lane, op, who})
	q.bytes += len(op)
	return true
}

// Next makes the next entry of what is queued; nil: nothing yet. A small batch
// waits until the append before it is durable, and grows meanwhile; one of users alone
// until the entry before it is committed. An entry costs each replica a sync and some
// messages, whatever is in it, and with many who ask at once that is much of what an op
// costs. What the masters do by themselves must not wait so: what they found out grows old.
// Reports and what schedulers ask for come one by one from many machines, and would make as
// many entries: when they had one a moment ago they wait for the next tick, or go along with
// others. Who asks alone waits for nothing. Ops for which nobody waits any more are left out.
// What raft then does not take is put back with Back.
func (b *Batches[W]) Next(m Moment, gone func(W) bool) []byte {
	queued, bytes, _ := b.Waiting()
	if !m.State.Settled || m.BaseTerm != m.State.Term || queued == 0 {
		return nil
	}
	users, patient := len(b.queues[LaneUsers].ops), b.patient()
	hurry := len(b.queues[LaneOwn].ops) > 0 || patient && !b.rests(m)
	if !hurry && users == 0 {
		return nil
	}
	busy := m.Appending > 0 || m.Uncommitted && !hurry
	if m.Appending >= maxAppending || busy && bytes < largeBatchBytes {
		return nil
	}
	if patient {
		b.restTerm, b.restUntilNs = m.State.Term, m.SinceElectedNs+entryRestNs
	}
	entry := &borgpb.Entry{CellTimeNs: m.BaseCellNs + m.SinceElectedNs, WallTimeNs: m.WallNs}
	batch := batchOf[W]{term: m.State.Term}
	order := [lanes]Lane{LaneOwn, LaneReports, LaneScheduler, LaneUsers}
	if b.made++; b.made%2 == 0 {
		// One op may fill an entry, so that who comes second gets nothing.
		order = [lanes]Lane{LaneOwn, LaneReports, LaneUsers, LaneScheduler}
	}
	size := 0
	for _, lane := range order {
		size = b.queues[lane].fill(entry, &batch, size, gone)
	}
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

// patient: reports, or what schedulers ask for, wait.
func (b *Batches[W]) patient() bool {
	return len(b.queues[LaneReports].ops)+len(b.queues[LaneScheduler].ops) > 0
}

// rests: what is patient had an entry a moment ago, and is little.
func (b *Batches[W]) rests(m Moment) bool {
	few := b.queues[LaneReports].bytes+b.queues[LaneScheduler].bytes < fewPatientBytes
	return few && b.restTerm == m.State.Term && m.SinceElectedNs < b.restUntilNs
}

// fill moves into an entry that has so many bytes what there is room for.
func (q *laneQueue[W]) fill(entry *borgpb.Entry, batch *batchOf[W], bytes int, gone func(W) bool) int {
	n := 0
	for _, w := range q.ops {
		if len(batch.ops) == maxEntryOps || bytes+len(w.op)+opOverhead > maxOpsBytes {
			break
		}
		n++
		q.bytes -= len(w.op)
		if gone(w.who) {
			continue
		}
		bytes += len(w.op) + opOverhead
		batch.ops = append(batch.ops, w)
		entry.Ops = append(entry.Ops, w.op)
	}
	q.ops = q.ops[n:]
	return bytes
}

// Waiting counts the ops that wait for an entry, their bytes, and the ops of entries
// that raft has taken.
func (b *Batches[W]) Waiting() (queued, queuedBytes, pending int) {
	for _, batch := range b.pending {
		pending += len(batch.ops)
	}
	for _, q := range b.queues {
		queued += len(q.ops)
		queuedBytes += q.bytes
	}
	return queued, queuedBytes, pending
}

// Back puts the last batch back at the heads of the queues.
func (b *Batches[W]) Back() {
	last := b.pending[len(b.pending)-1]
	b.pending = b.pending[:len(b.pending)-1]
	var back [lanes][]waitingOp[W]
	for _, w := range last.ops {
		back[w.lane] = append(back[w.lane], w)
		b.queues[w.lane].bytes += len(w.op)
	}
	for lane := range b.queues {
		b.queues[lane].ops = append(back[lane], b.queues[lane].ops...)
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
	for _, q := range b.queues {
		for _, w := range q.ops {
			who = append(who, w.who)
		}
	}
	b.queues = [lanes]laneQueue[W]{}
	return who
}
