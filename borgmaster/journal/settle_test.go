package journal

import (
	"os"
	"slices"
	"testing"

	"borg/proto/borgpb"
)

// unsyncable is a file of which no sync succeeds.
func unsyncable(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return w
}

// TestFailedSyncIsAGap: what was written since the last sync is a gap once one fails, be it of the file that is written
// or of one that is full, and the mark waits until that gap outlives the machine.
func TestFailedSyncIsAGap(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		dir, now := t.TempDir(), aDay()
		j := journalAt(t, dir, now)
		write := func(from, to uint64) {
			for i := from; i <= to; i++ {
				apply(t, j, i)
			}
			j.Flush(nothing())
		}
		write(2, 4)
		if err := j.settle(); err != nil || j.marked != 4 {
			t.Fatalf("the mark is %d (%v), want 4", j.marked, err)
		}
		write(5, 6)
		file := j.store.open
		j.store.open = unsyncable(t)
		if sealed {
			j.store.fileBytes = 1
			write(7, 7)
			if err := j.settle(); err == nil {
				t.Error("a file was closed without a sync, and nothing was said")
			}
		} else {
			for range 2 {
				if err := j.settle(); err == nil {
					t.Error("a pipe was synced")
				}
			}
			j.store.open = file
			apply(t, j, 7)
		}
		// The gap waits.
		if err := j.settle(); err != nil || j.marked != 4 {
			t.Errorf("the mark is %d (%v), want 4", j.marked, err)
		}
		j.Flush(nothing())
		if err := j.settle(); err != nil || j.marked != 7 {
			t.Errorf("the mark is %d (%v), want 7", j.marked, err)
		}
		want := "2 3 4 5 6 gap:5-6 7"
		if sealed {
			want = "2 3 4 5 6 gap:5-7"
		}
		if got := words(t, j); got != want {
			t.Errorf("the journal says %q, want %q", got, want)
		}
		j.Close()
	}
}

// TestWhatWasThereIsSynced: a mark of this process vouches for what the one before it wrote, too.
func TestWhatWasThereIsSynced(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	j := journalAt(t, dir, now)
	apply(t, j, 2)
	j.Flush(nothing())
	// The process ends before it settles.
	j = journalAt(t, dir, now)
	file := j.store.open
	j.store.open = unsyncable(t)
	if err := j.settle(); err == nil || j.marked != 1 {
		t.Errorf("the mark is %d (%v), want 1 and an error", j.marked, err)
	}
	j.store.open = file
	j.Close()
}

// TestDroppedBesideThin: files that are dropped while they are rewritten stay gone, and thin does not fail.
func TestDroppedBesideThin(t *testing.T) {
	now := aDay()
	s := storeAt(t, t.TempDir(), 64<<20, now)
	defer s.close()
	for i := uint64(2); i < 6; i++ {
		if _, err := s.append(blockOf(i, now.UnixNano(), 100)); err != nil {
			t.Fatal(err)
		}
		if err := s.seal(); err != nil {
			t.Fatal(err)
		}
	}
	all := slices.Clone(s.files)
	for _, removed := range []bool{true, false} {
		gone, next := s.files[0], s.files[1]
		if removed {
			if err := remove(s.path(gone.number)); err != nil {
				t.Fatal(err)
			}
		}
		s.files = slices.Delete(s.files, 0, 1)
		left := slices.Clone(s.files)
		if err := s.weigh(&file{number: gone.number}); removed && err != nil {
			t.Errorf("weigh: %v, want nothing to be wrong", err)
		}
		for _, plan := range [][2]*file{{nil, gone}, {gone, next}} {
			if _, err := s.replace(plan[0], plan[1], shares{"ann": 1}); err != nil {
				t.Errorf("replace: %v, want nothing to be wrong", err)
			}
		}
		if !slices.Equal(s.files, left) || len(s.dropped) != 0 {
			t.Errorf("%d of %d files are left and %v dropped, want %d files and nothing", len(s.files), len(all), s.dropped, len(left))
		}
	}
}

// TestGapsStayInOrder: what lies in a new gap is told by that, and gaps that meet become one.
func TestGapsStayInOrder(t *testing.T) {
	j := journalAt(t, t.TempDir(), aDay())
	defer j.Close()
	for range 3 {
		j.gap(12, 13, "later")
		j.retell([]*borgpb.AuditHole{{From: 2, To: 3, Why: "before"}, {From: 5, To: 6, Why: "in it"}}, 4, 11, os.ErrClosed)
		if len(j.gaps) != 3 || j.gaps[0].To != 3 || j.gaps[1].From != 4 || j.gaps[1].To != 11 || j.gaps[2].From != 12 {
			t.Errorf("the gaps are %v, want 2-3, 4-11 and 12-13", j.gaps)
		}
		j.gaps = nil
	}
}
