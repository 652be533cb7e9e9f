package checkpoint

import (
	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"math"

	"borg/mutant"
)

// Append writes entries and hard state (either may be absent) in one batch, and
// is durable when it returns if sync is set. Entries replace those of the same
// index and all after them; groups of entries are applied in their order.
// After an error nothing more is written: a sync that failed cannot be
// repeated.
func (s *Store) Append(groups [][]*raftpb.Entry, hard *raftpb.HardState, sync bool) error {
	sync = sync && !mutant.Planted(mutant.LogNotSynced)
	cut := !mutant.Planted(mutant.ConflictNotCut)
	return s.guard("append to the log", func(gen *generation) error {
		b := gen.db.NewBatch()
		s.mu.Lock()
		last := s.log.last()
		s.mu.Unlock()
		for _, entries := range groups {
			if len(entries) == 0 {
				continue
			}
			if first := entries[0].GetIndex(); first <= last && cut {
				if err := b.DeleteRange(logKey(first), logKey(last+1), nil); err != nil {
					return err
				}
			}
			for _, e := range entries {
				if err := putEntry(b, e); err != nil {
					return err
				}
			}
			last = entries[len(entries)-1].GetIndex()
		}
		if !raft.IsEmptyHardState(hard) {
			data, err := proto.Marshal(hard)
			if err != nil {
				return err
			}
			if mutant.Planted(mutant.HardStateFirst) {
				if err := gen.db.Set(keyHard, data, pebble.Sync); err != nil {
					return err
				}
			}
			if err := b.Set(keyHard, data, nil); err != nil {
				return err
			}
		}
		if err := gen.commit(b, &pebble.WriteOptions{Sync: sync}); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, entries := range groups {
			if len(entries) > 0 {
				s.log.append(entries)
			}
		}
		if !raft.IsEmptyHardState(hard) {
			s.hard = hard
		}
		return nil
	})
}

// neededTimes its bound of bytes is what the log grows to for a follower that is being
// sent a checkpoint.
const neededTimes = 16

// Compact drops the part of the log that neither a restart nor a slow follower
// needs. Entries after hold are kept as long as the log is not four times its
// bounds. Those after needed are kept longer, by their bytes alone: a follower that
// is just being sent a checkpoint needs them next, and would have to be sent
// another one without them, again and again.
func (s *Store) Compact(hold, needed uint64) error {
	s.mu.Lock()
	l := &s.log
	limit := s.header.GetIndex()
	if mutant.Planted(mutant.CompactedTooFar) {
		limit = l.last()
	}
	target := l.excess(limit, s.cfg.TailEntries, s.cfg.TailBytes)
	if target > hold {
		target = max(hold, l.excess(s.header.GetIndex(), 4*s.cfg.TailEntries, 4*s.cfg.TailBytes))
	}
	if target > needed {
		target = max(needed, l.excess(s.header.GetIndex(), math.MaxInt, neededTimes*s.cfg.TailBytes))
	}
	// A range tombstone for a few entries is not worth it.
	small := target <= l.start || target-l.start < uint64(s.cfg.TailEntries/8+1) && l.bytes < s.cfg.TailBytes+s.cfg.TailBytes/8
	var term uint64
	if !small {
		term = l.term(target)
	}
	from := l.start
	s.mu.Unlock()
	if small {
		return nil
	}
	return s.guard("compact the log", func(gen *generation) error {
		b := gen.db.NewBatch()
		if err := b.DeleteRange(logKey(from), logKey(target+1), nil); err != nil {
			return err
		}
		if err := b.Set(keyStart, encodeStart(target, term), nil); err != nil {
			return err
		}
		if err := gen.commit(b, pebble.NoSync); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.log.compact(target)
		return nil
	})
}
