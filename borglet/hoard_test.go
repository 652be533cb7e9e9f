package borglet

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestHoardsAreCut: what a stream takes of the disk behind its end, or again in the part
// that was given back, is given back, and its copy is told of; what was written stays, and
// a task that only writes much is left alone.
func TestHoardsAreCut(t *testing.T) {
	const keep = 1 << 20
	const keepSize = 1
	for _, test := range []struct {
		name  string
		hoard func(fd int, size int64) error
		want  bool
		// Bytes of what was allocated that stay.
		kept int64
	}{
		{"behind its end", func(fd int, size int64) error { return syscall.Fallocate(fd, keepSize, size, 20<<20) }, true, 0},
		{"in its hole", func(fd int, size int64) error { return syscall.Fallocate(fd, 0, 0, size-4<<20) }, true, 0},
		{"before its end", func(fd int, size int64) error { return syscall.Fallocate(fd, 0, size, 20<<20) }, true, 0},
		{"less than the bound", func(fd int, size int64) error { return syscall.Fallocate(fd, keepSize, size, keep/2) }, false, keep / 2},
		{"as a file system preallocates", func(fd int, size int64) error { return syscall.Fallocate(fd, keepSize, size, keep+pieceAlign) }, false, keep + pieceAlign},
		{"nothing", func(int, int64) error { return nil }, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newRotated(t, keep)
			var told []Hoarded
			c.agent.rotator.hoarded = func(ev Hoarded) { told = append(told, ev) }
			const size = 32 << 20
			c.write(stdoutFile, string(lines(0, size)), time.Now())
			c.round(packBytes)
			if len(told) > 0 {
				t.Fatalf("told of what was written: %v", told)
			}
			path := filepath.Join(c.agent.store.TaskDir(c.id), stdoutFile)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := test.hoard(int(f.Fd()), size); err != nil {
				t.Fatal(err)
			}
			pieces, _ := c.pieces()
			c.round(packBytes)
			if got := len(told) == 1; got != test.want {
				t.Errorf("told %v, want told: %t", told, test.want)
			}
			for _, ev := range told {
				if ev.ID != c.id || !strings.Contains(ev.Why, "its output took") {
					t.Errorf("told %v", ev)
				}
			}
			held, n, err := blocksOf(f)
			if err != nil || n < size || held < test.kept || held > test.kept+keep+keep/2+2*pieceAlign {
				t.Errorf("it takes %d bytes for a length of %d (%v), and should keep %d of what was allocated", held, n, err, test.kept)
			}
			if after, _ := c.pieces(); len(after) != len(pieces) && test.name != "before its end" {
				t.Errorf("pieces %v, then %v", pieces, after)
			}
		})
	}
}
