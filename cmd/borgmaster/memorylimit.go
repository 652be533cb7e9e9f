package main

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// liveRoomPercent is how much memory a heap may always take beyond what is in use, in percent of that.
	// Less would have the collector work without end.
	liveRoomPercent = 20
	// restTime is how long what is in use counts as a rush, before it counts as what the process uses at rest.
	restTime = 2 * time.Minute
	// startTime is how long a process that was just started has no rush: it loads its cell.
	startTime = 10 * time.Second
)

// usage is what a process uses of memory, in bytes.
type usage struct {
	// live was found in use by the last collection, heap is the objects now with garbage, and free is pages
	// that are kept for reuse.
	live, heap, free uint64
	// overhead is stacks, the parts of pages that no object uses, and what the runtime needs for itself.
	overhead uint64
	// allocated counts from the start.
	allocated uint64
}

// meter reads the usage of this process.
type meter []metrics.Sample

func newMeter() meter {
	return meter{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"},
	}
}

// read reports false if this runtime does not tell.
func (m meter) read() (u usage, ok bool) {
	metrics.Read(m)
	var v [6]uint64
	for i := range m {
		if m[i].Value.Kind() != metrics.KindUint64 {
			return u, false
		}
		v[i] = m[i].Value.Uint64()
	}
	u = usage{live: v[0], heap: v[1], free: v[2], allocated: v[5]}
	// The figures are not of one moment.
	u.overhead = v[3] - min(v[4]+v[1]+v[2], v[3])
	return u, true
}

// nextRest is what a process uses at rest, after it used so much for a while. It follows
// at once what is freed, and slowly what is used more.
func nextRest(restBytes, liveBytes uint64, passed time.Duration) uint64 {
	if liveBytes <= restBytes {
		return liveBytes
	}
	return restBytes + uint64(float64(liveBytes-restBytes)*math.Min(passed.Seconds()/restTime.Seconds(), 1))
}

// memoryLimit is what the process may take of memory: what it uses, and room for garbage. The room follows
// what it uses at rest, so that a flood of calls, which makes more be in use, does not
// get more room for garbage with that; up to half of the smallest room is what became in use. extra is room after an election.
func memoryLimit(u usage, restBytes, extraBytes uint64) uint64 {
	floor := uint64(heapRoom - min(max(u.live, restBytes)-restBytes, heapRoom/2))
	room := max(floor, u.live*liveRoomPercent/100, min(restBytes*rushPercent/100, mostHeapRoom), restBytes*heapPercent/100)
	return u.live + u.overhead + room + extraBytes
}

// limiter keeps the limit of this process.
type limiter struct {
	rest, limit uint64
	began       time.Time
}

// look sets the limit that follows from what is used. passed is the time since the last look that was due, zero
// if none is due: then the limit only grows, because a smaller one has the collector hurry.
func (l *limiter) look(u usage, passed time.Duration, extraBytes uint64) {
	if passed > 0 {
		if l.rest = nextRest(l.rest, u.live, passed); time.Since(l.began) < startTime {
			l.rest = u.live
		}
	}
	want := memoryLimit(u, l.rest, extraBytes)
	used := u.live + u.overhead
	switch {
	// Each change stops the world for a moment.
	case l.limit == 0, want > l.limit && used+(want-used)/2 > l.limit, passed > 0 && want > l.limit*11/10:
	case passed > 0 && want < l.limit*10/11 && u.heap+u.overhead < used+(want-used)/2:
	default:
		return
	}
	l.limit = want
	debug.SetMemoryLimit(int64(min(want, math.MaxInt64)))
}
