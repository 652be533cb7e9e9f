package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleFormat is pinned, so that the build that first opens a directory, and
// not the library's taste of the day, decides what older builds can read.
const pebbleFormat = pebble.FormatValueSeparation

// repeatableFlushBytes is well under the size of the first memtable, 256 KiB,
// whose fill depends on chance.
const repeatableFlushBytes = 64 << 10

// generation is one pebble database directory. A replica has one at a time; a
// received checkpoint is written into the next one, and the marker then moves.
type generation struct {
	name string
	dir  string
	fs   vfs.FS
	db   *pebble.DB
	// What the database found to be damaged first; nil: nothing.
	damage *atomic.Pointer[DamagedError]
	// See Config.Repeatable. unflushedBytes belongs to who may write.
	repeatable     func() bool
	unflushedBytes int

	mu sync.Mutex
	// Open pictures, and the store itself while it is the current one. Guarded
	// by mu. At zero the database is closed and, when it is obsolete, removed.
	refs int
	// obsolete: the marker has moved on. Guarded by mu.
	obsolete bool
	// abandoned: the database panicked and cannot be closed. Guarded by mu.
	abandoned bool
}

func openGeneration(cfg *Config, name string, readOnly bool) (*generation, error) {
	dir := cfg.FS.PathJoin(cfg.dbDir(), name)
	if err := checkWALs(cfg.FS, cfg.Dir, dir); err != nil {
		return nil, err
	}
	opts, damage := pebbleOptions(cfg, readOnly), new(atomic.Pointer[DamagedError])
	wait := time.Sleep
	if cfg.Repeatable != nil {
		wait = nil
	}
	opts.EventListener = &pebble.EventListener{BackgroundError: newTrouble(cfg.Logger, wait).heard, DataCorruption: func(info pebble.DataCorruptionInfo) {
		// Also by a goroutine of the database's own, where a panic would be the end of
		// this process without a word to whom it is of use.
		d := &DamagedError{Dir: cfg.Dir, File: info.Path, Err: errors.New(strings.SplitN(info.Details.Error(), "\n", 2)[0])}
		if damage.CompareAndSwap(nil, d) {
			cfg.Logger.Error("the database is damaged", "err", d)
		}
	}}
	db, err := pebble.Open(dir, opts)
	if errors.Is(err, syscall.EAGAIN) {
		return nil, fmt.Errorf("open database %s: another process has it open: a replica already runs in %s", dir, cfg.Dir)
	}
	if d := damage.Load(); err != nil && d != nil {
		return nil, d
	}
	if err != nil {
		return nil, orDamaged(cfg.Dir, dir, fmt.Errorf("open database %s: %w", dir, err))
	}
	g := &generation{name: name, dir: dir, fs: cfg.FS, db: db, damage: damage, refs: 1, repeatable: cfg.Repeatable}
	if !readOnly && g.repeatable != nil && g.repeatable() {
		// What it found in its write-ahead log it would write out by and by.
		if err := db.Flush(); err != nil {
			return nil, errors.Join(fmt.Errorf("write out database %s: %w", dir, err), db.Close())
		}
	}
	return g, nil
}

// commit writes a batch. A repeatable database would write its memory out at
// the next of its own moments, so it is told to long before.
func (g *generation) commit(b *pebble.Batch, opts *pebble.WriteOptions) error {
	n := b.Len()
	if err := b.Commit(opts); err != nil {
		return err
	}
	// Only a batch that is closed lends its room to the next one.
	if err := b.Close(); err != nil || g.repeatable == nil {
		return err
	}
	if g.unflushedBytes += n; g.unflushedBytes < repeatableFlushBytes || !g.repeatable() {
		return nil
	}
	g.unflushedBytes = 0
	return g.db.Flush()
}

// pebbleOptions are small: five replicas may share one machine, and what the
// cell needs often it has in memory.
func pebbleOptions(cfg *Config, readOnly bool) *pebble.Options {
	opts := &pebble.Options{
		FS:                          cfg.FS,
		FormatMajorVersion:          pebbleFormat,
		CacheSize:                   8 << 20,
		MemTableSize:                16 << 20,
		MemTableStopWritesThreshold: 4,
		// Nothing is read but all of it, when a replica starts or saves it: what is written
		// need not be merged soon.
		L0CompactionThreshold:       12,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                256,
		WALBytesPerSync:             512 << 10,
		BytesPerSync:                512 << 10,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
		DisableAutomaticCompactions: cfg.Repeatable != nil,
		DisableTableStats:           true,
		ReadOnly:                    readOnly,
		Logger:                      pebbleLogger{cfg.Logger},
	}
	if cfg.Repeatable != nil {
		// A cleaner that keeps old files also keeps the database from using them
		// again once a goroutine has come to them.
		opts.Cleaner = pebble.ArchiveCleaner{}
		// Nothing merges the files that it writes out, so it must not wait for that.
		opts.L0StopWritesThreshold = 1 << 20
	}
	for i := range opts.Levels {
		opts.Levels[i].Compression = func() *block.CompressionProfile { return block.FastestCompression }
	}
	return opts
}

// ref takes part in keeping the database open.
func (g *generation) ref() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refs++
}

// unref gives it up. The last one closes.
func (g *generation) unref() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refs--
	if g.refs > 0 || g.abandoned {
		return nil
	}
	if err := g.db.Close(); err != nil {
		return fmt.Errorf("close database %s: %w", g.dir, err)
	}
	if g.obsolete {
		if err := g.fs.RemoveAll(g.dir); err != nil {
			return fmt.Errorf("remove the replaced database %s: %w", g.dir, err)
		}
	}
	return nil
}

func (g *generation) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.obsolete = true
}

func (g *generation) abandon() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.abandoned = true
}

// get copies the value of key; nil when there is none.
func get(r pebble.Reader, key []byte) ([]byte, error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key %q: %w", key, err)
	}
	v = append([]byte{}, v...)
	return v, closeWith(closer, nil)
}

func closeWith(c io.Closer, err error) error {
	if err2 := c.Close(); err == nil {
		err = err2
	}
	return err
}

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// diskFailure is what pebble's Fatalf becomes: pebble goes on as if it had not
// returned, so it panics, and whoever called pebble makes it an error.
type diskFailure struct{ msg string }

func (f diskFailure) Error() string { return f.msg }

type pebbleLogger struct{ log *slog.Logger }

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("the database reports an error", "err", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	panic(diskFailure{fmt.Sprintf(format, args...)})
}
