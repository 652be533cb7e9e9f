package borglet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"borg/proto/borgpb"
)

// smallDisk mounts a file system of its own, which can be filled.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a full file system is made by mounting a small one, which needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("small", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk leaves no byte free.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "ballast"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := 1 << 20; chunk > 0; chunk /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, chunk))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// On a full disk a borglet can keep whom it obeyed, what is to stop and what has
// ended, and begins nothing; a later borglet too, and again after there was
// room.
func TestReserve(t *testing.T) {
	dir := smallDisk(t)
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	running := Record{ID: ID{"1-5-0", 0, 1}, Desired: sample(), Run: 1}
	if err := s.Save(running); err != nil {
		t.Fatal(err)
	}
	for life := range 3 {
		fillDisk(t, dir)
		beginning := Record{ID: ID{"1-6-0", 0, 1}, Desired: sample(), Run: 1}
		if err := s.Save(beginning); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("life %d: save of a copy that is to start: %v, want %v", life, err, syscall.ENOSPC)
		}
		if err := s.reserve.startable(); err == nil || !strings.Contains(err.Error(), "is full") {
			t.Errorf("life %d: startable: %v", life, err)
		}
		if err := s.SaveFence(Fence{CellID: "c", Term: uint64(life + 1)}); err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		if got, err := LoadFence(dir); err != nil || got.Term != uint64(life+1) {
			t.Fatalf("life %d: the fence is %+v, %v", life, got, err)
		}
		// Whoever fills the disk takes what was given up.
		fillDisk(t, dir)
		stopping := running
		stopping.Stop = &StopOrder{Cause: borgpb.StopCause_STOP_CAUSE_KILL, Index: uint64(life + 1)}
		if err := s.Save(stopping); err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		fillDisk(t, dir)
		stopping.Ended = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
		if err := s.Save(stopping); err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		if life == 1 {
			// The second time there was room in between.
			if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
				t.Fatal(err)
			}
			if err := s.SaveFence(Fence{CellID: "c"}); err != nil {
				t.Fatal(err)
			}
			if got := s.reserve.bytes; got != reserveBytes {
				t.Errorf("the reserve has %d bytes after there was room, want %d", got, reserveBytes)
			}
		}
		if s, err = OpenStore(dir); err != nil {
			t.Fatal(err)
		}
	}
	// It ends some time; that is said.
	for s.reserve.bytes > 0 {
		fillDisk(t, dir)
		s.reserve.giveUp()
	}
	fillDisk(t, dir)
	if err := s.SaveFence(Fence{CellID: "c"}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("without room and reserve: %v, want %v", err, syscall.ENOSPC)
	}
}
