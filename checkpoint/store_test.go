package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "/cell/1"

func testIdentity() *borgpb.ReplicaIdentity {
	return &borgpb.ReplicaIdentity{CellName: "cc", CellId: "cc-0001", Epoch: 1, Replica: 1, Incarnation: 9,
		Members: []*borgpb.Member{{Id: 1, Addr: "a:7001"}}}
}

func startHeader() *borgpb.CheckpointHeader {
	return &borgpb.CheckpointHeader{CellName: "cc", CellId: "cc-0001", Epoch: 1, Index: 1, Term: 1, Voters: []uint64{1}}
}

func newStore(t testing.TB, fs vfs.FS) *Store {
	t.Helper()
	if err := Create(Config{Dir: testDir, FS: fs}, testIdentity(), startHeader()); err != nil {
		t.Fatal(err)
	}
	return openStore(t, fs)
}

func openStore(t testing.TB, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open(Config{Dir: testDir, FS: fs, TailEntries: 20, TailBytes: 4000, CacheBytes: 600}, testIdentity())
	if err != nil {
		t.Fatal(err)
	}
	// Raft refuses to start when more was applied than committed.
	if hard, _, _ := s.InitialState(); hard.GetCommit() < s.Header().GetIndex() {
		t.Fatalf("opened with commit index %d and records of %d", hard.GetCommit(), s.Header().GetIndex())
	}
	return s
}

func entry(index, term uint64, data string) *raftpb.Entry {
	e := &raftpb.Entry{Index: &index, Term: &term, Type: raftpb.EntryNormal.Enum()}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

func hardState(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
}

// TestInstallIsAtomic takes the power at every single write of an installation:
// what is left is the old state or the new one.
func TestInstallIsAtomic(t *testing.T) {
	h := proto.CloneOf(startHeader())
	h.Index, h.Term = 500, 7
	file := encode(t, h, []record{{"new", "1"}})
	for k, writes := 0, 1; k < writes; k++ {
		mem := vfs.NewCrashableMem()
		// The database writes from goroutines of its own too.
		var mu sync.Mutex
		n := -1
		var clone *vfs.MemFS
		count := func(from int) (was int) {
			mu.Lock()
			defer mu.Unlock()
			was, n = n, from
			return was
		}
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if n >= 0 && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if n == k {
					clone = mem.CrashClone(vfs.CrashCloneCfg{})
				}
				n++
			}
			return nil
		}))
		s := newStore(t, fs)
		if err := s.Append([][]*raftpb.Entry{{entry(2, 1, "old")}}, hardState(3, 1, 2), true); err != nil {
			t.Fatal(err)
		}
		count(0)
		in, err := s.Receive(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Install(in, hardState(7, 0, 500)); err != nil {
			t.Fatal(err)
		}
		writes = count(-1)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if clone == nil {
			// The database's own goroutines do not write alike each time.
			break
		}
		s = openStore(t, clone)
		last, _ := s.LastIndex()
		hard, _, _ := s.InitialState()
		switch {
		case last == 2 && hard.GetTerm() == 3 && s.Header().GetIndex() == 1:
		case last == 500 && hard.GetTerm() == 7 && s.Header().GetIndex() == 500:
		default:
			t.Errorf("power lost at write %d of %d: log ends at %d, term %d, records at %d", k, writes, last, hard.GetTerm(), s.Header().GetIndex())
		}
		names, _ := clone.List(testDir + "/db")
		if dirs := slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, "marker") }); len(dirs) != 1 {
			t.Errorf("power lost at write %d of %d: %v are left", k, writes, dirs)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdentity(t *testing.T) {
	fs := vfs.NewMem()
	if _, err := ReadIdentity(fs, testDir); !errors.Is(err, ErrNotInitialised) {
		t.Errorf("of nothing: %v, want ErrNotInitialised", err)
	}
	s := newStore(t, fs)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	id, err := ReadIdentity(fs, testDir)
	if err != nil {
		t.Fatal(err)
	}
	want := testIdentity()
	want.DiskFormat = DiskFormat
	if !proto.Equal(id, want) {
		t.Errorf("identity is %v, want %v", id, want)
	}
	for _, x := range []struct {
		want *borgpb.ReplicaIdentity
		what string
	}{
		{&borgpb.ReplicaIdentity{}, ""},
		{&borgpb.ReplicaIdentity{CellName: "cc", Replica: 1}, ""},
		{&borgpb.ReplicaIdentity{CellName: "dd"}, "cell"},
		{&borgpb.ReplicaIdentity{CellId: "other"}, "cell id"},
		{&borgpb.ReplicaIdentity{Replica: 2}, "replica"},
	} {
		err := CheckIdentity(testDir, id, x.want)
		var wrong *WrongDirectoryError
		if errors.As(err, &wrong); (wrong == nil) != (x.what == "") || wrong != nil && wrong.What != x.what {
			t.Errorf("CheckIdentity(%v) = %v, want %q to differ", x.want, err, x.what)
		}
	}
	if err := Create(Config{Dir: testDir, FS: fs}, testIdentity(), startHeader()); err == nil {
		t.Error("a directory that is taken was made again")
	}
	other := testIdentity()
	other.CellId = "cc-0002"
	if _, err := Open(Config{Dir: testDir, FS: fs}, other); err == nil {
		t.Error("the database of another cell was opened")
	}
	newer := testIdentity()
	newer.DiskFormat = DiskFormat + 1
	if err := writeIdentity(fs, testDir, newer); err != nil {
		t.Fatal(err)
	}
	var format *NewerFormatError
	if _, err := ReadIdentity(fs, testDir); !errors.As(err, &format) {
		t.Errorf("of a newer format: %v, want a NewerFormatError", err)
	}
}

func TestDatabaseIsMissing(t *testing.T) {
	fs := vfs.NewMem()
	s := newStore(t, fs)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.RemoveAll(testDir + "/db"); err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll(testDir+"/db", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: testDir, FS: fs}, testIdentity()); err == nil || !strings.Contains(err.Error(), "join with a new number") {
		t.Errorf("a lost database: %v, want to be told to join again", err)
	}
}

// TestWriteFails has the disk refuse a write: the store says so, now and ever
// after.
func TestWriteFails(t *testing.T) {
	var fail atomic.Bool
	fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	s := newStore(t, fs)
	fail.Store(true)
	err := s.Append([][]*raftpb.Entry{{entry(2, 1, "x")}}, hardState(1, 1, 1), true)
	if err == nil {
		t.Fatal("a write that failed was reported durable")
	}
	fail.Store(false)
	if again := s.Append([][]*raftpb.Entry{{entry(2, 1, "x")}}, hardState(1, 1, 1), true); again == nil {
		t.Error("after a failed sync another append was accepted")
	}
	if last, _ := s.LastIndex(); last != 1 {
		t.Errorf("the log ends at %d after a failed append, want 1", last)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestSave(t *testing.T) {
	fs := vfs.NewMem()
	s := newStore(t, fs)
	f := s.NewFlush()
	f.Put([]byte("k"), []byte("v"))
	h := proto.CloneOf(s.Header())
	h.Epoch = 4
	if err := f.Commit(h); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, later, err := save(context.Background(), Config{Dir: testDir, FS: fs}, &b); err != nil || later != 0 {
		t.Fatalf("save: %d entries later, %v", later, err)
	}
	got, records, err := decode(b.Bytes())
	if err != nil || got.GetEpoch() != 4 || !slices.Equal(records, []record{{"k", "v"}}) {
		t.Errorf("saved %v, %v, %v", got, records, err)
	}
}

// TestPicture shows that a picture stays as it is while the records change and
// even while a checkpoint replaces them.
func TestPicture(t *testing.T) {
	s := newStore(t, vfs.NewMem())
	put := func(v string) {
		f := s.NewFlush()
		f.Put([]byte("k"), []byte(v))
		if err := f.Commit(s.Header()); err != nil {
			t.Fatal(err)
		}
	}
	put("before")
	p, err := s.Picture()
	if err != nil {
		t.Fatal(err)
	}
	put("after")
	h := proto.CloneOf(startHeader())
	h.Index, h.Term = 90, 2
	in, err := s.Receive(bytes.NewReader(encode(t, h, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(bytes.NewReader(encode(t, h, nil))); err == nil {
		t.Error("two checkpoints were received at once")
	}
	if err := s.Install(in, hardState(2, 0, 90)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := p.WriteTo(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, records, err := decode(b.Bytes()); err != nil || !slices.Equal(records, []record{{"k", "before"}}) {
		t.Errorf("the picture has %v, %v", records, err)
	}
}

func TestReceiveOtherCell(t *testing.T) {
	s := newStore(t, vfs.NewMem())
	defer s.Close()
	h := startHeader()
	h.CellId = "another"
	if _, err := s.Receive(bytes.NewReader(encode(t, h, nil))); err == nil {
		t.Error("the checkpoint of another cell was received")
	}
	good := encode(t, startHeader(), manyRecords(10, 10))
	if _, err := s.Receive(bytes.NewReader(good[:len(good)-1])); !errors.Is(err, ErrDamaged) {
		t.Errorf("a checkpoint that was cut: %v, want ErrDamaged", err)
	}
	in, err := s.Receive(bytes.NewReader(good))
	if err != nil {
		t.Fatalf("after a damaged one: %v", err)
	}
	if err := s.Discard(in); err != nil {
		t.Error(err)
	}
	if _, err := s.Entries(1, 2, 100); !errors.Is(err, raft.ErrCompacted) {
		t.Errorf("entry 1: %v, want ErrCompacted", err)
	}
	if _, err := s.Term(2); !errors.Is(err, raft.ErrUnavailable) {
		t.Errorf("term of 2: %v, want ErrUnavailable", err)
	}
}
