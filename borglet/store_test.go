package borglet

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// full is a Record with every field set; the test below fails when one is
// added and not saved.
func full(id ID) Record {
	d := sample()
	d.Copy = id.wire()
	return Record{
		ID: id, Desired: d, Boot: "b1", Run: 4, RunEnded: true, RunVersion: 1, Clear: true, Restarts: 2, Failures: 3,
		StartedWallNs: 12345, Passed: true, Ready: true, Quarantined: true, Stop: &StopOrder{Cause: borgpb.StopCause_STOP_CAUSE_DRAIN, Index: 9, GraceNs: 77},
		Ended: borgpb.AttemptState_ATTEMPT_STATE_STOPPED,
		Exit:  &borgpb.Exit{Code: 3, Signal: 9, Oom: true, Unknown: true, EndedWallNs: 99, Error: "e"},
		Text:  "why", ShimLost: true, HeldPorts: []HeldPort{{20001, "nginx (process 812)"}},
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
	for _, name := range []string{"lost+found", "1-5-0.7.1"} {
		if err := os.MkdirAll(filepath.Join(dir, "tasks", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	intent := filepath.Join(dir, "tasks", "1-5-0.7.1", "intent")
	if err := os.WriteFile(intent, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, bad, err := s.Load()
	if err != nil || len(records) != 2 || len(bad) != 2 {
		t.Fatalf("Load = %v, %v, %v, want 2 records and 2 errors", records, bad, err)
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
	// What a newer borglet wrote is not touched.
	if err := os.WriteFile(intent, []byte(`{"format":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Load(); !errors.Is(err, errNewer) {
		t.Errorf("Load of a newer format = %v, want %v", err, errNewer)
	}
	left, _ := os.ReadDir(filepath.Join(dir, "trash"))
	if len(left) != 0 {
		t.Errorf("left in trash: %v", left)
	}
}

// TestDropAllocs: an alloc's directory goes when it has been without a copy for
// long, and not before.
func TestDropAllocs(t *testing.T) {
	s, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := sample()
	d.Alloc = "alice/pool/0"
	id := ID{"1-5-0", 3, 2}
	if err := s.Save(Record{ID: id, Desired: d}); err != nil {
		t.Fatal(err)
	}
	dir := s.AllocDir(d.Alloc)
	idle := map[string]time.Time{}
	start := time.Unix(0, 0)
	if err := s.dropAllocs(nil, map[string]bool{}, idle, start); err != nil {
		t.Fatal(err)
	}
	if err := s.dropAllocs(nil, nil, idle, start.Add(9*allocKeep)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error("it went although no master was heard")
	}
	for _, step := range []struct {
		used, kept bool
		after      time.Duration
		want       bool
	}{
		{true, true, 0, true}, {true, false, 9 * time.Hour, true}, {false, false, 10 * time.Hour, true},
		{true, false, 10*time.Hour + time.Minute, true}, {false, true, 11 * time.Hour, true}, {false, true, 19 * time.Hour, true},
		{false, false, 20 * time.Hour, true},
		{false, false, 20*time.Hour + allocKeep - 1, true}, {false, false, 20*time.Hour + allocKeep, false},
	} {
		name := AllocName(d.Alloc)
		used := map[string]string{}
		if step.used {
			used[name] = d.Alloc
		}
		if err := s.dropAllocs(used, map[string]bool{name: step.kept}, idle, start.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err == nil) != step.want {
			t.Errorf("used %v, kept %v after %s: directory there %v, want %v", step.used, step.kept, step.after, err == nil, step.want)
		}
	}
}

func TestFenceFile(t *testing.T) {
	dir := t.TempDir()
	if f, err := LoadFence(dir); err != nil || !f.Equal(Fence{}) {
		t.Errorf("LoadFence of nothing = %v, %v", f, err)
	}
	want := Fence{CellID: "c", Machine: "m", Epoch: 1, Term: 2, Index: 3, Removed: []uint64{2, 5}}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	if f, err := LoadFence(dir); err != nil || !f.Equal(want) {
		t.Errorf("LoadFence = %v, %v, want %v", f, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "fence.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFence(dir); err == nil || !strings.Contains(err.Error(), "fence.json") {
		t.Errorf("LoadFence of half a file = %v, want an error that names it", err)
	}
}
