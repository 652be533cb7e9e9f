package history

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// world is one way in which the job of a key may stand. The zero value: there
// is none and never was. Once there was one there always is: the dead one stays
// until a submit replaces it.
type world struct {
	// Both may be true: it may have ended by itself and nobody has looked.
	live, dead bool
	// Empty while nobody was told. A uid is never used again: past is that of the
	// job before.
	uid, past string
	version   uint64
	tasks     uint32
	spec      uint64
	// It may end by itself: now, or after its next change.
	mayEnd bool
}

// worlds are all ways that fit what was seen so far, without doubles. One,
// nearly always: a second comes of a mutation whose end nobody knows.
type worlds []world

// model is what a cell may answer about one job.
var model = porcupine.Model{
	Init: func() any { return worlds{{}} },
	Step: func(state, input, _ any) (bool, any) {
		next := step(state.(worlds), input.(Record))
		return len(next) > 0, next
	},
	Equal: func(a, b any) bool { return slices.Equal(a.(worlds), b.(worlds)) },
	Hash: func(state any) uint64 {
		var h uint64
		for _, w := range state.(worlds) {
			h = h*31 + maphash.Comparable(seed, w)
		}
		return h
	},
}

var seed = maphash.MakeSeed()

// step is every way in which things may stand after r; none: r cannot have been
// answered so.
func step(before worlds, r Record) worlds {
	var after worlds
	add := func(w world) {
		if !slices.Contains(after, w) {
			after = append(after, w)
		}
	}
	for _, w := range before {
		if w.live && w.mayEnd {
			w.dead = true
		}
		if r.Answer == Unknown {
			w.unknown(r, add)
		} else if next, ok := w.answer(r); ok {
			add(next)
		}
	}
	return after
}

// unknown is what a mutation does that nobody saw the answer of; where the cell
// would refuse it, nothing. That it is never done at all needs no way of its
// own: it is then put at the end of the order.
func (w world) unknown(r Record, add func(world)) {
	switch {
	case r.Kind == Submit:
		if w.live {
			add(w.alive())
		}
		if !w.live || w.dead {
			add(w.replaced(r))
		}
	case !w.live || r.conflicts(w):
		add(w)
	default:
		add(w.alive().changed(r))
		if w.dead {
			add(w.ended())
		}
	}
}

// conflicts tells whether a version was expected that is not the present one.
func (r Record) conflicts(w world) bool { return r.ExpectVersion != 0 && r.ExpectVersion != w.version }

// answer is what stands after r was answered as it was; ok is false when the
// cell cannot have said that.
func (w world) answer(r Record) (next world, ok bool) {
	there := w.live || w.dead
	switch r.Answer {
	case Refused:
		return w, true
	case NotFound:
		return w, !there
	case AlreadyExists:
		return w.alive(), w.live && r.Kind == Submit
	case Conflict:
		return w, there && r.conflicts(w)
	case Dead:
		return w.ended(), w.dead && !r.conflicts(w)
	}
	switch {
	case r.Kind == Submit:
		next, ok = w.replaced(r), w.dead || !there
	case r.Kind == Read && r.IsDead:
		next, ok = w.ended(), w.dead
	case r.Kind == Read:
		next, ok = w.alive(), w.live
	default:
		next, ok = w.alive().changed(r), w.live && !r.conflicts(w)
	}
	if r.Kind == Read {
		ok = ok && r.Tasks == next.tasks
	}
	if next.uid == "" {
		next.uid = r.UID
	}
	return next, ok && r.UID == next.uid && r.UID != next.past && r.Version == next.version
}

func (w world) alive() world { w.dead = false; return w }
func (w world) ended() world { w.live = false; return w }

// replaced is the job that a submit makes.
func (w world) replaced(r Record) world {
	past := w.uid
	if past == "" {
		past = w.past
	}
	return world{live: true, past: past, version: 1, tasks: r.Tasks, spec: r.Spec, mayEnd: r.MayEnd}
}

// changed is a live job after a kill, update or resize that is done. A new spec
// or a new number of tasks counts as one version; what changes nothing does
// not.
func (w world) changed(r Record) world {
	switch r.Kind {
	case Kill:
		w.live, w.dead = false, true
	case Update:
		if r.Spec != w.spec || r.Tasks != w.tasks {
			w.version++
		}
		w.spec, w.tasks = r.Spec, r.Tasks
		// What still runs by the spec before may end by it.
		w.mayEnd = w.mayEnd || r.MayEnd
	case Resize:
		if r.Tasks != w.tasks {
			w.version++
		}
		w.tasks = r.Tasks
	}
	return w
}

func (ws worlds) String() string {
	var all []string
	for _, w := range ws {
		all = append(all, w.String())
	}
	return strings.Join(all, ", or ")
}

func (w world) String() string {
	if !w.live && !w.dead {
		return "no job"
	}
	s := "a job"
	if w.uid != "" {
		s += " with uid " + w.uid
	}
	s += fmt.Sprintf(" of version %d and %d tasks", w.version, w.tasks)
	switch {
	case w.live && w.dead:
		s += " that may have ended"
	case w.dead:
		s += " that is dead"
	}
	return s
}
