package replica

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
	"golang.org/x/sys/unix"

	"borg/borgmaster"
	"borg/pages"
	"borg/tell/hostpath"
)

var _ borgmaster.Insides = (*Replica)(nil)

// timings are how long the steps of an op take.
type timings struct{ commit, apply, append prometheus.Histogram }

func newTimings() timings {
	return timings{
		commit: pages.NewHistogram("borgmaster", "commit", "Time from the proposal of an op on this replica, while elected, to its result."),
		apply:  pages.NewHistogram("borgmaster", "apply", "Time that the cell takes for one log entry."),
		append: pages.NewHistogram("borgmaster", "append", "Time that one write of the log takes, with its sync."),
	}
}

func since(began time.Time) float64 { return time.Since(began).Seconds() }

// Peers is how the others are doing as far as raft knows, by id.
func (c *Core) Peers(tick time.Duration) []borgmaster.Peer {
	var peers []borgmaster.Peer
	for id, at := range c.heard {
		if c.members.Member(id) != nil && id != c.cfg.ID {
			peers = append(peers, borgmaster.Peer{ID: id, Heard: time.Duration(c.ticks-at) * tick})
		}
	}
	if c.state.Leading {
		c.rn.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
			if id == c.cfg.ID {
				return
			}
			i := slices.IndexFunc(peers, func(p borgmaster.Peer) bool { return p.ID == id })
			if i < 0 {
				// Not heard since this replica was started.
				peers = append(peers, borgmaster.Peer{ID: id, Heard: time.Duration(c.ticks) * tick})
				i = len(peers) - 1
			}
			peers[i].Following, peers[i].Match, peers[i].State = true, pr.Match, pr.State.String()
		})
		for i := range peers {
			peers[i].Behind, peers[i].Current = c.behind(peers[i].ID), c.current(peers[i].ID)
		}
	}
	slices.SortFunc(peers, func(a, b borgmaster.Peer) int { return int(a.ID) - int(b.ID) })
	return peers
}

// Vitals implements borgmaster.Insides.
func (r *Replica) Vitals() borgmaster.Vitals {
	v := borgmaster.Vitals{
		Flushed: r.store.Header().GetIndex(), Dir: r.cfg.Store.Dir, MaxOpsQueued: maxQueuedOps, MaxReaders: maxReads,
		Appending: r.appends.Load(), Commit: r.timings.commit, Apply: r.timings.apply, Append: r.timings.append,
	}
	v.LogEntries, v.LogBytes = r.store.LogSize()
	v.Peers = r.Peers()
	r.mu.Lock()
	v.OpsQueued, v.OpsQueuedBytes, v.OpsPending = r.batches.Waiting()
	v.Readers = len(r.reads)
	for _, b := range r.waiting {
		v.Readers += len(b.readers)
	}
	r.mu.Unlock()
	v.Archive = r.archive.vitals()
	// Of a disk that is none there is nothing to say.
	var disk unix.Statfs_t
	if unix.Statfs(v.Dir, &disk) == nil {
		v.DiskFreeBytes, v.DiskSizeBytes = disk.Bavail*uint64(disk.Bsize), disk.Blocks*uint64(disk.Bsize)
	}
	return v
}

// Peers implements borgmaster.Insides.
func (r *Replica) Peers() []borgmaster.Peer {
	if peers := r.peers.Load(); peers != nil {
		return *peers
	}
	return nil
}

// Collectors implements borgmaster.Insides.
func (r *Replica) Collectors() []prometheus.Collector {
	return []prometheus.Collector{r.timings.commit, r.timings.apply, r.timings.append}
}

func (a *archiver) vitals() borgmaster.ArchiveVitals {
	if a == nil {
		return borgmaster.ArchiveVitals{Off: true}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v := borgmaster.ArchiveVitals{Last: a.last, CheckpointIndex: a.newest.Index, CheckpointBytes: a.newest.Bytes}
	if a.newest.Name != "" {
		v.CheckpointAt = time.Unix(0, a.newest.WallNs)
	}
	if a.failing != nil {
		v.Failing = hostpath.Text(a.failing)
	}
	return v
}
