package replica

const (
	// Each election that nobody had reason for makes a replica more patient, for so many ticks.
	patientTicks = 250
	// So many elections at once are remembered at most.
	maxElections = 5
	// From so many on, of which it remembers, an election timeout is twice as long, with
	// each more twice as long again, up to longestTimeout as long.
	manyElections, longestTimeout = 2, 8
	// A tick that comes so much later than it should is a late one, of which the second
	// worst of the last patientTicks counts: one may be a machine that stood still. An
	// election timeout is as many times as long as that was late.
	lateTicks = 3
	// The leader waits leastLeading to mostLeading times as long for the answers of a majority:
	// it sends a heartbeat with each of its ticks, and followers wait for those.
	leastLeading, mostLeading = 2, 4
	// So many late ones are remembered.
	maxLate = 8
)

// patience stretches the election timeout while one election follows another. It is short
// so that a dead master is found soon; where everything is late, live ones are found too,
// and each election makes more to do: a new scheduler takes in the whole cell, all link
// shards have another master. With a timeout that stays as it is that need not end.
//
// Replicas may differ in it. An impatient replica asks before it campaigns, and replicas
// that hear of a master do not vote.
//
// An election after a master whose process is gone, or that asked for it itself, or where
// there was none, does not count, however many there are.
//
// The leader is more patient than its followers. It steps down when a majority has not
// answered for an election timeout, and in the first second after an election all replicas
// are busiest; while they hear of the leader no other one would be elected.
//
// It is stretched, too, while this replica's own ticks come late: on a machine that is so
// busy what others say is late as well, by more than one of its ticks, and to elect another
// master is the last thing that it has time for.
type patience struct {
	term uint64
	// Ticks until all elections are forgotten.
	ticks uint64
	// Ticks since raft's last one.
	held uint64
	// Ticks in all, and the late ones, oldest first.
	now   uint64
	lates []lateTick
}

// lateTick is a tick that came so many ticks late.
type lateTick struct{ at, by uint64 }

// saw takes in the term after each step; a later one had reason to come, or not.
func (p *patience) saw(term uint64, reason bool) {
	if term > p.term && p.term > 0 && !reason {
		p.ticks = min(p.ticks+patientTicks, maxElections*patientTicks)
	}
	p.term = term
}

// tick lets a tick pass, which came so much late, and tells whether raft has one.
func (p *patience) tick(by uint64, leading bool) bool {
	p.now++
	for len(p.lates) > 0 && p.now-p.lates[0].at > patientTicks || len(p.lates) > maxLate {
		p.lates = p.lates[1:]
	}
	if by >= lateTicks {
		p.lates = append(p.lates, lateTick{p.now, by})
	}
	p.ticks -= min(p.ticks, 1)
	if p.held++; p.held < p.factor(leading) {
		return false
	}
	p.held = 0
	return true
}

// factor is how many times as long an election timeout is.
func (p *patience) factor(leading bool) uint64 {
	factor := max(p.secondLate(), 1)
	if many := p.ticks / patientTicks; many >= manyElections {
		factor = max(factor, uint64(2)<<(many-manyElections))
	}
	if leading {
		return min(max(factor, leastLeading), mostLeading)
	}
	return min(factor, longestTimeout)
}

// secondLate is by how much the second worst of the late ticks was late.
func (p *patience) secondLate() uint64 {
	worst, second := uint64(0), uint64(0)
	for _, l := range p.lates {
		worst, second = max(worst, l.by), max(second, min(worst, l.by))
	}
	return second
}
