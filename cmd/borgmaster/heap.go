package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

const (
	// heapRoom is how much the heap may grow at least before garbage is collected. A
	// master makes garbage at the rate of the log, whatever the size of its cell: with
	// the runtime's rule that the heap may double, one with a small cell would collect
	// without end. With little room a flood can fill little: a replica of a small cell takes some 90 MiB at rest.
	heapRoom = 64 << 20
	// mostHeapRoom is what that may become in a rush, so that garbage is collected once in
	// collectEvery if that is enough: each time costs as much as before, and finds the same
	// in use.
	mostHeapRoom = 512 << 20
	collectEvery = 10 * time.Second
	// rushPercent bounds it by what is in use: a collection costs in proportion to that, so a
	// small cell gains little from more room, and whoever floods it would fill the room.
	rushPercent = 200
	// restsBefore is how many looks in a row find little allocated before what a rush has
	// left is collected and returned to the system.
	restsBefore = 5
	// heapPercent is how much it may grow, of what is in use: the runtime's own rule.
	heapPercent = 100
	// mostHeapPercent bounds what an almost empty heap would come to.
	mostHeapPercent = 3_200
	heapEvery       = 2 * time.Second
	// electionRoom is how much more it may grow for electionTime after an election. The
	// machines of a master that is gone are taken over then, all are polled anew and a
	// scheduler loads the cell; a collection in the midst of that would have half of the
	// processors of a small machine for seconds. Of a small cell that is in no proportion: it is bounded as a rush is.
	electionRoom  = 256 << 20
	electionTime  = 10 * time.Second
	electionEvery = 50 * time.Millisecond
	// The room may shrink while the heap has grown by no more than so many per cent of what
	// is left of it.
	shrinkPercent = 50
)

// gcPercent is by how many per cent a heap of which so much is in use may grow.
func gcPercent(liveBytes, roomBytes uint64) int {
	return int(min(max(heapPercent, roomBytes*100/max(liveBytes, 1)), mostHeapPercent))
}

// wantedRoom is the room that is enough for collectEvery when so much was allocated within
// heapEvery.
func wantedRoom(allocatedBytes uint64) uint64 {
	return allocatedBytes * uint64(collectEvery/heapEvery)
}

// rushRoom is the room of a heap of which so much is in use, at most.
func rushRoom(liveBytes uint64) uint64 {
	return min(max(liveBytes*rushPercent/100, heapRoom), mostHeapRoom)
}

// nextRoom is the room when so much was allocated within heapEvery. It shrinks by and by.
func nextRoom(liveBytes, roomBytes, allocatedBytes uint64) uint64 {
	return min(max(wantedRoom(allocatedBytes), roomBytes*9/10, heapRoom), rushRoom(liveBytes))
}

// roomAfter is the room so long after an election.
func roomAfter(liveBytes, roomBytes uint64, since time.Duration) uint64 {
	if extra := electionExtra(liveBytes, since); extra > 0 {
		return max(roomBytes, liveBytes*heapPercent/100) + extra
	}
	return roomBytes
}

// electionExtra is the room that a heap has in addition so long after an election.
func electionExtra(liveBytes uint64, since time.Duration) uint64 {
	if since >= electionTime {
		return 0
	}
	return min(electionRoom, max(liveBytes*rushPercent/100, heapRoom))
}

// mayShrink says whether a heap that has grown so far may be given a smaller room. Once it
// has come near the end of that, garbage would be collected in a hurry: whoever allocates
// would have to do most of it first, an entry that is applied too.
func mayShrink(liveBytes, heapBytes uint64, percent int) bool {
	return max(heapBytes, liveBytes)-liveBytes <= liveBytes*uint64(percent)/100*shrinkPercent/100
}

// overgrown reports whether a heap has grown so much since its percentage was chosen that
// the percentage gives it more room than any heap may have. A percentage that suits a small heap
// gives one that calls have made large many times its size, and what was garbage would be kept.
func overgrown(liveBytes uint64, percent int) bool {
	return percent > heapPercent && liveBytes*uint64(percent)/100 > max(liveBytes*heapPercent/100, rushRoom(liveBytes))+electionRoom
}

// leftOver reports whether a process at rest holds more than it would if there had been no
// rush: garbage, and pages that are free. The runtime looks at both with its next collection
// alone, and at rest that is far away.
func leftOver(liveBytes, heapBytes, freeBytes uint64) bool {
	return max(heapBytes, liveBytes)-liveBytes+freeBytes > liveBytes*heapPercent/100+heapRoom
}

// giveHeapRoom keeps to gcPercent and memoryLimit until ctx ends, unless the environment says
// something else. term is that of the log.
func giveHeapRoom(ctx context.Context, term func() uint64) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	meter := newMeter()
	tick := time.NewTicker(electionEvery)
	defer tick.Stop()
	room, allocated, percent := uint64(heapRoom), uint64(0), heapPercent
	known, electedAt, looked, rests := uint64(0), time.Time{}, time.Time{}, 0
	limit := limiter{began: time.Now()}
	for {
		now := time.Now()
		elected, due := false, now.Sub(looked) >= heapEvery
		if t := term(); t != known {
			known, electedAt, elected = t, now, true
		}
		u, ok := meter.read()
		if !ok {
			return
		}
		over, passed := overgrown(u.live, percent), time.Duration(0)
		if elected || due || over {
			if due {
				made := u.allocated - allocated
				room, allocated, passed, looked = nextRoom(u.live, room, made), u.allocated, now.Sub(looked), now
				if rests++; wantedRoom(made) > heapRoom {
					rests = 0
				}
			}
			next := gcPercent(u.live, roomAfter(u.live, room, now.Sub(electedAt)))
			// Each change stops the world for a moment.
			grows, shrinks := next > percent*11/10, next < percent*10/11 || next == heapPercent && percent != next
			if grows || shrinks && (over || mayShrink(u.live, u.heap, next)) {
				debug.SetGCPercent(next)
				percent = next
			}
			if rests >= restsBefore && leftOver(u.live, u.heap, u.free) {
				debug.FreeOSMemory()
				rests = 0
			}
		}
		limit.look(u, passed, electionExtra(u.live, now.Sub(electedAt)))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
