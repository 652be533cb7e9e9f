package checkpoint

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// entryOverheadBytes is counted for each entry besides its data.
const entryOverheadBytes = 24

func entryBytes(e *raftpb.Entry) int { return len(e.GetData()) + entryOverheadBytes }

// logIndex is what is known of the log without asking the disk: where it
// begins and ends, the term and size of each entry, and the newest entries.
type logIndex struct {
	// The entry before the first: compacted away, but its term is needed.
	start, startTerm uint64
	// Runs of entries of one term, in order. Empty when the log is.
	runs []termRun
	// Size of each entry: sizes[i] is that of entry start+1+i.
	sizes []uint32
	// Sum of sizes.
	bytes int
	// The newest entries, up to the last. Entries are immutable.
	cache      []*raftpb.Entry
	cacheBytes int
	cacheLimit int
}

type termRun struct{ first, term uint64 }

func (l *logIndex) last() uint64 { return l.start + uint64(len(l.sizes)) }

func (l *logIndex) cacheFirst() uint64 { return l.last() + 1 - uint64(len(l.cache)) }

// term is that of entry i, start <= i <= last.
func (l *logIndex) term(i uint64) uint64 {
	if i == l.start {
		return l.startTerm
	}
	n := sort.Search(len(l.runs), func(n int) bool { return l.runs[n].first > i })
	return l.runs[n-1].term
}

// append adds entries, which replace those of the same index and all after.
func (l *logIndex) append(entries []*raftpb.Entry) {
	if first := entries[0].GetIndex(); first <= l.last() {
		l.truncate(first)
	}
	for _, e := range entries {
		if n := len(l.runs); n == 0 || l.runs[n-1].term != e.GetTerm() {
			l.runs = append(l.runs, termRun{first: e.GetIndex(), term: e.GetTerm()})
		}
		n := entryBytes(e)
		l.sizes = append(l.sizes, uint32(n))
		l.bytes += n
		l.cache = append(l.cache, e)
		l.cacheBytes += n
	}
	drop := 0
	for l.cacheBytes > l.cacheLimit && drop < len(l.cache)-1 {
		l.cacheBytes -= entryBytes(l.cache[drop])
		drop++
	}
	l.cache = l.cache[drop:]
}

// truncate drops entry first and all after it.
func (l *logIndex) truncate(first uint64) {
	keep := int(first - l.start - 1)
	for _, n := range l.sizes[keep:] {
		l.bytes -= int(n)
	}
	cached := max(0, len(l.cache)-(len(l.sizes)-keep))
	for _, e := range l.cache[cached:] {
		l.cacheBytes -= entryBytes(e)
	}
	// Slices of the cache are in raft's hands: what follows must be appended to
	// a copy.
	l.cache = l.cache[:cached:cached]
	l.sizes = l.sizes[:keep]
	n := sort.Search(len(l.runs), func(n int) bool { return l.runs[n].first >= first })
	l.runs = l.runs[:n]
}

// compact drops the entries up to and including index.
func (l *logIndex) compact(index uint64) {
	n := int(index - l.start)
	for _, b := range l.sizes[:n] {
		l.bytes -= int(b)
	}
	term := l.term(index)
	if first := l.cacheFirst(); first <= index {
		drop := int(index + 1 - first)
		for _, e := range l.cache[:drop] {
			l.cacheBytes -= entryBytes(e)
		}
		l.cache = l.cache[drop:]
	}
	l.sizes = append([]uint32(nil), l.sizes[n:]...)
	l.start, l.startTerm = index, term
	for len(l.runs) > 1 && l.runs[1].first <= index+1 {
		l.runs = l.runs[1:]
	}
	if len(l.sizes) == 0 {
		l.runs = nil
	}
}

// excess is up to where the log may be dropped so that what remains is within
// the bounds, but never past limit.
func (l *logIndex) excess(limit uint64, tailEntries, tailBytes int) uint64 {
	index, entries, bytes := l.start, len(l.sizes), l.bytes
	for i, n := range l.sizes {
		if index >= limit || entries <= tailEntries && bytes <= tailBytes {
			break
		}
		index = l.start + 1 + uint64(i)
		entries--
		bytes -= int(n)
	}
	return index
}

// loadLog reads the log from the database.
func loadLog(db *pebble.DB, cacheLimit int) (logIndex, error) {
	l := logIndex{cacheLimit: cacheLimit}
	v, err := get(db, keyStart)
	if err != nil {
		return l, err
	}
	if l.start, l.startTerm, err = decodeStart(v); err != nil {
		return l, err
	}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{logSpace}, UpperBound: logSpaceEnd})
	if err != nil {
		return l, err
	}
	for ok := it.SeekGE(logKey(l.start + 1)); ok; ok = it.Next() {
		index := binary.BigEndian.Uint64(it.Key()[1:])
		if index != l.last()+1 {
			return l, closeWith(it, fmt.Errorf("log entry %d is missing", l.last()+1))
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return l, closeWith(it, err)
		}
		e, err := decodeEntry(index, v)
		if err != nil {
			return l, closeWith(it, err)
		}
		if n := len(l.runs); n > 0 && e.GetTerm() < l.runs[n-1].term {
			return l, closeWith(it, fmt.Errorf("log entry %d is of term %d and the one before it of term %d: what it replaced was not removed", index, e.GetTerm(), l.runs[n-1].term))
		}
		l.append([]*raftpb.Entry{e})
	}
	if mutant.Planted(mutant.TailCut) && len(l.sizes) > 0 {
		l.truncate(l.last())
	}
	return l, closeWith(it, it.Error())
}

// InitialState implements raft.Storage.
func (s *Store) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.hard), confState(s.header.GetVoters(), s.header.GetLearners()), nil
}

func confState(voters, learners []uint64) *raftpb.ConfState {
	return &raftpb.ConfState{Voters: voters, Learners: learners}
}

// FirstIndex implements raft.Storage.
func (s *Store) FirstIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.start + 1, nil
}

// LogSize is how many entries the log has, and their size.
func (s *Store) LogSize() (entries int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.log.sizes), int64(s.log.bytes)
}

// LastIndex implements raft.Storage.
func (s *Store) LastIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.last(), nil
}

// Term implements raft.Storage.
func (s *Store) Term(i uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case i < s.log.start:
		return 0, raft.ErrCompacted
	case i > s.log.last():
		return 0, raft.ErrUnavailable
	}
	return s.log.term(i), nil
}

// Entries implements raft.Storage.
func (s *Store) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case lo <= s.log.start:
		return nil, raft.ErrCompacted
	case hi > s.log.last()+1:
		return nil, raft.ErrUnavailable
	case lo >= hi:
		return nil, nil
	}
	// How many fit is known from the sizes, whether cached or not.
	end, bytes := lo, uint64(0)
	for ; end < hi; end++ {
		bytes += uint64(s.log.sizes[end-s.log.start-1])
		if bytes > maxBytes && end > lo {
			break
		}
	}
	if first := s.log.cacheFirst(); lo >= first {
		i, j := lo-first, end-first
		return s.log.cache[i:j:j], nil
	}
	return s.readEntries(lo, end)
}

// readEntries reads [lo, hi) from the disk. s.mu is held, so that the database
// is not replaced meanwhile; only followers far behind come here.
func (s *Store) readEntries(lo, hi uint64) ([]*raftpb.Entry, error) {
	it, err := s.gen.db.NewIter(&pebble.IterOptions{LowerBound: logKey(lo), UpperBound: logKey(hi)})
	if err != nil {
		return nil, err
	}
	entries := make([]*raftpb.Entry, 0, hi-lo)
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, closeWith(it, err)
		}
		e, err := decodeEntry(lo+uint64(len(entries)), v)
		if err != nil {
			return nil, closeWith(it, err)
		}
		entries = append(entries, e)
	}
	if err := closeWith(it, it.Error()); err != nil {
		return nil, err
	}
	if uint64(len(entries)) != hi-lo {
		return nil, fmt.Errorf("log entries %d to %d: found %d", lo, hi-1, len(entries))
	}
	return entries, nil
}

// Snapshot implements raft.Storage. It says what a checkpoint made now would
// stand for, with the checkpoint's header as data and no records: whoever
// sends it takes a Picture then, which may be newer.
func (s *Store) Snapshot() (*raftpb.Snapshot, error) {
	return HeaderSnapshot(s.Header())
}

// HeaderSnapshot is raft's view of a checkpoint.
func HeaderSnapshot(h *borgpb.CheckpointHeader) (*raftpb.Snapshot, error) {
	data, err := proto.Marshal(h)
	if err != nil {
		return nil, err
	}
	return &raftpb.Snapshot{
		Data: data,
		Metadata: &raftpb.SnapshotMetadata{
			Index:     new(h.GetIndex()),
			Term:      new(h.GetTerm()),
			ConfState: confState(h.GetVoters(), h.GetLearners()),
		},
	}, nil
}
