package sim

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"borg/checkpoint"
)

// disk is a replica's disk. What is written and not synced may be lost when it
// crashes.
type disk struct {
	*vfs.MemFS
	mu sync.Mutex
	// How it fails now; its zero value: it does not. Guarded by mu.
	failing failure
	// How much of each write-ahead log is synced. They only grow, so that this
	// says as much as a copy of what is synced. Guarded by mu.
	synced map[string]int64
	// deaf: a sync is said to be done and is not. The database writes what need
	// not be synced at a time of its own; a sync that is not done makes it write
	// all of it, so that what a crash finds does not depend on the real clock.
	deaf atomic.Bool
}

// failure is how a disk fails. Whoever writes to one that does has all written
// before he goes on (replicaNode.write), so that which write fails does not
// depend on when the database's own goroutine writes.
type failure struct {
	// What a write says once so many bytes more are written, and a sync at
	// once when it is syncs that fail; nil: they do not.
	err   error
	bytes int64
	syncs bool
	// Nothing can be read.
	unreadable bool
}

func (d *disk) fail(f failure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = f
}

func (d *disk) failure() failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failing
}

// steady: nothing fails, and no crash is under way.
func (d *disk) steady() bool { return !d.deaf.Load() && d.failure() == failure{} }

// take takes room for a write of n bytes: what fits, and why not all of it.
func (d *disk) take(n int) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := &d.failing
	if f.err == nil || f.syncs {
		return n, nil
	}
	if int64(n) <= f.bytes {
		f.bytes -= int64(n)
		return n, nil
	}
	n, f.bytes = int(f.bytes), 0
	return n, f.err
}

// make says whether a new file or directory can be made.
func (d *disk) make() error {
	if f := d.failure(); f.err != nil && !f.syncs && f.bytes == 0 {
		return f.err
	}
	return nil
}

func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if d.failure().unreadable {
		return nil, syscall.EIO
	}
	f, err := d.MemFS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, d: d}, nil
}

func (d *disk) MkdirAll(dir string, perm os.FileMode) error {
	if err := d.make(); err != nil {
		return err
	}
	return d.MemFS.MkdirAll(dir, perm)
}

func newDisk() *disk { return diskOf(vfs.NewCrashableMem(), failure{}) }

func diskOf(fs *vfs.MemFS, f failure) *disk {
	return &disk{MemFS: fs, failing: f, synced: map[string]int64{}}
}

// left is the disk as a process leaves it that ends: its host lives on, and
// with it all that was written.
func (d *disk) left() *disk {
	return diskOf(d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))}), d.failure())
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.make(); err != nil {
		return nil, err
	}
	f, err := d.MemFS.Create(name, c)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(name, logSuffix) {
		name = ""
	}
	return &diskFile{File: f, d: d, log: name}, nil
}

func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.MemFS.OpenReadWrite(name, c, opts...)
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, d: d}, nil
}

// ReuseForWrite gives a new file: in one that is written over, what is synced
// would not be its start.
func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.Remove(old); err != nil {
		return nil, err
	}
	return d.Create(name, c)
}

const logSuffix = ".log"

// diskFile is a file of a disk that may be deaf, or fail.
type diskFile struct {
	vfs.File
	d *disk
	// Path of a write-ahead log, and its length; empty: it is none.
	log   string
	bytes int64
}

func (f *diskFile) Write(p []byte) (int, error) {
	n, full := f.d.take(len(p))
	n, err := f.File.Write(p[:n])
	f.bytes += int64(n)
	return n, cmp.Or(err, full)
}

func (f *diskFile) Read(p []byte) (int, error) {
	if f.d.failure().unreadable {
		return 0, syscall.EIO
	}
	return f.File.Read(p)
}

func (f *diskFile) ReadAt(p []byte, off int64) (int, error) {
	if f.d.failure().unreadable {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, off)
}

func (f *diskFile) Sync() error {
	if f.d.deaf.Load() {
		return nil
	}
	if x := f.d.failure(); x.syncs {
		return x.err
	}
	if f.log == "" {
		return f.File.Sync()
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.synced[f.log] = f.bytes
	return nil
}

func (f *diskFile) SyncData() error { return f.Sync() }

// SyncTo does nothing, as it may: it would sync at a time of the database's own.
func (f *diskFile) SyncTo(int64) (bool, error) { return false, nil }

// crash is the disk as it is found after a crash at this moment. Of what was
// not synced nothing is there, or all, or the start of it up to any byte. An
// append that was under way is lost with the rest, or there with the rest.
func (d *disk) crash(store *checkpoint.Store, underWay *brokenAppend, keep int, r *rand.Rand) (*disk, error) {
	// Old logs are removed at a time of the database's own, and must not shift
	// what is drawn for the others.
	draw := r.Uint64()
	failing := d.failure()
	if failing.err != nil {
		keep = keepSynced
	}
	d.fail(failure{})
	d.deaf.Store(true)
	defer d.deaf.Store(false)
	if keep != keepSynced {
		if err := d.writeAll(store, underWay); err != nil {
			return nil, err
		}
	}
	// How much chance it takes depends on the files that the database has not
	// come to remove yet.
	all := d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if keep == keepAll {
		return diskOf(all, failing), nil
	}
	after := d.CrashClone(vfs.CrashCloneCfg{})
	return diskOf(after, failing), d.tear(after, all, "/replica/db", keep == keepTorn, draw)
}

// writeAll has the database write what it has not written yet.
func (d *disk) writeAll(store *checkpoint.Store, underWay *brokenAppend) error {
	var groups [][]*raftpb.Entry
	hard := store.HardState()
	if underWay != nil {
		groups = [][]*raftpb.Entry{underWay.entries}
		if underWay.hard != nil {
			hard = underWay.hard
		}
	}
	if err := store.Append(groups, hard, true); err != nil {
		return fmt.Errorf("write what was not synced: %w", err)
	}
	return nil
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

// tear gives the write-ahead logs of a disk what was synced of them, and
// perhaps a part of what was not.
func (d *disk) tear(after, all *vfs.MemFS, dir string, more bool, draw uint64) error {
	generations, err := after.List(dir)
	if err != nil {
		return err
	}
	slices.Sort(generations)
	for _, g := range generations {
		names, err := after.List(after.PathJoin(dir, g))
		if err != nil {
			// A file, such as the marker.
			continue
		}
		slices.Sort(names)
		for _, name := range names {
			if strings.HasSuffix(name, logSuffix) {
				if err := d.tearFile(after, all, after.PathJoin(dir, g, name), more, draw); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *disk) tearFile(after, all *vfs.MemFS, path string, more bool, draw uint64) error {
	long, err := readFile(all, path)
	if err != nil {
		return nil
	}
	d.mu.Lock()
	cut := int(d.synced[path])
	d.mu.Unlock()
	if have, err := readFile(after, path); err == nil {
		// Of before an earlier crash.
		cut = max(cut, len(have))
	}
	cut = min(cut, len(long))
	if more {
		cut += rand.New(rand.NewPCG(draw, hashOf([]byte(path)))).IntN(len(long) - cut + 1)
	}
	f, err := after.Create(path, vfs.WriteCategoryUnspecified)
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
	dir, err := after.OpenDir(after.PathDir(path))
	if err != nil {
		return err
	}
	if err := dir.Sync(); err != nil {
		return err
	}
	return dir.Close()
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
