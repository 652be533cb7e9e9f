package duty

import (
	"maps"
	"slices"

	"borg/mutant"
)

// A replica that is slow keeps its share: to give its machines to others costs them
// handshakes, so that they are late next. So silence is measured by three things. The log
// hears a replica whose link shard has no time to report; how late this replica is, and how
// late that one said that it is, says how long a word may take; and only a process that is
// gone refuses connections.

const (
	// A replica that neither its link shard nor the log was heard of for so long has no
	// share: its link shard speaks every 100 ms.
	replicaSilentNs = 1500e6
	// While everything is late it is as many times as long as what is late, up to so long.
	lateFactor       = 6
	replicaPatientNs = 12e9
	// And one whose door is closed after so long, however late all is.
	doorClosedNs = 400e6
	// A link shard that does not report at all has no share after so long, though the log
	// hears its replica.
	shardSilentNs = 20e9
	// A replica that is further behind than this does not poll; linkshard does the same.
	mostBehind = 10_000
	// How often in a row a second replica must reach what a replica misses before that one
	// has no share, and how often while it is late.
	contradictionsToCut, contradictionsWhileLate = 2, 8
	// Time between polls of a machine at rest when nothing is late.
	restPeriodNs = 2e9
	// Part of the patience with a replica for which it may hear no machine.
	deafPart = 4
	// Part of it for which its count of machines that it does not hear is good.
	freshPart = 3
)

func (d *Core) replica(id uint64) *heardReplica {
	r := d.replicas[id]
	if r == nil {
		r = &heardReplica{heardNs: -shardSilentNs - replicaPatientNs}
		d.replicas[id] = r
	}
	return r
}

// spoke takes in that a replica reported.
func (r *heardReplica) spoke(now int64, e Reported, marks []mark) {
	r.heardNs, r.reported, r.closed = now, true, false
	if r.old = false; e.Again {
		return
	}
	r.lateNs, r.periodNs = e.LateNs, e.PeriodNs
	if e.Applied == nil {
		return
	}
	if *e.Applied > r.applied {
		r.movedNs = now
	}
	r.applied, r.appliedNs = *e.Applied, now
	r.old = len(marks) > 0 && marks[0].atNs <= now-behindNs && r.applied < marks[0].applied
}

// hearRaft takes in when the log last heard the other replicas. What it heard before this
// term does not count: the master before, who is gone, was heard then.
func (d *Core) hearRaft(now int64, heard []RaftHeard) {
	for _, h := range heard {
		if at := now - h.AgoNs; at > d.electedNs && slices.Contains(d.members, h.ID) {
			r := d.replica(h.ID)
			r.raftNs = max(r.raftNs, at)
		}
	}
}

// closed notes that a replica's door is closed. That alone takes no share: a
// connection may break for a moment.
func (d *Core) closed(now int64, replica uint64) {
	if slices.Contains(d.members, replica) && d.term != 0 {
		d.replica(replica).closed = true
		d.decideLive(now)
	}
}

// stretched is how long a replica may be silent while others are as late as that.
func (d *Core) stretched(lateNs int64) int64 {
	return min(max(replicaSilentNs, lateFactor*lateNs), replicaPatientNs)
}

// patience is how long a replica may be silent.
func (d *Core) patience(now int64, r *heardReplica) int64 {
	return d.stretched(max(d.lates.Ns(now), r.lateNs))
}

// late reports whether a replica, or this one that listens to it, is late.
func (d *Core) late(now int64, r *heardReplica) bool { return d.patience(now, r) > replicaSilentNs }

// alive reports whether a replica was heard lately.
func (d *Core) alive(now int64, r *heardReplica) bool {
	word := r.heardNs
	if r.raftNs != 0 {
		word = max(word, r.raftNs)
	}
	silent, patience := now-word, d.patience(now, r)
	return silent < patience && !(r.closed && silent >= doorClosedNs) &&
		now-max(r.heardNs, d.electedNs) < shardSilentNs+patience
}

// heardLately returns the members that were heard lately, in order.
func (d *Core) heardLately(now int64) []uint64 {
	var heard []uint64
	for _, id := range slices.Sorted(maps.Keys(d.replicas)) {
		if slices.Contains(d.members, id) && d.alive(now, d.replicas[id]) {
			heard = append(heard, id)
		}
	}
	return heard
}

// deafNs is for how long a replica may hear no machine before others try some of them.
func (d *Core) deafNs(now int64, r *heardReplica) int64 {
	return max(deafNs, d.patience(now, r)/deafPart)
}

// freshNs is for how long the count of machines that a replica does not hear is good.
func (d *Core) freshNs(now int64, r *heardReplica) int64 {
	return max(unheardFreshNs, d.patience(now, r)/freshPart)
}

// contradictions is how often in a row others must reach what a replica misses.
func (d *Core) contradictions(now int64, replica uint64) int {
	if r := d.replicas[replica]; r != nil && d.late(now, r) {
		return contradictionsWhileLate
	}
	return contradictionsToCut
}

// downAfterNs is how long a machine must have been silent to be down. Whether most are
// away is known once the replica with the longest interval has asked all its machines. So it
// is two intervals and two seconds, and by how much more than usual a count of those that are
// away may be old.
func (d *Core) downAfterNs(now int64) int64 {
	periodNs, freshNs := int64(restPeriodNs), int64(unheardFreshNs)
	for _, id := range d.live {
		r := d.replicas[id]
		periodNs, freshNs = max(periodNs, r.periodNs), max(freshNs, d.freshNs(now, r))
	}
	return silentForDownNs + 2*(periodNs-restPeriodNs) + freshNs - unheardFreshNs
}

// mark notes what this master has applied.
func (d *Core) mark(now int64, applied uint64) {
	if n := len(d.marks); n > 0 && now < d.marks[n-1].atNs+markEveryNs {
		return
	}
	d.marks = append(d.marks, mark{now, applied})
	for len(d.marks) > 1 && d.marks[1].atNs <= now-behindNs {
		d.marks = d.marks[1:]
	}
}

// behind reports whether a replica's cell is too old to poll by: its disk hangs, say, while
// all else of it works. One that has a share and still applies entries is only slow.
func (d *Core) behind(now int64, id uint64) bool {
	r := d.replicas[id]
	if !r.old || mutant.Planted(mutant.BehindKeepsShare) {
		return false
	}
	slow := slices.Contains(d.live, id) && r.appliedNs-r.movedNs < behindNs+d.patience(now, r)-replicaSilentNs &&
		r.applied+mostBehind > d.applied
	return !slow
}

// lapse notes that a replica loses its share because it is silent, or behind.
func (r *heardReplica) lapse(now int64) {
	if r.pauseNs == 0 || now-r.lapsedNs > returnForgetsNs {
		r.pauseNs = returnNs
	} else {
		r.pauseNs = min(2*r.pauseNs, returnMaxNs)
	}
	r.lapsedNs, r.returnsAtNs = now, now+r.pauseNs
}
