package export

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestPictureAfterGap: a picture says of machines what a gap in the journal did not, from the
// newest entry before it; one that says the same adds no row.
func TestPictureAfterGap(t *testing.T) {
	const begin = int64(1_800_000_000e9)
	dir := t.TempDir()
	past, err := NewPast(PastAbout{Cell: "c", FirstWallNs: begin, LargestCPUMilli: 1000, LargestMemBytes: 1000}, JSON, dir, make(Counts))
	if err != nil {
		t.Fatal(err)
	}
	picture := func(name string, down bool, cpu int64) {
		t.Helper()
		f := &borgpb.ObjectFacts{Kind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, Name: name, Down: down, Capacity: &borgpb.Resources{CpuMilli: cpu, MemBytes: 1000}}
		if err := past.Picture(f); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(afterNs int64, events ...*borgpb.Event) {
		t.Helper()
		if err := past.Add(&borgpb.JournalEntry{WallNs: begin + afterNs, Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	picture("m1", false, 1000)
	picture("m2", false, 1000)
	entry(1e9)
	picture("m1", false, 1000)
	entry(2e9, &borgpb.Event{WallNs: begin + 2e9, Kind: borgpb.EventKind_EVENT_KIND_MACHINE_REMOVE, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, Object: "m2", Machine: "m2"})
	entry(3e9)
	picture("m1", true, 1000)
	entry(4e9)
	picture("m1", false, 1000)
	picture("m2", false, 1000)
	entry(5e9)
	picture("m1", false, 500)
	if err := past.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "machine_events.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		at, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "{"), ",")
		kind := rest[strings.Index(rest, `"type"`):]
		kind, _, _ = strings.Cut(kind, ",")
		got = append(got, at+" "+kind)
	}
	want := []string{
		`"time":0 "type":1`, `"time":0 "type":1`, `"time":602000000 "type":2`, `"time":603000000 "type":2`,
		`"time":604000000 "type":1`, `"time":604000000 "type":1`, `"time":605000000 "type":3`,
	}
	unquote := func(rows []string) string {
		return strings.NewReplacer(`"`, "", " ", "").Replace(strings.Join(rows, "\n"))
	}
	if unquote(got) != unquote(want) {
		t.Errorf("machine events:\n%s\nwant:\n%s\nof:\n%s", unquote(got), unquote(want), data)
	}
}
