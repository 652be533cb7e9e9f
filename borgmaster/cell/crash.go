package cell

import "borg/mutant"

// formatCrashes is the format from which on a task is kept away from a machine
// on which its copies crash.
const formatCrashes = 3

// formatCrashesTold is the format from which on that lasts the longer the more of
// them crashed.
const formatCrashesTold = 5

// crashedOn returns the name of the machine that a task is kept away from, as its
// last copies crashed there, two or more, and not elsewhere since, or as one is in
// quarantine there; empty: there is none.
// The machine or the pairing may be at fault, so others are to be tried; if it
// crashes there too, it is the task (paper §4). Where no other machine that takes
// tasks suits it, there is no choice.
func (c *Cell) crashedOn(t *Task) string {
	name := c.lastCrash(t)
	if name == "" || !c.takesElsewhere(t, name) {
		return ""
	}
	return name
}

// formatMovedElsewhere is the format in which tasks that are moved began to be kept away
// from their copies in quarantine, as those that wait for a place are.
const formatMovedElsewhere = 9

// lastCrash is crashedOn where there is a choice. It looks at no other machine.
func (c *Cell) lastCrash(t *Task) string {
	// One that runs may be moved.
	mayBePlaced := t.state == statePending || t.state == stateRunning && c.format >= formatMovedElsewhere
	if name := c.quarantinedOn(t); name != "" && mayBePlaced && !mutant.Planted(mutant.QuarantinePlacedBack) {
		return name
	}
	if t.attempt < 2 {
		// Nearly all; what it did before lies elsewhere in memory.
		return ""
	}
	last := t.past
	if c.format < formatCrashes || mutant.Planted(mutant.CrashesForgotten) || last == nil || last.next == nil || t.state != statePending {
		return ""
	}
	spec := t.job.specOf(t.index).Version
	crashes := 0
	for p := last; p != nil && crashes < maxCrashesCounted && p.state == attemptFailed && p.version == spec && p.machine.name == last.machine.name; p = p.next {
		crashes++
	}
	ago := c.clock.wallNs - last.endedWallNs
	if crashes < 2 || ago < 0 || ago >= c.crashMemory(crashes) {
		return ""
	}
	return last.machine.name
}

// crashMemory is for how long a task is kept away from where so many of its copies
// crashed in a row: an hour, doubled with each after the second.
func (c *Cell) crashMemory(crashes int) int64 {
	if c.format < formatCrashesTold {
		return crashMemoryOnceNs
	}
	return crashMemoryNs << (crashes - 2)
}

// takesElsewhere tells whether any machine but one takes tasks and meets what this
// one asks of a machine, room apart.
func (c *Cell) takesElsewhere(t *Task, but string) bool {
	if t.job.daemon != nil || t.job.AllocByIndex() || c.VolumeSiteOf(t.job, nil, t.index).Bound {
		return false
	}
	spec := t.job.Need(t.index).Task
	for _, m := range c.machineList {
		if !m.down && !m.draining && !m.Closed() && m.name != but && failedConstraint(spec.Constraints, m) == nil && Untolerated(spec.Tolerations, m) == nil &&
			c.Banned(spec.Packages, m) == nil {
			return true
		}
	}
	return false
}

// crashedHere tells whether a task is kept away from m.
func (c *Cell) crashedHere(t *Task, m *Machine) bool {
	// Asked of every machine; what crashedOn finds out may take a look at all.
	return (t.attempt >= 2 && t.past != nil && t.past.machine.name == m.name || c.quarantinedOn(t) == m.name) && c.crashedOn(t) == m.name
}

// LastCrash is CrashedOn if any other machine takes tasks and suits the task, room
// apart. Whoever knows that by himself need not have all machines looked at.
func (c *Cell) LastCrash(j *Job, index uint32) string {
	if t := j.Task(index); t != nil {
		return c.lastCrash(t)
	}
	return ""
}

// CrashedOn is the name of the machine that task index of j is kept away from
// for a while, as it crashed there twice in a row or a copy of it is in quarantine
// there; empty: there is none.
func (c *Cell) CrashedOn(j *Job, index uint32) string {
	if t := j.Task(index); t != nil {
		return c.crashedOn(t)
	}
	return ""
}
