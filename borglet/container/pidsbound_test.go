package container

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMostProcesses: tasks leave a quarter of what the machine has, of whatever is less.
func TestMostProcesses(t *testing.T) {
	for _, c := range []struct {
		pids, threads string
		want          int64
	}{{"32768\n", "192731\n", 24576}, {"4194304\n", "100000\n", 75000}, {"x", "100", 0}, {"0", "100", 0}} {
		dir := t.TempDir()
		for name, text := range map[string]string{"pid_max": c.pids, "threads-max": c.threads} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := mostProcesses(dir); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("of %q and %q: %d, %v; want %d", c.pids, c.threads, got, err, c.want)
		}
	}
}
