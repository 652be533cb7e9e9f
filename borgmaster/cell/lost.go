package cell

import (
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// loseTask takes a running task off a machine that cannot be reached: it is
// pending again, or dead if it would rather not run than run twice.
func (c *Cell) loseTask(t *Task, reason string) {
	p := t.cur
	e, to := edgeEvict, statePending
	if t.job.latest().Proto.OnLost == borgpb.OnLost_ON_LOST_DEAD {
		e, to = edgeLost, stateDead
	}
	c.retire(t)
	c.setCopyState(p, attemptUnreachable)
	if to == stateDead {
		c.order(p, borgpb.StopCause_STOP_CAUSE_KILL, "its task was declared lost", p.grace())
	}
	c.move(t, e, to, reason)
	ev := taskEvent(p, edgeEvents[e], stateRunning, to)
	ev.Reason = reason
	c.emit(ev)
}

func (c *Cell) checkMachineDown(o *borgpb.MachineDown) (commit, *borgpb.Refusal) {
	m := c.machines[o.Name]
	if m == nil {
		return nil, notFound(clip(o.Name, 64), "there is no such machine")
	}
	if o.Term != c.now.term && !mutant.Planted(mutant.StaleDownTaken) {
		return nil, stale(m.name, "the verdict is of term %d, the present one is %d", o.Term, c.now.term)
	}
	if len(o.Reason) > maxReasonBytes {
		return nil, about(m.name, invalid("reason", "longer than %d bytes", maxReasonBytes))
	}
	return func(*borgpb.Result) {
		if m.down {
			return
		}
		c.counts.countMachineState(m, -1)
		m.down, m.reason, m.changedWallNs = true, o.Reason, c.clock.wallNs
		c.counts.countMachineState(m, 1)
		c.dirty(m)
		e := machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_DOWN)
		e.Reason = o.Reason
		c.emit(e)
		reason := "machine " + m.name + " is down"
		for _, p := range m.copies {
			if p.state.current() {
				c.loseTask(p.row(), reason)
			}
		}
		for _, a := range m.allocs {
			if a.machine == m {
				c.loseAlloc(a, reason)
			}
		}
		c.freeUpdates(m)
		c.endHoldIfHeard()
	}, nil
}

func (c *Cell) checkMachineUp(o *borgpb.MachineUp) (commit, *borgpb.Refusal) {
	m := c.machines[o.Name]
	if m == nil {
		return nil, notFound(clip(o.Name, 64), "there is no such machine")
	}
	return func(*borgpb.Result) {
		if !m.down {
			return
		}
		c.counts.countMachineState(m, -1)
		m.down, m.reason, m.changedWallNs = false, "", c.clock.wallNs
		c.counts.countMachineState(m, 1)
		c.dirty(m)
		c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_UP))
		for _, a := range slices.Clone(m.allocs) {
			if a.lostOn != m {
				continue
			}
			if m.draining {
				c.dropLost(a, borgpb.StopCause_STOP_CAUSE_DRAIN, m.drainWords())
			} else {
				c.returnAlloc(a)
			}
		}
		for _, p := range slices.Clone(m.copies) {
			if p.state == attemptUnreachable {
				c.returnCopy(p)
			}
		}
		c.leaveDueNs = 0
		c.lookAtSavers()
		c.leaveTainted()
	}, nil
}

// returnCopy decides about a copy on a machine that is up again: if there is no
// order to stop it, its task still waits and takes it back as it is.
func (c *Cell) returnCopy(p *Copy) {
	t := p.row()
	if p.stop == nil && p.machine.draining && (p.job.saving == nil || p.machine.emptied() && c.format >= FormatSaverDrains) {
		c.order(p, borgpb.StopCause_STOP_CAUSE_DRAIN, p.machine.drainWords(), p.grace())
	}
	if c.straggles(p) {
		c.order(p, borgpb.StopCause_STOP_CAUSE_UPDATE, stragglerWords(p), p.grace())
	}
	if p.stop != nil {
		c.setCopyState(p, attemptStopping)
		c.dirtyCopy(p)
		return
	}
	// Without an order it is the newest copy of a task that is pending.
	if t == nil || t.past != p || t.state != statePending {
		panic("copy " + p.ID().String() + " is unreachable without an order and its task does not wait for it")
	}
	t.past, p.next = p.next, nil
	t.cur = p
	to := attemptAssigned
	if p.pid != 0 {
		to = attemptRunning
	}
	c.dirty(p)
	c.setCopyState(p, to)
	c.enterDomains(p)
	c.move(t, edgeSchedule, stateRunning, "")
	c.emit(taskEvent(p, borgpb.EventKind_EVENT_KIND_RETURN, statePending, stateRunning))
	c.catchUp(t)
	c.rewind(t)
	if c.format >= formatAnyVersionIsUp {
		c.awaitReturned(t)
	}
}
