package borglet

import (
	"context"
	"slices"
	"sync"
	"time"

	"borg/proto/borgrpc"
)

// usage is what copies have used since they were last asked about.
type usage struct {
	mu sync.Mutex
	// running is whom to measure. Guarded by mu.
	running []ID
	// windows is guarded by mu.
	windows map[ID]*window
}

// window collects samples of one copy from one poll to the next.
type window struct {
	// first and last are the ends of what has been measured; the last sample of
	// a window is the first of the next one.
	first, last Stats
	samples     int64
	memSum      int64
	memPeak     int64
	cpuPeak     int64
	diskBytes   int64
}

func newUsage() *usage { return &usage{windows: map[ID]*window{}} }

func (u *usage) setRunning(ids []ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running = ids
}

// memory is what each copy had when it was last measured.
func (u *usage) memory() map[ID]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	bytes := make(map[ID]int64, len(u.windows))
	for id, w := range u.windows {
		bytes[id] = w.last.MemBytes
	}
	return bytes
}

func (u *usage) measured() []ID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running
}

// record takes in one round of samples and forgets who is not in it.
func (u *usage) record(stats map[ID]Stats, disk map[ID]int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id := range u.windows {
		if _, ok := stats[id]; !ok {
			delete(u.windows, id)
		}
	}
	for id, s := range stats {
		w := u.windows[id]
		if w == nil || s.CPUNs < w.last.CPUNs {
			// A new run counts from zero again.
			w = &window{first: s, last: s}
			u.windows[id] = w
		}
		w.cpuPeak = max(w.cpuPeak, cpuMilli(w.last, s))
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
	ids := make([]ID, 0, len(u.windows))
	for id, w := range u.windows {
		if w.samples > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, compareIDs)
	list := make([]*borgrpc.Usage, 0, len(ids))
	for _, id := range ids {
		w := u.windows[id]
		list = append(list, &borgrpc.Usage{
			Copy:         id.wire(),
			CpuMilliMean: cpuMilli(w.first, w.last),
			CpuMilliPeak: w.cpuPeak,
			MemBytesMean: w.memSum / w.samples,
			MemBytesPeak: w.memPeak,
			DiskBytes:    w.diskBytes,
		})
		*w = window{first: w.last, last: w.last, diskBytes: w.diskBytes}
	}
	return list
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
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ids := a.usage.measured()
		if round%allocsEvery == 0 {
			if v := a.view.Load(); v != nil {
				if err := a.store.dropAllocs(v.allocs, idle, time.Now()); err != nil {
					a.cfg.Log.Warn("an alloc that has gone is still on disk", "machine", a.cfg.Name, "err", err)
				}
			}
		}
		a.trimLogs(ids)
		stats := a.cfg.Runtime.Stats(ids)
		a.usage.record(stats, a.measureDisk(ctx, &disk, ids))
		a.relieve(ctx, stats)
	}
}
