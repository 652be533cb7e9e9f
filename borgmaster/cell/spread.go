package cell

import "borg/mutant"

// shares counts the tasks of a job by the failure domains over which its update
// spreads, and those that the update has taken down. A task that has no place counts where it
// was last. It is made when an update looks for whom to deal with next: to keep it up
// with every copy that comes and goes would cost all jobs for what few ask for.
type shares struct {
	// How many of them may be down at once: what extra tasks that do not run take of
	// the room is not theirs.
	room        uint32
	all         uint32
	tasks, down map[domain]uint32
}

func (c *Cell) shares(u *Update) *shares {
	s := &shares{room: u.room() - min(u.room(), u.extrasDown()), tasks: make(map[domain]uint32), down: make(map[domain]uint32)}
	for _, t := range u.job.rows[:u.job.Size()] {
		d, ok := c.spreadDomain(u, t)
		if !ok {
			continue
		}
		s.all++
		s.tasks[d]++
		if t.flags&taskUpdating != 0 {
			s.down[d]++
		}
	}
	return s
}

// spreadDomain is where a task is or was last; not ok: nowhere that is still there.
func (c *Cell) spreadDomain(u *Update, t *Task) (d domain, ok bool) {
	p := t.cur
	if p == nil {
		p = t.past
	}
	if p == nil {
		return domain{}, false
	}
	m := c.machines[p.machine.name]
	if m == nil {
		return domain{}, false
	}
	return m.outer(DomainAttribute, u.spreadBy), true
}

// domainFull tells whether as many tasks of the domain of one that runs are down as its
// share of the batch, and if not, counts that one in.
func (c *Cell) domainFull(u *Update, t *Task, memo *changeMemo) bool {
	if u.spreadBy == "" || mutant.Planted(mutant.SpreadNotAsked) {
		return false
	}
	if memo.shares == nil {
		memo.shares = c.shares(u)
	}
	s := memo.shares
	d := t.cur.machine.outer(DomainAttribute, u.spreadBy)
	if s.down[d] >= shareOf(s.room, s.tasks[d], s.all) {
		return true
	}
	s.down[d]++
	return false
}

// shareOf is as large a part of the room as a domain has of all tasks, rounded up.
func shareOf(room, tasks, all uint32) uint32 {
	return uint32((uint64(room)*uint64(tasks) + uint64(all) - 1) / uint64(max(all, 1)))
}
