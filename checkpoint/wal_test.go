package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"borg/proto/borgpb"
)

// realStore is a directory on a real disk with entries 2 to last, each synced, as a
// process leaves it that is killed.
type realStore struct {
	dir  string
	id   *borgpb.ReplicaIdentity
	last uint64
}

func makeRealStore(t testing.TB, last uint64, dataBytes int) realStore {
	t.Helper()
	id := &borgpb.ReplicaIdentity{CellName: "test", CellId: "x", Epoch: 1, Replica: 1, Incarnation: 5}
	live, killed := filepath.Join(t.TempDir(), "live"), filepath.Join(t.TempDir(), "killed")
	if err := Create(Config{Dir: live}, id, &borgpb.CheckpointHeader{Index: 1, Term: 1}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: live}, id)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(2); i <= last; i++ {
		hard := &raftpb.HardState{Term: new(uint64(2)), Vote: new(uint64(1)), Commit: new(i - 1)}
		if err := s.Append([][]*raftpb.Entry{{realEntry(i, dataBytes)}}, hard, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(killed, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return realStore{dir: killed, id: id, last: last}
}

func realEntry(i uint64, dataBytes int) *raftpb.Entry {
	return &raftpb.Entry{Index: new(i), Term: new(uint64(2)), Data: bytes.Repeat(fmt.Appendf(nil, "%08d", i), dataBytes/8)}
}

// with opens a copy of it in which something was done to one file, and returns how
// far its log goes.
func (r realStore) with(t *testing.T, file string, change func([]byte) []byte) (uint64, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(r.dir)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, strings.TrimPrefix(file, r.dir))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(data), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir}, r.id)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	last, err := s.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for lo := uint64(2); lo <= last; lo += 100 {
		entries, err := s.Entries(lo, min(lo+100, last+1), 1<<30)
		if d := s.gen.damage.Load(); d != nil {
			return last, d
		}
		if err != nil {
			return last, err
		}
		for i, e := range entries {
			if want := realEntry(lo+uint64(i), len(e.GetData())); !bytes.Equal(e.GetData(), want.GetData()) {
				t.Fatalf("%s: entry %d holds something else", file, lo+uint64(i))
			}
		}
	}
	return last, nil
}

func (r realStore) files(t testing.TB, suffix string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, "db", "*", "*"+suffix))
	if err != nil || len(found) == 0 {
		t.Fatalf("no files %s: %v", suffix, err)
	}
	return found
}

// A log that was cut anywhere is cut there: what is before is all there.
func TestCutWAL(t *testing.T) {
	r := makeRealStore(t, 120, 1000)
	wal := r.files(t, ".log")[0]
	for n := range 60 {
		last, err := r.with(t, wal, func(data []byte) []byte { return data[:len(data)-n*40] })
		if lost := uint64(1 + n*40/1000); err != nil || last+lost < r.last {
			t.Errorf("cut by %d bytes: the log ends at %d of %d, %v", n*40, last, r.last, err)
		}
	}
	// A file that was made longer before it was written to, or holds what was there
	// before.
	for _, tail := range [][]byte{make([]byte, 100_000), bytes.Repeat([]byte("old"), 1000)} {
		if last, err := r.with(t, wal, func(data []byte) []byte { return append(data, tail...) }); err != nil || last != r.last {
			t.Errorf("with %d bytes more: the log ends at %d of %d, %v", len(tail), last, r.last, err)
		}
	}
}

// A log with one wrong bit is refused, wherever it is, by the name of the file and the
// place; but for the last record, which nothing after it tells from one that was torn.
func TestDamagedWAL(t *testing.T) {
	r := makeRealStore(t, 120, 1000)
	wal := r.files(t, ".log")[0]
	size := fileSize(t, wal)
	rnd := rand.New(rand.NewPCG(1, 1))
	refused := 0
	for n := range 250 {
		at := rnd.IntN(size)
		if n < 50 {
			at = size - 1 - n*80
		}
		last, err := r.with(t, wal, func(data []byte) []byte { data[at] ^= 1 << rnd.IntN(8); return data })
		var damaged *DamagedError
		switch {
		case errors.As(err, &damaged):
			refused++
			if filepath.Base(damaged.File) != filepath.Base(wal) || damaged.At > int64(at) || damaged.SyncedTo <= damaged.At || !strings.Contains(err.Error(), "put another replica in the place") {
				t.Errorf("byte %d: %v", at, err)
			}
		case err != nil:
			t.Errorf("byte %d of %d: refused for another reason: %v", at, size, err)
		case at < size-2*1100 && last < r.last:
			t.Errorf("byte %d of %d: the log was cut at %d of %d", at, size, last, r.last)
		case last+2 < r.last:
			t.Errorf("byte %d of %d: the log was cut at %d of %d", at, size, last, r.last)
		}
	}
	if refused < 200 {
		t.Errorf("%d of 250 were refused", refused)
	}
}

// A table with one wrong bit is refused, or what is wrong in it is never used.
func TestDamagedTable(t *testing.T) {
	r := makeRealStore(t, 3000, 12_000)
	tables := r.files(t, ".sst")
	rnd := rand.New(rand.NewPCG(1, 2))
	refused := 0
	const tries = 40
	for range tries {
		table := tables[rnd.IntN(len(tables))]
		size := fileSize(t, table)
		last, err := r.with(t, table, func(data []byte) []byte { data[rnd.IntN(size)] ^= 1 << rnd.IntN(8); return data })
		var damaged *DamagedError
		switch {
		case errors.As(err, &damaged):
			refused++
			if !strings.Contains(err.Error(), strings.TrimSuffix(filepath.Base(table), ".sst")) || !strings.Contains(err.Error(), "put another replica in the place") {
				t.Errorf("%s: %v", table, err)
			}
		case err != nil:
			t.Errorf("%s: refused for another reason: %v", table, err)
		case last != r.last:
			t.Errorf("%s: the log ends at %d of %d", table, last, r.last)
		}
	}
	if refused < tries/2 {
		t.Errorf("%d of %d were refused", refused, tries)
	}
}

func fileSize(t *testing.T, path string) int {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(st.Size())
}

// FuzzWAL: whatever a write-ahead log holds, it is read up to somewhere, and a damage is
// told only if what comes later says that more was synced.
func FuzzWAL(f *testing.F) {
	logs := makeRealStore(f, 6, 200).files(f, ".log")
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		number, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), ".log"), 10, 32)
		if err != nil {
			f.Fatal(err)
		}
		data = data[:min(len(data), 2*walBlockBytes)]
		f.Add(data, uint32(number), uint16(0), byte(0))
		f.Add(data, uint32(number), uint16(40), byte(0x40))
		f.Add(data[:len(data)/2], uint32(number), uint16(7), byte(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, number uint32, spoilt uint16, by byte) {
		whole, _ := walDamage(data, number)
		if int(spoilt) < len(data) {
			data = slices.Clone(data)
			data[spoilt] ^= by
		}
		at, synced := walDamage(data, number)
		// Behind the last chunk the rest of a block is passed over.
		if at < 0 || at > int64(len(data))+walHeaderBytes || (synced != 0 && synced <= at) {
			t.Fatalf("of %d bytes it is readable up to %d, and synced up to %d", len(data), at, synced)
		}
		// A changed byte that was read is found, and nothing before its chunk.
		if by != 0 && int64(spoilt) < whole && at > whole {
			t.Errorf("with byte %d changed it is readable up to %d, and was up to %d", spoilt, at, whole)
		}
	})
}
