package sim

import (
	"fmt"
)

const (
	// An operator has another replica elected so often, where nothing else is wrong.
	transferEveryNs = 700 * millisecond
	// L12: no longer than this do writes wait for it.
	transferGapNs = 100 * millisecond
	// L13: so long after the replicas or a machine have changed each machine has been polled:
	// two seconds until a replica that says nothing any more has lost its share, or between two
	// polls, and what those are spread by.
	polledWithinNs = 2500 * millisecond
	lookAtPollsNs  = 100 * millisecond
	// L14: nobody polls by a cell that is older: three seconds until he is behind, and the time
	// that it takes until all have heard who shares the machines.
	oldestCellNs = 4500 * millisecond
)

// transfers has another replica elected again and again.
func (w *World) transfers() {
	if !w.swarm.transfers {
		return
	}
	r := stream(w.cfg.Seed, "transfers")
	var next func()
	next = func() {
		if x := w.leader(); x != nil && !w.healed {
			if to := w.replicas[r.IntN(len(w.replicas))]; to != x {
				w.roster.transfer(x, to.id)
			}
		}
		w.after(between(r, transferEveryNs/2, 3*transferEveryNs/2), next)
	}
	w.after(3*second, next)
}

// wrote: L12, writes go on while replicas hand over to one another.
func (w *World) wrote() {
	last := w.wroteNs
	if w.wroteNs = w.now; w.swarm.transfers && last != 0 && !w.healed && w.now-last > transferGapNs {
		w.fail("L12: no client has had an answer for %d ms, and replicas do nothing but hand over to one another", (w.now-last)/millisecond)
	}
}

// coverage remembers since when nothing has changed, and who was polled when.
type coverage struct {
	replicas  string
	changedNs int64
	// Since when each machine is there and its borglet lives, and when it was last polled.
	thereNs, polledNs map[string]int64
}

// covers looks, from now on, whether all machines are polled.
func (w *World) covers() {
	w.coverage.thereNs, w.coverage.polledNs = map[string]int64{}, map[string]int64{}
	if !w.swarm.covered {
		return
	}
	var look func()
	look = func() {
		if !w.healed {
			w.covered()
			w.after(lookAtPollsNs, look)
		}
	}
	w.after(3*second, look)
}

// covered: L13, soon after an election, or the death of a replica, each machine that is
// there has been polled by somebody.
func (w *World) covered() {
	c := &w.coverage
	var now []string
	for _, x := range w.replicas {
		now = append(now, fmt.Sprint(x.id, x.up, x.life))
	}
	elected := w.leader()
	if elected != nil {
		now = append(now, fmt.Sprint(elected.id, elected.term))
	}
	if is := fmt.Sprint(now); is != c.replicas || elected == nil {
		c.replicas, c.changedNs = is, w.now
	}
	for _, m := range w.machines {
		if x := w.truth.cell.Machine(m.name); x == nil || !m.Up() || !m.Agent() {
			c.thereNs[m.name] = w.now
		}
		w.stillPolled(m.name, max(c.changedNs, c.thereNs[m.name]))
	}
}

// stillPolled looks at one machine, for which nothing has changed since then.
func (w *World) stillPolled(machine string, sinceNs int64) {
	if w.now-sinceNs < polledWithinNs {
		return
	}
	w.mark("all that is there is polled")
	if last := w.coverage.polledNs[machine]; w.now-last > polledWithinNs {
		w.fail("L13: nobody has polled %s for %d ms, and nothing has changed for %d ms", machine, (w.now-last)/millisecond, (w.now-sinceNs)/millisecond)
	}
}

// leads follows since when one replica is elected.
type leads struct {
	term uint64
	ns   int64
}

// oldCell is for how long a replica has not applied what others have, under the one who is
// elected now.
func (w *World) oldCell(x *replicaNode) int64 {
	elected := w.leader()
	if elected == nil {
		w.leads = leads{}
		return 0
	}
	if elected.term != w.leads.term {
		w.leads = leads{elected.term, w.now}
	}
	next, behind := w.truth.entries[x.cell.Index()+1]
	if !behind || elected == x {
		return 0
	}
	return w.now - max(next.atNs, w.leads.ns)
}

// asks: L14, nobody polls a machine by an old cell, as one whose disk hangs would while all
// else of him works: what was decided since would not reach the machine.
func (w *World) asks(x *replicaNode, machine string) {
	if w.swarm.hangs && !w.healed {
		w.asksBy(x, machine, w.oldCell(x))
	}
}

func (w *World) asksBy(x *replicaNode, machine string, old int64) {
	if old > oldestCellNs {
		w.fail("L14: replica %d polls %s, and has not applied for %d ms what others have", x.id, machine, old/millisecond)
	}
}

// lapses looks now and then whether there is a replica that must not poll.
func (w *World) lapses() {
	if !w.swarm.hangs {
		return
	}
	var look func()
	look = func() {
		for _, x := range w.replicas {
			if x.up && w.oldCell(x) > oldestCellNs {
				w.mark("replica with an old cell")
			}
		}
		w.after(lookAtPollsNs, look)
	}
	w.after(3*second, look)
}

// polled notes that a machine has answered a poll.
func (w *World) polled(machine string) { w.coverage.polledNs[machine] = w.now }
