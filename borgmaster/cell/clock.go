package cell

import "borg/proto/borgpb"

// clock is the cell's two clocks. Cell time goes only forward, by the elected
// master's monotonic clock. Wall time is followed as long as it moves as cell
// time does.
type clock struct {
	cellNs, wallNs int64
	// The wall clock stepped. Until an operator confirms it, or it steps back,
	// wallNs goes on by cell time.
	suspect bool
	// Some stamp has been followed, and the term of the last entry that had one.
	stamped   bool
	stampTerm uint64
}

// advance moves the clocks to an entry's stamps. It tells whether the wall
// clock has just become suspect.
//
// Cell time stands still while nobody is elected, so a forward step of the
// wall clock is what an outage looks like: the first entry of a new term may
// bring one of up to 7 days.
func (k *clock) advance(term uint64, cellNs, wallNs int64) (stepped bool) {
	if cellNs < k.cellNs || cellNs > maxTimeNs {
		cellNs = k.cellNs
	}
	expected := min(k.wallNs+cellNs-k.cellNs, maxTimeNs)
	k.cellNs = cellNs
	newTerm := term != k.stampTerm
	k.stampTerm = term

	step := wallNs - expected
	valid := wallNs > 0 && wallNs <= maxTimeNs
	follow := valid && (!k.stamped ||
		(step <= wallStepNs && step >= -wallStepNs) ||
		(newTerm && step > 0 && step <= maxOutageStepNs))
	if follow {
		k.wallNs, k.suspect, k.stamped = wallNs, false, true
		return false
	}
	k.wallNs = expected
	stepped = !k.suspect
	k.suspect = true
	return stepped
}

func (c *Cell) checkSetTime(o *borgpb.SetTime) (commit, *borgpb.Refusal) {
	raw := c.now.rawWallNs
	if o.ConfirmWall && (raw <= 0 || raw > maxTimeNs) {
		return nil, invalid("wall_time_ns", "%d is not a time", raw)
	}
	return func(*borgpb.Result) {
		if o.ConfirmWall {
			c.clock.wallNs, c.clock.suspect, c.clock.stamped = raw, false, true
		}
	}, nil
}

func (c *Cell) checkRaiseFormat(o *borgpb.RaiseFormat) (commit, *borgpb.Refusal) {
	if o.Format <= c.format {
		return nil, badState("cell", "the format is %d already", c.format)
	}
	if o.Format > c.build {
		// Newer builds go on from here by rules that this one does not know.
		if c.diverged == nil {
			c.diverged = newerFormat(o.Format, c.build)
		}
		return nil, invalid("format", "format %d is not known; the latest is %d", o.Format, c.build)
	}
	return func(*borgpb.Result) {
		c.raise(o.Format)
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_FORMAT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL})
	}, nil
}

// raise lets a later format begin.
func (c *Cell) raise(format uint32) {
	if c.format < formatDevices && format >= formatDevices {
		c.numberDevices()
	}
	was := c.format
	c.format = format
	if was < formatTaints && c.format >= formatTaints {
		c.beginTaints()
	}
	if was < formatLimits && c.format >= formatLimits {
		c.nameMachines()
	}
}
