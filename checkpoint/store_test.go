package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

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

// model is what a store should hold.
type model struct {
	start, startTerm uint64
	entries          []*raftpb.Entry
	hard             *raftpb.HardState
	header           *borgpb.CheckpointHeader
	records          map[string]string
}

func newModel() *model {
	return &model{start: 1, startTerm: 1, hard: hardState(1, 0, 1), header: startHeader(), records: map[string]string{}}
}

func (m *model) last() uint64 { return m.start + uint64(len(m.entries)) }

func (m *model) clone() *model {
	c := *m
	c.entries = slices.Clone(m.entries)
	c.records = maps.Clone(m.records)
	return &c
}

// check compares a store with the model through every door that raft has.
func (m *model) check(t *testing.T, s *Store) {
	t.Helper()
	if diff := m.diff(s); diff != "" {
		t.Fatal(diff)
	}
}

func (m *model) diff(s *Store) string {
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	// A store may keep more of the log than it must.
	if first > m.start+1 || last != m.last() {
		return fmt.Sprintf("log has %d to %d, want %d to %d", first, last, m.start+1, m.last())
	}
	hard, conf, err := s.InitialState()
	if err != nil || hard.GetTerm() != m.hard.GetTerm() || hard.GetVote() != m.hard.GetVote() {
		return fmt.Sprintf("hard state %v (%v), want %v", hard, err, m.hard)
	}
	if !slices.Equal(conf.GetVoters(), m.header.GetVoters()) {
		return fmt.Sprintf("voters %v, want %v", conf.GetVoters(), m.header.GetVoters())
	}
	if !proto.Equal(s.Header(), m.header) {
		return fmt.Sprintf("header %v, want %v", s.Header(), m.header)
	}
	for i, e := range m.entries {
		if term, err := s.Term(e.GetIndex()); err != nil || term != e.GetTerm() {
			return fmt.Sprintf("term of %d is %d (%v), want %d", e.GetIndex(), term, err, e.GetTerm())
		}
		got, err := s.Entries(e.GetIndex(), m.last()+1, 100)
		if err != nil || len(got) == 0 {
			return fmt.Sprintf("entries from %d: %v, %v", e.GetIndex(), got, err)
		}
		for j, g := range got {
			if !proto.Equal(g, m.entries[i+j]) {
				return fmt.Sprintf("entry %d is %v, want %v", e.GetIndex(), g, m.entries[i+j])
			}
		}
	}
	if term, err := s.Term(m.start); err != nil || term != m.startTerm {
		return fmt.Sprintf("term before the log is %d (%v), want %d", term, err, m.startTerm)
	}
	return m.diffRecords(s)
}

func (m *model) diffRecords(s *Store) string {
	p, err := s.Picture()
	if err != nil {
		return err.Error()
	}
	defer p.Close()
	got := map[string]string{}
	for k, v := range p.Records() {
		got[string(k)] = string(v)
	}
	if err := p.Err(); err != nil {
		return err.Error()
	}
	if !maps.Equal(got, m.records) {
		return fmt.Sprintf("%d records, want %d", len(got), len(m.records))
	}
	return ""
}

// TestStoreWalk takes a seeded walk of everything that a store does, crashes
// and reopenings included, and compares with a model after each step.
func TestStoreWalk(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &walk{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), fs: vfs.NewCrashableMem(), want: newModel()}
			w.s = newStore(t, w.fs)
			w.sync()
			for range 300 {
				w.step()
			}
			if err := w.s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

type walk struct {
	t   *testing.T
	rnd *rand.Rand
	fs  *vfs.MemFS
	s   *Store
	// want is what the store holds.
	want *model
	// since is what it held at the last sync and after each write since: a
	// crash must leave one of these.
	since []*model
	term  uint64
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *walk) step() {
	switch n := w.rnd.IntN(100); {
	case n < 50:
		w.append()
	case n < 75:
		w.flush()
	case n < 85:
		hold := uint64(w.rnd.IntN(int(w.want.last()) + 100))
		w.must(w.s.Compact(hold))
	case n < 90:
		w.install()
	case n < 95:
		w.must(w.s.Close())
		w.s = openStore(w.t, w.fs)
		w.sync()
	default:
		w.crash()
		return
	}
	// The log may have been compacted: the model follows.
	w.follow(w.want)
	w.want.check(w.t, w.s)
}

// follow compacts a model as far as the store was.
func (w *walk) follow(m *model) {
	first, _ := w.s.FirstIndex()
	for m.start+1 < first {
		m.start, m.startTerm = m.start+1, m.entries[0].GetTerm()
		m.entries = m.entries[1:]
	}
	if m.start > m.header.GetIndex() {
		w.t.Fatalf("the log begins after %d and the records stand for %d", m.start, m.header.GetIndex())
	}
}

func (w *walk) append() {
	w.term = max(w.term, w.want.hard.GetTerm()) + uint64(w.rnd.IntN(2))
	// From somewhere after what was flushed: an overwritten tail.
	from := w.want.last() + 1
	if lo := max(w.want.header.GetIndex(), w.want.start) + 1; w.rnd.IntN(4) == 0 && lo < from {
		from = lo + uint64(w.rnd.IntN(int(from-lo)))
	}
	var groups [][]*raftpb.Entry
	for range 1 + w.rnd.IntN(3) {
		var entries []*raftpb.Entry
		for range w.rnd.IntN(5) {
			entries = append(entries, entry(from, w.term, strings.Repeat("x", w.rnd.IntN(60))))
			from++
		}
		groups = append(groups, entries)
		if len(entries) > 0 {
			w.want.entries = append(w.want.entries[:entries[0].GetIndex()-w.want.start-1:entries[0].GetIndex()-w.want.start-1], entries...)
		}
	}
	hard := hardState(w.term, uint64(w.rnd.IntN(3)), w.want.header.GetIndex())
	w.must(w.s.Append(groups, hard, true))
	w.want.hard = hard
	w.sync()
}

func (w *walk) flush() {
	h := proto.CloneOf(w.want.header)
	lo := h.GetIndex()
	h.Index = proto.CloneOf(h).Index + uint64(w.rnd.IntN(int(w.want.last()-lo)+1))
	if h.GetIndex() > w.want.start {
		h.Term = w.want.entries[h.GetIndex()-w.want.start-1].GetTerm()
	}
	h.Voters = []uint64{1, h.GetIndex() + 1}
	f := w.s.NewFlush()
	for range w.rnd.IntN(20) {
		k := fmt.Sprint(w.rnd.IntN(100))
		if w.rnd.IntN(4) == 0 {
			f.Put([]byte(k), nil)
			delete(w.want.records, k)
		} else {
			v := fmt.Sprint(w.rnd.Uint64())
			f.Put([]byte(k), []byte(v))
			w.want.records[k] = v
		}
	}
	w.must(f.Commit(h))
	w.want.header = h
	w.since = append(w.since, w.want.clone())
}

func (w *walk) install() {
	h := proto.CloneOf(w.want.header)
	h.Index, h.Term = w.want.last()+uint64(w.rnd.IntN(50)), w.term+1
	h.FileFormat = FileFormat
	records := []record{{"a", fmt.Sprint(w.rnd.Uint64())}, {"b", "2"}}
	in, err := w.s.Receive(bytes.NewReader(encode(w.t, h, records)))
	w.must(err)
	if w.rnd.IntN(3) == 0 {
		w.must(w.s.Discard(in))
		return
	}
	hard := hardState(w.term+1, 0, h.GetIndex())
	w.must(w.s.Install(in, hard))
	w.want = &model{start: h.GetIndex(), startTerm: h.GetTerm(), hard: hard, header: h, records: map[string]string{"a": records[0].value, "b": "2"}}
	w.sync()
}

// crash goes on from what a power failure leaves: all that was synced, and
// records as they were at that sync or at a later flush.
func (w *walk) crash() {
	clone := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.rnd.IntN(2) * 50, RNG: w.rnd})
	w.must(w.s.Close())
	w.fs = clone
	w.s = openStore(w.t, clone)
	for _, m := range w.since {
		w.follow(m)
		if m.diff(w.s) == "" {
			w.want = m
			w.sync()
			return
		}
	}
	last, _ := w.s.LastIndex()
	w.t.Fatalf("after a crash the log ends at %d and the records stand for %d: that is none of the %d states since the last sync, whose log ended at %d",
		last, w.s.Header().GetIndex(), len(w.since), w.since[0].last())
}

// sync notes that what is there now must survive a crash.
func (w *walk) sync() { w.since = []*model{w.want.clone()} }

// TestInstallIsAtomic takes the power at every single write of an installation:
// what is left is the old state or the new one.
func TestInstallIsAtomic(t *testing.T) {
	h := proto.CloneOf(startHeader())
	h.Index, h.Term = 500, 7
	file := encode(t, h, []record{{"new", "1"}})
	for k, writes := 0, 1; k < writes; k++ {
		mem := vfs.NewCrashableMem()
		n := -1
		var clone *vfs.MemFS
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
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
		n = 0
		in, err := s.Receive(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Install(in, hardState(7, 0, 500)); err != nil {
			t.Fatal(err)
		}
		writes = n
		n = -1
		if err := s.Close(); err != nil {
			t.Fatal(err)
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
	fail := false
	fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	s := newStore(t, fs)
	fail = true
	err := s.Append([][]*raftpb.Entry{{entry(2, 1, "x")}}, hardState(1, 1, 1), true)
	if err == nil {
		t.Fatal("a write that failed was reported durable")
	}
	fail = false
	if again := s.Append([][]*raftpb.Entry{{entry(2, 1, "x")}}, hardState(1, 1, 1), true); again == nil {
		t.Error("after a failed sync another append was accepted")
	}
	if last, _ := s.LastIndex(); last != 1 {
		t.Errorf("the log ends at %d after a failed append, want 1", last)
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
	if _, err := save(context.Background(), Config{Dir: testDir, FS: fs}, &b); err != nil {
		t.Fatal(err)
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
