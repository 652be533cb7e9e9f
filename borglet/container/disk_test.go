package container

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTreeBytes: blocks count, links are not followed, names of one file count once.
func TestTreeBytes(t *testing.T) {
	dir := t.TempDir()
	if n, err := TreeBytes(filepath.Join(dir, "missing")); n != 0 || err != nil {
		t.Errorf("TreeBytes of nothing: %d, %v", n, err)
	}
	tree, outside := filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
	for _, d := range []string{filepath.Join(tree, "a", "b"), outside} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	big := strings.Repeat("x", 1<<20)
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(big), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(tree, "a", "b", "file"))
	write(filepath.Join(outside, "file"))
	for link, to := range map[string]string{"dir": outside, "file": filepath.Join(outside, "file")} {
		if err := os.Symlink(to, filepath.Join(tree, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(tree, "a", "b", "file"), filepath.Join(tree, "again")); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(tree, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	if err := sparse.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if n, err := TreeBytes(tree); err != nil || n < 1<<20 || n >= 3<<19 {
		t.Errorf("TreeBytes = %d, %v, want the MiB that is there", n, err)
	}
	if n, err := TreeBytes(filepath.Join(tree, "dir")); err == nil {
		t.Errorf("TreeBytes through a link = %d, want an error", n)
	}
}

// TestTreeBytesBounded: what is too deep to be measured is said to be.
func TestTreeBytesBounded(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for i := range maxDepth + 2 {
		deep = filepath.Join(deep, strconv.Itoa(i%10))
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := TreeBytes(dir); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("TreeBytes of a deep tree: %v", err)
	}
}
