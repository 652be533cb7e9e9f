package sim

import (
	"fmt"
	"math/rand/v2"

	"borg/borgmaster/cell"
)

// drawBuilds begins some replicas as an older build, which knows one format of
// the cell less. They are upgraded one by one while the run goes on.
func (w *World) drawBuilds(r *rand.Rand) {
	older := 0
	if r.IntN(3) == 0 {
		older = 1 + r.IntN(replicas)
	}
	for i, x := range r.Perm(replicas) {
		w.replicas[x].build = cell.BuildFormat
		if i < older {
			w.replicas[x].build--
		}
	}
}

// changeBuildOf restarts a replica as another build: an upgrade, or a step back.
func (w *World) changeBuildOf(f *fault, x *replicaNode) string {
	if !x.up {
		return fmt.Sprintf("replica %d would be upgraded, and is down", x.id)
	}
	x.build = cell.BuildFormat
	x.steppedBack = f.rand.IntN(4) == 0
	if x.steppedBack {
		x.build--
		w.mark("replica stepped back to an older build")
	}
	w.crash(f, x, false)
	return fmt.Sprintf("replica %d is restarted as a build that knows formats up to %d", x.id, x.build)
}

// raised: the cell may be raised to a format only when every replica that runs,
// or may come back as it was, can apply it. One that stepped back after it had
// spoken stops, and says so.
func (w *World) raised(format uint32) {
	w.mark("format raised")
	for _, x := range w.replicas {
		if x.build < format && !x.steppedBack {
			w.fail("the cell is raised to format %d, and replica %d is of a build that knows formats up to %d", format, x.id, x.build)
		}
	}
}

// tooOld ends a replica whose build cannot go on; its operator brings a newer
// one. What it had written stays.
func (r *replicaNode) tooOld(err error) {
	r.w.say("replica %d stops: %v", r.id, err)
	r.w.mark("build too old")
	if !r.steppedBack {
		r.w.fail("replica %d stops, and was never of another build: %v", r.id, err)
	}
	if r.up {
		r.crash(keepSynced, false)
	}
	life := r.life
	r.w.after(between(r.rand, 100*millisecond, 2*second), func() {
		if !r.up && r.life == life {
			r.build, r.steppedBack = cell.BuildFormat, false
			r.start()
		}
	})
}
