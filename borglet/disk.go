package borglet

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"borg/proto/borgpb"
)

const (
	// diskEvery is how often the directories of tasks are added up when nothing
	// hurries.
	diskEvery = 30 * time.Second
	// diskPart: adding up takes at most so small a part of the time, however many
	// files there are.
	diskPart = 50
	// diskHaste is how much less room there must be than when directories were last
	// added up, for that to be done before its time: somebody fills the disk.
	diskHaste = 64 << 20
	// diskLeast is the shortest time between two measurements.
	diskLeast = 2 * time.Second
	// spareDiskBytes is to a disk what spareBytes is to memory.
	spareDiskBytes = 1 << 30

	diskSqueezedText = "ended: its machine's disk was full, and it was the first to give way; its files are removed"
	aboveVolumeText  = "ended: its volume "
	aboveDiskText    = "ended: it kept more on disk than its limit"
)

// UpperSubdir is the part of a copy's directory that takes what a run writes to
// the root that an image gave it.
const UpperSubdir = "upper"

// Filled is what copies keep on the machine's disk.
type Filled struct {
	// As with Squeezed. No room is known when both are zero: then only the limits
	// of copies count.
	CapacityBytes, RoomBytes int64
	UsedBytes                map[ID]int64
	// AllocBytes is what the shared directory of each alloc holds, by AllocName.
	AllocBytes map[string]int64
	// VolumeBytes is what each volume holds in which a copy works.
	VolumeBytes map[VolumeID]int64
	// Unmeasured says of copies why what they keep cannot be added up. Whoever has a
	// limit must keep to what can be measured.
	Unmeasured map[ID]string
}

func (Filled) event() {}

// fill ends who keeps more than his limit, then all in an alloc that does, and when
// the disk is full who must give way by the rules of memory. What they wrote goes
// with them: their end alone would give nothing back.
func (c *Core) fill(ev Filled) {
	inAlloc := map[string]int64{}
	for _, id := range c.ids {
		if t := c.copies[id]; t.Desired.GetAlloc() != "" {
			inAlloc[AllocName(t.Desired.GetAlloc())] += ev.UsedBytes[id]
		}
	}
	var rest []share
	for _, id := range c.ids {
		t := c.copies[id]
		used, measured := ev.UsedBytes[id]
		why, unmeasured := ev.Unmeasured[id]
		if t.phase != running || !measured && !unmeasured || t.squeezed != "" {
			continue
		}
		limit := t.Desired.GetSpec().GetResources().GetDiskBytes()
		alloc, ofAlloc := AllocName(t.Desired.GetAlloc()), t.Desired.GetAllocResources().GetDiskBytes()
		shared := ev.AllocBytes[alloc] + inAlloc[alloc]
		over := overVolume(t.Desired, ev.VolumeBytes)
		switch {
		case over != "":
			c.clearOut(t, over)
			t.Clear = false
		case limit > 0 && unmeasured:
			c.clearOut(t, "ended: what it keeps on disk cannot be measured against its limit: "+why)
		case limit > 0 && used > limit:
			c.clearOut(t, fmt.Sprintf("%s: %s of %s; its files are removed", aboveDiskText, mib(used), mib(limit)))
		case alloc != "" && ofAlloc > 0 && shared > ofAlloc:
			c.clearOut(t, fmt.Sprintf("ended: its alloc kept more on disk than its limit: %s of %s; its own files are removed", mib(shared), mib(ofAlloc)))
		default:
			rest = append(rest, share{id: id, priority: t.Desired.GetPriority(), usedBytes: used, limitBytes: limit, reservedBytes: limit})
		}
	}
	if ev.CapacityBytes == 0 && ev.RoomBytes == 0 {
		return
	}
	for _, s := range giveWay(ev.CapacityBytes, ev.RoomBytes, rest) {
		// Whoever keeps nothing would end for nothing.
		if s.usedBytes > 0 {
			c.clearOut(c.copies[s.id], diskSqueezedText)
		}
	}
}

// clearOut ends a run for what it keeps on disk.
func (c *Core) clearOut(t *task, why string) {
	t.squeezed, t.Clear = why, true
	c.emit(Kill{t.ID, t.Run})
	t.dueNs = c.now.MonoNs + retryNs
}

// gaveWay is how the end of a run is told that was made to give way, unless it had
// just ended by itself.
func (t *task) gaveWay(exit *borgpb.Exit) (told *borgpb.Exit, text string) {
	if !killed(exit) {
		t.Clear = false
		return exit, ""
	}
	if t.Clear || strings.HasPrefix(t.squeezed, aboveVolumeText) {
		return exit, t.squeezed
	}
	return squeezedExit(exit), t.squeezed
}

func mib(bytes int64) string {
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// diskMeter measures what copies keep on disk, more often while the disk fills.
type diskMeter struct {
	// due is when it is done next; the zero time: now.
	due time.Time
	// ended is when it was last done, and freeBytes the most that was free since.
	ended     time.Time
	freeBytes int64
}

// hurry: the disk fills, so that the next measurement is due early.
func (d *diskMeter) hurry(now time.Time, freeBytes int64, least time.Duration) bool {
	return now.Sub(d.ended) >= least && d.freeBytes-freeBytes >= diskHaste
}

// done takes in a measurement that took from began to ended.
func (d *diskMeter) done(began, ended time.Time, freeBytes int64) {
	d.ended, d.freeBytes = ended, freeBytes
	d.due = ended.Add(max(diskEvery, diskPart*ended.Sub(began)))
}

// markLogs notes how far the output of copies has come at this time.
func (a *Agent) markLogs() {
	v := a.view.Load()
	if v == nil {
		return
	}
	a.clock.look(a.store, v.begun, func(err error) {
		a.cfg.Log.Warn("the times of a log cannot be kept", "machine", a.cfg.Name, "err", err)
	})
}

// freeDisk is how much may still be written on the disk of the tasks.
func (a *Agent) freeDisk() (bytes int64, ok bool) {
	if a.cfg.AvailableDiskBytes == nil {
		return 0, false
	}
	return a.cfg.AvailableDiskBytes()
}

// measureDisk adds up what copies and allocs keep, if that is due, and tells the
// core. What an alloc keeps is its directory and what those in it do, by AllocName.
func (a *Agent) measureDisk(ctx context.Context, d *diskMeter, ids []ID) (ofCopies map[ID]int64, ofAllocs map[string]int64) {
	began := time.Now()
	free, known := a.freeDisk()
	least := max(diskLeast, d.due.Sub(d.ended)-diskEvery)
	// What was freed since may be filled again.
	d.freeBytes = max(d.freeBytes, free)
	if a.cfg.TreeBytes == nil || began.Before(d.due) && (!known || !d.hurry(began, free, least)) {
		return nil, nil
	}
	ev := Filled{UsedBytes: make(map[ID]int64, len(ids)), AllocBytes: map[string]int64{}, VolumeBytes: map[VolumeID]int64{}, Unmeasured: map[ID]string{}}
	sum := int64(0)
	for _, id := range ids {
		if ctx.Err() != nil {
			return nil, nil
		}
		bytes, err := a.keeps(id)
		if err != nil {
			ev.Unmeasured[id] = err.Error()
		}
		ev.UsedBytes[id] = bytes
		sum += ev.UsedBytes[id]
	}
	if v := a.view.Load(); v != nil {
		for alloc := range v.allocs {
			// An alloc whose directory cannot be measured counts with what was.
			bytes, _ := a.cfg.TreeBytes(filepath.Join(a.store.dir, "allocs", alloc))
			ev.AllocBytes[alloc] = bytes
		}
		ofAllocs = maps.Clone(ev.AllocBytes)
		for id, bytes := range ev.UsedBytes {
			if alloc := v.inAlloc[id]; alloc != "" {
				ofAllocs[alloc] += bytes
			}
		}
	}
	use := map[VolumeID]int64{}
	for _, id := range a.store.volumes.all() {
		// One that cannot be measured counts with what was.
		bytes, err := a.cfg.TreeBytes(a.store.volumes.path(id))
		if err == nil {
			use[id] = bytes
		}
		ev.VolumeBytes[id] = bytes
		sum += bytes
	}
	a.volumeUse.measured(use)
	if total := a.cfg.Spec.GetCapacity().GetDiskBytes(); known && total > 0 {
		ev.CapacityBytes = total
		ev.RoomBytes = max(min(total, sum+free-min(spareDiskBytes, total/sparePart)), 1)
	}
	d.done(began, time.Now(), free)
	select {
	case a.results <- ev:
	case <-ctx.Done():
	}
	return ev.UsedBytes, ofAllocs
}
