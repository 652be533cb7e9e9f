package scheduler

// Waits is what waits for a place, as the scheduler sees it.
type Waits struct {
	// Jobs and alloc sets of which something waits, and how many tasks and allocs.
	Lines, Units int
	// Jobs that are held in the batch queue, and that wait for others to finish.
	Held, Followers int
	// Tasks that wait a while because the cell refused them again and again.
	Refused int
}

// Waits counts what waits: a look at each job that does.
func (s *Scheduler) Waits() Waits {
	w := Waits{Held: len(s.queue.held), Followers: len(s.queue.followers), Refused: len(s.refusals)}
	for _, l := range s.queue.byUID {
		if n := len(l.indices); n > 0 {
			w.Lines++
			w.Units += n
		}
	}
	return w
}
