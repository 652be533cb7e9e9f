package scheduler

import "fmt"

// A machine that is silent may be down, and is not called so yet. What would be assigned
// to it could not start before it answers, so it gets nothing meanwhile. That comes from
// the master beside the log: the cell does not know it, and takes an assignment there.

// SetSilent says which machines are silent now, in place of those before.
func (s *Scheduler) SetSilent(names []string) {
	before := s.silent
	s.silent = make(map[string]bool, len(names))
	for _, name := range names {
		s.silent[name] = true
		if !before[name] {
			s.heard(name)
		}
	}
	for name := range before {
		if !s.silent[name] {
			s.heard(name)
		}
	}
}

// heard looks again at a machine that went silent, or answers again.
func (s *Scheduler) heard(name string) {
	if s.sites == nil {
		// The first look at the copy will see it.
		return
	}
	t := s.sites.byName[name]
	if t == nil || t.slot < 0 {
		return
	}
	t.silent = s.silent[name]
	s.stirred = true
	if s.renumbered {
		return
	}
	s.grid.describe(t)
	s.changed(t)
}

// silentWords is what Explain says of machines that would do and are silent.
func silentWords(n int) string {
	if n == 1 {
		return "1 would do and is silent"
	}
	return fmt.Sprintf("%d would do and are silent", n)
}
