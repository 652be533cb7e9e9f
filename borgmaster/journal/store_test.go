package journal

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// storeAt opens a store, and tells the indexes in its last file.
func storeAt(t *testing.T, dir string, bytes int64, now *time.Time) *store {
	t.Helper()
	s, err := openStore(dir, DefaultKeep, bytes, func() time.Time { return *now }, func(*borgpb.JournalBlock) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func aDay() *time.Time {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	return &now
}

// blockOf is one entry, with a text of that many bytes.
func blockOf(index uint64, wallNs int64, bytes int) *borgpb.JournalBlock {
	return &borgpb.JournalBlock{Entries: []*borgpb.JournalEntry{{Index: index, WallNs: wallNs, Events: []*borgpb.Event{{Index: index, Reason: strings.Repeat("x", bytes)}}}}}
}

// indexes are those of all entries in [since, until), and how many pieces are damaged.
func indexes(t *testing.T, s *store, since, until int64) (all []uint64, damaged int) {
	t.Helper()
	err := s.read(since, until, Pick{}, atOnce, func(b *borgpb.JournalBlock) error {
		for _, e := range b.Entries {
			all = append(all, e.Index)
		}
		damaged += len(b.Gaps)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, damaged
}

// TestRandomWrites writes blocks of all sizes over days, opens the store again now and
// then, and reads stretches of time.
func TestRandomWrites(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		dir, now := t.TempDir(), aDay()
		s := storeAt(t, dir, DefaultBytes, now)
		s.fileBytes = 50_000
		at := map[uint64]int64{}
		for index := uint64(1); index <= 300; index++ {
			*now = now.Add(time.Duration(r.IntN(int(time.Hour))))
			// Entries of a replica that catches up are older than now.
			wall := now.Add(-time.Duration(r.IntN(int(3 * time.Hour)))).UnixNano()
			at[index] = wall
			if _, err := s.append(blockOf(index, wall, r.IntN(1<<r.IntN(14)))); err != nil {
				t.Fatal(err)
			}
			if r.IntN(40) == 0 {
				if err := s.close(); err != nil {
					t.Fatal(err)
				}
				s = storeAt(t, dir, DefaultBytes, now)
				s.fileBytes = 50_000
			}
			if r.IntN(40) == 0 {
				// An index that is not there costs time, and no more.
				files, _ := filepath.Glob(filepath.Join(dir, "*"+indexSuffix))
				if len(files) > 0 {
					os.Remove(files[r.IntN(len(files))])
				}
			}
		}
		since := now.Add(-time.Duration(r.IntN(int(150 * time.Hour)))).UnixNano()
		until := since + int64(r.IntN(int(50*time.Hour)))
		got, damaged := indexes(t, s, since, until)
		for index, wall := range at {
			if wall >= since && wall < until && !slices.Contains(got, index) {
				t.Errorf("seed %d: entry %d of %d is not in [%d, %d)", seed, index, wall, since, until)
			}
		}
		if !slices.IsSorted(got) || damaged != 0 {
			t.Errorf("seed %d: %v, %d damaged", seed, got, damaged)
		}
		if all, _ := indexes(t, s, 0, 0); len(all) != 300 {
			t.Errorf("seed %d: %d entries, want 300", seed, len(all))
		}
		s.close()
	}
}

// TestCrashAtEachByte cuts a file at each of its bytes: whole blocks are there, the
// next one is written after them, and nothing is told as damaged.
func TestCrashAtEachByte(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	s := storeAt(t, dir, DefaultBytes, now)
	ends := []int64{int64(len(fileMagic))}
	for index := uint64(1); index <= 4; index++ {
		if _, err := s.append(blockOf(index, now.UnixNano(), 30)); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, s.files[0].bytes)
	}
	s.close()
	path := filepath.Join(dir, "events.00000001")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		again := t.TempDir()
		if err := os.WriteFile(filepath.Join(again, "events.00000001"), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s := storeAt(t, again, DefaultBytes, now)
		if _, err := s.append(blockOf(9, now.UnixNano(), 30)); err != nil {
			t.Fatal(err)
		}
		var want []uint64
		for i, end := range ends[1:] {
			if end <= int64(cut) {
				want = append(want, uint64(i+1))
			}
		}
		got, damaged := indexes(t, s, 0, 0)
		wantDamaged := 0
		if cut < len(fileMagic) {
			wantDamaged = 1
		}
		if !slices.Equal(got, append(want, 9)) || damaged != wantDamaged {
			t.Errorf("cut at %d: %v and %d damaged, want %v", cut, got, damaged, want)
		}
		s.close()
	}
}

// TestDamageCostsWhatIsDamaged changes each byte: the other blocks are there, and the
// damage is told, unless the block was the last one and looks torn.
func TestDamageCostsWhatIsDamaged(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	s := storeAt(t, dir, DefaultBytes, now)
	for index := uint64(1); index <= 4; index++ {
		if _, err := s.append(blockOf(index, now.UnixNano(), 30)); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	whole, err := os.ReadFile(filepath.Join(dir, "events.00000001"))
	if err != nil {
		t.Fatal(err)
	}
	size := (len(whole) - len(fileMagic)) / 4
	for i := len(fileMagic); i < len(whole); i++ {
		again := t.TempDir()
		changed := slices.Clone(whole)
		changed[i] ^= 0x40
		if err := os.WriteFile(filepath.Join(again, "events.00000001"), changed, 0o600); err != nil {
			t.Fatal(err)
		}
		s := storeAt(t, again, DefaultBytes, now)
		bad := uint64((i-len(fileMagic))/size + 1)
		want := slices.DeleteFunc([]uint64{1, 2, 3, 4}, func(n uint64) bool { return n == bad })
		got, damaged := indexes(t, s, 0, 0)
		if !slices.Equal(got, want) || (damaged == 0) != (bad == 4) {
			t.Errorf("byte %d changed: %v and %d damaged, want %v", i, got, damaged, want)
		}
		s.close()
	}
}

func TestFilesGoByAgeAndBytes(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	s := storeAt(t, dir, 100_000, now)
	s.fileBytes = 10_000
	for index := uint64(1); index <= 500; index++ {
		if _, err := s.append(blockOf(index, now.UnixNano(), 1000)); err != nil {
			t.Fatal(err)
		}
		if bytes, _, _ := s.size(); bytes > 100_000 {
			t.Fatalf("%d bytes after %d blocks", bytes, index)
		}
	}
	got, _ := indexes(t, s, 0, 0)
	if n := len(got); n < 80 || got[n-1] != 500 || got[0] != 500-uint64(n)+1 {
		t.Errorf("%d entries are kept: %v", n, got)
	}
	*now = now.Add(DefaultKeep + time.Hour)
	for index := uint64(501); index <= 502; index++ {
		if _, err := s.append(blockOf(index, now.UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := indexes(t, s, 0, 0); fmt.Sprint(got) != "[501 502]" {
		t.Errorf("after %s: %v", DefaultKeep, got)
	}
	left, _ := filepath.Glob(filepath.Join(dir, filePrefix+"*"))
	if len(left) != 1 {
		t.Errorf("%d files are left, want one", len(left))
	}
	s.close()
}

// FuzzRead reads anything as a file of a store.
func FuzzRead(f *testing.F) {
	data, _, err := encode(nil, blockOf(7, 1, 10), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte(fileMagic), data...))
	f.Add(append(append([]byte(fileMagic), data[:20]...), data...))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, now := t.TempDir(), aDay()
		if err := os.WriteFile(filepath.Join(dir, "events.00000001"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := storeAt(t, dir, DefaultBytes, now)
		before, _ := indexes(t, s, 0, 0)
		if _, err := s.append(blockOf(1, 1, 1)); err != nil {
			t.Fatal(err)
		}
		after, _ := indexes(t, s, 0, 0)
		if len(after) != len(before)+1 {
			t.Errorf("%d entries before an append, %d after it", len(before), len(after))
		}
		s.close()
	})
}

// TestPickLeavesOut: a reader that wants a text is given the blocks with it, each as it was written, and one that wants
// gaps is given these and the indexes of entries.
func TestPickLeavesOut(t *testing.T) {
	s := storeAt(t, t.TempDir(), DefaultBytes, aDay())
	defer s.close()
	var blocks []*borgpb.JournalBlock
	for i := uint64(1); i <= 40; i++ {
		b := &borgpb.JournalBlock{Entries: []*borgpb.JournalEntry{{Index: 3 * i, WallNs: int64(i), Events: []*borgpb.Event{{Object: fmt.Sprint("alice/j", i%4)}}}}}
		if i%5 == 0 {
			b.Gaps = []*borgpb.AuditHole{{From: 3*i + 1, To: 3*i + 2, Why: "it was away"}}
		}
		if _, err := s.append(b); err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	for _, tt := range []struct {
		pick Pick
		want func(b *borgpb.JournalBlock) *borgpb.JournalBlock
	}{
		{Pick{}, func(b *borgpb.JournalBlock) *borgpb.JournalBlock { return b }},
		{Pick{Text: "alice/j3"}, func(b *borgpb.JournalBlock) *borgpb.JournalBlock {
			if b.Entries[0].Events[0].Object != "alice/j3" {
				return nil
			}
			return b
		}},
		{Pick{Text: "bob/"}, func(*borgpb.JournalBlock) *borgpb.JournalBlock { return nil }},
		{Pick{Gaps: true}, func(b *borgpb.JournalBlock) *borgpb.JournalBlock {
			return &borgpb.JournalBlock{Entries: []*borgpb.JournalEntry{{Index: b.Entries[0].Index}}, Gaps: b.Gaps}
		}},
	} {
		var got, want []*borgpb.JournalBlock
		for _, b := range blocks {
			if b := tt.want(b); b != nil {
				want = append(want, b)
			}
		}
		if err := s.read(0, 0, tt.pick, atOnce, func(b *borgpb.JournalBlock) error { got = append(got, b); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, want, func(a, b *borgpb.JournalBlock) bool { return proto.Equal(a, b) }) {
			t.Errorf("%+v gives %d blocks %.200v, want %d", tt.pick, len(got), got, len(want))
		}
	}
}
