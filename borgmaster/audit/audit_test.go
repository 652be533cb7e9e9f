package audit

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

var rewrite = flag.Bool("rewrite", false, "make testdata/format1 anew; read the diff")

// trailAt opens the journals in a directory, with a clock that the test moves.
func trailAt(t *testing.T, dir string, now *time.Time) *Trail {
	t.Helper()
	trail, err := Open(Config{Dir: dir, Replica: 3, Now: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	return trail
}

func aDay() *time.Time {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	return &now
}

// entryOf is an entry in which ann asks for a job, with an op of the cell's own
// before it.
func entryOf(t *testing.T, job string) []byte {
	t.Helper()
	own, err := proto.Marshal(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := proto.Marshal(&borgpb.Op{RequestId: "r-" + job, Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER},
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: job}}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(&borgpb.Entry{WallTimeNs: 7, Ops: [][]byte{own, asked}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var done = []*borgpb.Result{{}, {Version: 1}}

// tell is what the journal of the log says, one word for each record.
func tell(t *testing.T, l *Log) string {
	t.Helper()
	var words []string
	err := l.Each(Pick{}, func(r *borgpb.AuditRecord) error {
		if h := r.Hole; h != nil {
			words = append(words, fmt.Sprintf("hole:%d-%d", h.From, h.To))
		} else {
			words = append(words, fmt.Sprintf("%d.%d:%s", r.Index, r.N, r.Object))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(words, " ")
}

func TestEntriesAreKeptOnce(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail := trailAt(t, dir, now)
	trail.Log.Applied(2, nil, nil)
	trail.Log.Applied(3, entryOf(t, "a"), done)
	trail.Log.Applied(4, entryOf(t, "b"), done)
	// Killed: nothing is closed. The entries that were not flushed come again.
	trail = trailAt(t, dir, now)
	trail.Log.Applied(4, entryOf(t, "b"), done)
	trail.Log.Applied(5, entryOf(t, "c"), done)
	trail.Log.Applied(6, entryOf(t, "again"), []*borgpb.Result{{}, {Repeated: true}})
	want := "3.1:ann/a 4.1:ann/b 5.1:ann/c"
	if got := tell(t, trail.Log); got != want {
		t.Errorf("the audit is %q, want %q", got, want)
	}
	// An empty entry moves it on too: nothing is missing after it.
	trail.Log.Applied(7, nil, nil)
	if err := trail.Close(); err != nil {
		t.Fatal(err)
	}
	trail = trailAt(t, dir, now)
	trail.Log.Applied(8, entryOf(t, "d"), done)
	if got := tell(t, trail.Log); got != want+" 8.1:ann/d" {
		t.Errorf("the audit after a restart is %q", got)
	}
	trail.Close()
}

func TestHolesAreSaidAloud(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail := trailAt(t, dir, now)
	defer func() { trail.Close() }()
	// A replica that joins is sent a checkpoint.
	trail.Log.Restored(100)
	trail.Log.Applied(101, entryOf(t, "a"), done)
	// A directory that was used without a journal for a while.
	trail.Log.Applied(201, entryOf(t, "b"), done)
	// A disk that takes nothing: the directory is gone, and the file that is open
	// is full.
	j := trail.Log.journal
	j.limits.fileBytes = 1
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	trail.Log.Applied(202, entryOf(t, "lost"), done)
	trail.Log.Applied(203, entryOf(t, "lost"), done)
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	trail.Log.Applied(204, entryOf(t, "c"), done)
	want := "hole:2-100 101.1:ann/a hole:102-200 201.1:ann/b hole:202-203 204.1:ann/c"
	if got := tell(t, trail.Log); got != want {
		t.Errorf("the audit is %q, want %q", got, want)
	}
}

// TestDamageIsNoticed changes each byte of a journal in turn: it is told as a hole,
// and what is before it is still there.
func TestDamageIsNoticed(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail := trailAt(t, dir, now)
	for i, job := range []string{"a", "b", "c"} {
		trail.Log.Applied(uint64(2+i), entryOf(t, job), done)
	}
	whole := tell(t, trail.Log)
	if err := trail.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "log.00000001")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mark, err := os.ReadFile(filepath.Join(dir, "log.through"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, changed []byte) {
		t.Helper()
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		trail := trailAt(t, dir, now)
		defer os.Remove(filepath.Join(dir, "log.00000002"))
		defer trail.Close()
		trail.Log.Applied(5, entryOf(t, "d"), done)
		got := tell(t, trail.Log)
		before, after, found := strings.Cut(got, "hole:0-0")
		if !found || !strings.HasPrefix(whole, strings.TrimSpace(before)) || !strings.HasSuffix(after, "5.1:ann/d") {
			t.Errorf("%s: the audit is %q", what, got)
		}
		if err := os.WriteFile(filepath.Join(dir, "log.through"), mark, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range data {
		if i >= len(fileMagic) && i < headBytes {
			continue // Where the chain began: that is said by the file before it.
		}
		changed := append([]byte{}, data...)
		changed[i] ^= 0x10
		check(fmt.Sprintf("byte %d", i), changed)
	}
	for _, cut := range []int{0, 1, headBytes - 1, headBytes + 1, headBytes + frameBytes, len(data) - 1} {
		check(fmt.Sprintf("cut at %d", cut), data[:cut])
	}
}

// bytesOf is the size of all files of a journal.
func bytesOf(t *testing.T, dir, name string) (bytes int64, files int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), name+".") {
			bytes, files = bytes+info.Size(), files+1
		}
	}
	return bytes, files
}

func TestJournalsAreBounded(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail, err := Open(Config{Dir: dir, Replica: 3, LogBytes: 8000, Now: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	defer trail.Close()
	for i := range 500 {
		trail.Log.Applied(uint64(2+i), entryOf(t, fmt.Sprintf("j%d", i)), done)
		if bytes, _ := bytesOf(t, dir, "log"); bytes > 8000 {
			t.Fatalf("after %d entries the journal has %d bytes, want at most 8000", i+1, bytes)
		}
	}
	if got := tell(t, trail.Log); strings.Contains(got, "hole") || !strings.HasSuffix(got, "501.1:ann/j499") {
		t.Errorf("after old records were dropped the audit is %q", got)
	}
	*now = now.Add((maxDays + 1) * oneDay)
	for i := range 20 {
		trail.Log.Applied(uint64(502+i), entryOf(t, "new"), done)
	}
	if got := tell(t, trail.Log); strings.Contains(got, "j499") {
		t.Errorf("after %d days the audit is %q", maxDays+1, got)
	}
	if dropped := trail.Log.Dropped(); len(dropped) != 0 {
		t.Errorf("what would be too old anyhow is told as dropped: %v", dropped)
	}
}

func TestLargeOpsAreHashed(t *testing.T) {
	op := &borgpb.Op{RequestId: "r", Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: "web", Spec: make([]byte, maxOpBytes)}}}
	data, err := proto.Marshal(op)
	if err != nil {
		t.Fatal(err)
	}
	if r := RecordOf(data, &borgpb.Result{}); r.Op != nil || len(r.OpHash) != 32 || r.Object != "ann/web" || r.Verb != "submit-job" {
		t.Errorf("RecordOf an op of %d bytes = %v", len(data), r)
	}
}

// TestRefusalsAreCounted: refusals of one kind are one record with a count, what a
// caller is refused beyond a number of objects is counted together, and what was done
// is always kept.
func TestRefusalsAreCounted(t *testing.T) {
	now := aDay()
	dir := t.TempDir()
	trail := trailAt(t, dir, now)
	defer func() { trail.Close() }()
	refuse := func(who, verb, object string) {
		trail.Local.Note(&borgpb.AuditRecord{Role: borgpb.Role_ROLE_USER, Who: who, Verb: verb, Object: object, Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_PERMISSION}})
	}
	begin := now.UnixNano()
	for range 10_000 {
		refuse("mallory", "kill-job", strings.Repeat("x", 5000)+"\xff")
		*now = now.Add(time.Millisecond)
	}
	trail.Local.Note(&borgpb.AuditRecord{Role: borgpb.Role_ROLE_USER, Who: "root", Verb: "SaveCheckpoint"})
	for i := range 5_000 {
		refuse("mallory", "kill-job", fmt.Sprint("other", i))
		refuse("mallory", fmt.Sprint("Verb", i), "x")
	}
	refuse("bob", "kill-job", "one")
	*now = now.Add(refusalWindow)
	refuse("mallory", "kill-job", "later")
	// A crash: what was counted is on the disk.
	trail = trailAt(t, dir, now)
	var first, later *borgpb.AuditRecord
	records, counted := map[string]int{}, map[string]uint64{}
	if err := trail.Local.Each(Pick{}, func(r *borgpb.AuditRecord) error {
		if first == nil {
			first = r
		}
		later = r
		records[r.Who]++
		counted[r.Who] += r.Count
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if first.Replica != 3 || first.WallNs != begin || first.LastWallNs != begin+9_999*int64(time.Millisecond) || first.Count != 10_000 || len(first.Object) != maxTextBytes {
		t.Errorf("the first record is of replica %d at %d to %d, counts %d and has an object of %d bytes", first.Replica, first.WallNs, first.LastWallNs, first.Count, len(first.Object))
	}
	if want := uint64(20_001); counted["mallory"] != want || records["mallory"] > maxRefusalsOfShare+maxRefusalsByVerb+3 || records["mallory"] < maxRefusalsOfShare {
		t.Errorf("%d records count %d refusals of mallory, want %d", records["mallory"], counted["mallory"], want)
	}
	told := map[string]int{}
	if err := trail.Local.EachNewest(10, Pick{}, func(r *borgpb.AuditRecord) bool { return r.Who != "nobody" }, func(r *borgpb.AuditRecord) error {
		told[r.Who]++
		later = r
		return nil
	}); err != nil || told["root"] != 1 || told["bob"] != 1 || told["mallory"] != 8 || later.Object != "later" {
		t.Errorf("of ten records these are told: %v (%v), the last is %v", told, err, later)
	}
	if records["root"] != 1 || records["bob"] != 1 || counted["bob"] != 1 || later.Object != "later" || later.Count != 1 {
		t.Errorf("records %v count %v; the last is %v", records, counted, later)
	}
}

// TestFormat reads journals as the first build wrote them. They are made anew by
// -rewrite, which is right only for a new format beside the old one.
func TestFormat(t *testing.T) {
	now := aDay()
	write := func(dir string) {
		trail := trailAt(t, dir, now)
		trail.Log.Applied(2, entryOf(t, "a"), done)
		trail.Log.Applied(9, entryOf(t, "b"), []*borgpb.Result{{}, {Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_LIMIT, Message: "too much"}}})
		trail.Local.Note(&borgpb.AuditRecord{Role: borgpb.Role_ROLE_USER, Who: "bob", Verb: "SaveCheckpoint", Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_PERMISSION}})
		if err := trail.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const stored = "testdata/format1"
	if *rewrite {
		if err := os.RemoveAll(stored); err != nil {
			t.Fatal(err)
		}
		write(stored)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(stored)); err != nil {
		t.Fatal(err)
	}
	trail := trailAt(t, dir, now)
	defer trail.Close()
	if got, want := tell(t, trail.Log), "2.1:ann/a hole:3-8 9.1:ann/b"; got != want || trail.Log.through != 9 {
		t.Errorf("the stored journal is %q up to %d, want %q up to 9", got, trail.Log.through, want)
	}
	n := 0
	if err := trail.Local.Each(Pick{}, func(r *borgpb.AuditRecord) error {
		n++
		if r.Who != "bob" || r.Verb != "SaveCheckpoint" || r.Replica != 3 {
			t.Errorf("the stored refusal is %v", r)
		}
		return nil
	}); err != nil || n != 1 {
		t.Errorf("%d stored refusals, %v, want one", n, err)
	}
}

// TestPickLeavesOut: a reader that wants a text is given what has it, what was refused, and holes, and is asked before each
// batch whether to go on.
func TestPickLeavesOut(t *testing.T) {
	trail := trailAt(t, t.TempDir(), aDay())
	defer trail.Close()
	for i, job := range []string{"ann/web", "ann/db", "ann/web", "ann/log"} {
		_, name, _ := strings.Cut(job, "/")
		trail.Log.Applied(uint64(2+i), entryOf(t, name), done)
	}
	for _, tt := range []struct {
		text string
		want []string
	}{{"", []string{"web", "db", "web", "log"}}, {"web", []string{"web", "web"}}, {"bob", nil}} {
		var got []string
		steps := 0
		err := trail.Log.Each(Pick{Text: tt.text, Step: func() error { steps++; return nil }}, func(r *borgpb.AuditRecord) error {
			if r.Hole == nil {
				got = append(got, strings.TrimPrefix(r.Object, "ann/"))
			}
			return nil
		})
		if err != nil || !slices.Equal(got, tt.want) || steps < 4 {
			t.Errorf("with the text %q %q are told after %d steps (%v), want %q", tt.text, got, steps, err, tt.want)
		}
	}
	over := errors.New("it is over")
	if err := trail.Log.Each(Pick{Step: func() error { return over }}, func(*borgpb.AuditRecord) error { return nil }); !errors.Is(err, over) {
		t.Errorf("a reader that may not go on is told %v", err)
	}
	for _, record := range []*borgpb.AuditRecord{{Refusal: &borgpb.Refusal{}}, {Hole: &borgpb.AuditHole{}}, {Drop: &borgpb.AuditDrop{}}, nil} {
		b := &borgpb.AuditBatch{Records: []*borgpb.AuditRecord{{Index: 3, Who: "ann"}}}
		if record != nil {
			b.Records = append(b.Records, record)
		}
		data, err := proto.Marshal(b)
		if got := (Pick{Text: "bob"}).wants(data); err != nil || got != (record != nil) {
			t.Errorf("a batch with %v is wanted: %v (%v)", record, got, err)
		}
	}
}
