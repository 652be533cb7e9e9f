package sim

import (
	"slices"

	"borg/fauxmaster/pretend"
)

// Points at which an aimed fault strikes. One that comes to such a point while
// the fault waits for it dies within a millisecond.
const (
	beforeAppend   = "an append is about to be synced"
	afterAppend    = "an append is synced"
	appliedNotKept = "an entry is applied and not flushed"
	duringInstall  = "a checkpoint is being installed"
	newlyElected   = "a replica is newly elected"
	fenceNotKept   = pretend.FenceNotKept
	betweenSteps   = pretend.BetweenSteps
	// Only where an aim asks for them.
	newerTerm       = "a newer term is on a disk"
	replacedEntries = "entries have replaced others on a disk"
	saidNotKept     = pretend.SaidNotKept
	strikeWithinNs  = millisecond
	aimLastsNs      = 2 * second
)

var replicaPoints = []string{beforeAppend, afterAppend, appliedNotKept, duringInstall, newlyElected}

var points = append(slices.Clone(replicaPoints), fenceNotKept, betweenSteps)

// aim has the fault wait for its point.
func (w *World) aim(f *fault) string {
	among := w.swarm.points
	if among == nil {
		among = points
	}
	point := among[f.rand.IntN(len(among))]
	after, skip := between(f.rand, 0, strikeWithinNs), f.rand.IntN(20)
	if point == duringInstall || point == newlyElected || point == replacedEntries || point == newerTerm {
		skip = 0
	}
	until := w.now + aimLastsNs
	if point == duringInstall {
		until = w.now + 10*second
	}
	w.aimed = append(w.aimed, &aimedAt{fault: f, point: point, skip: skip, afterNs: after, untilNs: until})
	return "a crash is aimed at when " + point
}

// aimedAt is a fault that waits for its point; skip of those are let go first.
type aimedAt struct {
	fault   *fault
	point   string
	skip    int
	afterNs int64
	untilNs int64
}

// reach says that somebody has come to a point; strike is what an aimed fault does
// to him.
func (w *World) reach(point string, strike func(f *fault)) {
	for i, a := range w.aimed {
		switch {
		case w.now > a.untilNs || w.healed:
			w.aimed = slices.Delete(w.aimed, i, i+1)
			return
		case a.point != point:
		case a.skip > 0:
			a.skip--
		default:
			w.aimed = slices.Delete(w.aimed, i, i+1)
			w.say("fault %d strikes: %s", a.fault.number, point)
			w.mark("struck when " + point)
			w.after(a.afterNs, func() {
				if !w.healed {
					strike(a.fault)
				}
			})
			return
		}
	}
}

// reaches is reach for a replica, which then crashes, unless it is to be calm.
func (r *replicaNode) reaches(point string) {
	if len(r.w.aimed) > 0 && (r.w.weak(r) || calmAt(r.w.now) != r.w.now) {
		life := r.life
		r.w.reach(point, func(f *fault) {
			if r.life == life {
				r.w.crash(f, r, false)
			}
		})
	}
}
