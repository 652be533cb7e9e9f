package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

const archiveDir = "/cell/1/archive"

func openWriter(t testing.TB, fs vfs.FS) *ArchiveWriter {
	t.Helper()
	w, err := OpenArchiveWriter(fs, archiveDir, testIdentity(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func openArchive(t testing.TB, fs vfs.FS) *Archive {
	t.Helper()
	a, err := OpenArchive(fs, archiveDir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// collect reads all entries after an index.
func collect(a *Archive, after uint64) (entries []PastEntry, err error) {
	for e, broken := range a.Entries(1, after) {
		if broken != nil {
			return entries, broken
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestArchiveEntries(t *testing.T) {
	fs := vfs.NewMem()
	want := pastEntries(2, 300, 200)
	// Each writer begins a segment of its own.
	for i, cut := 0, 0; cut < len(want); i++ {
		w := openWriter(t, fs)
		if w.Last() != uint64(cut)+1 && cut > 0 {
			t.Fatalf("writer %d goes on from entry %d, and entry %d is the last", i, w.Last(), cut+1)
		}
		end := min(cut+70, len(want))
		must(t, w.Append(want[cut:cut+10], 1e9))
		must(t, w.Append(want[cut+10:end], 1e9))
		must(t, w.Close())
		cut = end
	}
	a := openArchive(t, fs)
	if len(a.Segments()) != 5 {
		t.Errorf("%d segments, want 5", len(a.Segments()))
	}
	for after := uint64(1); after <= 302; after += 7 {
		got, err := collect(a, after)
		if err != nil || len(got) != 301-int(min(after, 301)) || !slices.EqualFunc(got, want[min(int(after)-1, 300):], samePast) {
			t.Errorf("after %d: %d entries, %v", after, len(got), err)
		}
	}
	var gap *GapError
	if got, err := collect(a, 0); !errors.As(err, &gap) || *gap != (GapError{Epoch: 1, From: 1, To: 1}) || got != nil {
		t.Errorf("after 0: %d entries, %v", len(got), err)
	}
	for range a.Entries(2, 0) {
		t.Error("there is an entry in an epoch that never was")
	}
	// Whoever stops in the middle is asked nothing more.
	for e, err := range a.Entries(1, 1) {
		if must(t, err); e.Index == 50 {
			break
		}
	}
	if s := a.Stretches(301); len(s) != 1 || s[0].First != 2 || s[0].Last != 301 {
		t.Errorf("stretches %+v", s)
	}
}

func samePast(a, b PastEntry) bool { return reflect.DeepEqual(a, b) }

// TestArchiveGap has a writer that missed something.
func TestArchiveGap(t *testing.T) {
	fs := vfs.NewMem()
	w := openWriter(t, fs)
	want := pastEntries(2, 40, 30)
	must(t, w.Append(want[:10], 0))
	if err := w.Append(want[15:], 0); err == nil {
		t.Error("entries that do not follow were taken")
	}
	w.Skip("the disk was full")
	must(t, w.Append(want[15:20], 0))
	if w.Stretch() != 17 {
		t.Errorf("the stretch begins at %d, want 17", w.Stretch())
	}
	must(t, w.Close())
	w = openWriter(t, fs)
	if w.Stretch() != 17 {
		t.Errorf("opened again, the stretch begins at %d, want 17", w.Stretch())
	}
	must(t, w.Append(want[20:], 0))
	must(t, w.Close())
	a := openArchive(t, fs)
	got, err := collect(a, 1)
	var gap *GapError
	if !errors.As(err, &gap) || *gap != (GapError{Epoch: 1, From: 12, To: 16, Why: "the disk was full"}) || !slices.EqualFunc(got, want[:10], samePast) {
		t.Errorf("%d entries, %v", len(got), err)
	}
	if got, err := collect(a, 16); err != nil || !slices.EqualFunc(got, want[15:], samePast) {
		t.Errorf("after the gap: %d entries, %v", len(got), err)
	}
	if s := a.Stretches(41); len(s) != 2 || s[0].Last != 11 || s[1].First != 17 || s[1].Last != 41 || s[1].Gap != "the disk was full" {
		t.Errorf("stretches %+v", s)
	}
}

// TestDamagedSegments damages each segment of an archive in each of its bytes, cuts
// it, removes it, and puts one of another replica in its place: whoever reads the
// entries gets those that were written and then an error, never fewer or others
// and none.
func TestDamagedSegments(t *testing.T) {
	want := pastEntries(2, 30, 12)
	write := func(second int) map[string][]byte {
		fs := vfs.NewMem()
		for i := range 3 {
			w := openWriter(t, fs)
			must(t, w.Append(want[10*i:10*i+second], 0))
			must(t, w.Append(want[10*i+second:10*i+10], 0))
			must(t, w.Close())
		}
		return contents(t, fs)
	}
	files, others := write(5), write(4)
	for name, file := range files {
		last := name == segmentName(1, 22)
		try := func(what string, changed []byte, mayEnd bool) {
			t.Helper()
			fs := vfs.NewMem()
			for n, f := range files {
				if n == name {
					f = changed
				}
				if f != nil {
					put(t, fs, n, f)
				}
			}
			a, err := OpenArchive(fs, archiveDir)
			if err != nil {
				t.Fatalf("%s %s: %v", name, what, err)
			}
			got, err := collect(a, 1)
			if !slices.EqualFunc(got, want[:min(len(got), len(want))], samePast) || err == nil && len(got) < len(want) && !mayEnd {
				t.Fatalf("%s %s: %d entries of %d, %v", name, what, len(got), len(want), err)
			}
			if err == nil && len(got) == len(want) && changed != nil && !mayEnd {
				t.Fatalf("%s %s: nobody noticed", name, what)
			}
		}
		for i := range file {
			bad := slices.Clone(file)
			bad[i] ^= 0x21
			try(fmt.Sprintf("with byte %d flipped", i), bad, false)
			// Of the last segment nobody knows how it ended.
			try(fmt.Sprintf("cut to %d bytes", i), file[:i], last)
		}
		try("removed", nil, last)
		try("of another replica", others[name], false)
	}
}

func contents(t *testing.T, fs vfs.FS) map[string][]byte {
	t.Helper()
	names, err := fs.List(archiveDir)
	must(t, err)
	files := make(map[string][]byte)
	for _, name := range names {
		f, err := fs.Open(fs.PathJoin(archiveDir, name))
		must(t, err)
		files[name], err = io.ReadAll(f)
		must(t, errors.Join(err, f.Close()))
	}
	return files
}

func put(t *testing.T, fs vfs.FS, name string, data []byte) {
	t.Helper()
	must(t, fs.MkdirAll(archiveDir, 0o755))
	f, err := fs.Create(fs.PathJoin(archiveDir, name), vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write(slices.Clone(data))
	must(t, errors.Join(err, f.Close()))
}

// TestArchiveWalk takes a seeded walk: appends, syncs, crashes that lose what was
// not synced, writes that fail in the middle, and what the replica missed
// meanwhile. What is read is always what was written, up to a gap that was told.
func TestArchiveWalk(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { archiveWalk(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func archiveWalk(t *testing.T, rnd *rand.Rand) {
	mem := vfs.NewCrashableMem()
	failing := false
	wrap := func() vfs.FS {
		return errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if failing && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && rnd.IntN(3) == 0 {
				return errorfs.ErrInjected
			}
			return nil
		}))
	}
	fs := wrap()
	w := openWriter(t, fs)
	log := pastEntries(2, 4000, 60)
	// next is what of the log was not appended yet.
	next := 0
	for step := range 200 {
		switch n := rnd.IntN(100); {
		case n < 60:
			failing = rnd.IntN(4) == 0
			end := min(next+1+rnd.IntN(30), len(log))
			err := w.Append(log[next:end], int64(step)*1e9)
			failing = false
			if err == nil && w.Last() != log[end-1].Index || w.Last() > log[end-1].Index {
				t.Fatalf("step %d: appended up to %d, and entry %d is the last; %v", step, log[end-1].Index, w.Last(), err)
			}
			next = max(int(w.Last())-1, 0)
		case n < 75:
			failing = rnd.IntN(4) == 0
			_ = w.Sync()
			failing = false
			next = max(int(w.Last())-1, 0)
		case n < 85:
			must(t, w.Close())
			w = openWriter(t, fs)
			next = max(int(w.Last())-1, 0)
		case n < 95:
			synced := w.Synced()
			mem = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
			fs = wrap()
			w = openWriter(t, fs)
			if w.Last() < synced {
				t.Fatalf("step %d: entry %d was synced, and after a crash entry %d is the last", step, synced, w.Last())
			}
			next = max(int(w.Last())-1, 0)
		default:
			// The replica was given a checkpoint instead of the log.
			if w.Last() > 0 {
				w.Skip("why")
				next = min(next+rnd.IntN(20), len(log)-1)
			}
		}
	}
	must(t, w.Sync())
	a := openArchive(t, mem)
	read := 0
	for after := uint64(1); ; {
		got, err := collect(a, after)
		if !slices.EqualFunc(got, log[after-1:int(after)-1+len(got)], samePast) {
			t.Fatalf("after %d: other entries than were written", after)
		}
		read += len(got)
		if err == nil {
			// There may be more: what a failure made uncertain is not removed.
			if last := after + uint64(len(got)); last < w.Last() {
				t.Fatalf("the last entry is %d, and the writer's is %d", last, w.Last())
			}
			break
		}
		var gap *GapError
		if !errors.As(err, &gap) || gap.Why != "why" && gap.From != 2 {
			t.Fatalf("after %d: %v", after, err)
		}
		after = gap.To
	}
	if read < 100 {
		t.Errorf("%d entries are read, which is too few to show anything", read)
	}
}

// TestArchiveCheckpoints has pictures of a store in an archive, finished and not.
func TestArchiveCheckpoints(t *testing.T) {
	fs := vfs.NewMem()
	s := newStore(t, fs)
	defer s.Close()
	w := openWriter(t, fs)
	for index := uint64(10); index <= 30; index += 10 {
		f := s.NewFlush()
		f.Put([]byte("k"), fmt.Append(nil, index))
		h := startHeader()
		h.Index, h.Term, h.WallTimeNs = index, 2, int64(index)*1e9
		must(t, f.Commit(h))
		p, err := s.Picture()
		must(t, err)
		k, err := w.AddCheckpoint(t.Context(), p, 0)
		must(t, errors.Join(err, p.Close()))
		if k.Header.GetIndex() != index || w.Newest().Index != index {
			t.Errorf("checkpoint of %d, newest of %d, want %d", k.Header.GetIndex(), w.Newest().Index, index)
		}
	}
	p, err := s.Picture()
	must(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.AddCheckpoint(gone, p, 0); err == nil {
		t.Error("a checkpoint that was given up was added")
	}
	must(t, p.Close())
	put(t, fs, CheckpointName(1, 40)+partialSuffix, []byte("half"))
	put(t, fs, CheckpointName(1, 50), []byte("BORGCKPT, but no more"))
	put(t, fs, "notes.txt", []byte("not ours"))
	must(t, w.Close())
	openWriter(t, fs)
	a := openArchive(t, fs)
	for i, k := range a.Checkpoints() {
		f, err := a.OpenCheckpoint(k)
		must(t, err)
		info, err := Inspect(f)
		must(t, errors.Join(err, f.Close()))
		if info.FileBytes != k.Bytes || info.Header.GetIndex() != uint64(10*i+10) {
			t.Errorf("%s: %d bytes of index %d, want %d", k.Name, info.FileBytes, info.Header.GetIndex(), k.Bytes)
		}
	}
	if k, ok := a.Before(1, 29); !ok || k.Header.GetIndex() != 20 {
		t.Errorf("before 29: %v, %v", k.Name, ok)
	}
	if _, ok := a.Before(1, 9); ok {
		t.Error("there is a checkpoint before the first")
	}
	if d := a.Damaged(); len(a.Checkpoints()) != 3 || len(d) != 1 || d[0].Name != CheckpointName(1, 50) || !errors.Is(d[0].Err, ErrDamaged) {
		t.Errorf("%d checkpoints, damaged: %v", len(a.Checkpoints()), d)
	}
	files := contents(t, fs)
	if _, ok := files["notes.txt"]; !ok || files[CheckpointName(1, 40)+partialSuffix] != nil {
		t.Error("the unfinished checkpoint is there, or another's file is gone")
	}
}

// TestArchiveOfAnotherCell is refused by who would add to it, and a mixture by all.
func TestArchiveOfAnotherCell(t *testing.T) {
	fs := vfs.NewMem()
	w := openWriter(t, fs)
	must(t, w.Append(pastEntries(2, 3, 10), 0))
	must(t, w.Close())
	other := testIdentity()
	other.CellId = "cc-0002"
	if _, err := OpenArchiveWriter(fs, archiveDir, other, 1); err == nil || !strings.Contains(err.Error(), "cc-0002") {
		t.Errorf("the archive of another cell: %v", err)
	}
	h := logHeader(5)
	h.CellId = "cc-0002"
	put(t, fs, segmentName(1, 5), segment(t, h, true))
	if _, err := OpenArchive(fs, archiveDir); err == nil || !strings.Contains(err.Error(), "two cells") {
		t.Errorf("files of two cells: %v", err)
	}
	if _, err := OpenArchive(fs, "/nowhere"); !isNotExist(err) {
		t.Errorf("no directory: %v", err)
	}
}

// TestPushDirectory copies into a directory, and leaves nothing of a copy that
// broke off.
func TestPushDirectory(t *testing.T) {
	fs := vfs.NewMem()
	d := Directory{FS: fs, Path: archiveDir}
	must(t, d.Put(t.Context(), "a", 5, strings.NewReader("hello")))
	if err := d.Put(t.Context(), "b", 5, strings.NewReader("hell")); err == nil {
		t.Error("a file that is too short was copied")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Put(gone, "a", 5, strings.NewReader("other")); !errors.Is(err, context.Canceled) {
		t.Errorf("a copy that was given up: %v", err)
	}
	if files := contents(t, fs); len(files) != 1 || string(files["a"]) != "hello" {
		t.Errorf("files %q", files)
	}
}
