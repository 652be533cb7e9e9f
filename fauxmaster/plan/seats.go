package plan

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// seated reports whether a task of a daemon job has a machine that takes tasks.
func seated(j *cell.Job, index uint32) bool {
	m := j.Seat(index)
	return m != nil && m.Up() && !m.Draining()
}

// unseated counts the pending tasks of a daemon job whose machine takes no tasks: they wait for
// that machine and need no other place.
func unseated(j *cell.Job) (n uint32) {
	if j.Kind() != borgpb.JobKind_JOB_KIND_DAEMON {
		return 0
	}
	for i, t := range j.Tasks() {
		if t.State() == borgpb.State_STATE_PENDING && !seated(j, i) {
			n++
		}
	}
	return n
}
