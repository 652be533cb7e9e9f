package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestNewFile: what is there is written over only if that is said.
func TestNewFile(t *testing.T) {
	dir := t.TempDir()
	there, link := filepath.Join(dir, "there.csv"), filepath.Join(dir, "link")
	if err := os.WriteFile(there, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(there, link); err != nil {
		t.Fatal(err)
	}
	for path, free := range map[string]bool{there: false, link: false, dir: false, filepath.Join(dir, "new"): true, os.DevNull: true} {
		err := NewFile(path, false)
		var e *Error
		if free != (err == nil) || err != nil && (!errors.As(err, &e) || e.Code != Refused) {
			t.Errorf("%s: %v, want it free: %v", path, err, free)
		}
		if err := NewFile(path, true); err != nil {
			t.Errorf("%s with --force: %v", path, err)
		}
	}
	for pattern, free := range map[string]bool{"*.csv": false, "*.json": true} {
		if err := NewFiles(dir, pattern, false); free != (err == nil) {
			t.Errorf("%s: %v, want it free: %v", pattern, err, free)
		}
	}
}
