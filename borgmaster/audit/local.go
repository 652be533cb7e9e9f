package audit

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"borg/proto/borgpb"
)

const (
	// maxLocalBytes and maxLocalFileBytes bound what a replica keeps of what never
	// reached the log.
	maxLocalBytes     = 16 << 20
	maxLocalFileBytes = 2 << 20
	// localPerSecond is how many are written down in a second, and how many more
	// at once after a time of rest; of the others only the number is kept.
	localPerSecond = 20
	localBurst     = 200
	// maxTextBytes is the most of each text that is kept.
	maxTextBytes = 1 << 10
)

// Local keeps what this replica alone knows of: what it refused before the log,
// and what an admin had it do that is no op.
type Local struct {
	journal *journal
	replica uint64
	logger  *slog.Logger
	now     func() time.Time

	mu sync.Mutex
	// How many may be written down now, and as of when. Guarded by mu.
	allowed float64
	at      time.Time
	// Refusals that were not; guarded by mu.
	others uint32
	// Guarded by mu.
	complained time.Time
}

func openLocal(config Config) (*Local, error) {
	l := &Local{replica: config.Replica, logger: config.Logger, now: config.Now, allowed: localBurst, at: config.Now()}
	var err error
	l.journal, err = openJournal(config.Dir, "local", limits{maxLocalBytes, maxLocalFileBytes, maxDays * oneDay}, config.Now, func(*borgpb.AuditBatch) {})
	return l, err
}

// Note keeps a record; the replica and the time are filled in. Refusals beyond
// what is written down in a second are counted in the next one that is.
func (l *Local) Note(r *borgpb.AuditRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.allowed = min(l.allowed+localPerSecond*max(now.Sub(l.at).Seconds(), 0), localBurst)
	l.at = now
	if l.allowed < 1 && r.Refusal != nil {
		l.others++
		return
	}
	l.allowed = max(l.allowed-1, 0)
	r.Replica, r.WallNs, r.Others = l.replica, now.UnixNano(), l.others
	for _, text := range []*string{&r.Who, &r.Verb, &r.Object, &r.Command, &r.ConfigHash, &r.Reason, &r.RequestId} {
		*text = clip(*text)
	}
	if r.Refusal != nil {
		r.Refusal = &borgpb.Refusal{Kind: r.Refusal.Kind, Object: clip(r.Refusal.Object), Message: clip(r.Refusal.Message), Field: clip(r.Refusal.Field)}
	}
	if err := l.journal.append(&borgpb.AuditBatch{Records: []*borgpb.AuditRecord{r}}); err != nil {
		if now.Sub(l.complained) >= complainPeriod {
			l.complained = now
			l.logger.Error("a refusal is not kept for the audit", "err", err)
		}
		return
	}
	l.others = 0
}

// clip bounds a text that was never checked.
func clip(text string) string {
	if len(text) > maxTextBytes {
		text = strings.ToValidUTF8(text[:maxTextBytes], "")
	}
	return strings.ToValidUTF8(text, "\ufffd")
}

// Each calls f with every record that is held, oldest first.
func (l *Local) Each(f func(*borgpb.AuditRecord) error) error { return l.journal.eachRecord(f) }
