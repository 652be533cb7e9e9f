package admission

import (
	"cmp"

	"borg/mutant"
)

const (
	// The window is looked at so often.
	epochNs = 100e6
	// Bounds of the window, in cost, and what it begins with.
	minWindow   = 8
	maxWindow   = 4_096
	firstWindow = 256
	// For so many epochs after the last write of somebody who asks for little the
	// window is small.
	lightEpochs = 100
	// What a light write is taken to need until one was seen in quiet.
	firstBaseNs = 20e6
	// Beside somebody who asks for little the others have a turn so often at most: it meets
	// one of theirs on its way now and then, and not each time.
	pauseNs = 40e6
	// No write may take so long on average: a user who asks for little may come at any
	// moment, and then waits for what is on its way.
	mostNs = 200e6
	// What the window is when somebody who asks for little comes to a crowd, until it is
	// known what leaves that user enough time.
	firstCrowded = 64
)

// window is how much may be on its way through the log at a time. A large one makes
// large batches, and so most out of the log; a small one lets a single write through
// quickly. So it is large while nobody asks for little, and otherwise as large as leaves
// a light write about the time that it needs in quiet, and the unluckiest one not much
// more than twice that.
type window struct {
	size, used int64
	// When the present epoch began, and how many there were.
	beganNs, epochs int64
	// Somebody waited for a place in this epoch.
	limited bool
	// A write that is not light got a place in this epoch. Light ones alone, however many,
	// are kept from nobody by a small window: it would only make them wait in line.
	heavy bool
	// Times of writes in this epoch: of all, and of the light ones; the longest of those.
	n, sumNs                       int64
	lightN, lightSumNs, lightMaxNs int64
	lastLightNs                    int64
	// What a light write needs in quiet; 0: none was seen yet.
	baseNs int64
	// What the window was last when light writes had a crowd beside them, and what it was
	// before.
	crowded, free int64
}

func newWindow() window {
	return window{size: firstWindow, free: firstWindow, crowded: firstCrowded}
}

// lightComes shrinks the window when the first light write joins heavy ones. It starts from the
// size that worked last time.
func (w *window) lightComes() {
	w.free = w.size
	if w.used > w.crowded {
		w.size = min(w.size, w.crowded)
	}
}

// lightsGone restores the size that the window had before the first light write.
func (w *window) lightsGone() {
	if !mutant.Planted(mutant.WindowStaysSmall) {
		w.size = max(w.size, w.free)
	}
}

// full reports whether a write of that cost must wait. A write that would be alone never does.
func (w *window) full(cost int64) bool { return w.used > 0 && w.used+cost > w.size }

func (w *window) base() int64 { return cmp.Or(w.baseNs, firstBaseNs) }

func (w *window) done(tookNs int64, light bool) {
	w.n++
	w.sumNs += tookNs
	if light {
		w.lightN++
		w.lightSumNs += tookNs
		w.lightMaxNs = max(w.lightMaxNs, tookNs)
	}
}

// turn ends the epoch, if it is time. Lights says that somebody asks for little beside
// others, of whom so many wait.
func (w *window) turn(now int64, lights bool, waiting int) (ended bool) {
	if now-w.beganNs < epochNs {
		return false
	}
	w.adapt(lights, int64(waiting))
	w.epochs += max((now-w.beganNs)/epochNs, 1)
	w.beganNs = now
	w.limited, w.heavy, w.n, w.sumNs, w.lightN, w.lightSumNs, w.lightMaxNs = false, false, 0, 0, 0, 0, 0
	return true
}

func (w *window) adapt(lights bool, waiting int64) {
	if w.lightN > 0 {
		w.lastLightNs = w.lightSumNs / w.lightN
	}
	crowded := w.lightN > 0 && w.heavy
	tooLong, atMost := w.base()*5/4+1e6, w.base()*5/2+1e6
	switch {
	case w.lightN > 0 && !w.limited && w.used < w.size/2:
		w.learn(w.lastLightNs)
	case crowded && w.lastLightNs > 2*tooLong:
		w.crowd(w.size/2, waiting)
	case crowded && (w.lastLightNs > tooLong || w.lightMaxNs > atMost):
		w.crowd(w.size*7/10, waiting)
	case w.heavy && w.n > 0 && w.sumNs/w.n > mostNs:
		w.size = max(w.size*7/10, minWindow)
	case !w.limited:
	case crowded:
		w.crowd(w.size+max(w.size/16, 1), waiting)
	case w.n > 0 && !lights:
		w.size = min(w.size+max(w.size/4, 1), maxWindow)
	}
}

// crowd sets the window while there are light writes. In each turn there is a place for
// each user who waits, be they many.
func (w *window) crowd(size, waiting int64) {
	w.size = min(max(size, minWindow, waiting), maxWindow)
	w.crowded = w.size
}

// learn takes in what a light write took while nobody waited. What is less is believed
// at once, what is more by and by.
func (w *window) learn(ns int64) {
	if w.baseNs == 0 || ns < w.baseNs {
		w.baseNs = max(ns, 1)
		return
	}
	w.baseNs += (ns - w.baseNs) / 64
}
