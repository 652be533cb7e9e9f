package borglet

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// allocKeep is how long the directory of an alloc stays in which no copy is
// any more. The borglet is not told when an alloc ends; a task of it that comes
// back within this time finds its files again.
const allocKeep = time.Hour

// dropAllocs removes the directories of allocs that have had no copy for
// allocKeep. idle remembers since when each has none.
func (s *Store) dropAllocs(used map[string]bool, idle map[string]time.Time, now time.Time) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "allocs"))
	if err != nil {
		return fmt.Errorf("list alloc directories: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		since, known := idle[name]
		switch {
		case used[name]:
			delete(idle, name)
		case !known:
			idle[name] = now
		case now.Sub(since) >= allocKeep:
			if err := s.discard(filepath.Join(s.dir, "allocs", name)); err != nil {
				return fmt.Errorf("remove directory of alloc %s: %w", name, err)
			}
			delete(idle, name)
		}
	}
	return nil
}
