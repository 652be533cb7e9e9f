package audit

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPowerLossIsNotHidden: the disk has the mark of an entry and not the last records before it. Entries that are applied
// again are kept, and those that are not are told as a hole.
func TestPowerLossIsNotHidden(t *testing.T) {
	for _, again := range []bool{true, false} {
		dir, now := t.TempDir(), aDay()
		trail := trailAt(t, dir, now)
		apply := func(from, to uint64) {
			for i := from; i <= to; i++ {
				trail.Log.Applied(i, entryOf(t, fmt.Sprint("j", i)), done)
			}
		}
		apply(2, 10)
		path := trail.Log.journal.path(trail.Log.journal.files[0])
		synced, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		apply(11, 20)
		whole := tell(t, trail.Log)
		if err := trail.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, synced.Size()); err != nil {
			t.Fatal(err)
		}
		trail = trailAt(t, dir, now)
		if again {
			apply(9, 20)
			if got := tell(t, trail.Log); got != whole {
				t.Errorf("told is %q, want %q", got, whole)
			}
		} else {
			apply(21, 21)
			if got := tell(t, trail.Log); !strings.Contains(got, "hole:11-20") {
				t.Errorf("told is %q, want a hole from 11 to 20", got)
			}
		}
		trail.Close()
	}
}

// TestEmptyLastFile: of the last file the disk has nothing. What is before it is known all the same.
func TestEmptyLastFile(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail := trailAt(t, dir, now)
	for i := uint64(2); i < 6; i++ {
		if i == 5 {
			if err := trail.Log.journal.seal(); err != nil {
				t.Fatal(err)
			}
		}
		trail.Log.Applied(i, entryOf(t, fmt.Sprint("j", i)), done)
	}
	path := trail.Log.journal.path(trail.Log.journal.files[1])
	trail.Close()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	trail = trailAt(t, dir, now)
	defer trail.Close()
	trail.Log.Applied(7, entryOf(t, "j7"), done)
	if got := tell(t, trail.Log); !strings.Contains(got, "hole:5-6") || strings.Contains(got, "hole:2-") {
		t.Errorf("told is %q, want a hole from 5 to 6", got)
	}
}

// TestFailedSyncIsTriedAgain: after a sync that failed, the next one is no success before the disk took something, and
// what comes then is in a file of its own.
func TestFailedSyncIsTriedAgain(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail := trailAt(t, dir, now)
	defer trail.Close()
	j := trail.Log.journal
	trail.Log.Applied(2, entryOf(t, "j2"), done)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	file := j.open
	j.open = w
	for range 2 {
		if err := trail.Log.sync(); err == nil {
			t.Error("a pipe was synced")
		}
	}
	j.open = file
	if err := trail.Log.sync(); err != nil {
		t.Fatal(err)
	}
	trail.Log.Applied(3, entryOf(t, "j3"), done)
	if err := trail.Log.sync(); err != nil {
		t.Fatal(err)
	}
	trail.Log.Applied(4, entryOf(t, "j4"), done)
	if len(j.files) != 2 {
		t.Errorf("there are %d files, want 2: one that was in doubt and the next", len(j.files))
	}
}
