package borglet

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// full is a Record with every field set; the test below fails when one is
// added and not saved.
func full(id ID) Record {
	d := sample()
	d.Copy = id.wire()
	return Record{
		ID: id, Desired: d, Boot: "b1", Run: 4, RunEnded: true, RunVersion: 1, Restarts: 2, Failures: 3,
		StartedWallNs: 12345, Stop: &StopOrder{Cause: borgpb.StopCause_STOP_CAUSE_DRAIN, Index: 9, GraceNs: 77},
		Ended: borgpb.AttemptState_ATTEMPT_STATE_STOPPED,
		Exit:  &borgpb.Exit{Code: 3, Signal: 9, Oom: true, Unknown: true, EndedWallNs: 99, Error: "e"},
		Text:  "why", ShimLost: true,
	}
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, b := full(ID{"1-5-0", 0, 1}), Record{ID: ID{"1-5-0", 1, 1}, Ended: borgpb.AttemptState_ATTEMPT_STATE_STOPPED}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Record]()) {
		if reflect.ValueOf(a).FieldByIndex(field.Index).IsZero() {
			t.Errorf("the test's record has no %s", field.Name)
		}
	}
	for _, r := range []Record{b, a} {
		if err := s.Save(r); err != nil {
			t.Fatal(err)
		}
	}
	// A directory that is not ours and an intent that nobody can read are in
	// nobody's way.
	for _, name := range []string{"lost+found", "1-5-0.7.1", "1-5-0.8.1"} {
		if err := os.MkdirAll(filepath.Join(dir, "tasks", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"1-5-0.7.1": "{", "1-5-0.8.1": `{"format":2}`} {
		if err := os.WriteFile(filepath.Join(dir, "tasks", name, "intent"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err = OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, bad, err := s.Load()
	if err != nil || len(records) != 2 || len(bad) != 3 {
		t.Fatalf("Load = %v, %v, %v, want 2 records and 3 errors", records, bad, err)
	}
	got := records[0]
	if !proto.Equal(got.Desired, a.Desired) || !proto.Equal(got.Exit, a.Exit) || !reflect.DeepEqual(got.Stop, a.Stop) {
		t.Errorf("Load = %+v, want %+v", got, a)
	}
	got.Desired, got.Exit, got.Stop, a.Desired, a.Exit, a.Stop = nil, nil, nil, nil, nil, nil
	if !reflect.DeepEqual(got, a) || !reflect.DeepEqual(records[1], b) {
		t.Errorf("Load = %+v and %+v, want %+v and %+v", got, records[1], a, b)
	}
	if err := s.Remove(a.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(a.ID); err != nil {
		t.Errorf("Remove of what is not there: %v", err)
	}
	if _, err := os.Stat(s.TaskDir(a.ID)); !os.IsNotExist(err) {
		t.Errorf("after Remove: %v", err)
	}
	left, _ := os.ReadDir(filepath.Join(dir, "trash"))
	if len(left) != 0 {
		t.Errorf("left in trash: %v", left)
	}
}

func TestFenceFile(t *testing.T) {
	dir := t.TempDir()
	if f, err := LoadFence(dir); err != nil || f != (Fence{}) {
		t.Errorf("LoadFence of nothing = %v, %v", f, err)
	}
	want := Fence{CellID: "c", Machine: "m", Epoch: 1, Term: 2, Index: 3}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	if f, err := LoadFence(dir); err != nil || f != want {
		t.Errorf("LoadFence = %v, %v, want %v", f, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "fence.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFence(dir); err == nil || !strings.Contains(err.Error(), "fence.json") {
		t.Errorf("LoadFence of half a file = %v, want an error that names it", err)
	}
}
