// Package checkpoint is the cell's bytes on disk: the portable checkpoint file
// and the store that a replica keeps its raft log and its records in.
//
// # The file
//
// A checkpoint file is a whole cell at one log position: a header, records in
// compressed chunks, and a trailer. Every byte is covered by two checksums, one
// chained from chunk to chunk and one over the whole, so that a flipped bit, a
// missing end and a chunk from another file are all refused. Writer and Reader
// stream it; Inspect and Verify look at one; Save makes one from a replica's
// directory. docs/format-checkpoint.md has the bytes.
//
// # The store
//
// A Store is one pebble database in a replica's directory, with the raft log,
// the hard state, and the cell's records with the log position that they stand
// for. It implements raft.Storage. docs/format-replica-dir.md has the files and
// keys. Its rules:
//
//   - Append is durable when it returns. Nothing else on the way of a mutation
//     waits for the disk.
//   - Flush writes changed records and the position they stand for in one
//     batch that is not synced: a crash goes back to an earlier position, and
//     the log after it is replayed. The log is never compacted past the
//     flushed position, and a compaction is written after the flush that
//     allows it, in the same write-ahead log, so that no crash can keep the
//     one and lose the other.
//   - Install replaces records and log by those of a received checkpoint, by
//     moving a marker from one database directory to another. A crash at any
//     point leaves the one or the other.
//
// The package knows keys and values, never what they mean: the cell is above
// it.
package checkpoint
