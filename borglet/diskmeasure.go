package borglet

import (
	"context"
	"path/filepath"
	"time"

	"borg/proto/borgrpc"
)

// HeldOpen is what the processes of a copy hold open of files that have no name any more.
// They take room until they are closed, and are in no directory.
type HeldOpen struct {
	// Bytes by the place that the file was in, of those that were asked about; "" for
	// anywhere else.
	Bytes map[string]int64
	// Unmeasured is why not all could be looked at; empty: all was.
	Unmeasured string
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
	m := a.newMeasurement(ids)
	sum, ok := m.copies(ctx, ids)
	if !ok {
		return nil, nil
	}
	ofAllocs = m.allocs()
	m.volumes()
	if total := a.cfg.Spec.GetCapacity().GetDiskBytes(); known && total > 0 {
		m.CapacityBytes = total
		// Ending a task frees nothing that its volumes hold.
		m.RoomBytes = max(min(total-m.volumeBytes, sum+free-min(spareDiskBytes, total/sparePart)), 1)
	}
	d.done(began, time.Now(), free)
	select {
	case a.results <- m.Filled:
	case <-ctx.Done():
	}
	return m.UsedBytes, ofAllocs
}

// measurement is a Filled that is being made.
type measurement struct {
	Filled
	agent *Agent
	view  *view
	// held is what runs have open of files without a name.
	held map[ID]HeldOpen
	// volumeBytes is the sum over all volumes.
	volumeBytes int64
}

func (a *Agent) newMeasurement(ids []ID) *measurement {
	m := &measurement{
		Filled: Filled{
			UsedBytes: make(map[ID]int64, len(ids)), AllocBytes: map[string]int64{}, VolumeBytes: map[VolumeID]int64{},
			Unmeasured: map[ID]string{}, UnmeasuredAlloc: map[string]string{}, UnmeasuredVolume: map[VolumeID]string{},
		},
		agent: a, view: a.view.Load(),
	}
	if m.view == nil {
		m.view = &view{}
	}
	if a.cfg.HeldOpen != nil {
		places := make(map[ID][]string, len(ids))
		for _, id := range ids {
			for _, p := range a.placesOf(m.view.desired[id]) {
				places[id] = append(places[id], p.path)
			}
			if places[id] == nil {
				places[id] = []string{}
			}
		}
		m.held = a.cfg.HeldOpen(places)
	}
	return m
}

// copies measures those that run, of which the sum is returned, and those that wait for
// their next run.
func (m *measurement) copies(ctx context.Context, ids []ID) (sum int64, ok bool) {
	for _, id := range ids {
		if ctx.Err() != nil {
			return 0, false
		}
		m.own(id)
		sum += m.UsedBytes[id]
	}
	for id := range m.view.begun {
		if _, measured := m.UsedBytes[id]; !measured && ctx.Err() == nil {
			m.own(id)
		}
	}
	return sum, ctx.Err() == nil
}

// own measures one copy, and what it holds open anywhere.
func (m *measurement) own(id ID) {
	held := m.held[id]
	bytes, err := m.agent.keeps(id, held)
	m.UsedBytes[id] = bytes
	if err != nil {
		m.Unmeasured[id] = err.Error()
	}
	for _, p := range m.agent.placesOf(m.view.desired[id]) {
		if p.alloc != "" {
			m.AllocBytes[p.alloc] += held.Bytes[p.path]
		} else {
			m.VolumeBytes[p.volume] += held.Bytes[p.path]
		}
	}
}

// allocs measures all in which something is, and returns what they keep with those in them.
func (m *measurement) allocs() map[string]int64 {
	sums := map[string]int64{}
	for alloc := range m.view.allocs {
		bytes, err := m.agent.cfg.TreeBytes(filepath.Join(m.agent.store.dir, "allocs", alloc))
		m.AllocBytes[alloc] += bytes
		if err != nil {
			m.UnmeasuredAlloc[alloc] = err.Error()
		}
		sums[alloc] = m.AllocBytes[alloc]
	}
	for id, bytes := range m.UsedBytes {
		if alloc := m.view.inAlloc[id]; alloc != "" {
			sums[alloc] += bytes
		}
	}
	return sums
}

// volumes measures all on the machine, also those in which nobody works.
func (m *measurement) volumes() {
	use := map[VolumeID]int64{}
	for _, id := range m.agent.store.volumes.all() {
		bytes, err := m.agent.cfg.TreeBytes(m.agent.store.volumes.path(id))
		m.VolumeBytes[id] += bytes
		if err != nil {
			m.UnmeasuredVolume[id] = err.Error()
		} else {
			use[id] = m.VolumeBytes[id]
		}
		m.volumeBytes += m.VolumeBytes[id]
	}
	m.agent.volumeUse.measured(use)
}

// diskPlace is where a copy sees what is not its alone: an alloc, by its AllocName, or a
// volume.
type diskPlace struct {
	path   string
	alloc  string
	volume VolumeID
}

func (a *Agent) placesOf(d *borgrpc.Desired) (places []diskPlace) {
	inside := a.cfg.Runtime.Capabilities().OwnFiles
	if alloc := d.GetAlloc(); alloc != "" {
		p := diskPlace{path: AllocPath, alloc: AllocName(alloc)}
		if !inside {
			p.path = a.store.AllocDir(alloc)
		}
		places = append(places, p)
	}
	for _, v := range VolumesOf(d) {
		p := diskPlace{path: v.Path, volume: v.ID}
		if !inside {
			p.path = a.store.volumes.path(v.ID)
		}
		places = append(places, p)
	}
	return places
}
