package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// TestProgress tells a run from its events.
func TestProgress(t *testing.T) {
	p := newProgress(2, true, start)
	var got []string
	for _, e := range []struct {
		second int
		event
	}{
		{1, event{Action: "start", Package: "m/a"}},
		{1, event{Action: "run", Package: "m/a", Test: "TestOne"}},
		{2, event{Action: "output", Package: "m/a", Test: "TestOne", Output: "    a_test.go:7: wrong\n"}},
		{3, event{Action: "run", Package: "m/a", Test: "TestOne/sub"}},
		{4, event{Action: "pass", Package: "m/a", Test: "TestOne/sub", Elapsed: 1}},
		{5, event{Action: "fail", Package: "m/a", Test: "TestOne", Elapsed: 4}},
		{5, event{Action: "run", Package: "m/a", Test: "TestTwo"}},
		{5, event{Action: "output", Package: "m/a", Test: "TestTwo", Output: "    a_test.go:9: needs root\n"}},
		{5, event{Action: "skip", Package: "m/a", Test: "TestTwo"}},
		{6, event{Action: "fail", Package: "m/a", Elapsed: 5}},
		{6, event{Action: "build-output", ImportPath: "m/b [m/b.test]", Output: "b.go:1: no\n"}},
		{6, event{Action: "build-fail", ImportPath: "m/b [m/b.test]"}},
		{6, event{Action: "start", Package: "m/b"}},
		{67, event{Action: "fail", Package: "m/b", FailedBuild: "m/b [m/b.test]"}},
	} {
		got = append(got, p.event(at(e.second), e.event)...)
	}
	got = append(got, p.summary(at(68))...)
	want := `    a_test.go:7: wrong
[ 0 of 2] 0:05 FAIL     4.0 s  m/a TestOne
[ 1 of 2] 0:06 FAIL     5.0 s  m/a (2 tests)
b.go:1: no
[ 2 of 2] 1:07 FAIL     0.0 s  m/b (does not build)

skipped:
    1  needs root

failed:
  m/a TestOne
  m/a
  m/b

2 packages in 1:08
0 passed, 1 failed, 1 skipped`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// TestOverdue holds which time counts: neither that of a test that waits for its
// turn, nor that of one whose subtests still come and go.
func TestOverdue(t *testing.T) {
	p := newProgress(1, false, start)
	do := func(second int, action, test string) {
		p.event(at(second), event{Action: action, Package: "m", Test: test})
	}
	late := func(second int) []key { return p.overdue(at(second), 10*time.Second) }
	do(0, "start", "")
	do(0, "run", "TestParallel")
	do(0, "pause", "TestParallel")
	do(0, "run", "TestParent")
	do(0, "run", "TestParent/a")
	if got := late(9); len(got) != 0 {
		t.Errorf("at 9 s %v is overdue", got)
	}
	if got, want := late(10), []key{{"m", "TestParent/a"}}; !slices.Equal(got, want) {
		t.Errorf("at 10 s %v is overdue, want %v", got, want)
	}
	do(11, "pass", "TestParent/a")
	if got := late(20); len(got) != 0 {
		t.Errorf("at 20 s %v is overdue; a subtest ended at 11 s", got)
	}
	if got, want := late(21), []key{{"m", "TestParent"}}; !slices.Equal(got, want) {
		t.Errorf("at 21 s %v is overdue, want %v", got, want)
	}
	do(22, "pass", "TestParent")
	do(22, "cont", "TestParallel")
	if got, want := late(32), []key{{"m", "TestParallel"}}; !slices.Equal(got, want) {
		t.Errorf("at 32 s %v is overdue, want %v", got, want)
	}
	do(33, "pass", "TestParallel")
	// A package that does not end after its last test.
	if got, want := late(43), []key{{"m", ""}}; !slices.Equal(got, want) {
		t.Errorf("at 43 s %v is overdue, want %v", got, want)
	}
}

// TestTick holds that a run which is silent for a while says what it does.
func TestTick(t *testing.T) {
	p := newProgress(3, false, start)
	if got := p.tick(at(19)); got != nil {
		t.Errorf("at 19 s it says %q", got)
	}
	if got, want := p.tick(at(20)), []string{"[ 0 of 3] 0:20 builds"}; !slices.Equal(got, want) {
		t.Errorf("it says %q, want %q", got, want)
	}
	p.event(at(30), event{Action: "start", Package: "m"})
	p.event(at(31), event{Action: "run", Package: "m", Test: "TestLong"})
	if got, want := p.tick(at(45)), []string{"[ 0 of 3] 0:45 runs m TestLong for 14 s"}; !slices.Equal(got, want) {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// TestHungTestIsEnded runs real tests of which one never ends.
func TestHungTestIsEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module and waits for a test that hangs: make e2e")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.24\n",
		"good/good_test.go": `package good
import "testing"
func TestGood(t *testing.T) {}
func TestOther(t *testing.T) { t.Skip("not here") }
`,
		"bad/bad_test.go": `package bad
import ("testing"; "time")
func TestFine(t *testing.T) {}
func TestHangs(t *testing.T) { neverEnds() }
func neverEnds() { for { time.Sleep(time.Second) } }
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	s := &suite{limit: 3 * time.Second, packages: []string{"./..."}, dir: dir, out: &out}
	ok, err := s.run(t.Context())
	if ok || err != nil {
		t.Errorf("run = %t, %v, want a failure and no error", ok, err)
	}
	for _, want := range []string{"m/bad TestHangs has run for 3s without an end", "bad.neverEnds", "m/good (2 tests)", "1  not here", "2 passed, 1 failed, 1 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}
