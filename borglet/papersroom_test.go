package borglet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestPapersHaveTheirRoom: whatever is put into a copy's papers, and however many replaced
// files the task holds open, they take no more memory than is charged to it; all of that
// counts as used by it and by its alloc; and nothing is left when the copy has ended.
func TestPapersHaveTheirRoom(t *testing.T) {
	dir := t.TempDir()
	p := &papers{dir: dir, bounded: true, log: slog.New(slog.DiscardHandler), due: map[ID]time.Time{}, ends: map[ID]time.Time{}}
	files := &pushed{papers: p}
	id, other := ID{JobUID: "1-1-0", Attempt: 1}, ID{JobUID: "1-2-0", Attempt: 1}
	spec := &borgpb.TaskSpec{Files: []*borgpb.PushedFile{{Name: "a"}}}
	for _, one := range []ID{id, other} {
		err := p.makeRoom(one, spec)
		if errors.Is(err, unix.EPERM) {
			t.Skip("nothing can be mounted here")
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.drop(one) })
		if _, err := p.hold(one); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.makeRoom(id, spec); err != nil {
		t.Fatalf("the next run of the copy: %v", err)
	}
	put := func(id ID, version int) error {
		content := []byte(strings.Repeat(fmt.Sprint(version%10), borgpb.MaxFileBytes))
		return files.put(id, spec.Files, []*borgrpc.TaskFile{{Name: "a", Content: content}})
	}
	room := ownPaperBytes + spec.PaperBytes()
	var open []*os.File
	var err error
	for version := range 100 {
		if err = put(id, version); err != nil {
			break
		}
		f, err := os.Open(filepath.Join(p.path(id), FilesPapers, "a"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	if want := int(room / borgpb.MaxFileBytes); err == nil || !strings.Contains(err.Error(), "no room left") || len(open) != want {
		t.Errorf("%d versions held open, then %v; want %d, and that there is no room", len(open), err, want)
	}
	if got := p.taken(id); got > room || got < room-borgpb.MaxFileBytes {
		t.Errorf("the papers take %d bytes, want at most %d", got, room)
	}
	if err := put(other, 1); err != nil {
		t.Errorf("the files of another task: %v", err)
	}
	stats := map[ID]Stats{id: {MemBytes: 1000}, other: {MemBytes: 5}}
	allocs := map[string]Stats{"u.s.0": {MemBytes: 2000}}
	p.charge(stats, allocs, map[ID]string{id: "u.s.0"})
	if got, want := stats[id].MemBytes, 1000+p.taken(id); got != want {
		t.Errorf("the task uses %d bytes, want %d", got, want)
	}
	if got, want := stats[other].MemBytes, int64(5+borgpb.MaxFileBytes); got != want {
		t.Errorf("the other task uses %d bytes, want %d", got, want)
	}
	if got, want := allocs["u.s.0"].MemBytes, 2000+p.taken(id); got != want {
		t.Errorf("the alloc uses %d bytes, want %d", got, want)
	}
	for _, f := range open {
		f.Close()
	}
	if err := put(id, 1); err != nil {
		t.Errorf("when it holds none open: %v", err)
	}
	if got := p.taken(id); got != borgpb.MaxFileBytes {
		t.Errorf("one file takes %d bytes, want %d", got, borgpb.MaxFileBytes)
	}
	// The next borglet removes what is nobody's.
	delete(p.due, other)
	if err := errors.Join(p.sweep(nil), p.drop(id)); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestPapersLowerTheLimit: what secrets and files may take is no part of the limit of the
// task's cgroup.
func TestPapersLowerTheLimit(t *testing.T) {
	spec := &borgpb.TaskSpec{Resources: &borgpb.Resources{MemBytes: 64 << 20}, Secrets: []string{"a", "b"}, Files: []*borgpb.PushedFile{{Name: "a"}}}
	if got, want := limitsOf(spec, false).MemBytes, int64(64<<20-4*borgpb.MaxSecretBytes-2*borgpb.MaxFileBytes); got != want {
		t.Errorf("the limit is %d, want %d", got, want)
	}
	spec.Resources.MemBytes = 0
	if got := limitsOf(spec, false).MemBytes; got != 0 {
		t.Errorf("the limit of a task without one is %d", got)
	}
}
