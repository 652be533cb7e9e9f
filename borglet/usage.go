package borglet

import (
	"context"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"borg/proto/borgrpc"
)

// usage is what copies and allocs have used since they were last asked about.
type usage struct {
	mu sync.Mutex
	// running is whom to measure. Guarded by mu.
	running []ID
	// windows is guarded by mu.
	windows windows[ID]
	// allocs is the same of allocs, by AllocName. Guarded by mu.
	allocs windows[string]
}

// windows are those of all copies, or of all allocs.
type windows[K comparable] map[K]*window

// window collects samples of one copy or alloc from one poll to the next.
type window struct {
	// first and last are the ends of what has been measured; the last sample of
	// a window is the first of the next one.
	first, last Stats
	samples     int64
	memSum      int64
	memPeak     int64
	cpuPeak     int64
	diskBytes   int64
	// open is the five minutes under way, over the last that ended and was not told.
	open, over *borgrpc.UsageHistogram
}

// histogramNs is how long a histogram takes.
const histogramNs = int64(5 * time.Minute)

// count takes a sample into the histogram of its five minutes. The first sample of a
// run has no use of the processor yet.
func (w *window) count(s Stats, cpuMilli int64, first bool) {
	from := s.At.UnixNano() / histogramNs * histogramNs
	if w.open == nil || w.open.FromWallNs != from {
		if w.open != nil {
			w.over = w.open
		}
		w.open = &borgrpc.UsageHistogram{FromWallNs: from}
	}
	if !first {
		w.open.CpuMilli = counted(w.open.CpuMilli, cpuMilli)
	}
	w.open.MemMib = counted(w.open.MemMib, s.MemBytes>>20)
}

// counted adds one to the range of v.
func counted(ranges []uint32, v int64) []uint32 {
	r := rangeOf(v)
	for len(ranges) <= r {
		ranges = append(ranges, 0)
	}
	ranges[r]++
	return ranges
}

// rangeOf is the range of a histogram that a value lies in: below 4 each has its own,
// from there on each power of two is divided in four.
func rangeOf(v int64) int {
	if v < 4 {
		return int(max(v, 0))
	}
	n := bits.Len64(uint64(v)) - 1
	return 4*(n-1) + int(v>>(n-2)&3)
}

func newUsage() *usage { return &usage{windows: windows[ID]{}, allocs: windows[string]{}} }

func (u *usage) setRunning(ids []ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running = ids
}

// memory is what each copy had when it was last measured.
func (u *usage) memory() map[ID]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.windows.memory()
}

// allocMemory is what all in each alloc had, by AllocName.
func (u *usage) allocMemory() map[string]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.allocs.memory()
}

func (ws windows[K]) memory() map[K]int64 {
	bytes := make(map[K]int64, len(ws))
	for id, w := range ws {
		bytes[id] = w.last.MemBytes
	}
	return bytes
}

func (u *usage) measured() []ID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running
}

// record takes in one round of samples of copies.
func (u *usage) record(stats map[ID]Stats, disk map[ID]int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.windows.record(stats, disk)
}

// recordAllocs takes in one round of samples of allocs.
func (u *usage) recordAllocs(stats map[string]Stats, disk map[string]int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.allocs.record(stats, disk)
}

// record takes in one round of samples and forgets who is not in it.
func (ws windows[K]) record(stats map[K]Stats, disk map[K]int64) {
	for id := range ws {
		if _, ok := stats[id]; !ok {
			delete(ws, id)
		}
	}
	for id, s := range stats {
		w := ws[id]
		if w == nil || s.CPUNs < w.last.CPUNs {
			// A new run counts from zero again.
			next := &window{first: s, last: s}
			if w != nil {
				next.diskBytes, next.open, next.over = w.diskBytes, w.open, w.over
			}
			w = next
			ws[id] = w
		}
		cpu := cpuMilli(w.last, s)
		w.count(s, cpu, w.last.At.Equal(s.At))
		w.cpuPeak = max(w.cpuPeak, cpu)
		w.last = s
		w.samples++
		w.memSum += s.MemBytes
		w.memPeak = max(w.memPeak, s.MemBytes)
		if bytes, ok := disk[id]; ok {
			w.diskBytes = bytes
		}
	}
}

// cpuMilli is the mean use of the processor between two samples.
func cpuMilli(a, b Stats) int64 {
	elapsed := int64(b.At.Sub(a.At))
	if elapsed <= 0 {
		return 0
	}
	return (b.CPUNs - a.CPUNs) * 1000 / elapsed
}

// take returns what was used since the last take, in the order of reports.
// A copy that was not measured since is left out.
func (u *usage) take() []*borgrpc.Usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	ids := u.windows.measured()
	slices.SortFunc(ids, compareIDs)
	list := make([]*borgrpc.Usage, 0, len(ids))
	for _, id := range ids {
		used := u.windows[id].take()
		used.Copy = id.wire()
		list = append(list, used)
	}
	return list
}

// takeAllocs is take for allocs, of which it is given the names that masters know, by
// AllocName.
func (u *usage) takeAllocs(names map[string]string) []*borgrpc.AllocUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []*borgrpc.AllocUsage
	for _, key := range u.allocs.measured() {
		if name, ok := names[key]; ok {
			list = append(list, &borgrpc.AllocUsage{Alloc: name, Usage: u.allocs[key].take()})
		}
	}
	slices.SortFunc(list, func(a, b *borgrpc.AllocUsage) int { return strings.Compare(a.Alloc, b.Alloc) })
	return list
}

// measured are those with a sample since the last take.
func (ws windows[K]) measured() []K {
	ids := make([]K, 0, len(ws))
	for id, w := range ws {
		if w.samples > 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// take tells the window, and begins the next one where it ends.
func (w *window) take() *borgrpc.Usage {
	used := &borgrpc.Usage{
		CpuMilliMean: cpuMilli(w.first, w.last),
		CpuMilliPeak: w.cpuPeak,
		MemBytesMean: w.memSum / w.samples,
		MemBytesPeak: w.memPeak,
		DiskBytes:    w.diskBytes,
		ThrottledNs:  w.last.ThrottledNs - w.first.ThrottledNs,
		RssBytes:     w.last.RSSBytes,
		CacheBytes:   w.last.CacheBytes,
		MemMaxBytes:  w.last.MemPeakBytes,
		ReadBytes:    w.last.ReadBytes - w.first.ReadBytes,
		WriteBytes:   w.last.WriteBytes - w.first.WriteBytes,
		Histogram:    w.over,
	}
	*w = window{first: w.last, last: w.last, diskBytes: w.diskBytes, open: w.open}
	return used
}

// allocsEvery is how often allocs that have gone are looked for, in rounds of
// sampling.
const allocsEvery = 60

// sample measures until ctx ends. It is a goroutine of its own, so that a slow
// file system holds up no poll.
func (a *Agent) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	idle := map[string]time.Time{}
	var disk diskMeter
	var portsDue, killsDue time.Time
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ids := a.usage.measured()
		if round%allocsEvery == 0 {
			if v := a.view.Load(); v != nil {
				if err := a.store.dropAllocs(v.allocs, v.kept, idle, time.Now()); err != nil {
					a.cfg.Log.Warn("an alloc that has gone is still on disk", "machine", a.cfg.Name, "err", err)
				}
			}
		}
		if a.cfg.KeptFor > 0 && round%allocsEvery == 0 {
			if err := a.store.kept.expire(time.Now().Add(-a.cfg.KeptFor)); err != nil {
				a.cfg.Log.Warn("the output of a forgotten copy is still on disk", "machine", a.cfg.Name, "err", err)
			}
		}
		a.recordLogLengths()
		stats, ofAll := a.cfg.Runtime.Stats(ids), map[string]Stats(nil)
		v := a.view.Load()
		if v != nil {
			ofAll = a.cfg.Runtime.AllocStats(slices.Collect(maps.Keys(v.allocs)))
			a.papers.charge(stats, ofAll, v.inAlloc)
		}
		onDisk, ofAllocs := a.measureDisk(ctx, &disk, ids)
		a.usage.record(stats, onDisk)
		if v != nil {
			a.usage.recordAllocs(ofAll, ofAllocs)
		}
		a.relieve(ctx, stats)
		a.lookAtPorts(&portsDue, ids)
		a.lookAtKills(&killsDue, ids)
	}
}
