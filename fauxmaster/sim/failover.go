package sim

// failover measures how long the cell does nothing for its users when it has
// lost its elected replica. Nobody can do anything without a majority of
// replicas that live, run, can write and hear each other, with a user who
// reaches them: the time counts from the loss, but not from before the moment
// since which one such majority has been there without a break.
//
// Seeds in which single messages are late by much more than an election takes
// are left out: heartbeats of a master that is gone come one by one for seconds,
// and each says that he lives. The connections of real replicas keep the order.
type failover struct {
	w *World
	// Since when each three of the five have been such a majority; 0: they are
	// not.
	since map[[3]int]int64
	// An elected replica is at work; when the last one was lost, if nothing was
	// acknowledged since; 0: something was.
	led    bool
	lostNs int64
}

const lateMaxNs = 100 * millisecond

func newFailover(w *World) failover { return failover{w: w, since: map[[3]int]int64{}} }

// able: it lives, runs and can write.
func (r *replicaNode) able() bool {
	return r.up && !r.paused && !r.hung && r.errorPermille == 0 && r.disk.failure() == (failure{})
}

// linked: each hears the other.
func (w *World) linked(a, b int) bool { return w.net.open(a, b) && w.net.open(b, a) }

// look is called whenever something of this may have changed.
func (f *failover) look() {
	if f.w.swarm.membersNs > 0 {
		// What a majority is changes.
		return
	}
	var linked [replicas][replicas]bool
	for i, a := range f.w.replicas {
		for j, b := range f.w.replicas {
			linked[i][j] = a.able() && b.able() && (i == j || f.w.linked(replicaEnd(a.id), replicaEnd(b.id)))
		}
	}
	for i := range replicas {
		for j := range i {
			for k := range j {
				three := [3]int{i, j, k}
				switch {
				case !linked[i][j] || !linked[j][k] || !linked[i][k] || !f.reached(three):
					delete(f.since, three)
				case f.since[three] == 0:
					f.since[three] = f.w.now
				}
			}
		}
	}
	led := false
	for i, x := range f.w.replicas {
		peers := 0
		for j := range linked[i] {
			if linked[i][j] {
				peers++
			}
		}
		led = led || x.up && x.core.State().Settled && peers > replicas/2
	}
	if f.led && !led && !f.w.healed {
		f.lostNs = f.w.now
	}
	f.led = led
}

// reached: a client reaches all of them.
func (f *failover) reached(three [3]int) bool {
	for _, c := range f.w.clients {
		all := !f.w.leftOut(c)
		for _, i := range three {
			all = all && f.w.linked(clientEnd(c.i), replicaEnd(f.w.replicas[i].id))
		}
		if all {
			return true
		}
	}
	return false
}

// acknowledged ends what began with a loss.
func (f *failover) acknowledged() {
	from := int64(0)
	for _, at := range f.since {
		if from == 0 || at < from {
			from = at
		}
	}
	late := f.w.swarm.latePermille > 0 && f.w.swarm.lateNs > lateMaxNs
	if f.lostNs != 0 && from != 0 && !late {
		ns := f.w.now - max(from, f.lostNs)
		f.w.result.FailoverNs = append(f.w.result.FailoverNs, ns)
		f.w.say("fail-over took %d ms", ns/millisecond)
	}
	f.lostNs = 0
}
