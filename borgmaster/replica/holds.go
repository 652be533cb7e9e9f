package replica

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"borg/mutant"
)

const (
	// holdForNs is how long the log after a checkpoint is kept once it was sent, for
	// the follower to ask for.
	holdForNs = int64(30e9)
	// A follower that did not take a checkpoint is sent the next one after so long,
	// doubled each time: what is refused at once must not be made at once again.
	againFirstNs = int64(200e6)
	againMaxNs   = int64(10e9)
)

// CheckMember returns an error for a checkpoint that is older than the change which
// made its receiver a member: raft would not take it there, and have it sent again at
// once, until what is applied here has come so far.
func CheckMember(snap *raftpb.Snapshot, member uint64) error {
	state := snap.GetMetadata().GetConfState()
	for _, ids := range [][]uint64{state.GetVoters(), state.GetLearners(), state.GetVotersOutgoing(), state.GetLearnersNext()} {
		if slices.Contains(ids, member) {
			return nil
		}
	}
	return fmt.Errorf("the checkpoint of index %d is older than the change that made replica %d a member", snap.GetMetadata().GetIndex(), member)
}

// Holds is what the elected replica remembers of the followers that it sends a
// checkpoint: which part of the log each needs next, and how often one failed. Its
// zero value is of nobody.
type Holds struct {
	after map[uint64]hold
	// Checkpoints in a row that each did not take.
	failed map[uint64]int
}

// hold keeps the log after index.
type hold struct {
	index uint64
	// Monotonic; zero: as long as it is being sent.
	untilNs int64
}

// Sending says that raft has asked for a checkpoint of index: the follower goes on
// from there by the log, however long it takes. What is sent may be of a later index;
// raft learns that from the follower alone, and may first go on from what it asked for.
func (h *Holds) Sending(to, index uint64) {
	if h.after == nil {
		h.after = make(map[uint64]hold)
	}
	h.after[to] = hold{index: index}
}

// Ended says how the sending ended, and returns how long to wait before raft is
// told, which then has another one sent.
func (h *Holds) Ended(to uint64, taken bool, nowNs int64) (pauseNs int64) {
	if taken {
		delete(h.failed, to)
		if x, ok := h.after[to]; ok {
			x.untilNs = nowNs + holdForNs
			h.after[to] = x
		}
		return 0
	}
	delete(h.after, to)
	if h.failed == nil {
		h.failed = make(map[uint64]int)
	}
	n := h.failed[to]
	h.failed[to] = min(n+1, 30)
	if mutant.Planted(mutant.CheckpointAtOnce) {
		return 0
	}
	return min(againFirstNs<<min(n, 10), againMaxNs)
}

// From is the index after which the log must stay, at most index.
func (h *Holds) From(index uint64, nowNs int64) uint64 {
	if mutant.Planted(mutant.LogNotHeld) {
		return index
	}
	for to, x := range h.after {
		if x.untilNs != 0 && x.untilNs < nowNs {
			delete(h.after, to)
			continue
		}
		index = min(index, x.index)
	}
	return index
}
