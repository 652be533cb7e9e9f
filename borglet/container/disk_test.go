package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/borglet/beneath"
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

// nested makes directories in one another with a file of a MiB in the last.
func nested(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, openDirectory, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		err := unix.Mkdirat(fd, "directory", 0o700)
		if err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "directory", openDirectory, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	defer unix.Close(fd)
	file, err := unix.Openat(fd, "file", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if _, err := unix.Write(file, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
}

// TestTreeBytesDeep: the depth of a tree hides nothing, and its levels are not all open at
// once.
func TestTreeBytesDeep(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := beneath.Clear(dir); err != nil {
			t.Error(err)
		}
	})
	const depth = 8 * openLevels
	nested(t, dir, depth)
	for i := range 100 {
		// Beside the way down, and read after it.
		if err := os.WriteFile(filepath.Join(dir, "directory", strings.Repeat("x", 200)+strconv.Itoa(i)), make([]byte, 8<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := diskUse(t, dir)
	w := treeWalk{bounds: treeBounds{maxDepth, maxFiles, maxWaitingBytes}, linked: map[inode]bool{}, buf: make([]byte, 1<<10)}
	fd, err := unix.Open(dir, openDirectory, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Where directories take no room each counts as a block all the same.
	const least = (depth + 1) * fileBlocks * 512
	isWant := func(n int64) bool { return n >= want && n <= want+least }
	if err := errors.Join(w.push(fd), w.walk()); err != nil || !isWant(w.blocks*512) {
		t.Errorf("in small steps %d bytes, %v, want %d and at most %d more", w.blocks*512, err, want, least)
	}
	if n, err := TreeBytes(dir); err != nil || !isWant(n) {
		t.Errorf("TreeBytes of a deep tree = %d, %v, want %d and at most %d more", n, err, want, least)
	}
}

// diskUse is what du says.
func diskUse(t *testing.T, dir string) int64 {
	t.Helper()
	out, err := exec.Command("du", "--block-size=1", "--summarize", dir).Output()
	if err != nil {
		t.Skip("no du: ", err)
	}
	var n int64
	if _, err := fmt.Sscan(string(out), &n); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	return n - st.Blocks*512
}

// TestTreeBytesOfEmptyFiles: files in which nothing is count, and so does the room of a
// directory that had many names.
func TestTreeBytesOfEmptyFiles(t *testing.T) {
	dir := t.TempDir()
	if n, err := TreeBytes(dir); n != 0 || err != nil {
		t.Fatalf("TreeBytes of an empty directory = %d, %v", n, err)
	}
	const files = 500
	name := func(i int) string { return filepath.Join(dir, strings.Repeat("x", 200)+strconv.Itoa(i)) }
	for i := range files {
		if err := os.WriteFile(name(i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := TreeBytes(dir); err != nil || n < files*fileBlocks*512 {
		t.Errorf("TreeBytes of %d empty files = %d, %v, want 4 KiB for each", files, n, err)
	}
	for i := range files {
		if err := os.Remove(name(i)); err != nil {
			t.Fatal(err)
		}
	}
	blocks, err := statBlocks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := TreeBytes(dir); err != nil || n != max(blocks-fileBlocks, 0)*512 {
		t.Errorf("TreeBytes of what had many names = %d, %v, want what its %d blocks are above 4 KiB", n, err, blocks)
	}
}

// TestAvailableByFiles: a file system that has few files left has as little room.
func TestAvailableByFiles(t *testing.T) {
	const gib = int64(1) << 30
	fs := func(files, free uint64) *unix.Statfs_t {
		return &unix.Statfs_t{Bsize: 4096, Blocks: uint64(100 * gib / 4096), Bavail: uint64(50 * gib / 4096), Files: files, Ffree: free}
	}
	for _, c := range []struct {
		fs   *unix.Statfs_t
		want int64
	}{
		{fs(0, 0), 50 * gib}, {fs(1000, 1000), 50 * gib}, {fs(1000, 500), 50 * gib}, {fs(1000, 100), 10 * gib}, {fs(1000, 0), 0},
	} {
		if got := availableBytes(c.fs); got != c.want {
			t.Errorf("with %d of %d files free: %d bytes, want %d", c.fs.Ffree, c.fs.Files, got, c.want)
		}
	}
}

// TestTreeBytesBounded: what is too deep or too much to be measured is said to be.
func TestTreeBytesBounded(t *testing.T) {
	dir := t.TempDir()
	nested(t, dir, 12)
	for want, bounds := range map[string]treeBounds{
		"more than 10 deep":  {10, 100, 1 << 10},
		"more than 10 files": {100, 10, 1 << 10},
		"long names":         {100, 100, 8},
	} {
		if _, err := treeBytes(dir, bounds); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %v: %v, want %q", bounds, err, want)
		}
	}
	if n, err := treeBytes(dir, treeBounds{12, 100, 16}); err != nil || n < 1<<20 {
		t.Errorf("within its bounds: %d, %v", n, err)
	}
}

// TestTreeBytesMoves: a directory far above that was moved meanwhile is no way out of the
// tree.
func TestTreeBytesMoves(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "tree")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	nested(t, dir, 2*openLevels)
	w := treeWalk{bounds: treeBounds{maxDepth, maxFiles, maxWaitingBytes}, linked: map[inode]bool{}, buf: make([]byte, 1<<10)}
	defer w.close()
	fd, err := unix.Open(dir, openDirectory, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.push(fd); err != nil {
		t.Fatal(err)
	}
	for range 2 * openLevels {
		if err := w.descend(w.levels[len(w.levels)-1].fd, "directory"); err != nil {
			t.Fatal(err)
		}
	}
	moved := filepath.Join(dir, strings.Repeat("directory/", openLevels))
	if err := os.Rename(moved, filepath.Join(top, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := w.walk(); !errors.Is(err, errMoved) {
		t.Errorf("the walk ended with %v, want that directories moved", err)
	}
}
