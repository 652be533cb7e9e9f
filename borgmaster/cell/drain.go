package cell

import (
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// formatLastLeave is the format from which on tasks of daemon jobs that a budget holds
// on a machine where only such are left are looked at again as soon as it may not.
const formatLastLeave = 8

// formatTogether is the format from which on all jobs that run in an alloc look at it
// again when what holds it on a machine that drains has become another reason than the
// one that the last of them saw, and daemon jobs look again in the very entry in which
// their tasks become the last on such a machine. Before it a cell that was loaded from
// its records let go earlier than one that had lived through the same.
const formatTogether = 10

// drain is a machine being emptied. What has a place on it goes as soon as the
// budgets of the jobs allow, and all of it once the drain is forced. It looks only
// at what is, as an update does: whenever a task comes up, or the time has come.
type drain struct {
	reason, user string
	sinceWallNs  int64
	// Cell time from which on budgets hold nothing back; zero: never.
	deadlineNs int64
	// Budgets hold nothing back.
	forced bool
	// Volumes hold nothing back, and are given up as soon as nobody works in them.
	giveUp bool
	// Tasks that it has evicted.
	evicted uint32
}

// checkDrainMachine checks a drain, and what is new of one.
func (c *Cell) checkDrainMachine(o *borgpb.DrainMachine, reason string) (commit, *borgpb.Refusal) {
	m := c.machines[o.Name]
	if m == nil {
		return nil, notFound(clip(o.Name, 64), "there is no such machine")
	}
	if o.DeadlineNs < 0 || o.DeadlineNs > maxDrainNs {
		return nil, about(m.name, outOfSpan("deadline_ns", o.DeadlineNs, 0, maxDrainNs))
	}
	switch {
	case !o.Drain && o.GiveUpVolumes:
		return nil, about(m.name, invalid("give_up_volumes", "only a machine that is to be emptied gives volumes up"))
	case !o.Drain && (o.DeadlineNs != 0 || o.Now):
		return nil, about(m.name, invalid("drain", "only a machine that is to be emptied has a deadline or is emptied now"))
	case o.DeadlineNs != 0 && o.Now:
		return nil, about(m.name, invalid("now", "it is emptied now or has a deadline, not both"))
	case !m.draining && !o.Drain && !c.changesDrain(m, o, reason):
		return nil, badState(m.name, "it is not draining")
	case m.draining == o.Drain && !c.changesDrain(m, o, reason):
		return nil, badState(m.name, "it is draining already")
	}
	return func(res *borgpb.Result) {
		m.changedWallNs = c.clock.wallNs
		if !mutant.Planted(mutant.ChangeNotRecorded) {
			c.dirty(m)
		}
		res.Uid, res.Version = m.uid.String(), m.version
		c.counts.countMachineState(m, -1)
		m.draining = o.Drain
		c.counts.countMachineState(m, 1)
		if !o.Drain {
			c.endDrain(m)
			c.lookAtSavers()
			c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_UNDRAIN))
			return
		}
		c.setDrain(m, o)
		e := machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_DRAIN)
		if m.drain != nil {
			e.Reason = m.drain.reason
		}
		c.emit(e)
		for _, p := range m.copies {
			p.job.leaveDueNs = 0
		}
		c.vacate(m)
	}, nil
}

// changesDrain tells whether something new is said of a drain.
func (c *Cell) changesDrain(m *Machine, o *borgpb.DrainMachine, reason string) bool {
	if c.format < FormatBudgets || !o.Drain {
		return false
	}
	d := m.drain
	if d == nil {
		d = &drain{forced: true}
	}
	return o.GiveUpVolumes && !d.giveUp || o.DeadlineNs != 0 && !d.forced || o.Now && !d.forced || reason != "" && clip(reason, maxReasonBytes) != d.reason
}

// setDrain begins a drain, or takes in what is new of it: what is not said stays.
func (c *Cell) setDrain(m *Machine, o *borgpb.DrainMachine) {
	if c.format < FormatBudgets {
		return
	}
	if m.drain == nil {
		m.drain = &drain{user: c.now.user, sinceWallNs: c.clock.wallNs}
		c.drains++
	}
	d := m.drain
	if c.now.reason != "" {
		d.reason = clip(c.now.reason, maxReasonBytes)
	}
	if o.DeadlineNs != 0 && !d.forced {
		d.deadlineNs = min(c.clock.cellNs+o.DeadlineNs, maxTimeNs)
		c.drainDueNs = min(c.drainDueNs, d.deadlineNs)
	}
	d.forced = d.forced || o.Now
	if o.GiveUpVolumes && !d.giveUp {
		d.giveUp = true
		for _, v := range slices.Clone(m.volumes) {
			if v.untilNs != 0 {
				c.giveUp(v, m.drainWords())
			}
		}
	}
}

func (c *Cell) endDrain(m *Machine) {
	if m.drain != nil {
		m.drain = nil
		c.drains--
	}
}

// drainWords says to those who have to go why.
func (m *Machine) drainWords() string {
	words := "machine " + m.name + " is draining"
	if m.drain != nil && m.drain.reason != "" {
		words += ": " + m.drain.reason
	}
	return words
}

// drainOn looks at all machines that drain when the time may have changed something:
// a deadline has passed, or a window.
func (c *Cell) drainOn() {
	if c.drains == 0 || c.clock.cellNs < c.drainDueNs {
		return
	}
	c.drainDueNs = maxTimeNs
	for _, m := range c.machineList {
		d := m.drain
		if d == nil {
			continue
		}
		if d.deadlineNs != 0 && !d.forced {
			if d.deadlineNs > c.clock.cellNs || mutant.Planted(mutant.DeadlineIgnored) {
				c.drainDueNs = min(c.drainDueNs, d.deadlineNs)
			} else {
				d.forced = true
				c.dirty(m)
				e := machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_DRAIN)
				e.Reason = "its deadline has passed: disruption budgets hold nothing back any more"
				c.emit(e)
			}
		}
		c.vacate(m)
	}
}

// vacate lets go what may leave a machine that drains.
func (c *Cell) vacate(m *Machine) {
	for _, a := range slices.Clone(m.allocs) {
		if a.machine == m {
			c.vacateAlloc(a)
		}
	}
	for _, p := range m.copies {
		if p.state.current() && p.alloc == nil {
			if again := c.vacateCopy(p); c.format >= formatLastLeave {
				// A daemon that stays no longer to the last may leave when others come up.
				p.job.leaveDueNs = min(p.job.leaveDueNs, again)
			}
		} else if p.state == attemptQuarantined && m.emptied() {
			c.letGo(p, borgpb.StopCause_STOP_CAUSE_DRAIN, m.drainWords(), -1)
		}
	}
}

// leave lets go what may of the tasks of a job that are on machines that drain.
func (c *Cell) leave(j *Job) {
	if c.drains == 0 || c.clock.cellNs < j.leaveDueNs || j.gone {
		return
	}
	due := int64(maxTimeNs)
	for _, t := range j.rows {
		p := t.cur
		if p == nil || p.machine.drain == nil {
			continue
		}
		if p.alloc != nil {
			due = min(due, c.vacateAlloc(p.alloc))
		} else {
			due = min(due, c.vacateCopy(p))
		}
	}
	j.leaveDueNs = due
}

// vacateCopy evicts a copy if it may go. Otherwise it tells the cell time before
// which there is no need to try again; zero: others may come up at any time.
func (c *Cell) vacateCopy(p *Copy) (againNs int64) {
	if p.staysToTheLast() || p.job.saving != nil && (c.format < FormatSaverDrains || mutant.Planted(mutant.SaverHoldsDrain)) {
		// Whoever leaves as the last of the others has it looked at again.
		return maxTimeNs
	}
	if again, held := c.staysHere(p.machine, []*Copy{p}); held {
		return again
	}
	c.disturb(p.row())
	c.countEvicted(p.machine)
	c.evict(p.row(), edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_DRAIN, p.machine.drainWords(), p.grace())
	return maxTimeNs
}

// vacateAlloc is vacateCopy for an alloc and all that run in it.
func (c *Cell) vacateAlloc(a *Alloc) (againNs int64) {
	var inside []*Copy
	for _, p := range a.copies {
		if p.state.stays() {
			inside = append(inside, p)
		}
	}
	m := a.machine
	if m.drain != nil && !m.drain.forced && a.HoldVolumes() != nil {
		return maxTimeNs
	}
	if again, held := c.staysHere(m, inside); held {
		if c.format >= formatTogether {
			// Any of them may be the one who is waited for.
			for _, p := range inside {
				p.job.leaveDueNs = min(p.job.leaveDueNs, again)
			}
		}
		return again
	}
	for _, p := range inside {
		if p.state.current() {
			c.disturb(p.row())
			c.countEvicted(m)
		}
	}
	c.evictAlloc(a, edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_DRAIN, m.drainWords(), -1)
	return maxTimeNs
}

func (c *Cell) countEvicted(m *Machine) {
	if m.drain != nil {
		m.drain.evicted++
		c.dirty(m)
	}
}

// staysHere tells whether those who go together have to stay for now, and when to
// look again.
func (c *Cell) staysHere(m *Machine, going []*Copy) (againNs int64, held bool) {
	if m.drain == nil || m.drain.forced {
		return 0, false
	}
	if c.restored.held {
		return 0, true
	}
	h := c.HoldOf(going)
	if h == nil {
		return 0, false
	}
	if h.UntilNs != 0 {
		c.drainDueNs = min(c.drainDueNs, h.UntilNs)
	}
	return h.UntilNs, true
}

// Drain says how the machine is being emptied; ok: it is.
func (m *Machine) Drain() (deadlineNs int64, forced, ok bool) {
	if m.drain == nil {
		return 0, m.draining, m.draining
	}
	return m.drain.deadlineNs, m.drain.forced, true
}

// HoldHere returns why a task or an alloc may not leave a machine that is emptied; nil if it
// may. h is what holds it there by itself. A budget is told before a restore, which is over
// sooner.
func (c *Cell) HoldHere(of TaskID, h *Hold) *Hold {
	if h != nil || !c.restored.held {
		return h
	}
	return &Hold{Task: of, Reason: restoredWords}
}

// Blockers are the tasks that may not leave a machine now if it is drained, and the
// volumes that are kept there, at most so many, and for what they wait.
func (c *Cell) Blockers(m *Machine, most int) []Hold {
	var holds []Hold
	add := func(of TaskID, going []*Copy) {
		if h := c.HoldHere(of, c.HoldOf(going)); h != nil && len(holds) < most {
			holds = append(holds, *h)
		}
	}
	for _, a := range m.allocs {
		if h := a.HoldVolumes(); h != nil && len(holds) < most {
			holds = append(holds, *h)
		} else if a.machine == m {
			add(TaskID{a.set.key, a.index}, slices.DeleteFunc(slices.Clone(a.copies), func(p *Copy) bool { return !p.state.stays() }))
		}
	}
	for _, p := range m.copies {
		if p.state.stays() && p.alloc == nil {
			add(p.TaskID(), []*Copy{p})
		}
	}
	kept := append(c.HoldsOfSavers(m), c.KeptVolumes(m)...)
	return append(holds, kept[:min(len(kept), most-len(holds))]...)
}

// drainProto shows a drain.
func (c *Cell) drainProto(m *Machine) *borgpb.Drain {
	d := m.drain
	if d == nil {
		return nil
	}
	p := &borgpb.Drain{Reason: d.reason, User: d.user, SinceWallNs: d.sinceWallNs, Forced: d.forced, Evicted: d.evicted}
	for _, o := range m.copies {
		if o.state.stays() {
			p.Left++
		}
	}
	p.GiveUpVolumes = d.giveUp
	if d.forced {
		for _, h := range c.KeptVolumes(m) {
			if len(p.Blockers) < maxBlockersShown {
				p.Blockers = append(p.Blockers, h.Proto(c))
			}
		}
		return p
	}
	p.Left += uint32(len(c.saversWaiting(m)))
	if d.deadlineNs != 0 {
		p.DeadlineLeftNs = max(d.deadlineNs-c.clock.cellNs, 1)
	}
	for _, h := range c.Blockers(m, maxBlockersShown) {
		p.Blockers = append(p.Blockers, h.Proto(c))
	}
	return p
}

// Proto shows a hold.
func (h *Hold) Proto(c *Cell) *borgpb.DrainBlocker {
	b := &borgpb.DrainBlocker{Task: h.Task.String(), Reason: h.Reason, Volume: h.Volume}
	if h.Job != (JobKey{}) {
		b.Job = h.Job.String()
	}
	if h.UntilNs != 0 {
		b.WaitNs = max(h.UntilNs-c.clock.cellNs, 1)
	}
	return b
}

// drain writes how a machine is being emptied.
func (e *encoder) drain(d *drain) {
	if d == nil {
		return
	}
	e.byte(tagDrain)
	e.str(d.reason)
	e.str(d.user)
	e.int(d.sinceWallNs)
	e.int(d.deadlineNs)
	e.bool(d.forced)
	e.uint(uint64(d.evicted))
}

func (l *loader) drain(d *decoder, m *Machine) error {
	if l.c.format < FormatBudgets || !d.tagged(tagDrain) {
		return nil
	}
	m.drain = &drain{reason: d.str(), user: d.str(), sinceWallNs: d.int(), deadlineNs: d.int(), forced: d.bool(), evicted: d.uint32()}
	if !m.draining || m.drain.deadlineNs < 0 || m.drain.deadlineNs > maxTimeNs || len(m.drain.reason) > maxReasonBytes {
		return errOdd
	}
	l.c.drains++
	return nil
}
