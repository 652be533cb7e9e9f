package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// heapRoom is how much the heap may grow at least before garbage is collected. A
	// master makes garbage at the rate of the log, whatever the size of its cell: with
	// the runtime's rule that the heap may double, one with a small cell would collect
	// without end.
	heapRoom = 128 << 20
	// heapPercent is how much it may grow, of what is in use: the runtime's own rule.
	heapPercent = 100
	// mostHeapPercent bounds what an almost empty heap would come to.
	mostHeapPercent = 3_200
	heapEvery       = 2 * time.Second
)

// gcPercent is by how many per cent a heap of which so much is in use may grow.
func gcPercent(liveBytes uint64) int {
	return int(min(max(heapPercent, heapRoom*100/max(liveBytes, 1)), mostHeapPercent))
}

// giveHeapRoom keeps to gcPercent until ctx ends, unless the environment says
// something else.
func giveHeapRoom(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(heapEvery)
	defer tick.Stop()
	for last := heapPercent; ; {
		metrics.Read(live)
		if live[0].Value.Kind() != metrics.KindUint64 {
			return
		}
		// Each change stops the world for a moment.
		if next := gcPercent(live[0].Value.Uint64()); next > last*11/10 || next < last*10/11 || next == heapPercent && last != next {
			debug.SetGCPercent(next)
			last = next
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
