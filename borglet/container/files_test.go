package container

import (
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

func TestTrimLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	if err := TrimLog(path, 1); err != nil {
		t.Errorf("TrimLog of nothing: %v", err)
	}
	line := strings.Repeat("x", 99) + "\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(line, 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	blocks := func() int64 {
		p, err := statBlocks(path)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := blocks()
	if err := TrimLog(path, 1<<30); err != nil || blocks() != before {
		t.Errorf("TrimLog of a short log: %v, %d blocks of %d", err, blocks(), before)
	}
	if err := TrimLog(path, 100_000); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() != 1_000_000 {
		t.Errorf("after TrimLog: %v, %v, want the same length", info, err)
	}
	if got := blocks(); got*512 > 200_000 {
		t.Skipf("this file system keeps %d bytes: it cannot free the start of a file", got*512)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(string(text), line) || strings.Count(string(text[900_000:]), "x") != 99_000 {
		t.Errorf("the end of the log is not what was written (%v)", err)
	}
}
