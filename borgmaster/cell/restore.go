package cell

import (
	"errors"
	"fmt"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatRestore is the format in which a cell began to know that it was restored.
const FormatRestore = 5

// epochStride is the distance between the first attempts, and between the first
// versions of a job, of two epochs. What an epoch gave out after the checkpoint is
// unknown to the next one, which must not give it out again: at ten attempts a
// second an epoch would have to last three years to come that far.
const epochStride = 1_000_000_000

// HoldNs is how long a restored cell waits at most for its machines, in cell time.
const HoldNs = 300 * second

// restored is what a cell knows of its restore. It is older than its machines: they
// run what it does not know, and not all that it knows. So they are heard first, and
// until then nothing is placed. Nothing that it does not know is ever stopped
// but at an operator's word.
type restored struct {
	mark
	// Log index and wall time of the checkpoint; zero: the cell was never restored.
	fromIndex  uint64
	fromWallNs int64
	// When the epoch began; zero: nobody was elected yet.
	wallNs int64
	// Nothing is placed and no update rolls, at most until that cell time.
	held    bool
	untilNs int64
}

// Restored tells whether the cell began this epoch with a checkpoint, and of when
// that was.
func (c *Cell) Restored() (fromIndex uint64, fromWallNs, wallNs int64, ok bool) {
	r := &c.restored
	return r.fromIndex, r.fromWallNs, r.wallNs, r.fromIndex != 0
}

// Held tells whether nothing is placed because machines have not told yet what they
// run, and for how long that may last. Nanoseconds of cell time.
func (c *Cell) Held() (leftNs int64, held bool) {
	return max(c.restored.untilNs-c.clock.cellNs, 0), c.restored.held
}

// Unheard tells whether the machine has not told yet, since the restore, what it runs.
func (m *Machine) Unheard() bool { return m.unheard }

// Unknown counts the live copies on the machine that a restored cell does not have.
func (m *Machine) Unknown() uint32 { return m.unknown }

// Closed tells whether the machine takes no new tasks because of a restore: all wait
// until it was heard, and it waits itself while it runs what is not known, whose room
// and ports nobody has counted.
func (m *Machine) Closed() bool {
	return m.held != nil && m.held.held && !mutant.Planted(mutant.RestoreNotHeld) || m.unheard || m.unknown > 0
}

// closedWords says why, for people.
func (m *Machine) closedWords() string {
	switch {
	case m.unheard:
		return m.name + " has not told yet what it runs since the cell was restored"
	case m.unknown > 0:
		return fmt.Sprintf("%s runs %d tasks that the restored cell does not know: borgcfg restore unknown", m.name, m.unknown)
	}
	return restoredWords
}

// restoredWords say what a cell that is held waits for.
const restoredWords = "the cell was restored and waits until its machines have told what they run: borgcfg restore status"

// HoldWords say that nothing is placed since the cell was restored, for people; empty
// if it is not held.
func (c *Cell) HoldWords() string {
	if !c.restored.held {
		return ""
	}
	return restoredWords
}

// Restore makes of a cell that was read from a checkpoint the one that a new epoch
// begins with. It is not done by the log, but before there is one: whoever restores
// the same checkpoint to the same epoch gets the same cell.
//
// Tokens are forgotten: one that was used since would be good again. The wall clock
// is whatever the first entry says.
func (c *Cell) Restore(epoch uint64) error {
	switch {
	case epoch <= c.epoch || epoch > 1<<32:
		return fmt.Errorf("the cell is of epoch %d and cannot begin epoch %d", c.epoch, epoch)
	case c.index == 0:
		return errors.New("the cell is empty: there is nothing to restore")
	}
	if c.format < FormatRestore {
		c.raise(FormatRestore)
	}
	c.restored.fromIndex, c.restored.fromWallNs, c.restored.wallNs = c.index, c.clock.wallNs, 0
	c.restored.held, c.restored.untilNs = true, min(c.clock.cellNs+HoldNs, maxTimeNs)
	c.dirty(&c.restored)
	c.epoch = epoch
	c.clock.suspect, c.clock.stamped = false, false
	c.dirty(&c.head)
	for len(c.tokens.list) > 0 {
		c.dropToken(c.tokens.list[0])
	}
	for _, m := range c.machineList {
		m.unheard, m.unknown = true, 0
		c.dirty(m)
	}
	for j := range c.jobs.each() {
		if !mutant.Planted(mutant.FloorNotRaised) {
			j.attemptFloor = max(j.attemptFloor, c.floor())
		}
		j.version = max(j.version, c.floor())
		c.dirty(j)
	}
	c.records.past = [digestsKept]pastDigest{}
	return c.Check()
}

// floor is below all attempts and versions that this epoch gives out.
func (c *Cell) floor() uint64 { return (c.epoch - 1) * epochStride }

// endHoldIfHeard ends the hold when every machine that is up was heard, or when its time is over.
func (c *Cell) endHoldIfHeard() {
	if !c.restored.held {
		return
	}
	why := "every machine that is up has told what it runs"
	if c.clock.cellNs >= c.restored.untilNs {
		why = "its time is over"
	} else {
		for _, m := range c.machineList {
			if m.unheard && !m.down {
				return
			}
		}
	}
	c.endHold(why)
}

// expireHold ends the hold when its time is over. The first entry says when the
// epoch began.
func (c *Cell) expireHold() {
	if r := &c.restored; r.fromIndex != 0 && r.wallNs == 0 && c.clock.wallNs > 0 {
		r.wallNs = c.clock.wallNs
		c.dirty(r)
		c.restoreCrons()
	}
	if c.restored.held && (c.clock.cellNs >= c.restored.untilNs || len(c.machineList) == 0) {
		c.endHoldIfHeard()
	}
}

func (c *Cell) endHold(why string) {
	c.restored.held = false
	c.lookAtSavers()
	c.drainDueNs = 0
	c.dirty(&c.restored)
	c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_HOLD_END, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Reason: why})
	for _, m := range c.machineList {
		if !m.Closed() {
			c.emit(machineEvent(m, borgpb.EventKind_EVENT_KIND_MACHINE_HEARD))
		}
	}
	for j := range c.jobs.each() {
		if j.update != nil && j.update.Rolling() {
			if j.update.policy.deadlineNs > 0 {
				// It stood still with the cell.
				j.update.progressNs = c.clock.cellNs
				c.dirty(j.update)
			}
			if j.update.gate.asked {
				j.update.gate.forget()
				c.dirty(j.update)
			}
			c.touch(j, edgeUpdate)
		}
	}
}

func (c *Cell) checkEndHold(*borgpb.EndHold) (commit, *borgpb.Refusal) {
	if !c.restored.held {
		return nil, badState("cell", "it is not held: tasks are placed")
	}
	return func(*borgpb.Result) { c.endHold("an operator said so: " + c.now.reason) }, nil
}

func (r *restored) appendKey(b []byte) []byte { return append(b, kindRestored) }
func (r *restored) exists() bool              { return r.fromIndex != 0 }

func (r *restored) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(r.fromIndex)
	e.int(r.fromWallNs)
	e.int(r.wallNs)
	e.bool(r.held)
	e.int(r.untilNs)
	return e.b
}

func (l *loader) restored(d *decoder) error {
	r := &l.c.restored
	r.fromIndex, r.fromWallNs, r.wallNs, r.held, r.untilNs = d.uint(), d.int(), d.int(), d.bool(), d.int()
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatRestore || r.fromIndex == 0 || r.fromIndex > l.c.index || l.c.epoch < 2 || r.untilNs < 0 || r.untilNs > maxTimeNs {
		return errOdd
	}
	return nil
}

// heard writes what a machine of a restored cell has told, and is waited for to tell.
func (e *encoder) heard(m *Machine) {
	if m.unheard || m.unknown > 0 {
		e.byte(tagHeard)
		e.bool(m.unheard)
		e.uint(uint64(m.unknown))
	}
}

func (l *loader) heard(d *decoder, m *Machine) error {
	if l.c.format < FormatRestore || !d.tagged(tagHeard) {
		return nil
	}
	m.unheard, m.unknown = d.bool(), d.uint32()
	if !m.unheard && m.unknown == 0 {
		return errOdd
	}
	return nil
}
