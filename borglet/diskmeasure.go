package borglet

import (
	"context"
	"path/filepath"
	"time"

	"borg/proto/borgrpc"
)

// HeldOpen is the disk space of files that the processes of a copy hold open and that have
// been removed. Such files are in no directory, and use space until they are closed.
type HeldOpen struct {
	// Bytes by the requested place that the file was in; "" for any other place.
	Bytes map[string]int64
	// Why some files could not be measured; empty if all were.
	Unmeasured string
}

// diskMeter schedules the measurements of the disk space that copies use. They are more
// frequent while the disk fills.
type diskMeter struct {
	// Time of the next measurement; zero means now.
	due time.Time
	// End of the last measurement, and the most bytes that were free since.
	ended     time.Time
	freeBytes int64
}

// hurry reports whether the disk fills so fast that the next measurement is due early. While a
// measurement takes long that is at most half of the time: somebody's many files must not
// keep all limits from being looked at.
func (d *diskMeter) hurry(now time.Time, freeBytes int64) bool {
	rest := d.due.Sub(d.ended)
	least := max(diskLeast, min(rest-diskEvery, max(diskPatience, rest/diskPart)))
	return now.Sub(d.ended) >= least && d.freeBytes-freeBytes >= diskHaste
}

// done records a measurement and schedules the next one.
func (d *diskMeter) done(began, ended time.Time, freeBytes int64) {
	d.ended, d.freeBytes = ended, freeBytes
	d.due = ended.Add(max(diskEvery, diskPart*ended.Sub(began)))
}

// freeDisk returns the free space on the disk of the tasks, and whether it is known.
func (a *Agent) freeDisk() (bytes int64, ok bool) {
	if a.cfg.AvailableDiskBytes == nil {
		return 0, false
	}
	return a.cfg.AvailableDiskBytes()
}

// measureDisk measures copies and allocs if a measurement is due, and sends the result to
// the core. The sum of an alloc, by AllocName, is its directory and the copies in it.
func (a *Agent) measureDisk(ctx context.Context, d *diskMeter, ids []ID) (ofCopies map[ID]int64, ofAllocs map[string]int64) {
	began := time.Now()
	free, known := a.freeDisk()
	// Space that was freed since the last measurement may be filled again.
	d.freeBytes = max(d.freeBytes, free)
	if a.cfg.TreeBytes == nil || began.Before(d.due) && (!known || !d.hurry(began, free)) {
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
		// Ending a task does not free the space of its volumes.
		m.RoomBytes = max(min(total-m.volumeBytes, sum+free-min(spareDiskBytes, total/sparePart)), 1)
	}
	d.done(began, time.Now(), free)
	select {
	case a.results <- m.Filled:
	case <-ctx.Done():
	}
	return m.UsedBytes, ofAllocs
}

// measurement is a Filled under construction.
type measurement struct {
	Filled
	agent *Agent
	view  *view
	// Removed files that running copies hold open.
	held map[ID]HeldOpen
	// Sum over all volumes.
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

// copies measures the copies that run and those that wait for their next run. It returns the
// sum of those that run, and whether ctx lasted.
func (m *measurement) copies(ctx context.Context, ids []ID) (sum int64, ok bool) {
	for _, id := range ids {
		if ctx.Err() != nil {
			return 0, false
		}
		m.measureCopy(id)
		sum += m.UsedBytes[id]
	}
	for id := range m.view.begun {
		if _, measured := m.UsedBytes[id]; !measured && ctx.Err() == nil {
			m.measureCopy(id)
		}
	}
	return sum, ctx.Err() == nil
}

// measureCopy measures one copy and the removed files that it holds open. Those that were in
// an alloc or a volume count there.
func (m *measurement) measureCopy(id ID) {
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

// allocs measures the directories of the allocs in use. It returns the sum of each with the
// copies in it.
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

// volumes measures all volumes of the machine, those that no copy uses too.
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

// diskPlace is a directory that a copy shares: that of an alloc, by its AllocName, or a
// volume. Its path is the one that the copy sees.
type diskPlace struct {
	path   string
	alloc  string
	volume VolumeID
}

// placesOf returns the directories that a copy shares.
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
