package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRaiseSysctls: what is too low is raised, what is higher stays.
func TestRaiseSysctls(t *testing.T) {
	for _, test := range []struct{ aio, open, terminals, filters, wantAIO, wantOpen, wantTerminals, wantFilters string }{
		{"65536\n", "400000\n", "4096\n", "66060288\n", "134217728", "67108864", "263168", "268435456"},
		{"18446744073709551615\n", "9223372036854775807\n", "1048576\n", "528482304\n", "18446744073709551615", "9223372036854775807", "1048576", "528482304"},
	} {
		root := t.TempDir()
		files := map[string]string{"fs/aio-max-nr": test.aio, "fs/file-max": test.open, "kernel/pty/max": test.terminals, "kernel/pty/reserve": "1024\n", filterLimit: test.filters}
		for name, text := range files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := raiseSysctls(root, 4<<30); err != nil {
			t.Error(err)
		}
		for name, want := range map[string]string{"fs/aio-max-nr": test.wantAIO, "fs/file-max": test.wantOpen, "kernel/pty/max": test.wantTerminals, filterLimit: test.wantFilters} {
			if got, _ := os.ReadFile(filepath.Join(root, name)); strings.TrimSpace(string(got)) != want {
				t.Errorf("%s of %q is %q, want %s", name, files[name], got, want)
			}
		}
	}
	if err := raiseSysctls(t.TempDir(), 1); err == nil {
		t.Error("without the files it does not fail")
	}
}

// TestLowerEpollWatches: a bound that is too high is lowered, a lower one stays.
func TestLowerEpollWatches(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "fs/epoll/max_user_watches")
	if _, err := lowerEpollWatches(root); err == nil {
		t.Error("without the file it does not fail")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	for was, want := range map[string]string{"5491511\n": "262144", "262144\n": "262144", "1000\n": "1000"} {
		if err := os.WriteFile(file, []byte(was), 0o600); err != nil {
			t.Fatal(err)
		}
		lowered, err := lowerEpollWatches(root)
		got, _ := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(got)) != want || lowered != (strings.TrimSpace(was) != want) {
			t.Errorf("%q becomes %q (%t, %v), want %s", was, got, lowered, err, want)
		}
	}
}
