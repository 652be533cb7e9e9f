// Package journal keeps what happened in a cell for weeks, in files of the replica.
//
// Every replica writes what came of the entries that it applies: events, who asked
// for them and why, and what other tools need to know of the objects. What polls
// told of usage is added up over windows of five minutes; the replica that polls
// writes the rows, and one other does, which until then has drafts of them in memory.
//
// # What it guarantees
//
// Whoever applies the log is never held up: entries are put into a queue of a
// bounded size, and written by a goroutine of the journal. What did not fit, could
// not be written, or was never seen is told as a gap, with the reason. An entry that
// is applied again after a restart is not written twice. Damage in a file costs
// what is damaged and no more, and is told. Files go, oldest first, by age. Before the
// bytes are used up, whoever has more in the files than his part loses his oldest: the
// files are written again without it, and it is told how much of whom was dropped. The
// users' parts are as large as they can be so that all together fit; what is of machines
// and of the cell counts as one more user's.
//
// A journal is no part of the cell: it is in no checkpoint, and losing it changes
// nothing else.
//
// It must not decide who may see what.
package journal
