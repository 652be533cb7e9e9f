package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"borg/checkpoint"
)

// disk is a replica's disk. What is written and not synced may be lost when it
// crashes.
type disk struct {
	*vfs.MemFS
	// deaf: a sync is said to be done and is not. The database writes what need
	// not be synced at a time of its own; a sync that is not done makes it write
	// all of it, so that what a crash finds does not depend on the real clock.
	deaf atomic.Bool
}

func newDisk() *disk { return &disk{MemFS: vfs.NewCrashableMem()} }

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.wrap(d.MemFS.Create(name, c))
}

func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.wrap(d.MemFS.OpenReadWrite(name, c, opts...))
}

func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.wrap(d.MemFS.ReuseForWrite(old, name, c))
}

func (d *disk) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d}, nil
}

// diskFile is a file that may be deaf.
type diskFile struct {
	vfs.File
	d *disk
}

func (f *diskFile) Sync() error {
	if f.d.deaf.Load() {
		return nil
	}
	return f.File.Sync()
}

func (f *diskFile) SyncData() error { return f.Sync() }

// SyncTo does nothing, as it may: it would sync at a time of the database's own.
func (f *diskFile) SyncTo(int64) (bool, error) { return false, nil }

// crash is the disk as it is found after a crash at this moment. Of what was
// not synced nothing is there, or all, or the start of it up to any byte. An
// append that was under way is lost with the rest, or there with the rest.
func (d *disk) crash(store *checkpoint.Store, underWay *brokenAppend, keep int, r *rand.Rand) (*disk, error) {
	if keep == keepSynced {
		return &disk{MemFS: d.CrashClone(vfs.CrashCloneCfg{})}, nil
	}
	d.deaf.Store(true)
	var groups [][]*raftpb.Entry
	hard := store.HardState()
	if underWay != nil {
		groups = [][]*raftpb.Entry{underWay.entries}
		if underWay.hard != nil {
			hard = underWay.hard
		}
	}
	if err := store.Append(groups, hard, true); err != nil {
		return nil, fmt.Errorf("write what was not synced: %w", err)
	}
	// How much chance it takes depends on the files that the database has not
	// come to remove yet.
	all := d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if keep == keepAll {
		return &disk{MemFS: all}, nil
	}
	synced := d.CrashClone(vfs.CrashCloneCfg{})
	return &disk{MemFS: synced}, tear(synced, all, "/replica/db", r)
}

// brokenAppend is an append that a crash interrupts.
type brokenAppend struct {
	entries []*raftpb.Entry
	hard    *raftpb.HardState
}

// What of the unsynced part of a disk a crash leaves.
const (
	keepSynced = iota
	keepTorn
	keepAll
)

// tear lengthens the write-ahead logs of a disk by a part of what another has.
func tear(synced, all *vfs.MemFS, dir string, r *rand.Rand) error {
	generations, err := synced.List(dir)
	if err != nil {
		return err
	}
	slices.Sort(generations)
	for _, g := range generations {
		names, err := synced.List(synced.PathJoin(dir, g))
		if err != nil {
			// A file, such as the marker.
			continue
		}
		slices.Sort(names)
		for _, name := range names {
			if !strings.HasSuffix(name, ".log") {
				continue
			}
			if err := tearFile(synced, all, synced.PathJoin(dir, g, name), r); err != nil {
				return err
			}
		}
	}
	return nil
}

func tearFile(synced, all *vfs.MemFS, path string, r *rand.Rand) error {
	short, err := readFile(synced, path)
	if err != nil {
		return err
	}
	long, err := readFile(all, path)
	if err != nil || len(long) <= len(short) {
		return nil
	}
	cut := len(short) + r.IntN(len(long)-len(short)+1)
	f, err := synced.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := f.Write(long[:cut]); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	d, err := synced.OpenDir(synced.PathDir(path))
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return err
	}
	return d.Close()
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
