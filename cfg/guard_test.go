package cfg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A step that does not end by itself, deep in a built-in, does not hold up who
// asked.
func TestStuckBuiltinIsLeft(t *testing.T) {
	dir := t.TempDir()
	// Hashing a tuple walks it as if it were a tree: here one with 2^23 leaves,
	// which takes a while and then ends, so that the test leaves nothing.
	text := "def f():\n    t = (1,)\n    for i in range(23):\n        t = (t, t)\n    return {t: 1}\nf()\n"
	if err := os.WriteFile(filepath.Join(dir, "job.borg"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, src, err := openSources(filepath.Join(dir, "job.borg"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	e := newEvaluator(s, &params{}, nil)
	e.guard.maxTime = 10 * time.Millisecond
	_, err = e.run(src)
	if err == nil || !strings.Contains(err.Error(), "evaluation took longer than 10ms") {
		t.Errorf("run: %v, want that it took too long", err)
	}
}

// A file that eats memory by built-ins is stopped too.
func TestHungryBuiltinIsStopped(t *testing.T) {
	dir := t.TempDir()
	text := "def f():\n    s = 'aaaaaaaaaa'\n    for i in range(40):\n        s = s.replace('a', 'aaaa')\nf()\n"
	if err := os.WriteFile(filepath.Join(dir, "job.borg"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, src, err := openSources(filepath.Join(dir, "job.borg"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	e := newEvaluator(s, &params{}, nil)
	e.guard.maxHeap = 16 << 20
	_, err = e.run(src)
	if err == nil || !strings.Contains(err.Error(), "evaluation took more than 16 MiB of memory") {
		t.Errorf("run: %v, want that it took too much", err)
	}
}

// Whatever a file holds, evaluating it ends without a panic, and what is
// accepted can be printed and read again.
func FuzzEvaluate(f *testing.F) {
	for _, pattern := range []string{"../examples/*.borg"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text), uint8(0))
		}
	}
	f.Add("jobs:\n- {name: a, task: {args: [x], resources: {cpu: 1, mem: 1G}}}", uint8(1))
	f.Add(`{"jobs":[{"name":"a","task":{"args":["x"],"resources":{"cpu":1,"mem":"1G"}}}]}`, uint8(2))
	f.Fuzz(func(t *testing.T, text string, language uint8) {
		path := filepath.Join(t.TempDir(), "job"+[]string{".borg", ".yaml", ".json"}[language%3])
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		file, err := Evaluate(path, Options{User: "alice"})
		if err != nil {
			return
		}
		b, err := file.JSON()
		if err != nil {
			t.Fatal(err)
		}
		reread(t, file, b)
	})
}
