package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadStatus(t *testing.T) {
	dir := t.TempDir()
	if _, ready, ended := readStatus(dir); ready || ended {
		t.Error("readStatus of nothing says something")
	}
	for _, c := range []struct {
		text         string
		ready, ended bool
		code, signal int32
		err          string
	}{
		{"", false, false, 0, 0, ""},
		{"ready 0\n", true, false, 0, 0, ""},
		{"ready 0\nexit 7\n", true, true, 7, 0, ""},
		{"ready 0\nsignal 15\n", true, true, 0, 15, ""},
		{"ready 0\nerror 2\nexit 127\n", true, true, 127, 0, "no such file or directory"},
		{"ready 0\nchdir 13\nexit 127\n", true, true, 127, 0, "working directory"},
		// Half a line is no word: the machine may have stopped in the middle.
		{"ready 0\nexit 1", true, false, 0, 0, ""},
		{"ready 0\nexit x\n", true, false, 0, 0, ""},
	} {
		if err := os.WriteFile(filepath.Join(dir, statusFile), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		e, ready, ended := readStatus(dir)
		if ready != c.ready || ended != c.ended || e.Code != c.code || e.Signal != c.signal || !strings.Contains(e.Error, c.err) {
			t.Errorf("readStatus(%q) = %+v, %v, %v", c.text, e, ready, ended)
		}
	}
	if err := os.Remove(filepath.Join(dir, statusFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, statusFile)); err != nil {
		t.Fatal(err)
	}
	if _, _, ended := readStatus(dir); ended {
		t.Error("readStatus follows a link")
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	if _, _, held, err := holder(dir); held || err != nil {
		t.Errorf("holder of a free lock: held %v, %v", held, err)
	}
	f, held, err := takeLock(dir)
	if held || err != nil {
		t.Fatalf("takeLock: held %v, %v", held, err)
	}
	if _, known, held, err := holder(dir); !held || known || err != nil {
		t.Errorf("holder before it has said its pid: known %v, held %v, %v", known, held, err)
	}
	if err := checkLock(dir, f); err != nil {
		t.Fatal(err)
	}
	if p, known, held, err := holder(dir); p.Pid != os.Getpid() || !known || !held || err != nil {
		t.Errorf("holder = %v, known %v, held %v, %v, want this process", p, known, held, err)
	}
	f.Close()
	if _, _, held, _ := holder(dir); held {
		t.Error("held after it was closed")
	}
}

// What is given back of a file changes neither its length nor what is behind.
func TestPunch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	line := strings.Repeat("x", 99) + "\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(line, 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const end = 13 * 65536
	if err := Punch(f, end); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this file system cannot give back the start of a file")
	} else if err != nil {
		t.Fatal(err)
	}
	blocks, err := statBlocks(path)
	if err != nil || blocks*512 > 200_000 {
		t.Errorf("it takes %d bytes, %v", blocks*512, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || len(text) != 1_000_000 || string(text[end:]) != strings.Repeat(line, 10_000)[end:] || strings.Trim(string(text[:end]), "\x00") != "" {
		t.Errorf("%d bytes (%v), want what was written behind %d zeros", len(text), err, end)
	}
}
