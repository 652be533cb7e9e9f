// Package replica is one replica of the borgmaster: raft at the edge of the
// cell.
//
// Core is raft and nothing else: events in, effects out, no goroutine, no
// clock, no disk, no network. Replica is the shell around it, the Log, Members
// and Checkpoints of package borgmaster. It has three goroutines, each with one
// job, so that a disk that hangs never stops the ticks and a long Apply never
// stops the disk:
//
//   - raft: ticks, steps messages, proposes what is queued, hands out effects.
//   - append: writes entries and hard state, synced, and tells raft. What is
//     queued meanwhile shares the next sync.
//   - apply: feeds the cell, answers those who wait, calls the listeners,
//     writes changed records behind, installs received checkpoints.
//
// A fourth, the archiver, keeps the past beside the replica: it reads the log of
// its own accord, and nobody waits for it.
//
// They pass work to each other through mailboxes that never block the sender;
// raft's own bounds (uncommitted bytes, bytes in flight to a follower, bytes
// being applied) bound what lies in them.
//
// # Whose result is whose
//
// Only the elected replica makes entries, in its own term, and raft keeps the
// entries of one term in the order in which their leader made them. So the
// results of the entries of our term belong to our proposals in their order,
// and no entry needs a mark of who waits for it. Proposals are never forwarded.
//
// # Locks
//
// Replica.mu guards what is shared for an instant (queues, waiters, state) and
// is a leaf. Replica.cellMu guards the cell: the apply goroutine writes,
// readers are let in between two entries. No lock is taken under mu.
package replica
