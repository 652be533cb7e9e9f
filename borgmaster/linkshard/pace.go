package linkshard

// A shard that falls behind polls machines at rest less often. It falls behind when polls
// begin late, as too many are in flight, or when its own timers fire late, as the processor
// is short. It keeps its machines: to give them away costs the others handshakes, and makes
// them late next.

const (
	// HandshakesPerS is how many polls a second may need a handshake: at half a
	// millisecond of signatures each, a quarter of a core.
	HandshakesPerS = 500
	// So many of them may begin at once after a pause.
	handshakeBurst = 32
	// BeatNs is the time between two looks at how late this process is.
	BeatNs = 100e6
	// Time between two decisions on the interval.
	paceEveryNs = 1e9
	// Most that the interval is stretched.
	mostStretch = 8
	// Timers are late when their average delay is so long, and very late at the second.
	lateBeatNs, veryLateBeatNs = 25e6, 80e6
	// They are in time when it is shorter than this.
	promptBeatNs = 10e6
	// Polls are late when they begin later than this part of the interval, and very late
	// at the second.
	latePart, veryLatePart = 8, 2
	// Factors by which the interval grows, and shrinks after it has been in force for one
	// interval.
	growth, fastGrowth, shrinkage = 1.2, 1.5, 0.8
	// A poll may take longer by so many times the delay of timers, but not longer than
	// longestPollNs.
	lateFactor    = 6
	longestPollNs = 6e9
	// A machine that missed so many intervals is one of those that are down.
	silentRounds = 4
)

// pace is by how much the interval between polls is stretched.
type pace struct {
	stretch float64
	// Longest stretch that was in force within one such interval, and when that ends.
	widest        float64
	widestUntilNs int64
	// Last decision, and last change.
	lookedNs, changedNs int64
	// Sum of the delays of timers since the last decision, and their number.
	lateNs, beats int64
}

func newPace() pace { return pace{stretch: 1, widest: 1} }

// stretched returns how long a time is now that should be ns.
func (p *pace) stretched(ns int64) int64 { return int64(p.stretch * float64(ns)) }

// widestNs returns the longest interval that some machine may be waiting for.
func (p *pace) widestNs(now, periodNs int64) int64 {
	if now < p.widestUntilNs && p.widest > p.stretch {
		return int64(p.widest * float64(periodNs))
	}
	return p.stretched(periodNs)
}

// beat takes in how late a timer was, with how late polls begin.
func (p *pace) beat(now, lateNs, lagNs, periodNs int64) {
	p.lateNs, p.beats = p.lateNs+lateNs, p.beats+1
	if now-p.lookedNs < paceEveryNs {
		return
	}
	late := p.lateNs / p.beats
	p.lookedNs, p.lateNs, p.beats = now, 0, 0
	was := p.stretch
	switch {
	case late >= veryLateBeatNs || lagNs >= periodNs/veryLatePart:
		p.stretch = min(p.stretch*fastGrowth, mostStretch)
	case late >= lateBeatNs || lagNs >= periodNs/latePart:
		p.stretch = min(p.stretch*growth, mostStretch)
	case late < promptBeatNs && now-p.changedNs >= p.stretched(periodNs):
		p.stretch = max(p.stretch*shrinkage, 1)
	}
	if p.stretch == was {
		return
	}
	p.changedNs = now
	if p.stretch < was {
		if now >= p.widestUntilNs || was > p.widest {
			p.widest = was
		}
		p.widestUntilNs = now + int64(was*float64(periodNs))
	}
}

func (c *Core) beat(now, lateNs int64) {
	c.lates.Add(now, lateNs)
	c.pace.beat(now, lateNs, c.lagNs, c.cfg.PeriodNs)
}

// PeriodNs returns the longest time between the answers of a machine at rest: both the start
// of a poll and its answer may be late.
func (c *Core) PeriodNs(now int64) int64 {
	return c.pace.widestNs(now, c.cfg.PeriodNs) + c.lagNs + 2*c.lates.Ns(now)
}

// LateNs returns how late this process is.
func (c *Core) LateNs(now int64) int64 { return c.lates.Ns(now) }

// TimeoutNs returns how long a poll may take: what is late here is no fault of a machine.
func (c *Core) TimeoutNs(now int64) int64 {
	return min(int64(PollTimeout)+lateFactor*c.lates.Ns(now), longestPollNs)
}

// silentFastNs is the silence after which a machine is one of those that are down.
func (c *Core) silentFastNs(now int64) int64 {
	return max(silentFastNs, silentRounds*c.pace.widestNs(now, c.cfg.PeriodNs))
}

// standing takes in to which machines of others there are connections.
func (c *Core) standing(machines []string) {
	for _, m := range c.machines {
		m.connected = m.connected && m.mine
	}
	for _, name := range machines {
		if m := c.machines[name]; m != nil && !m.mine {
			m.connected = true
		}
	}
}

// handshakes is the budget of polls that need one.
type handshakes struct {
	// The next one may begin at.
	mayNs int64
}

// take uses the budget for one, when there is one in each eachNs.
func (h *handshakes) take(now, eachNs int64) {
	h.mayNs = max(h.mayNs, now-(handshakeBurst-1)*eachNs) + eachNs
}
