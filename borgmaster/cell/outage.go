package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// maxLostNs is for how long an operator's word about lost machines can hold.
const maxLostNs = 7 * 24 * 3600 * second

// outage is an operator's word that machines which cannot be reached are lost,
// however many. Without it nobody believes that most of a cell is gone: it is more
// likely that the masters are cut off (paper §4).
type outage struct {
	mark
	// Cell time until which it holds; zero: it was never given.
	untilNs int64
}

// LostDeclared tells for how long yet machines that cannot be reached count as lost,
// however many they are; zero: they do not. Nanoseconds of cell time.
func (c *Cell) LostDeclared() int64 { return max(c.outage.untilNs-c.clock.cellNs, 0) }

func (c *Cell) checkDeclareLost(o *borgpb.DeclareLost) (commit, *borgpb.Refusal) {
	switch {
	case o.ForNs < 0 || o.ForNs > maxLostNs:
		return nil, outOfSpan("for_ns", o.ForNs, 0, maxLostNs)
	case o.ForNs == 0 && c.LostDeclared() == 0:
		return nil, badState("cell", "nothing is declared lost")
	}
	return func(*borgpb.Result) {
		c.outage.untilNs = min(c.clock.cellNs+o.ForNs, maxTimeNs)
		c.dirty(&c.outage)
		text := "machines that cannot be reached are no longer lost, if they are many"
		if o.ForNs > 0 {
			text = fmt.Sprintf("machines that cannot be reached are lost, however many, for %s", spanWords(o.ForNs))
		}
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_LOST_DECLARED, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Reason: text})
	}, nil
}

func (o *outage) appendKey(b []byte) []byte { return append(b, kindOutage) }
func (o *outage) exists() bool              { return o.untilNs != 0 }

func (o *outage) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.int(o.untilNs)
	return e.b
}

func (l *loader) outage(d *decoder) error {
	o := &l.c.outage
	o.untilNs = d.int()
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatRestore || o.untilNs <= 0 || o.untilNs > maxTimeNs {
		return errOdd
	}
	return nil
}
