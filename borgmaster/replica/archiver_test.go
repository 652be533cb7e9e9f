package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgrpc"
)

// quickArchive looks at the log all the time and makes many checkpoints.
func quickArchive() *ArchiveConfig {
	return &ArchiveConfig{
		Period: 2 * time.Millisecond, Retry: 5 * time.Millisecond,
		Retention: checkpoint.Retention{EveryEntries: 20, All: time.Hour, Log: time.Hour, MaxBytes: 1 << 30},
	}
}

// replayed is what an archive says of itself.
type replayed struct {
	checkpoints, entries int
	gaps                 []*checkpoint.GapError
	// The cell at the end, and its digest at each index of the last stretch.
	last    *cell.Cell
	digests map[uint64]cell.Digest
}

// replay applies a whole change log, from the first checkpoint of each stretch on,
// and holds each later checkpoint to the digest that this leads to.
func replay(t *testing.T, fs vfs.FS, dir string) replayed {
	t.Helper()
	a, err := checkpoint.OpenArchive(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := a.Damaged(); len(d) > 0 {
		t.Fatalf("%s: %v", d[0].Name, d[0].Err)
	}
	kept := a.Checkpoints()
	r := replayed{checkpoints: len(kept)}
	for len(kept) > 0 {
		r.last, r.digests = loadKept(t, a, kept[0]), make(map[uint64]cell.Digest)
		r.digests[r.last.Index()] = r.last.Digest()
		kept = kept[1:]
		var gap *checkpoint.GapError
		for e, err := range a.Entries(1, r.last.Index()) {
			if errors.As(err, &gap) {
				r.gaps = append(r.gaps, gap)
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			r.last.Apply(e.Index, e.Term, e.Data)
			r.entries++
			r.digests[e.Index] = r.last.Digest()
			if len(kept) > 0 && kept[0].Header.GetIndex() == e.Index {
				if d := r.last.Digest(); string(d[:]) != string(kept[0].Header.GetDigest()) {
					t.Fatalf("the change log leads to the digest %x at index %d, and the checkpoint has %x", d, e.Index, kept[0].Header.GetDigest())
				}
				kept = kept[1:]
			}
		}
		if gap == nil {
			break
		}
		// Of checkpoints whose entries are missing nothing can be made.
		for len(kept) > 0 && kept[0].Header.GetIndex() < gap.To {
			kept = kept[1:]
		}
	}
	if len(kept) > 0 {
		t.Fatalf("the change log ends before the checkpoint of index %d", kept[0].Header.GetIndex())
	}
	return r
}

func loadKept(t *testing.T, a *checkpoint.Archive, k checkpoint.Kept) *cell.Cell {
	t.Helper()
	f, err := a.OpenCheckpoint(k)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cr, err := checkpoint.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cell.Load(cr.Records())
	if err := errors.Join(cr.Err(), err); err != nil {
		t.Fatalf("%s: %v", k.Name, err)
	}
	if d := c.Digest(); string(d[:]) != string(k.Header.GetDigest()) {
		t.Fatalf("%s has the digest %x, and its records %x", k.Name, k.Header.GetDigest(), d)
	}
	return c
}

// archived waits until a replica has kept all that it has applied, and returns a
// position that is in its archive.
func (tc *testCell) archived(id uint64) (index uint64, d cell.Digest) {
	tc.t.Helper()
	r := tc.running[id]
	tc.wait("the change log has what is applied", func() bool {
		r.cellMu.Lock()
		index, d = r.cell.Index(), r.cell.Digest()
		r.cellMu.Unlock()
		r.archive.mu.Lock()
		defer r.archive.mu.Unlock()
		return r.archive.failing == nil && r.archive.last >= index
	})
	return index, d
}

// TestArchiveReplays takes replicas away in order and by force, and holds what
// their archives lead to against the live cells.
func TestArchiveReplays(t *testing.T) {
	tc := newTestCell(t, 3, func(c *Config) { c.Archive, c.FlushInterval = quickArchive(), 5*time.Millisecond })
	tc.elected()
	l := tc.load("a", 4)
	for id := uint64(1); id <= 3; id++ {
		l.more(150)
		if id == 2 {
			tc.stop(id)
		} else {
			tc.crash(id)
		}
		l.more(150)
		tc.start(id)
	}
	l.finish()
	for id := uint64(1); id <= 3; id++ {
		index, want := tc.archived(id)
		r := replay(t, tc.fs[id], "/cell/replica/archive")
		if got, ok := r.digests[index]; !ok || got != want {
			t.Errorf("replica %d: the archive leads to the digest %x at index %d (%v), the cell has %x", id, got, index, ok, want)
		}
		if r.checkpoints < 3 || r.entries < 300 || len(r.gaps) > 0 {
			t.Errorf("replica %d: %d checkpoints, %d entries, gaps %v", id, r.checkpoints, r.entries, r.gaps)
		}
	}
}

// TestArchiveDiskFails has the archive of one replica on a disk that fails for a
// while: the replica goes on, says so, and begins anew after a gap that is told.
func TestArchiveDiskFails(t *testing.T) {
	var failing atomic.Bool
	mem := vfs.NewMem()
	archive := quickArchive()
	archive.Dir = "/past"
	archive.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return errorfs.ErrInjected
		}
		return nil
	}))
	tc := newTestCell(t, 1, func(c *Config) {
		c.Archive, c.Store.TailEntries, c.FlushInterval = archive, 40, 5*time.Millisecond
	})
	r := tc.elected()
	l := tc.load("a", 4)
	tc.wait("there is a checkpoint", func() bool {
		kept, err := r.Kept()
		return err == nil && len(kept.Checkpoints) > 0
	})
	l.more(200)
	tc.archived(1)
	failing.Store(true)
	tc.wait("it says that nothing is kept", func() bool {
		kept, err := r.Kept()
		return err == nil && strings.Contains(kept.Failing, "injected")
	})
	r.archive.mu.Lock()
	stuck := r.archive.last
	r.archive.mu.Unlock()
	l.more(300)
	tc.wait("the log does not wait for the archive", func() bool {
		first, err := r.store.FirstIndex()
		return err == nil && first > stuck+1
	})
	failing.Store(false)
	l.more(200)
	l.finish()
	index, want := tc.archived(1)
	tc.wait("a checkpoint follows the gap", func() bool {
		kept, err := r.Kept()
		n := len(kept.GetCheckpoints())
		return err == nil && n > 0 && kept.Checkpoints[n-1].Index >= kept.Logs[len(kept.Logs)-1].FirstIndex
	})
	got := replay(t, mem, "/past")
	if d, ok := got.digests[index]; !ok || d != want {
		t.Errorf("the archive leads to the digest %x at index %d (%v), the cell has %x", d, index, ok, want)
	}
	kept, err := r.Kept()
	// The log is cut so short that more of it may be gone before the archive has
	// caught up: then there are other gaps.
	if !slices.ContainsFunc(kept.GetLogs(), func(l *borgrpc.KeptLog) bool {
		return l.FirstIndex > stuck+1 && strings.Contains(l.Gap, "could not be written")
	}) {
		t.Errorf("stretches %v, want one beyond entry %d that says why", kept.GetLogs(), stuck)
	}
	if err != nil || kept.Failing != "" || len(kept.Logs) == 0 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

// TestArchiveAfterInstall has a replica that was given a checkpoint instead of the
// log: its archive tells the gap and goes on from a checkpoint of its own.
func TestArchiveAfterInstall(t *testing.T) {
	tc := newTestCell(t, 3, func(c *Config) {
		c.Archive, c.Store.TailEntries, c.FlushInterval = quickArchive(), 20, 5*time.Millisecond
	})
	elected := tc.elected()
	var behind uint64 = 1
	if elected.identity.GetReplica() == behind {
		behind = 2
	}
	l := tc.load("a", 4)
	l.more(100)
	tc.wait("it has kept something", func() bool {
		kept, err := tc.running[behind].Kept()
		return err == nil && len(kept.Checkpoints) > 0
	})
	tc.net.setCut(behind, true)
	applied := tc.running[behind].State().Applied
	tc.wait("the others no longer have what it needs", func() bool {
		first, err := elected.store.FirstIndex()
		return err == nil && first > applied+200
	})
	tc.net.setCut(behind, false)
	l.more(200)
	l.finish()
	// What it has last may be a checkpoint again, which is no entry: a few changes that
	// come slowly reach it by the log.
	index, want := tc.archived(behind)
	got := replay(t, tc.fs[behind], "/cell/replica/archive")
	for try := 0; try < 10 && got.digests[index] != want; try++ {
		few := tc.load(fmt.Sprintf("few%d", try), 1)
		few.more(3)
		few.finish()
		index, want = tc.archived(behind)
		got = replay(t, tc.fs[behind], "/cell/replica/archive")
	}
	if d, ok := got.digests[index]; !ok || d != want {
		t.Errorf("the archive leads to the digest %x at index %d (%v), the cell has %x", d, index, ok, want)
	}
	if len(got.gaps) == 0 || !strings.Contains(got.gaps[0].Why, "was given a checkpoint") {
		t.Errorf("gaps %v", got.gaps)
	}
}

// TestArchiveLeavesRoom has a disk that is nearly full: the archive gives way,
// what is oldest first, and in the end writes nothing.
func TestArchiveLeavesRoom(t *testing.T) {
	mem := vfs.NewMem()
	archive := quickArchive()
	archive.Dir, archive.FS = "/past", mem
	tc := newTestCell(t, 1, func(c *Config) { c.Archive, c.FlushInterval = archive, 5*time.Millisecond })
	r := tc.elected()
	l := tc.load("a", 4)
	tc.wait("there are checkpoints", func() bool {
		kept, err := r.Kept()
		return err == nil && len(kept.Checkpoints) > 3
	})
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 5 << 20, TotalBytes: 100 << 20})
	tc.wait("it says that the disk is full, and has dropped what it may", func() bool {
		kept, err := r.Kept()
		return err == nil && strings.Contains(kept.Failing, "too full") && len(kept.Checkpoints) == 1
	})
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 50 << 20, TotalBytes: 100 << 20})
	l.more(100)
	l.finish()
	index, want := tc.archived(1)
	if d := replay(t, mem, "/past").digests[index]; d != want {
		t.Errorf("the archive leads to the digest %x at index %d, the cell has %x", d, index, want)
	}
}

// TestPush has checkpoints copied to a directory as they are made.
func TestPush(t *testing.T) {
	mem := vfs.NewMem()
	archive := quickArchive()
	archive.Push = []checkpoint.Destination{checkpoint.Directory{FS: mem, Path: "/backups/test"}}
	tc := newTestCell(t, 1, func(c *Config) { c.Archive, c.FlushInterval = archive, 5*time.Millisecond })
	tc.elected()
	l := tc.load("a", 4)
	var copied []checkpoint.Kept
	tc.wait("two checkpoints are copied", func() bool {
		a, err := checkpoint.OpenArchive(mem, "/backups/test")
		if err != nil {
			return false
		}
		copied = a.Checkpoints()
		return len(copied) >= 2
	})
	l.finish()
	a, err := checkpoint.OpenArchive(mem, "/backups/test")
	if err != nil {
		t.Fatal(err)
	}
	loadKept(t, a, copied[1])
}

// TestOpenKept asks for the past by index and by time.
func TestOpenKept(t *testing.T) {
	tc := newTestCell(t, 1, func(c *Config) { c.Archive, c.FlushInterval = quickArchive(), 5*time.Millisecond })
	r := tc.elected()
	l := tc.load("a", 4)
	tc.wait("there are checkpoints", func() bool {
		kept, err := r.Kept()
		return err == nil && len(kept.Checkpoints) >= 3
	})
	l.finish()
	tc.archived(1)
	kept, err := r.Kept()
	if err != nil {
		t.Fatal(err)
	}
	second, third := kept.Checkpoints[1], kept.Checkpoints[2]
	for _, tc := range []struct {
		index  uint64
		wallNs int64
		want   uint64
	}{
		{second.Index, 0, second.Index},
		{third.Index - 1, 0, second.Index},
		{0, third.WallTimeNs - 1, second.Index},
		{third.Index, second.WallTimeNs, second.Index},
		{1, 0, 0},
	} {
		f, index, bytes, err := r.OpenKept(tc.index, tc.wallNs)
		if tc.want == 0 {
			if err == nil || !strings.Contains(err.Error(), "the oldest") {
				t.Errorf("of index %d: %v", tc.index, err)
			}
			continue
		}
		if err != nil || index != tc.want {
			t.Errorf("of index %d, time %d: %d, %v, want %d", tc.index, tc.wallNs, index, err, tc.want)
			continue
		}
		info, err := checkpoint.Inspect(f)
		if err := errors.Join(err, f.Close()); err != nil || info.Header.GetIndex() != index || info.FileBytes != bytes {
			t.Errorf("of index %d: a file of %d with %d bytes, %v; want %d bytes", tc.index, info.Header.GetIndex(), info.FileBytes, err, bytes)
		}
	}
}
