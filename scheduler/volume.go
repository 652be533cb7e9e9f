package scheduler

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// volumeSite is what the volumes of index of l say of where it can be placed. Where all
// is placed anew they say how much disk they need, and nothing of a place.
func (s *Scheduler) volumeSite(c *cell.Cell, l *line, index uint32) cell.VolumeSite {
	if !l.hasVolumes(index) {
		return cell.VolumeSite{}
	}
	if s.dry {
		return cell.VolumeSite{DiskBytes: cell.VolumesNeed(l.job, l.set, index)}
	}
	return c.VolumeSiteOf(l.job, l.set, index)
}

// hasVolumes tells whether index of l has volumes of its own, so that what it asks for
// changes with them.
func (l *line) hasVolumes(index uint32) bool {
	if l.set != nil {
		return len(l.set.Spec().GetVolumes()) > 0
	}
	if _, inside := l.job.AllocSet(); inside {
		return false
	}
	return len(l.job.Need(index).Task.GetVolumes()) > 0
}

// withVolumes has a want ask for the disk of volumes that are not there yet.
func (w *want) withVolumes(index uint32) {
	w.last = index
	if w.volumes.DiskBytes > 0 {
		more := *w.need
		more.Resources.DiskBytes += w.volumes.DiskBytes
		w.need = &more
	}
}

// appendVolumes encodes where volumes let a task be.
func appendVolumes(b []byte, v *cell.VolumeSite) []byte {
	b = appendFlag(b, v.Bound)
	if v.At != nil {
		b = appendText(b, v.At.Name())
	}
	b = append(b, 0xff)
	for _, m := range v.Not {
		b = appendText(b, m.Name())
	}
	return append(b, 0xff)
}

// observeVolume takes in what happened to a volume: its machine holds more or less, and
// what it belongs to may be placed elsewhere.
func (s *Scheduler) observeVolume(c *cell.Cell, e *cell.Event) {
	if set := c.AllocSetByUID(e.UID); set != nil {
		delete(s.rooms, set)
	}
	s.touch(c, e.UID)
	if t := s.sites.byName[e.Machine]; t != nil {
		s.reread(t)
		s.changed(t)
	}
}

// observeOwner takes in that a job or alloc set began or ended whose volumes are kept: from then on
// they give way to production, or do so no more.
func (s *Scheduler) observeOwner(c *cell.Cell, e *cell.Event) {
	if e.Kind != borgpb.EventKind_EVENT_KIND_VOLUME_YIELDS && e.Kind != borgpb.EventKind_EVENT_KIND_SUBMIT {
		return
	}
	for v := range c.VolumesOf(e.Key) {
		if t := s.sites.byName[v.Machine().Name()]; t != nil {
			s.reread(t)
			s.changed(t)
		}
	}
}

// bound leaves in a set of slots those where volumes let a task be.
func (g *grid) bound(fits bitset, v *cell.VolumeSite) {
	if v.Bound {
		at := int32(-1)
		if t := g.siteOf(v.At); t != nil && fits.has(t.slot) {
			at = t.slot
		}
		clear(fits)
		if at >= 0 {
			fits.set(at, true)
		}
	}
	for _, m := range v.Not {
		if t := g.siteOf(m); t != nil {
			fits.set(t.slot, false)
		}
	}
}

// siteOf is the site of a machine that has a slot; nil: it has none.
func (g *grid) siteOf(m *cell.Machine) *site {
	if m == nil {
		return nil
	}
	if t := g.sites.byName[m.Name()]; t != nil && t.slot >= 0 {
		return t
	}
	return nil
}
