package borgmaster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Insides is what a replica tells of its log for status pages and metrics. It is
// asked by whoever looks, must be quick, and must not wait for the log.
type Insides interface {
	Vitals() Vitals
	// Peers are the other replicas as in Vitals, without what it costs to ask the disk.
	Peers() []Peer
	// Collectors count what is not in Vitals.
	Collectors() []prometheus.Collector
}

// Vitals is how the log of a replica is doing.
type Vitals struct {
	// Entries that the disk holds, their size, and the index that the records on disk
	// stand for: what comes after is replayed at the next start.
	LogEntries int
	LogBytes   int64
	Flushed    uint64
	// Ops that wait for an entry, and those of entries that are on their way.
	OpsQueued, OpsQueuedBytes, OpsPending int
	// Those that may be queued.
	MaxOpsQueued int
	// Readers that wait for the log.
	Readers, MaxReaders int
	// Appends that the disk has not confirmed.
	Appending int64
	// The other replicas as this one hears them; of those that it has not heard since
	// it began there is nothing.
	Peers   []Peer
	Archive ArchiveVitals
	// The disk of its directory.
	Dir                          string
	DiskFreeBytes, DiskSizeBytes uint64
	// From a proposal to its result, of one entry in the cell, of one write of the log
	// with its sync.
	Commit, Apply, Append prometheus.Histogram
}

// Peer is another replica.
type Peer struct {
	ID uint64
	// Heard is how long ago, as of At, it last said something.
	Heard time.Duration
	At    time.Time
	// Following: this replica is elected and the peer is sent its log, of which it has
	// what is up to Match. State is raft's word for how.
	Following bool
	Match     uint64
	State     string
	// Behind is how many committed entries it is not known to have; Current: it counts
	// in a majority.
	Behind  uint64
	Current bool
}

// ArchiveVitals is how a replica keeps the past.
type ArchiveVitals struct {
	// Off: it does not.
	Off bool
	// Last entry that is written, and why it is no longer; empty: it is.
	Last    uint64
	Failing string
	// The newest checkpoint; zero: there is none.
	CheckpointIndex uint64
	CheckpointAt    time.Time
	CheckpointBytes int64
}
