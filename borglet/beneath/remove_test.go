package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// deepTree makes directories in one another, deeper than a process may have files open.
func deepTree(t *testing.T, dir string, depth int) {
	t.Helper()
	name := strings.Repeat("d", 50)
	fd, err := syscall.Open(dir, syscall.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		err := syscall.Mkdirat(fd, name, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		next, err := syscall.Openat(fd, name, syscall.O_DIRECTORY, 0)
		syscall.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	syscall.Close(fd)
}

// TestRemoveAllDeep: a tree goes whose paths no system call takes, and whose levels no
// process can have open at once; what links lead to stays.
func TestRemoveAllDeep(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	tree := filepath.Join(dir, "tree")
	for _, at := range []string{tree, filepath.Join(tree, "a", ".borg-1", "b"), filepath.Join(tree, ".borg-2")} {
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "file"), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(out, filepath.Join(tree, "a", "out")); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(out, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := syscall.Rlimit{Cur: 100, Max: was.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	deepTree(t, tree, 1000)
	if err := RemoveAll(tree); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(tree); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is still there: %v", err)
	}
	if _, err := os.Lstat(kept); err != nil {
		t.Errorf("a file outside: %v", err)
	}
	if err := RemoveAll(tree); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	if err := RemoveAll(kept); err != nil {
		t.Errorf("of a file: %v", err)
	}
}
