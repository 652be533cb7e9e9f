package replica

const (
	// Each election makes a replica more patient, for so many ticks.
	patientTicks = 250
	// So many elections at once are remembered at most.
	maxElections = 5
	// From so many on, of which it remembers, an election timeout is twice as long, with
	// each more twice as long again, up to longestTimeout as long.
	manyElections, longestTimeout = 2, 8
)

// patience stretches the election timeout while one election follows another. It is short
// so that a dead master is found soon; where everything is late, live ones are found too,
// and each election makes more to do: a new scheduler takes in the whole cell, all link
// shards have another master. With a timeout that stays as it is that need not end.
//
// Replicas may differ in it. Who is impatient asks before he campaigns, and those who hear
// of a master do not vote.
type patience struct {
	term uint64
	// Ticks until all elections are forgotten.
	ticks uint64
	// Ticks since raft's last one.
	held uint64
}

// saw takes in the term after each step.
func (p *patience) saw(term uint64) {
	if term > p.term && p.term > 0 {
		p.ticks = min(p.ticks+patientTicks, maxElections*patientTicks)
	}
	p.term = term
}

// tick lets a tick pass and tells whether raft has one.
func (p *patience) tick() bool {
	p.ticks -= min(p.ticks, 1)
	if p.held++; p.held < p.factor() {
		return false
	}
	p.held = 0
	return true
}

// factor is how many times as long an election timeout is.
func (p *patience) factor() uint64 {
	many := p.ticks / patientTicks
	if many < manyElections {
		return 1
	}
	return min(uint64(2)<<(many-manyElections), longestTimeout)
}
