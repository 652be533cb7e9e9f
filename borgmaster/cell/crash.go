package cell

import (
	"fmt"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// formatCrashes is the format from which on a task is kept away from a machine
// on which its copies crash.
const formatCrashes = 3

// formatCrashesTold is the format from which on that lasts the longer the more of
// them crashed.
const formatCrashesTold = 5

// formatMovedElsewhere is the format in which tasks that are moved began to be kept away
// from their copies in quarantine, as those that wait for a place are.
const formatMovedElsewhere = 9

// FormatCrashingServices is the format in which a service that crashes again and again
// began to be tried on another machine, and crashes to be counted beside the copies that
// are remembered: for tasks that are moved too, and beside a copy in quarantine.
const FormatCrashingServices = 11

// FormatCrashingJobs is the format in which services began to stay where they are while
// most of their job crashes.
const FormatCrashingJobs = 12

// Away are the machines that a task is kept away from for a while; empty: none.
type Away struct {
	// A copy of it is in quarantine there.
	Kept string
	// It crashed there again and again, and not elsewhere since.
	Crashed string
}

// From tells whether a machine is one of them.
func (a Away) From(machine string) bool {
	return machine != "" && (machine == a.Kept || machine == a.Crashed)
}

// Any tells whether there are any.
func (a Away) Any() bool { return a != Away{} }

// Where leaves those out beside which no machine is left that suits the task: then there
// is no choice. A machine with a copy in quarantine is the last one that is.
func (a Away) Where(elsewhere func(Away) bool) Away {
	if a.Kept != "" && a.Crashed != "" && !elsewhere(a) {
		a.Crashed = ""
	}
	if a.Any() && !elsewhere(a) {
		return Away{}
	}
	return a
}

// LastCrash are the machines that task index of j is kept away from, if any other takes
// tasks and suits it, room apart: see Away.Where. Whoever knows that by himself need not
// have all machines looked at.
func (c *Cell) LastCrash(j *Job, index uint32) Away {
	if t := j.Task(index); t != nil {
		return c.lastCrash(t)
	}
	return Away{}
}

// CrashedOn are the machines that task index of j is kept away from.
func (c *Cell) CrashedOn(j *Job, index uint32) Away {
	if t := j.Task(index); t != nil {
		return c.crashedOn(t)
	}
	return Away{}
}

// crashedOn are the machines that a task is kept away from, as its last copies crashed
// there and not elsewhere since, or as one is in quarantine there.
// The machine or the pairing may be at fault, so others are to be tried; if it
// crashes there too, it is the task (paper §4). Where no other machine that takes
// tasks suits it, there is no choice.
func (c *Cell) crashedOn(t *Task) Away {
	return c.lastCrash(t).Where(func(a Away) bool { return c.takesElsewhere(t, a) })
}

// lastCrash is crashedOn where there is a choice. It looks at no other machine.
func (c *Cell) lastCrash(t *Task) (a Away) {
	// One that runs may be moved.
	moves := t.state == stateRunning && c.format >= formatMovedElsewhere
	if t.state != statePending && !moves {
		return a
	}
	if a.Kept = c.quarantinedOn(t); mutant.Planted(mutant.QuarantinePlacedBack) {
		a.Kept = ""
	}
	if c.format >= FormatCrashingServices || a.Kept == "" && !moves {
		a.Crashed = c.crashedLately(t)
	}
	return a
}

// crashedLately is where the crashes of a task are remembered; empty: nowhere.
func (c *Cell) crashedLately(t *Task) string {
	if c.format < formatCrashes || mutant.Planted(mutant.CrashesForgotten) {
		return ""
	}
	if r := t.crashRow(); r != nil {
		if r.version != t.job.specOf(t.index).Version || r.everywhere || c.clock.cellNs >= c.untilNs(r) {
			return ""
		}
		return r.machine
	}
	if t.attempt < 2 {
		// Nearly all; what it did before lies elsewhere in memory.
		return ""
	}
	last := t.past
	if last == nil || last.next == nil {
		return ""
	}
	crashes := crashedCopies(t, t.job.specOf(t.index).Version)
	ago := c.clock.wallNs - last.endedWallNs
	if crashes < 2 || ago < 0 || ago >= c.crashMemory(crashes) {
		return ""
	}
	return last.machine.name
}

// crashedCopies counts the last copies of a task that crashed on one machine with a spec,
// of those that are remembered.
func crashedCopies(t *Task, version uint64) (n uint32) {
	for p := t.past; p != nil && n < maxCrashesCounted && p.state == attemptFailed && p.version == version && p.machine.name == t.past.machine.name; p = p.next {
		n++
	}
	return n
}

// crashMemory is for how long a task is kept away from where so many of its copies
// crashed in a row: an hour, doubled with each after the second.
func (c *Cell) crashMemory(crashes uint32) int64 {
	switch {
	case crashes < 2:
		return 0
	case c.format < formatCrashesTold:
		return crashMemoryOnceNs
	}
	return crashMemoryNs << (crashes - 2)
}

// takesElsewhere tells whether any machine but those takes tasks and meets what this
// one asks of a machine, room apart.
func (c *Cell) takesElsewhere(t *Task, but Away) bool {
	return c.elsewhere(t, but, func(*Machine, *Alloc) bool { return true })
}

// elsewhere tells whether any place will do: a machine that takes tasks and meets what
// this one asks of it, or an alloc there for one that runs in allocs.
func (c *Cell) elsewhere(t *Task, but Away, will func(*Machine, *Alloc) bool) bool {
	if t.job.daemon != nil || t.job.AllocByIndex() || c.VolumeSiteOf(t.job, nil, t.index).Bound {
		return false
	}
	spec := t.job.Need(t.index).Task
	does := func(m *Machine, a *Alloc) bool {
		return !m.down && !m.draining && !m.Closed() && !but.From(m.name) && failedConstraint(spec.Constraints, m) == nil && Untolerated(spec.Tolerations, m) == nil &&
			c.Banned(spec.Packages, m) == nil && will(m, a)
	}
	if key, ok := t.job.AllocSet(); ok && c.format >= FormatCrashingServices {
		if set := c.sets[key]; set != nil {
			for _, a := range set.allocs {
				if a.machine != nil && does(a.machine, a) {
					return true
				}
			}
		}
		return false
	}
	for _, m := range c.machineList {
		if does(m, nil) {
			return true
		}
	}
	return false
}

// crashedHere tells whether a task is kept away from m.
func (c *Cell) crashedHere(t *Task, m *Machine) bool {
	// Asked of every machine; what crashedOn finds out may take a look at all.
	return c.lastCrash(t).From(m.name) && c.crashedOn(t).From(m.name)
}

// crashRow are the crashes of a task on one machine and with one spec that followed one
// another without one elsewhere.
type crashRow struct {
	machine string
	version uint64
	// How often it left the machine for that, up to maxCrashesCounted; what it is kept
	// away for doubles with each. A service that was moved counts as two copies that
	// ended at least.
	copies uint32
	// Processes of it that crashed.
	crashes uint32
	// Cell time of the last one.
	lastNs int64
	// A service that was moved for it crashed elsewhere too: it is the task.
	everywhere bool
}

// crashRow of a task; nil: there is none.
func (t *Task) crashRow() *crashRow {
	if t.few == nil || t.few.crashed.copies == 0 {
		return nil
	}
	return &t.few.crashed
}

// untilNs is the cell time until which a row of crashes is remembered.
func (c *Cell) untilNs(r *crashRow) int64 { return r.lastNs + c.crashMemory(r.copies) }

// countCrash notes that a copy of a task has left its machine since its process crashed so
// many times; it counts as at least so many copies.
func (c *Cell) countCrash(t *Task, p *Copy, crashes, least uint32) {
	next := crashRow{machine: p.machine.name, version: p.version, copies: least, crashes: crashes, lastNs: c.clock.cellNs}
	switch was := t.crashRow(); {
	case mutant.Planted(mutant.CrashRowForgotten):
	case was == nil:
		// They may have begun in an earlier format.
		next.copies = max(least, crashedCopies(t, p.version))
		next.crashes = max(crashes, next.copies)
	case was.version != p.version || c.clock.cellNs-was.lastNs >= crashesForgottenNs:
	case was.machine == next.machine:
		next.copies = max(least, min(was.copies+1, maxCrashesCounted))
		next.crashes = min(was.crashes+crashes, maxFailures)
	case was.everywhere:
		// Elsewhere it does no better, and is tried there more rarely.
		next.copies = max(least, min(was.copies+1, maxCrashesCounted))
	}
	t.rare().crashed = next
	c.dirty(t)
}

// copyCrashed notes the crash of a copy that has ended, unless a later one has begun.
func (c *Cell) copyCrashed(p *Copy) {
	if t := p.row(); c.format >= FormatCrashingServices && t != nil && p.attempt == t.attempt && p.job.saving == nil {
		c.countCrash(t, p, 1, 1)
	}
}

// tryElsewhere has a service leave a machine on which its process crashed so many times
// in a row, and another one tried. It does so once: if it crashes there too it is the task,
// and its borglet starts it again later and later, until the first crash is forgotten.
// Whoever waits to be started again runs nowhere, so no budget is asked.
func (c *Cell) tryElsewhere(p *Copy, crashes uint32) {
	if c.format < FormatCrashingServices || crashes < crashesBeforeMoved || p.state != attemptBackoff || p.Kind() != borgpb.JobKind_JOB_KIND_SERVICE ||
		c.restored.held || mutant.Planted(mutant.CrashingServiceStays) {
		return
	}
	t := p.row()
	if tied(p) != "" || p.job.AllocByIndex() || c.crashesAsJob(p.job) {
		return
	}
	if r := t.crashRow(); r != nil && r.version == p.version && c.clock.cellNs < c.untilNs(r) && !mutant.Planted(mutant.CrashingServiceWanders) {
		if r.machine != p.machine.name && !r.everywhere {
			r.everywhere = true
			c.dirty(t)
		}
		if r.everywhere {
			return
		}
	}
	if !c.placeElsewhere(t, Away{Crashed: p.machine.name, Kept: c.quarantinedOn(t)}) {
		return
	}
	c.countCrash(t, p, min(crashes, maxFailures), 2)
	reason := fmt.Sprintf("crashed %s in a row on %s; tried elsewhere", timesWords(int(crashes)), p.machine.name)
	c.evict(t, edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_CRASHED, reason, p.grace())
}

// crashesAsJob tells whether what a job's tasks crash of is not their machines' fault, but the
// job's, or that of something it needs: more than half of those that have a place wait to be
// started again, on several machines. To move each of them would help none, and says nothing
// about a machine.
func (c *Cell) crashesAsJob(j *Job) bool {
	if c.format < FormatCrashingJobs || 2*j.backoff <= j.running || mutant.Planted(mutant.CrashingJobMoves) {
		return false
	}
	var seen [crashesOfJobMachines]*Machine
	n := 0
	for _, t := range j.rows {
		if p := t.cur; p != nil && p.state == attemptBackoff && !slices.Contains(seen[:n], p.machine) {
			seen[n] = p.machine
			if n++; n == len(seen) {
				return true
			}
		}
	}
	return false
}

// placeElsewhere tells whether a task that gives up its place would have another: one that
// is free now, or for production one that it takes from others.
func (c *Cell) placeElsewhere(t *Task, but Away) bool {
	place := Placement{Job: t.job, Index: t.index, AnyPorts: true}
	by := place.asker().by
	takes := isProd(by.Priority) && !by.Never()
	return c.elsewhere(t, but, func(m *Machine, a *Alloc) bool {
		place.Machine, place.Alloc = m, a
		return takes && a == nil || c.Fit(&place, nil) == FitOK
	})
}

// CrashedUntilNs is the cell time until which the crashes of task index of j are remembered;
// zero: there are none, or they are remembered by its copies alone.
func (c *Cell) CrashedUntilNs(j *Job, index uint32) int64 {
	if t := j.Task(index); t != nil && t.crashRow() != nil {
		return c.untilNs(t.crashRow())
	}
	return 0
}

// AwayWords says of a machine that a task is kept away from why, and for how long.
func (c *Cell) AwayWords(j *Job, index uint32, machine string) string {
	t := j.Task(index)
	switch {
	case t == nil:
		return ""
	case c.quarantinedOn(t) == machine:
		return fmt.Sprintf("a copy of it is in quarantine on %s; it is placed elsewhere", machine)
	}
	if r := t.crashRow(); r != nil {
		const minute = 60 * second
		left := (c.untilNs(r) - c.clock.cellNs + minute - 1) / minute * minute
		return fmt.Sprintf("it is kept away from %s, where it crashed %s, for another %s", machine, timesWords(int(r.crashes)), spanWords(left))
	}
	return fmt.Sprintf("its last two copies crashed on %s; for a while it is placed elsewhere", machine)
}

// checkCrashes is the invariant of what is remembered of a task's crashes.
func (c *Cell) checkCrashes(t *Task) error {
	r := t.crashRow()
	switch {
	case r == nil:
		return nil
	case c.format < FormatCrashingServices:
		return fmt.Errorf("crashes of a later format are remembered: %+v", *r)
	case r.copies > maxCrashesCounted || r.crashes == 0 || r.crashes > maxFailures || r.lastNs < 0 || r.lastNs > c.clock.cellNs ||
		r.version == 0 || r.version > t.job.version || !validName(r.machine) || r.everywhere && r.copies < 2:
		return fmt.Errorf("its crashes are odd: %+v, and it is %d", *r, c.clock.cellNs)
	}
	return nil
}

// crashes writes those of a task, if there are any.
func (e *encoder) crashes(r *crashRow) {
	if r == nil {
		return
	}
	e.byte(tagCrashes)
	e.str(r.machine)
	e.uint(r.version)
	e.uint(uint64(r.copies))
	e.uint(uint64(r.crashes))
	e.int(r.lastNs)
	e.bool(r.everywhere)
}

func (l *loader) crashes(d *decoder, t *Task) error {
	if l.c.format < FormatCrashingServices || !d.tagged(tagCrashes) {
		return nil
	}
	t.rare().crashed = crashRow{machine: d.str(), version: d.uint(), copies: d.uint32(), crashes: d.uint32(), lastNs: d.int(), everywhere: d.bool()}
	if t.crashRow() == nil {
		return errOdd
	}
	return nil
}
