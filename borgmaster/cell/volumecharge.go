package cell

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"borg/proto/borgpb"
)

// A volume of batch to monitoring keeps its disk charged to its user's quota until it is given
// up. While its task or alloc is alive, the charge of that covers its volumes, up to the disk
// that its specs name. What is beyond that is charged to the volume itself: all of it when the
// task has ended, what an update no longer names, and what a later job of the same name does not
// name. The band is that of the last task or alloc that was placed with the volume, or of its
// job when that ended in a lower one. Volumes of the free band, and those that were found on a
// machine, are not charged; production may take the former (volumeyield.go).

// A volume takes one of the places of its machine however small it is, so each is charged at
// least minVolumeChargeBytes. The room of machines counts the bytes that volumes have.
const minVolumeChargeBytes = 16 << 20

// chargedBytes is the disk that a volume of so many bytes is charged.
func chargedBytes(diskBytes int64) int64 { return max(diskBytes, minVolumeChargeBytes) }

// volumesCharged is the disk that volumes are charged together.
func volumesCharged(named []*borgpb.Volume) (bytes int64) {
	for _, v := range named {
		bytes += chargedBytes(v.DiskBytes)
	}
	return bytes
}

// cover is the disk that is charged with a task or alloc for volumes which it has, by band.
type cover [numBands + 1]int64

// coverOfTask returns the cover of a task that is alive and may run any of the specs; the last is
// the one that it is to run.
func (c *Cell) coverOfTask(of TaskID, specs []*Spec) (sum cover) {
	var all, own cover
	for _, s := range specs {
		if s.Proto.AllocSet == "" && s.Proto.Priority != 0 {
			band, need := BandOf(s.Proto.Priority), s.Need(of.Index)
			all[band] = max(all[band], need.bought().DiskBytes)
			own[band] = need.Resources.DiskBytes
		}
	}
	last := specs[len(specs)-1]
	if last.Proto.AllocSet == "" {
		band := BandOf(last.Proto.Priority)
		own[band] += c.missingBytes(of, band, last.Need(of.Index).Task.GetVolumes())
	}
	for band := range sum {
		sum[band] = max(all[band]-own[band], 0)
	}
	return sum
}

// coverOfAlloc returns the cover of an alloc of a set with a spec.
func (c *Cell) coverOfAlloc(of TaskID, s *borgpb.AllocSetSpec) (sum cover) {
	if band := BandOf(s.Priority); s.Priority != 0 {
		sum[band] = volumesCharged(s.Volumes) - c.missingBytes(of, band, s.Volumes)
	}
	return sum
}

// missingBytes returns the disk that the named volumes need beside what there is of them in a
// band.
func (c *Cell) missingBytes(of TaskID, band borgpb.Band, named []*borgpb.Volume) (bytes int64) {
	for _, want := range named {
		have := int64(0)
		for v := range c.volumesNamed(of, want.Name) {
			if v.counts() && v.band == band {
				have = chargedBytes(v.diskBytes)
			}
		}
		bytes += max(chargedBytes(want.DiskBytes)-have, 0)
	}
	return bytes
}

// coverNow returns the cover of a task or alloc; zero if it is not alive.
func (c *Cell) coverNow(of TaskID) cover {
	if s := c.sets[of.Job]; s != nil {
		if of.Index < s.NumAllocs() && s.allocs[of.Index].state != stateDead {
			return c.coverOfAlloc(of, s.spec)
		}
		return cover{}
	}
	if j := c.Job(of.Job); j != nil && !j.gone && int(of.Index) < len(j.rows) && j.rows[of.Index].state != stateDead {
		return c.coverOfTask(of, j.specs)
	}
	return cover{}
}

// chargeable returns the disk of a volume that has to be charged to somebody.
func (v *Volume) chargeable() int64 {
	if v.givenUp || v.gone || v.band <= borgpb.Band_BAND_FREE {
		return 0
	}
	return chargedBytes(v.diskBytes)
}

// beyond takes from the cover what a volume needs and returns the rest, which is charged.
func (v *Volume) beyond(left *cover) int64 {
	n := v.chargeable()
	covered := min(n, left[v.band])
	left[v.band] -= covered
	return n - covered
}

// volumeCharge is a charge of the disk of volumes.
func volumeCharge(band borgpb.Band, bytes int64) charge {
	return chargeOf(band, &Resources{DiskBytes: bytes}, 1)
}

// volumeBand returns the band of a volume with which a task or alloc was placed.
func (c *Cell) volumeBand(priority int32) borgpb.Band {
	if c.format < FormatVolumesYield {
		return borgpb.Band_BAND_UNSPECIFIED
	}
	return BandOf(priority)
}

// setCharged sets the band of a volume, and what that is charged for it.
func (c *Cell) setCharged(v *Volume, band borgpb.Band, bytes int64) {
	if v.charged == bytes && v.band == band {
		return
	}
	user, was, now := v.of.Job.User, volumeCharge(v.band, v.charged), volumeCharge(band, bytes)
	v.band, v.charged = band, bytes
	c.chargeUser(user, was, now)
	if len(was) == 0 && len(now) == 0 {
		return
	}
	if sum := c.volumes.charged[user].plus(now).minus(was); len(sum) > 0 {
		if c.volumes.charged == nil {
			c.volumes.charged = make(map[string]charge)
		}
		c.volumes.charged[user] = sum
	} else {
		delete(c.volumes.charged, user)
	}
}

// uncovered yields volumes, those of a task or alloc after each other, with what of each no cover
// of its task or alloc covers, so that it is charged.
func uncovered(all iter.Seq[*Volume], covers func(of TaskID) cover) iter.Seq2[*Volume, int64] {
	return func(yield func(*Volume, int64) bool) {
		var left cover
		var last *Volume
		for v := range all {
			if last == nil || last.of != v.of {
				left = covers(v.of)
			}
			last = v
			if !yield(v, v.beyond(&left)) {
				return
			}
		}
	}
}

// chargeVolumes recomputes the charges of the volumes of one task or alloc. It follows each change of them,
// and of what is charged with the task or alloc.
func (c *Cell) chargeVolumes(of TaskID) {
	if c.volumes.of[of.Job] == 0 {
		return
	}
	left, known := cover{}, false
	for v := range c.volumes.list.from(volumeID{of: of}) {
		if v.of != of {
			return
		}
		if !known {
			left, known = c.coverNow(of), true
		}
		c.setCharged(v, v.band, v.beyond(&left))
	}
}

// chargeVolumesOf recomputes the charges of all volumes of a job or alloc set.
func (c *Cell) chargeVolumesOf(key JobKey) {
	if c.volumes.of[key] == 0 {
		return
	}
	owner := key // It is on the heap for the loop, and most jobs have no volumes.
	for v, bytes := range uncovered(c.VolumesOf(owner), c.coverNow) {
		c.setCharged(v, v.band, bytes)
	}
}

// volumeCharges returns what the volumes of a job or alloc set are charged, and what they would
// be if its tasks or allocs had the covers.
func (c *Cell) volumeCharges(key JobKey, covers func(of TaskID) cover) (now, then charge) {
	if c.volumes.of[key] == 0 {
		return nil, nil
	}
	for v, bytes := range uncovered(c.VolumesOf(key), covers) {
		now = now.plus(volumeCharge(v.band, v.charged))
		then = then.plus(volumeCharge(v.band, bytes))
	}
	return now, then
}

// bandVolumes follows a change of the priority of a copy that runs on.
func (c *Cell) bandVolumes(p *Copy) {
	if p.few == nil || p.few.uses == nil {
		return
	}
	for _, name := range p.few.uses.names {
		if v := p.machine.volumeOn(p.TaskID(), name); v != nil && v.counts() {
			c.setCharged(v, c.volumeBand(p.priority), 0)
			c.dirty(v)
		}
	}
	c.chargeVolumes(p.TaskID())
}

// checkChargeOfJob is checkCharge for a job that would have the specs and that many tasks. Those
// that take over volumes which are charged already are not charged for them twice.
func (c *Cell) checkChargeOfJob(key JobKey, j *Job, specs []*Spec, tasks uint32, was, wants charge) *borgpb.Refusal {
	if c.quotas.used == nil {
		return nil
	}
	now, then := c.volumeCharges(key, func(of TaskID) cover {
		if of.Index >= tasks || j != nil && int(of.Index) < len(j.rows) && j.rows[of.Index].state == stateDead {
			return cover{}
		}
		return c.coverOfTask(of, specs)
	})
	return c.checkCharge(key, was.plus(now), wants.plus(then))
}

// checkChargeOfSet is checkCharge for an alloc set that would have the spec and that many allocs.
func (c *Cell) checkChargeOfSet(key JobKey, s *AllocSet, spec *borgpb.AllocSetSpec, allocs uint32) *borgpb.Refusal {
	if c.quotas.used == nil {
		return nil
	}
	was := charge(nil)
	if s != nil {
		was = s.charge()
	}
	now, then := c.volumeCharges(key, func(of TaskID) cover {
		if of.Index >= allocs {
			return cover{}
		}
		return c.coverOfAlloc(of, spec)
	})
	return c.checkCharge(key, was.plus(now), chargeOfSet(spec, uint64(allocs)).plus(then))
}

// keptWords says how much of something the volumes of a user are charged; empty if nothing.
func (c *Cell) keptWords(user string, of *item) string {
	kept := c.volumes.charged[user].of(of)
	if kept.isZero() {
		return ""
	}
	return fmt.Sprintf(". Volumes that are kept hold %s, each counts as 16 MiB at least; borgcfg volume list shows them, borgcfg volume delete gives some up", of.text(kept))
}

// checkVolumeCharges compares the charges of the volumes of the cell with what they are
// computed from.
func (c *Cell) checkVolumeCharges() error {
	sums, of := make(map[string]charge), make(map[JobKey]int)
	for v, want := range uncovered(c.Volumes(), c.coverNow) {
		if v.charged != want {
			return fmt.Errorf("volume %s on %s is charged %d bytes, kept as %d", v.FullName(), v.machine.name, want, v.charged)
		}
		of[v.of.Job]++
		if sum := sums[v.of.Job.User].plus(volumeCharge(v.band, want)); len(sum) > 0 {
			sums[v.of.Job.User] = sum
		}
	}
	if !maps.EqualFunc(sums, c.volumes.charged, slices.Equal) {
		return fmt.Errorf("the volumes of users are charged %v, kept as %v", sums, c.volumes.charged)
	}
	if !maps.Equal(of, c.volumes.of) {
		return fmt.Errorf("jobs and alloc sets have %v volumes, counted as %v", of, c.volumes.of)
	}
	return nil
}
