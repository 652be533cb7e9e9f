package audit

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"borg/proto/borgpb"
)

// TestAgedBesideDrop: files that become too old while a group of them is rewritten stay gone, and those after them stay
// there, whether they were removed before they were read or after.
func TestAgedBesideDrop(t *testing.T) {
	for _, removed := range []bool{true, false} {
		dir, now := t.TempDir(), aDay()
		trail := trailAt(t, dir, now)
		j := trail.Log.journal
		for i := uint64(2); i < 8; i++ {
			trail.Log.Applied(i, asks(t, "mallory", fmt.Sprint("j", i), now.UnixNano(), 100), []*borgpb.Result{{Version: 1}})
			if err := j.seal(); err != nil {
				t.Fatal(err)
			}
		}
		all := slices.Clone(j.files)
		for _, gone := range []int{0, 1} {
			// The oldest file goes after the plan was made: it is the whole group, then its first half.
			plan := &group{files: all[gone : 2*gone+1], out: tally{}}
			plan.out[shareOf(&borgpb.AuditRecord{Role: borgpb.Role_ROLE_USER, Who: "mallory"})] = 1
			if removed {
				if err := j.removeOldest(); err != nil {
					t.Fatal(err)
				}
			} else {
				j.files = slices.Delete(j.files, 0, 1)
			}
			if err := j.replace(plan); err != nil {
				t.Errorf("replace: %v, want nothing to be wrong", err)
			}
			if !slices.Equal(j.files, all[gone+1:]) || j.drops != 0 {
				t.Errorf("%d of %d files are left and %d records dropped, want %d files and none", len(j.files), len(all), j.drops, len(all)-gone-1)
			}
			if _, err := os.Stat(j.path(all[gone])); removed && err == nil {
				t.Errorf("%s is there again", j.path(all[gone]))
			}
			if err := j.weigh(&journalFile{number: all[gone].number, last: all[gone].last}); err != nil && removed {
				t.Errorf("weigh a file that is gone: %v", err)
			}
		}
		if err := trail.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
