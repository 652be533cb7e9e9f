package checkpoint

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Config says where a store is and how much it keeps.
type Config struct {
	// Dir is the replica's directory.
	Dir string
	// FS is where Dir lies; nil: the real disk.
	FS vfs.FS
	// Logger hears of the database's own errors; nil: nobody does.
	Logger *slog.Logger
	// CacheBytes bounds the newest entries held in memory; zero: 16 MiB.
	CacheBytes int
	// TailEntries and TailBytes bound the log kept behind the flushed position
	// for followers that are slow; zero: 20,000 and 64 MiB.
	TailEntries int
	TailBytes   int
	// WriteShare is how much of one processor the writing of a picture takes, so
	// that it slows nobody down: 0.25 is a quarter. Zero: all of it.
	WriteShare float64
	// Repeatable, if not nil, is for runs that must repeat exactly, whatever the
	// machine's timing: the database does nothing but what a caller waits for. It
	// says whether the disk takes what the database has in memory now.
	Repeatable func() bool
}

func (c *Config) setDefaults() {
	c.FS = orDisk(c.FS)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 16 << 20
	}
	if c.TailEntries == 0 {
		c.TailEntries = 20_000
	}
	if c.TailBytes == 0 {
		c.TailBytes = 64 << 20
	}
}

func (c *Config) dbDir() string { return c.FS.PathJoin(c.Dir, dbDirName) }

const (
	dbDirName  = "db"
	markerName = "current"
)

// Store is the raft log and the records of one replica. Append, Flush and
// Install each have one caller at a time, Install none beside it; everything
// else may be called from anywhere.
type Store struct {
	cfg      Config
	identity *borgpb.ReplicaIdentity
	marker   *atomicfs.Marker

	// mu is never held while a write waits for the disk: raft asks for entries
	// and terms between two ticks.
	mu sync.Mutex
	// The current database. Guarded by mu.
	gen *generation
	// The last hard state that is durable. Guarded by mu.
	hard *raftpb.HardState
	// What the records stand for. Never changed in place. Guarded by mu.
	header *borgpb.CheckpointHeader
	// The log in memory. Guarded by mu.
	log logIndex
	// A received checkpoint that waits for Install. Guarded by mu.
	incoming *Incoming
	// Number of the newest database directory. Guarded by mu.
	newest uint64
	// The first failed write. Nothing is written after it. Guarded by mu.
	broken error
}

var _ raft.Storage = (*Store)(nil)

// Create makes the directory of a new replica. header is what it begins with:
// index, term, voters and members of a new cell, or nothing for a replica that
// joins. A directory that holds anything already is refused.
func Create(cfg Config, id *borgpb.ReplicaIdentity, header *borgpb.CheckpointHeader) error {
	return CreateFrom(cfg, id, header, func(func(k, v []byte) bool) {})
}

// CreateFrom makes the directory of a replica that begins with records: those for
// which the header stands.
func CreateFrom(cfg Config, id *borgpb.ReplicaIdentity, header *borgpb.CheckpointHeader, records iter.Seq2[[]byte, []byte]) error {
	cfg.setDefaults()
	if err := makeDir(cfg.FS, cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("make directory %s: %w", cfg.Dir, err)
	}
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return fmt.Errorf("list directory %s: %w", cfg.Dir, err)
	}
	if slices.Contains(names, identityFile) {
		found, err := ReadIdentity(cfg.FS, cfg.Dir)
		if err != nil {
			return err
		}
		return fmt.Errorf("directory %s already belongs to replica %d of cell %s; give another --dir", cfg.Dir, found.GetReplica(), found.GetCellName())
	}
	if slices.Contains(names, dbDirName) {
		return fmt.Errorf("directory %s holds a database without a %s; if an earlier init was interrupted, remove %s and try again", cfg.Dir, identityFile, cfg.dbDir())
	}
	id = proto.CloneOf(id)
	id.DiskFormat = DiskFormat
	if err := createDatabase(&cfg, id, header, records); err != nil {
		return err
	}
	return writeIdentity(cfg.FS, cfg.Dir, id)
}

// makeDir makes a directory and what of its path is missing, so that all of it
// is still there after a crash.
func makeDir(fs vfs.FS, dir string, perm os.FileMode) error {
	var above []string
	for d := dir; ; d = fs.PathDir(d) {
		if _, err := fs.Stat(d); err == nil || fs.PathDir(d) == d {
			break
		}
		above = append(above, fs.PathDir(d))
	}
	if err := fs.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, d := range above {
		if err := syncDir(fs, d); err != nil {
			return err
		}
	}
	return nil
}

func createDatabase(cfg *Config, id *borgpb.ReplicaIdentity, header *borgpb.CheckpointHeader, records iter.Seq2[[]byte, []byte]) error {
	if err := cfg.FS.MkdirAll(cfg.dbDir(), 0o755); err != nil {
		return fmt.Errorf("make directory %s: %w", cfg.dbDir(), err)
	}
	name := generationName(1)
	gen, err := openGeneration(cfg, name, false)
	if err != nil {
		return err
	}
	hard := &raftpb.HardState{Term: new(header.GetTerm()), Commit: new(header.GetIndex())}
	if err = gen.putRecords(records); err == nil {
		b := gen.db.NewBatch()
		// The sync covers the records too: they are in the same write-ahead log.
		if err = putStart(b, id, header, hard); err == nil {
			err = gen.commit(b, pebble.Sync)
		}
	}
	if err2 := gen.unref(); err == nil {
		err = err2
	}
	if err != nil {
		return fmt.Errorf("write the first database of %s: %w", cfg.Dir, err)
	}
	if err := syncDir(cfg.FS, cfg.Dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", cfg.Dir, err)
	}
	marker, _, err := atomicfs.LocateMarker(cfg.FS, cfg.dbDir(), markerName)
	if err != nil {
		return fmt.Errorf("make the marker in %s: %w", cfg.dbDir(), err)
	}
	if err := closeWith(marker, marker.Move(name)); err != nil {
		return fmt.Errorf("set the marker in %s: %w", cfg.dbDir(), err)
	}
	return nil
}

// putStart writes what a database begins with.
func putStart(b *pebble.Batch, id *borgpb.ReplicaIdentity, header *borgpb.CheckpointHeader, hard *raftpb.HardState) error {
	for _, kv := range []struct {
		key []byte
		m   proto.Message
	}{{keyIdentity, id}, {keyHeader, header}, {keyHard, hard}} {
		data, err := proto.Marshal(kv.m)
		if err != nil {
			return err
		}
		if err := b.Set(kv.key, data, nil); err != nil {
			return err
		}
	}
	return b.Set(keyStart, encodeStart(header.GetIndex(), header.GetTerm()), nil)
}

// Open opens the store of a directory made by Create. The caller has read and
// checked the directory's identity.
func Open(cfg Config, id *borgpb.ReplicaIdentity) (*Store, error) {
	cfg.setDefaults()
	s, err := open(cfg, id, false)
	if err != nil {
		return nil, err
	}
	if err := s.sweep(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func open(cfg Config, id *borgpb.ReplicaIdentity, readOnly bool) (*Store, error) {
	marker, name, err := atomicfs.LocateMarker(cfg.FS, cfg.dbDir(), markerName)
	if isNotExist(err) {
		return nil, &LostDatabaseError{Dir: cfg.Dir}
	}
	if err != nil {
		return nil, fmt.Errorf("find the database in %s: %w", cfg.dbDir(), err)
	}
	s := &Store{cfg: cfg, identity: id, marker: marker}
	if name == "" {
		return nil, closeWith(marker, &LostDatabaseError{Dir: cfg.Dir})
	}
	if s.newest, err = parseGeneration(name); err != nil {
		return nil, closeWith(marker, fmt.Errorf("the marker in %s: %w", cfg.dbDir(), err))
	}
	if s.gen, err = openGeneration(&cfg, name, readOnly); err != nil {
		return nil, closeWith(marker, err)
	}
	if err := s.load(); err != nil {
		if d := s.gen.damage.Load(); d != nil {
			err = d
		}
		return nil, errors.Join(orDamaged(cfg.Dir, s.gen.dir, fmt.Errorf("load %s: %w", s.gen.dir, err)), s.gen.unref(), marker.Close())
	}
	return s, nil
}

// load reads everything but the records into memory. s.mu is not needed yet,
// or is held.
func (s *Store) load() error {
	db := s.gen.db
	var id borgpb.ReplicaIdentity
	header, hard := new(borgpb.CheckpointHeader), new(raftpb.HardState)
	for _, kv := range []struct {
		key []byte
		m   proto.Message
	}{{keyIdentity, &id}, {keyHeader, header}, {keyHard, hard}} {
		data, err := get(db, kv.key)
		if err != nil {
			return err
		}
		if data == nil {
			return fmt.Errorf("key %q is missing", kv.key)
		}
		if err := proto.Unmarshal(data, kv.m); err != nil {
			return fmt.Errorf("key %q: %w", kv.key, err)
		}
	}
	if err := CheckIdentity(s.cfg.Dir, &id, s.identity); err != nil {
		return err
	}
	log, err := loadLog(db, s.cfg.CacheBytes)
	if err != nil {
		return err
	}
	// A flush may have become durable before the commit index that allowed it:
	// what was applied was committed.
	if hard.GetCommit() < header.GetIndex() {
		hard.Commit = new(header.GetIndex())
	}
	if log.last() < hard.GetCommit() || log.start > header.GetIndex() {
		return fmt.Errorf("the log has entries %d to %d, the records stand for %d and %d was committed: something is missing", log.start+1, log.last(), header.GetIndex(), hard.GetCommit())
	}
	s.header, s.hard, s.log = header, hard, log
	return nil
}

// sweep removes database directories that the marker does not name: a
// checkpoint that was not received whole, or what an install replaced.
func (s *Store) sweep() error {
	if err := s.marker.RemoveObsolete(); err != nil {
		return fmt.Errorf("remove an old marker in %s: %w", s.cfg.dbDir(), err)
	}
	names, err := s.cfg.FS.List(s.cfg.dbDir())
	if err != nil {
		return fmt.Errorf("list %s: %w", s.cfg.dbDir(), err)
	}
	for _, name := range names {
		if _, err := parseGeneration(name); err != nil || name == s.gen.name {
			continue
		}
		if err := s.cfg.FS.RemoveAll(s.cfg.FS.PathJoin(s.cfg.dbDir(), name)); err != nil {
			return fmt.Errorf("remove the unused database %s in %s: %w", name, s.cfg.dbDir(), err)
		}
	}
	return nil
}

// Close closes the database once the last picture of it is closed. Nothing is
// flushed by it.
func (s *Store) Close() error {
	s.mu.Lock()
	gen, in := s.gen, s.incoming
	broken := s.broken != nil
	s.incoming = nil
	s.mu.Unlock()
	var err error
	if in != nil && in.gen != nil {
		err = in.gen.unref()
	}
	closed := gen.unref()
	if broken {
		// It closes with the error that was already reported.
		closed = nil
	}
	return errors.Join(err, closed, s.marker.Close())
}

// Header says what the records stand for. It must not be changed.
func (s *Store) Header() *borgpb.CheckpointHeader {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header
}

// Identity says whose store it is. It must not be changed.
func (s *Store) Identity() *borgpb.ReplicaIdentity { return s.identity }

// guard makes a panic of the database, which is how it says that a write
// failed, the store's lasting error.
func (s *Store) guard(what string, write func(gen *generation) error) (err error) {
	s.mu.Lock()
	gen, broken := s.gen, s.broken
	s.mu.Unlock()
	if broken != nil {
		return broken
	}
	if d := gen.damage.Load(); d != nil {
		// Whoever cannot be believed must not promise more.
		return d
	}
	defer func() {
		if p := recover(); p != nil {
			// A batch that could not be synced says so through the logger, when no
			// lock is held any more; of anything else the database may hold some.
			if _, ok := p.(diskFailure); !ok {
				gen.abandon()
			}
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			err = fmt.Errorf("%s in %s: %w", what, gen.dir, err)
			s.mu.Lock()
			s.broken = err
			s.mu.Unlock()
		}
	}()
	return write(gen)
}

func generationName(n uint64) string { return fmt.Sprintf("%06d", n) }

func parseGeneration(name string) (uint64, error) {
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil || len(name) < 6 {
		return 0, fmt.Errorf("%q is not the name of a database directory", name)
	}
	return n, nil
}
