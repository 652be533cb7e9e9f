package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/tell/hostpath"
)

const (
	// maxLogBytes and maxLogFileBytes bound what a replica keeps of the log. A quarter
	// is for admins.
	maxLogBytes     = 256 << 20
	maxLogFileBytes = 8 << 20
	// A journal has at least so many files before anything is dropped.
	filesAtLeast = 8
	// syncPeriod is how long a record may be without a sync. Each sync of a file that has grown
	// holds up those of the log on the same disk for some milliseconds. What a machine without
	// power loses of the log, other replicas have.
	syncPeriod = 5 * time.Second
	// weighPeriod is the time between two looks for journals that hold too much.
	weighPeriod = time.Second
	// A disk that takes nothing is told of so often.
	complainPeriod = time.Minute
)

// Trail is both journals of a replica.
type Trail struct {
	Log   *Log
	Local *Local
}

// Config says where a Trail is.
type Config struct {
	// Made when it is not there.
	Dir string
	// Who keeps it.
	Replica uint64
	// The most bytes of what reached the log, and of what did not; 0: maxLogBytes and
	// maxLocalBytes.
	LogBytes, LocalBytes int64
	// The wall clock; nil: the machine's.
	Now func() time.Time
	// Nil: silent.
	Logger *slog.Logger
}

// Open opens the journals of a replica.
func Open(config Config) (*Trail, error) {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	config.LogBytes, config.LocalBytes = cmp.Or(config.LogBytes, maxLogBytes), cmp.Or(config.LocalBytes, maxLocalBytes)
	log, err := openLog(config)
	if err != nil {
		return nil, err
	}
	local, err := openLocal(config)
	if err != nil {
		return nil, errors.Join(err, log.close())
	}
	return &Trail{Log: log, Local: local}, nil
}

// KnowAdmins has f tell who is an admin, before anything is kept. Records of admins are
// bounded apart from those of others.
func (t *Trail) KnowAdmins(f func(user string) bool) { t.Log.isAdmin = f }

// Run syncs the journals now and then, and drops what is over, until ctx ends.
func (t *Trail) Run(ctx context.Context) {
	for _, j := range []*journal{t.Log.journal, t.Local.journal} {
		if err := j.weighAll(); err != nil {
			t.Log.complain(err)
		}
	}
	tick := time.NewTicker(weighPeriod)
	defer tick.Stop()
	for synced := time.Now(); ; {
		var err error
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if now.Sub(synced) >= syncPeriod {
				synced = now
				err = errors.Join(t.Log.sync(), t.Local.journal.sync())
			}
		}
		for _, j := range []*journal{t.Log.journal, t.Local.journal} {
			if j.isOver() {
				err = errors.Join(err, j.drop())
			}
		}
		if err != nil {
			t.Log.complain(err)
		}
	}
}

// Close ends both.
func (t *Trail) Close() error { return errors.Join(t.Log.close(), t.Local.journal.close()) }

// Log keeps what people did, as the log has it. It hears of each entry, in order;
// after a restart of some again.
type Log struct {
	journal *journal
	logger  *slog.Logger
	now     func() time.Time
	// Tells who is an admin; nil: nobody is.
	isAdmin func(user string) bool
	// Up to where the log was seen, written down: see markOf.
	mark *os.File

	mu sync.Mutex
	// Everything up to this log index is in the journal, or in a hole of it.
	// Guarded by mu.
	through uint64
	// Why what follows through is not there; nil: nothing is missing. Guarded by
	// mu.
	failed error
	// What of it outlives the machine. Guarded by mu.
	synced uint64
	// Guarded by mu.
	refusals refusals
	// Guarded by mu.
	complained time.Time
}

func openLog(config Config) (*Log, error) {
	// The log of a new cell begins after index 1.
	l := &Log{logger: config.Logger, now: config.Now, through: 1}
	var err error
	l.journal, err = openJournal(config.Dir, "log", limits{config.LogBytes, min(maxLogFileBytes, config.LogBytes/filesAtLeast), maxDays * oneDay}, config.Now, func(b *borgpb.AuditBatch) {
		for _, r := range b.GetRecords() {
			l.through = max(l.through, r.GetIndex(), r.GetHole().GetTo())
		}
	})
	if err != nil {
		return nil, err
	}
	l.refusals = newRefusals(l.journal)
	path := filepath.Join(config.Dir, "log.through")
	if l.mark, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("open the audit: %w", err), l.journal.close())
	}
	data := make([]byte, markBytes)
	if _, err := l.mark.ReadAt(data, 0); err != nil && err != io.EOF {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), l.close())
	}
	// A mark that outlived the last batches before it would hide that they are gone.
	if index := binary.BigEndian.Uint64(data); bytes.Equal(data, markOf(index, l.journal.end())) {
		l.through = max(l.through, index)
	}
	return l, nil
}

// Applied keeps what of an entry somebody asked for. An entry that was seen
// before is passed over. It must be called for each entry, in order. It returns the
// records, of which it keeps none, so that nobody need make them again.
func (l *Log) Applied(index uint64, entry []byte, results []*borgpb.Result) []*borgpb.AuditRecord {
	asked := Records(index, entry, results)
	l.mu.Lock()
	defer l.mu.Unlock()
	if index <= l.through {
		return asked
	}
	records := asked
	for _, r := range asked {
		r.Admin = r.Role == borgpb.Role_ROLE_USER && l.isAdmin != nil && l.isAdmin(r.Who)
	}
	if index > l.through+1 {
		why := "this replica kept none at that time"
		if l.failed != nil {
			why = "it could not be written: " + hostpath.Text(l.failed)
		}
		records = append([]*borgpb.AuditRecord{l.hole(l.through+1, index-1, why)}, asked...)
	}
	l.write(index, records)
	return asked
}

// Restored hears that a checkpoint was put in the place of the log up to index.
func (l *Log) Restored(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index <= l.through {
		return
	}
	l.write(index, []*borgpb.AuditRecord{
		l.hole(l.through+1, index, "this replica was given a checkpoint instead of the log"),
	})
}

func (l *Log) hole(from, to uint64, why string) *borgpb.AuditRecord {
	return &borgpb.AuditRecord{Index: to, WallNs: l.now().UnixNano(), Hole: &borgpb.AuditHole{From: from, To: to, Why: why}}
}

// write keeps records that stand for the log up to index. What cannot be written
// holds nobody up: it becomes a hole as soon as something can. The caller holds
// mu.
func (l *Log) write(index uint64, records []*borgpb.AuditRecord) {
	err := l.refusals.write(l.journal, records)
	if err == nil {
		_, err = l.mark.WriteAt(markOf(index, l.journal.end()), 0)
	}
	if err != nil {
		l.failed = err
		l.complainLocked(err)
		return
	}
	l.through, l.failed = index, nil
}

// Dropped is what was dropped of callers who passed their share.
func (l *Log) Dropped() []*borgpb.AuditRecord { return l.journal.told() }

// Stats is what the journals hold: bytes, and records that were dropped since this
// process began because a caller passed his share.
type Stats struct {
	LogBytes, LocalBytes     int64
	LogDropped, LocalDropped uint64
}

// Stats tells what the journals hold.
func (t *Trail) Stats() (s Stats) {
	s.LogBytes, s.LogDropped = t.Log.journal.size()
	s.LocalBytes, s.LocalDropped = t.Local.journal.size()
	return s
}

// Each calls f with every record that is held, in the order of the log.
func (l *Log) Each(pick Pick, f func(*borgpb.AuditRecord) error) error {
	return l.journal.eachRecord(pick, f)
}

func (j *journal) eachRecord(pick Pick, f func(*borgpb.AuditRecord) error) error {
	return j.each(pick, func(b *borgpb.AuditBatch) error {
		for _, r := range b.GetRecords() {
			if err := f(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// sync writes through to the disk. The mark may be there before the records of entries
// that come meanwhile: it counts only with those.
func (l *Log) sync() error {
	l.mu.Lock()
	through := l.through
	moved := through != l.synced
	l.mu.Unlock()
	if !moved {
		return nil
	}
	if err := errors.Join(l.journal.sync(), unix.Fdatasync(int(l.mark.Fd()))); err != nil {
		return err
	}
	l.mu.Lock()
	l.synced = through
	l.mu.Unlock()
	return nil
}

func (l *Log) close() error { return errors.Join(l.journal.close(), l.mark.Close()) }

func (l *Log) complain(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complainLocked(err)
}

func (l *Log) complainLocked(err error) {
	if now := l.now(); now.Sub(l.complained) >= complainPeriod {
		l.complained = now
		l.logger.Error("the audit is not kept; what is missing will be told as a hole", "err", err)
	}
}

const markBytes = 24

// markOf is an index with half of the hash of it and of the last batch up to it.
func markOf(index uint64, end [sha256.Size]byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, index)
	sum := chained(end, b)
	return append(b, sum[:markBytes-len(b)]...)
}
