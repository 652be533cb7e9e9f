package borglet

import (
	"fmt"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// diskEvery is how often the directories of tasks are added up when nothing
	// hurries.
	diskEvery = 30 * time.Second
	// diskPart: adding up takes at most so small a part of the time, however many
	// files there are, unless the disk fills.
	diskPart = 50
	// diskHaste is how much less room there must be than when directories were last
	// added up, for that to be done before its time: somebody fills the disk.
	diskHaste = 64 << 20
	// diskLeast is the shortest time between two measurements.
	diskLeast = 2 * time.Second
	// diskPatience is how long directories are not added up at most, unless that takes longer,
	// while there is diskHaste less room.
	diskPatience = 30 * time.Second
	// spareDiskBytes is to a disk what spareBytes is to memory.
	spareDiskBytes = 1 << 30

	diskSqueezedText = "ended: its machine's disk was full, and it was the first to give way; its files are removed"
	aboveVolumeText  = "ended: its volume "
	aboveDiskText    = "ended: it kept more on disk than its limit"
	unmeasuredText   = "ended: its disk use could not be measured against its limit"
)

// UpperSubdir is the part of a copy's directory that takes what a run writes to
// the root that an image gave it.
const UpperSubdir = "upper"

// Filled is one measurement of the disk space that copies, allocs and volumes use.
type Filled struct {
	// As with Squeezed. Both are zero if the room is not known; then only the limits of
	// copies apply.
	CapacityBytes, RoomBytes int64
	UsedBytes                map[ID]int64
	// Bytes in the shared directory of each alloc, by AllocName.
	AllocBytes map[string]int64
	// Bytes in each volume of the machine.
	VolumeBytes map[VolumeID]int64
	// Why a copy, an alloc or a volume could not be measured. If it has a limit it is then
	// over that.
	Unmeasured       map[ID]string
	UnmeasuredAlloc  map[string]string
	UnmeasuredVolume map[VolumeID]string
}

func (Filled) event() {}

// Hoarded is the event of a copy whose output uses disk without data, or that keeps the borglet
// from bounding its output.
type Hoarded struct {
	ID ID
	// Why the copy is ended, in words.
	Why string
}

func (Hoarded) event() {}

// hoarded ends a copy for its output. What it keeps elsewhere is not to blame.
func (c *Core) hoarded(ev Hoarded) {
	t := c.copies[ev.ID]
	if t == nil || t.phase != running || t.squeezed != "" {
		return
	}
	c.clearOut(t, "ended: "+ev.Why)
	t.Clear = false
}

// fill ends copies that keep more than their limit, then all in an alloc that does. When the
// disk is full it ends others, chosen as when memory is short (pressure.go). What they wrote
// goes with them: their end alone would give nothing back.
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
		if _, unmeasured := ev.Unmeasured[id]; t.squeezed != "" && t.phase == running || !measured && !unmeasured {
			continue
		}
		own := ev.overOwn(t)
		switch {
		case t.phase == backoff:
			c.clearLeft(t, own)
			continue
		case t.phase != running:
			continue
		}
		alloc := AllocName(t.Desired.GetAlloc())
		if over := ev.overVolume(t.Desired); over != "" {
			c.clearOut(t, over)
			t.Clear = false
		} else if own != "" {
			c.clearOut(t, own)
		} else if over := ev.overAlloc(t, ev.AllocBytes[alloc]+inAlloc[alloc]); over != "" {
			c.clearOut(t, over)
		} else {
			limit := t.Desired.GetSpec().GetResources().GetDiskBytes()
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

// overOwn says how a copy is over its own limit; empty: it is not.
func (ev *Filled) overOwn(t *task) string {
	limit, used := t.Desired.GetSpec().GetResources().GetDiskBytes(), ev.UsedBytes[t.ID]
	why, unmeasured := ev.Unmeasured[t.ID]
	switch {
	case limit > 0 && used > limit:
		return fmt.Sprintf("%s: %s of %s; its files are removed", aboveDiskText, mib(used), mib(limit))
	case limit > 0 && unmeasured:
		return fmt.Sprintf("%s: %s; its files are removed", unmeasuredText, why)
	}
	return ""
}

// overAlloc says how the alloc of a copy is over its limit, with what all in it keep
// together; empty: it is not.
func (ev *Filled) overAlloc(t *task, shared int64) string {
	alloc, limit := t.Desired.GetAlloc(), t.Desired.GetAllocResources().GetDiskBytes()
	if alloc == "" || limit <= 0 {
		return ""
	}
	if shared > limit {
		return fmt.Sprintf("ended: its alloc kept more on disk than its limit: %s of %s; its own files are removed", mib(shared), mib(limit))
	}
	if why, unmeasured := ev.UnmeasuredAlloc[AllocName(alloc)]; unmeasured {
		return fmt.Sprintf("ended: the disk use of its alloc could not be measured against its limit: %s; its own files are removed", why)
	}
	return ""
}

// overVolume says which volume of a copy is over its limit; empty: none is.
func (ev *Filled) overVolume(d *borgrpc.Desired) string {
	for _, v := range VolumesOf(d) {
		if v.DiskBytes <= 0 {
			continue
		}
		if bytes := ev.VolumeBytes[v.ID]; bytes > v.DiskBytes {
			return fmt.Sprintf(aboveVolumeText+"%s keeps more than it may: %s of %s; nothing in it is removed", v.ID.Name, mib(bytes), mib(v.DiskBytes))
		}
		if why, unmeasured := ev.UnmeasuredVolume[v.ID]; unmeasured {
			return fmt.Sprintf(aboveVolumeText+"%s could not be measured against its limit: %s; nothing in it is removed", v.ID.Name, why)
		}
	}
	return ""
}

// clearOut ends a run for what it keeps on disk.
func (c *Core) clearOut(t *task, why string) {
	t.squeezed, t.forDisk, t.Clear = why, true, true
	c.emit(Kill{t.ID, t.Run})
	t.dueNs = c.now.MonoNs + retryNs
}

// clearLeft removes what a copy has left that is over its limit and waits for its next run:
// runs too short to be measured may leave as little as long ones.
func (c *Core) clearLeft(t *task, why string) {
	if why == "" || t.Clear {
		return
	}
	t.Clear, t.Text = true, bounded(why)
	c.emit(Save{t.Record})
	c.emit(Clear{t.ID, t.Run})
}

// gaveWay is how the end of a run is told that was made to give way, unless it had
// just ended by itself.
func (t *task) gaveWay(exit *borgpb.Exit) (told *borgpb.Exit, text string) {
	if !killed(exit) {
		t.Clear = false
		return exit, ""
	}
	if t.forDisk || t.fault != 0 {
		return exit, t.squeezed
	}
	return squeezedExit(exit), t.squeezed
}

func mib(bytes int64) string {
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
