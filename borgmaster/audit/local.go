package audit

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"borg/proto/borgpb"
)

const (
	// maxLocalBytes and maxLocalFileBytes bound what a replica keeps of what never
	// reached the log.
	maxLocalBytes     = 16 << 20
	maxLocalFileBytes = 2 << 20
)

// Local keeps what this replica alone knows of: what it refused before the log,
// and what an admin had it do that is no op.
type Local struct {
	journal *journal
	replica uint64
	logger  *slog.Logger
	now     func() time.Time

	mu sync.Mutex
	// Guarded by mu.
	refusals refusals
	// Guarded by mu.
	complained time.Time
}

func openLocal(config Config) (*Local, error) {
	l := &Local{replica: config.Replica, logger: config.Logger, now: config.Now}
	var err error
	l.journal, err = openJournal(config.Dir, "local", limits{config.LocalBytes, min(maxLocalFileBytes, config.LocalBytes/filesAtLeast), maxDays * oneDay}, config.Now, func(*borgpb.AuditBatch) {})
	l.refusals = newRefusals(l.journal)
	return l, err
}

// Note keeps a record; the replica and the time are filled in. A refusal may be counted
// in the record of one before it.
func (l *Local) Note(r *borgpb.AuditRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	r.Replica, r.WallNs = l.replica, now.UnixNano()
	if r.Refusal == nil {
		for _, text := range []*string{&r.Who, &r.Verb, &r.Object, &r.Command, &r.ConfigHash, &r.Reason, &r.RequestId} {
			*text = clip(*text)
		}
	}
	err := l.refusals.write(l.journal, []*borgpb.AuditRecord{r})
	if err != nil && now.Sub(l.complained) >= complainPeriod {
		l.complained = now
		l.logger.Error("a refusal is not kept for the audit", "err", err)
	}
}

// Each calls f with every record that is held, oldest first.
func (l *Local) Each(pick Pick, f func(*borgpb.AuditRecord) error) error {
	return l.journal.eachRecord(pick, f)
}

// EachNewest calls f with at most so many records that match, oldest first. When there are
// more, those who have the most are told their newest alone.
func (l *Local) EachNewest(most int, pick Pick, match func(*borgpb.AuditRecord) bool, f func(*borgpb.AuditRecord) error) error {
	count := map[share]int64{}
	if err := l.Each(pick, func(r *borgpb.AuditRecord) error {
		if match(r) {
			count[shareOf(r)]++
		}
		return nil
	}); err != nil {
		return err
	}
	level := Level(slices.Collect(maps.Values(count)), int64(most))
	return l.Each(pick, func(r *borgpb.AuditRecord) error {
		if !match(r) {
			return nil
		}
		s := shareOf(r)
		if count[s]--; count[s] >= level {
			return nil
		}
		return f(r)
	})
}

// Dropped is what was dropped of callers who passed their share.
func (l *Local) Dropped() []*borgpb.AuditRecord {
	all := l.journal.told()
	for _, d := range all {
		d.Replica = l.replica
	}
	return all
}
