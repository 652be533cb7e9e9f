package borglet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// endedCopy makes the directory of a copy that has ended and written text.
func endedCopy(t *testing.T, s *Store, id ID, text string) {
	t.Helper()
	endedCopyOf(t, s, wanted(id).GetUser(), id, text)
}

func endedCopyOf(t *testing.T, s *Store, user string, id ID, text string) {
	t.Helper()
	d := wanted(id)
	d.User = user
	if err := s.Save(Record{ID: id, Desired: d}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.TaskDir(id), stdoutFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, s *Store, id ID) string {
	t.Helper()
	dir, err := s.outputDir(id)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, stdoutFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What a copy wrote can be read after it was forgotten, and after the borglet
// was started anew.
func TestOutputOutlivesForgetting(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	id := ID{"1-5-0", 0, 1}
	endedCopy(t, s, id, "a line\n")
	if got := output(t, s, id); got != "a line\n" {
		t.Errorf("output before = %q", got)
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if records, bad, err := s.Load(); err != nil || len(records)+len(bad) != 0 {
		t.Errorf("a forgotten copy is loaded: %v, %v, %v", records, bad, err)
	}
	if got := output(t, s, id); got != "a line\n" {
		t.Errorf("output after = %q", got)
	}
	for _, name := range []string{"spec.json", "intent"} {
		info, err := os.Stat(filepath.Join(s.kept.path(id), name))
		if err != nil || info.Size() == 0 || info.Mode().Perm() != 0o600 {
			t.Errorf("of the record is kept %v, %v, want %s", info, err, name)
		}
	}
	if s, err = OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if got := output(t, s, id); got != "a line\n" || len(s.kept.copies) != 1 || s.kept.bytes == 0 {
		t.Errorf("output after a restart = %q, %d copies of %d bytes", got, len(s.kept.copies), s.kept.bytes)
	}
	if _, err := s.outputDir(ID{"1-5-0", 9, 1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("output of a copy that never was: %v", err)
	}
}

// The oldest output goes when there is too much.
func TestKeptOutputIsBounded(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(5) {
		id := ID{"1-5-0", i, 1}
		endedCopy(t, s, id, fmt.Sprint(i))
		if err := s.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	each := s.kept.bytes / 5
	// As if the last but one were very long.
	s.kept.grow(3, keptBytesMax-3*each)
	if err := s.kept.trim(); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(5) {
		_, err := s.outputDir(ID{"1-5-0", i, 1})
		if kept := err == nil; kept != (i >= 2) {
			t.Errorf("output of copy %d is kept: %v, %v", i, kept, err)
		}
	}
	if s.kept.bytes > keptBytesMax {
		t.Errorf("%d bytes are kept", s.kept.bytes)
	}
}

// grow makes a copy count for more.
func (k *keptOutput) grow(at int, bytes int64) {
	k.count(k.copies[at], -1)
	k.copies[at].bytes += bytes
	k.count(k.copies[at], 1)
}

// What one user writes costs another nothing: the oldest output goes of the user of whom
// most is kept, by bytes or by number, also after the borglet was started anew.
func TestKeptOutputIsPerUser(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(user string, index uint32) ID {
		t.Helper()
		id := ID{"1-5-0", index, 1}
		endedCopyOf(t, s, user, id, "text\n")
		if err := s.Remove(id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	kept := func(id ID) bool {
		_, err := s.outputDir(id)
		return err == nil
	}
	quiet := []ID{keep("bob", 0), keep("bob", 1)}
	first := keep("mallory", 2)
	// Few, and large. It is the second of mallory's that goes when the third comes: the
	// first made room for the second.
	s.kept.grow(2, keptBytesMax/2)
	second := keep("mallory", 3)
	s.kept.grow(3, keptBytesMax)
	if err := s.kept.trim(); err != nil {
		t.Fatal(err)
	}
	if !kept(quiet[0]) || !kept(quiet[1]) || kept(first) || kept(second) {
		t.Errorf("kept are bob's %t %t and mallory's %t %t, want bob's alone", kept(quiet[0]), kept(quiet[1]), kept(first), kept(second))
	}
	// Many, and small.
	for i := range uint32(keptCopiesMax - 2) {
		at := s.kept.path(ID{"1-5-0", 10 + i, 1})
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{stdoutFile: "text\n", "spec.json": `{"user": "mallory"}`} {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s, err = OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	last := keep("mallory", 5000)
	if bytes, _ := s.kept.state(); !kept(quiet[0]) || !kept(quiet[1]) || !kept(last) || len(s.kept.copies) != keptCopiesMax || bytes <= 0 {
		t.Errorf("after a flood bob's are kept: %t %t, the last of mallory's: %t, in all %d", kept(quiet[0]), kept(quiet[1]), kept(last), len(s.kept.copies))
	}
	if _, dropped := s.kept.state(); dropped != 1 || s.kept.users["bob"].copies != 2 || s.kept.users["mallory"].copies != keptCopiesMax-2 {
		t.Errorf("%d had to make room; by user %v", dropped, s.kept.users)
	}
	// The user who keeps most gives way first, not the one who came last.
	s.kept.grow(0, keptBytesMax/2+1)
	keep("carol", 6000)
	s.kept.grow(len(s.kept.copies)-1, keptBytesMax/2)
	if err := s.kept.trim(); err != nil {
		t.Fatal(err)
	}
	if kept(quiet[0]) || !kept(quiet[1]) || !kept(ID{"1-5-0", 6000, 1}) {
		t.Errorf("of whom most is kept: %t, %t; of another: %t", kept(quiet[0]), kept(quiet[1]), kept(ID{"1-5-0", 6000, 1}))
	}
}

// What is old goes, also after the borglet was started anew; what is younger stays.
func TestKeptOutputGrowsOld(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	old, young := ID{"1-5-0", 0, 1}, ID{"1-5-0", 1, 1}
	for _, id := range []ID{old, young} {
		endedCopy(t, s, id, "text\n")
		if err := s.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(s.kept.path(old), yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	// Until then both are as old as they were taken.
	if err := s.kept.expire(time.Now().Add(-24 * time.Hour)); err != nil || len(s.kept.copies) != 2 {
		t.Errorf("%d copies are kept, %v, want 2", len(s.kept.copies), err)
	}
	if s, err = OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.kept.expire(time.Now().Add(-24 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.outputDir(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is old is still there: %v", err)
	}
	if got := output(t, s, young); got != "text\n" {
		t.Errorf("what is young is %q", got)
	}
	if want := outputBytes(s.kept.path(young)); s.kept.bytes != want {
		t.Errorf("%d bytes are counted, want %d", s.kept.bytes, want)
	}
	if err := s.kept.expire(time.Now().Add(time.Hour)); err != nil || s.kept.bytes != 0 || len(s.kept.copies) != 0 {
		t.Errorf("at last %d copies of %d bytes are kept, %v", len(s.kept.copies), s.kept.bytes, err)
	}
}
