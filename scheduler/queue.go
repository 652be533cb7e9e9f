package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
)

// line is what waits of one job or of one alloc set.
type line struct {
	uid      cell.UID
	key      cell.JobKey
	priority int32
	// indices wait; ascending.
	indices []uint32
	// next is the place in indices of the one whose turn comes next.
	next int

	// job is nil for the allocs of a set, set is nil for the tasks of a job.
	job *cell.Job
	set *cell.AllocSet
}

// rest returns what has not had its turn yet.
func (l *line) rest() []uint32 { return l.indices[l.next:] }

// drop takes the line out of the queue for the rest of the pass.
func (l *line) drop() { l.next = len(l.indices) }

// queue is the order in which what waits is looked at: priority from high to
// low (which is band before priority, since bands are ranges of priority);
// within one priority the users in turn, so that one with a million tasks does
// not stand in front of one with three; within one user the jobs in turn,
// oldest first; within one job by index.
type queue struct {
	// levels are not empty; from high priority to low.
	levels []*level
}

// level is everything that waits at one priority.
type level struct {
	priority int32
	// users is in order of name and holds nobody without lines.
	users []*userLines
	turn  int
}

// userLines is what one user waits for at one priority.
type userLines struct {
	user  string
	lines []*line
	turn  int
}

// newQueue orders lines.
func newQueue(lines []*line) *queue {
	slices.SortFunc(lines, func(a, b *line) int {
		return cmp.Or(
			cmp.Compare(b.priority, a.priority),
			cmp.Compare(a.key.User, b.key.User),
			a.uid.Compare(b.uid),
		)
	})
	q := &queue{}
	var lv *level
	var u *userLines
	for _, l := range lines {
		if lv == nil || lv.priority != l.priority {
			lv = &level{priority: l.priority}
			q.levels = append(q.levels, lv)
			u = nil
		}
		if u == nil || u.user != l.key.User {
			u = &userLines{user: l.key.User}
			lv.users = append(lv.users, u)
		}
		u.lines = append(u.lines, l)
	}
	return q
}

// take returns the next line that has something left and moves the turn on. The
// caller takes from the line: one index, or all of them.
func (q *queue) take() *line {
	for len(q.levels) > 0 {
		if l := q.levels[0].take(); l != nil {
			return l
		}
		q.levels = q.levels[1:]
	}
	return nil
}

func (lv *level) take() *line {
	for len(lv.users) > 0 {
		if lv.turn >= len(lv.users) {
			lv.turn = 0
		}
		if l := lv.users[lv.turn].take(); l != nil {
			lv.turn++
			return l
		}
		lv.users = slices.Delete(lv.users, lv.turn, lv.turn+1)
	}
	return nil
}

func (u *userLines) take() *line {
	for len(u.lines) > 0 {
		if u.turn >= len(u.lines) {
			u.turn = 0
		}
		if l := u.lines[u.turn]; len(l.rest()) > 0 {
			u.turn++
			return l
		}
		u.lines = slices.Delete(u.lines, u.turn, u.turn+1)
	}
	return nil
}

// version is that of the spec that waits.
func (l *line) version() uint64 {
	if l.job == nil {
		// The spec of an alloc set never changes.
		return 1
	}
	return l.job.Version()
}

// gang tells whether all of the line is placed or nothing.
func (l *line) gang() bool {
	if l.job == nil {
		return l.set.Spec().GetGang()
	}
	return l.job.Spec().GetGang()
}
