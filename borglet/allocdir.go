package borglet

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// allocKeep is how long the directory of an alloc stays in which no copy is any more,
// and of which no master says that it is to stay.
const allocKeep = time.Hour

// dropAllocs removes the directories of allocs that have had no copy for
// allocKeep, but for those that masters want kept: the allocs that are here, though
// nothing runs in them, and those that left what is not saved yet. Until a master was
// heard (kept is nil) all stay. idle remembers since when each has none.
func (s *Store) dropAllocs(used map[string]string, kept map[string]bool, idle map[string]time.Time, now time.Time) error {
	if kept == nil {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "allocs"))
	if err != nil {
		return fmt.Errorf("list alloc directories: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		since, known := idle[name]
		switch {
		case used[name] != "" || kept[name]:
			delete(idle, name)
		case !known:
			idle[name] = now
		case now.Sub(since) >= allocKeep:
			s.lift(filepath.Join(s.dir, "allocs", name))
			if err := s.discard(filepath.Join(s.dir, "allocs", name)); err != nil {
				return fmt.Errorf("remove directory of alloc %s: %w", name, err)
			}
			delete(idle, name)
		}
	}
	return nil
}
