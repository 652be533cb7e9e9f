package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"borg/checkpoint"
)

// ArchiveConfig says where a replica keeps the past of its cell, and how much.
type ArchiveConfig struct {
	// Dir is made when it is not there. Empty: archive in the replica's directory.
	Dir string
	// FS is where Dir lies; nil: where the replica's directory does.
	FS vfs.FS
	// Retention; zero: checkpoint.DefaultRetention.
	Retention checkpoint.Retention
	// Period is the time between two looks at the log; zero: 1 s. So far the
	// change log may be behind.
	Period time.Duration
	// Retry is how long a disk that took nothing is left alone; zero: 10 s.
	Retry time.Duration
	// Push are places that each checkpoint is copied to as it is made.
	Push []checkpoint.Destination
}

func (c *ArchiveConfig) setDefaults(store *checkpoint.Config) {
	if c.FS == nil {
		c.FS = store.FS
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Dir == "" {
		c.Dir = c.FS.PathJoin(store.Dir, checkpoint.ArchiveDir)
	}
	if c.Retention == (checkpoint.Retention{}) {
		c.Retention = checkpoint.DefaultRetention()
	}
	if c.Period == 0 {
		c.Period = time.Second
	}
	if c.Retry == 0 {
		c.Retry = 10 * time.Second
	}
}

const (
	// archiveBatchBytes are read of the log at once.
	archiveBatchBytes = 256 << 10
	// archiveSyncPeriod is how long appended entries may be without a sync. The
	// replica's own log holds them until then.
	archiveSyncPeriod = 5 * time.Second
	// archiveTidyPeriod lies between two looks at what is not kept any more.
	archiveTidyPeriod = time.Minute
	// archiveSpareBytes, or a tenth of the disk if that is less, are left free:
	// the replica itself ends when its disk is full.
	archiveSpareBytes = 1 << 30
)

// archiver keeps the past of the cell beside a replica. It takes committed
// entries from the replica's own log, at its own pace, and asks that they stay
// there until they are synced; so it needs no queue, and what a crash takes from
// it is there again. Nothing waits for it. When its disk fails it says so, lets go
// of the log, and goes on later; what it then missed is a gap, told in the change
// log and followed by a checkpoint at once.
type archiver struct {
	r   *Replica
	cfg ArchiveConfig

	pushes *pusher

	// Owned by its goroutine, as is all up to mu.
	w *checkpoint.ArchiveWriter
	// Wall times, zero: never.
	syncedNs, tidiedNs, complainedNs int64
	// After a failure: until then nothing is tried.
	restUntilNs int64

	mu sync.Mutex
	// Log after this index must stay; all of it, until the archive was opened.
	// Guarded by mu, as is all that follows.
	hold uint64
	// The last entry that is written.
	last uint64
	// The newest checkpoint that is kept; without a name: there is none.
	newest checkpoint.Held
	// Why nothing is kept at this time; nil: it is.
	failing error
}

func newArchiver(r *Replica, cfg ArchiveConfig) *archiver {
	cfg.setDefaults(&r.cfg.Store)
	return &archiver{r: r, cfg: cfg, pushes: newPusher(cfg.Push, r.log)}
}

// run works until ctx ends, and never fails: a replica is worth more than its
// past.
func (a *archiver) run(ctx context.Context) error {
	ticker := time.NewTicker(a.cfg.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			a.end()
			return nil
		case <-ticker.C:
		}
		if now := a.r.cfg.WallNs(); now >= a.restUntilNs || now < a.restUntilNs-int64(a.cfg.Retry) {
			a.note(ctx, a.work(ctx, now), now)
		}
	}
}

// end brings the change log up to date and ends its segment.
func (a *archiver) end() {
	if a.w == nil {
		return
	}
	err := a.catchUp(context.Background(), a.r.cfg.WallNs())
	if err = errors.Join(err, a.w.Close()); err != nil {
		a.r.log.Warn("the change log is not ended in order", "err", err)
	}
}

// note tells of trouble, once a minute.
func (a *archiver) note(ctx context.Context, err error, nowNs int64) {
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	was := a.failing
	a.failing = err
	if err != nil {
		a.hold = math.MaxUint64
	}
	if a.w != nil {
		a.last = a.w.Last()
	}
	a.mu.Unlock()
	switch {
	case err == nil && was != nil:
		a.complainedNs = 0
		a.r.log.Info("the past is kept again")
	case err != nil:
		a.restUntilNs = nowNs + int64(a.cfg.Retry)
		if nowNs-a.complainedNs >= int64(time.Minute) {
			a.complainedNs = nowNs
			a.r.log.Error("the past is not kept; what is missing will be told as a gap", "err", err)
		}
	}
}

// work does what there is to do.
func (a *archiver) work(ctx context.Context, nowNs int64) error {
	if a.w == nil {
		w, err := checkpoint.OpenArchiveWriter(a.cfg.FS, a.cfg.Dir, a.r.identity, a.r.store.Header().GetEpoch())
		if err != nil {
			return err
		}
		a.w = w
	}
	if err := a.tidy(nowNs); err != nil {
		return err
	}
	// After a failure the log is held again before it is read, or what is cut off it
	// meanwhile would be one gap more.
	a.tell()
	if err := a.catchUp(ctx, nowNs); err != nil {
		return err
	}
	if nowNs-a.syncedNs >= int64(archiveSyncPeriod) || nowNs < a.syncedNs {
		if err := a.w.Sync(); err != nil {
			return err
		}
		a.syncedNs = nowNs
	}
	a.tell()
	return a.checkpoint(ctx, nowNs)
}

// tell says what is written, and which of the log must stay.
func (a *archiver) tell() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last, a.hold, a.newest = a.w.Last(), a.w.Synced(), a.w.Newest()
}

// catchUp appends what was applied since.
func (a *archiver) catchUp(ctx context.Context, nowNs int64) error {
	store := a.r.store
	for ctx.Err() == nil {
		next, applied := a.w.Last()+1, a.r.applied.Load()
		first, err := store.FirstIndex()
		if err != nil {
			return err
		}
		if next < first {
			// Before that there never was one.
			if first > firstIndex+1 {
				a.w.Skip(a.missing())
			}
			next = first
		}
		if next > applied {
			return nil
		}
		entries, err := store.Entries(next, applied+1, archiveBatchBytes)
		if errors.Is(err, raft.ErrCompacted) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the log from entry %d on: %w", next, err)
		}
		if err := a.w.Append(past(a.w.Epoch(), entries), nowNs); err != nil {
			return err
		}
	}
	return nil
}

// missing is why the log no longer has what comes next.
func (a *archiver) missing() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failing != nil {
		return "it could not be written: " + a.failing.Error()
	}
	return "this replica was given a checkpoint instead of the log, or kept no past; another one may know"
}

// past is entries as the cell is given them.
func past(epoch uint64, entries []*raftpb.Entry) []checkpoint.PastEntry {
	out := make([]checkpoint.PastEntry, len(entries))
	for i, e := range entries {
		out[i] = checkpoint.PastEntry{Epoch: epoch, Index: e.GetIndex(), Term: e.GetTerm()}
		if e.GetType() == raftpb.EntryNormal {
			out[i].Data = e.GetData()
		}
	}
	return out
}

// checkpoint makes one when it is due.
func (a *archiver) checkpoint(ctx context.Context, nowNs int64) error {
	h := a.r.store.Header()
	if h.GetIndex() <= firstIndex || !a.cfg.Retention.Due(a.w.Newest(), h.GetEpoch(), h.GetIndex(), nowNs, a.phase()) {
		return nil
	}
	p, err := a.r.store.Picture()
	if err != nil {
		return err
	}
	start := time.Now()
	// The log first: then no checkpoint stands beyond its end.
	var kept checkpoint.Kept
	if err = a.catchUp(ctx, nowNs); err == nil {
		kept, err = a.w.AddCheckpoint(ctx, p, nowNs)
	}
	if err = errors.Join(err, p.Close()); err != nil {
		return err
	}
	a.r.log.Info("checkpoint kept", "index", kept.Header.GetIndex(), "bytes", kept.Bytes, "took", time.Since(start).Round(time.Millisecond))
	a.pushes.add(a.cfg.FS, a.cfg.FS.PathJoin(a.cfg.Dir, kept.Name), kept)
	a.tidiedNs = 0
	return nil
}

// phase is when this replica's turn is.
func (a *archiver) phase() time.Duration {
	a.r.mu.Lock()
	members := slices.Sorted(slices.Values(slices.Concat(a.r.members.Voters, a.r.members.Learners)))
	a.r.mu.Unlock()
	place, _ := slices.BinarySearch(members, a.r.identity.GetReplica())
	return a.cfg.Retention.Phase(place, len(members))
}

// tidy drops what is not kept any more. It returns an error while the disk has no
// room to spare.
func (a *archiver) tidy(nowNs int64) error {
	lack := a.lack()
	if lack == 0 && a.tidiedNs != 0 && nowNs-a.tidiedNs < int64(archiveTidyPeriod) && nowNs >= a.tidiedNs {
		return nil
	}
	if err := a.w.Drop(a.cfg.Retention.Drop(a.w.Held(), nowNs, lack)); err != nil {
		return err
	}
	a.tidiedNs = nowNs
	if lack = a.lack(); lack > 0 {
		return fmt.Errorf("the disk of %s is too full: %d MiB more must be free", a.cfg.Dir, lack>>20+1)
	}
	return nil
}

// lack is how many bytes more should be free.
func (a *archiver) lack() int64 {
	free, total, ok := a.w.FreeBytes()
	if spare := min(archiveSpareBytes, total/10); ok && free < spare {
		return int64(spare - free)
	}
	return 0
}

// held is the index after which the archive needs the log.
func (a *archiver) held() uint64 {
	if a == nil {
		return math.MaxUint64
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hold
}
