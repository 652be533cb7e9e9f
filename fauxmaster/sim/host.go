package sim

import (
	"borg/borgmaster/linkshard"
)

const (
	// Nothing is called down sooner after it answered. Most hosts are back by then.
	hostSoonNs  = 6300 * millisecond
	hostBriefNs = 6000 * millisecond
	// The others are away for so long, and called down within this: six seconds of
	// silence from when another replica polls them, and the time to elect and to ask a
	// second one.
	hostAwayNs    = 40 * second
	hostNoticedNs = 12 * second
	// When the first of those dies, and the time between two: of so few machines one is
	// called down in a minute.
	hostFromNs = 20 * second
	hostLongNs = 80 * second
	// The replica is back only when both are settled.
	hostReplicaNs = 13 * second
)

// loseHosts has the elected master and a machine that it polls die together, again and
// again. L9: the machine is called down as soon as any other would be, however new the
// master is that has never heard of it. S17: and no sooner, however long ago the
// one that polls it now had polled it before.
func (w *World) loseHosts(nextLongNs int64) {
	if w.swarm.hostNs == 0 {
		return
	}
	w.after(w.swarm.hostNs, func() {
		if w.loseHost(w.now >= nextLongNs) && w.now >= nextLongNs {
			nextLongNs = w.now + hostLongNs
		}
		w.loseHosts(nextLongNs)
	})
}

func (w *World) loseHost(long bool) bool {
	r := w.leader()
	if r == nil || w.healed {
		return false
	}
	var all []uint64
	for _, x := range w.replicas {
		if !x.up {
			return false
		}
		all = append(all, x.id)
	}
	for _, m := range w.machines {
		x := w.truth.cell.Machine(m.name)
		if x == nil || !x.Up() || !m.Up() || linkshard.Owner(m.name, all) != r.id {
			continue
		}
		ns := hostAwayNs
		if !long {
			ns = between(w.hostRand, hostBriefNs, hostSoonNs)
		}
		w.say("replica %d dies, and machine %s with it, for %d ms", r.id, m.name, ns/millisecond)
		w.loseFor(m, ns)
		r.crash(keepAll, false)
		r.startAfter(hostReplicaNs)
		w.truth.diedNs[m.name] = w.now
		if long {
			w.after(hostNoticedNs, func() {
				if x := w.truth.cell.Machine(m.name); x != nil && x.Up() && !w.healed {
					w.fail("L9: %s died with the elected master %d ms ago and is not called down", m.name, hostNoticedNs/millisecond)
				}
			})
		}
		return true
	}
	return false
}
