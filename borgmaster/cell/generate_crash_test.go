package cell

import (
	"slices"

	"borg/proto/borgpb"
)

// failures has a borglet say how often a process ended in a row.
func (g *generator) failures(r *borgpb.TaskReport) {
	if g.c.format < FormatCrashingServices || g.one(3) {
		return
	}
	if r.Failures = uint32(g.r.IntN(crashesBeforeMoved)); r.State == int32(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF) && !g.one(4) {
		r.Failures += crashesBeforeMoved
	}
}

// triedElsewhere holds that what a service is moved for is remembered, unless something
// came of its task later in the entry.
func (w *walk) triedElsewhere(e Event, later []Event) {
	j := w.c.JobByUID(e.UID)
	if j == nil || j.Task(e.Task) == nil || slices.ContainsFunc(later, func(o Event) bool { return o.UID == e.UID && o.Task == e.Task }) {
		return
	}
	r := j.Task(e.Task).crashRow()
	if r == nil || r.machine != e.Machine || r.copies < 2 || r.crashes < crashesBeforeMoved || r.everywhere {
		w.t.Fatalf("%s is moved as it crashed on %s, and what is remembered is %+v", e.Object(), e.Machine, r)
	}
	if r.copies > 2 {
		w.edges["crashed where it had crashed"]++
	}
}
