package linkshard

import (
	"cmp"
	"slices"

	"borg/borgmaster/late"
	"borg/mutant"
	"borg/proto/borgrpc"
)

// CoreConfig bounds the poll schedule. Zero values take the defaults.
type CoreConfig struct {
	// This replica's id.
	Replica uint64
	// Time between two polls of a machine at rest while polls begin in time. Nanoseconds;
	// 0: 2 s.
	PeriodNs int64
	// First time between polls of a machine where something is under way;
	// doubled with each poll up to PeriodNs. 0: 50 ms.
	FastNs int64
	// At least so long between the starts of two polls of one machine; longer while
	// polls begin late. 0: 10 ms.
	GapNs int64
	// Polls in flight at most; machines that are due beyond it wait. One that takes
	// far longer than others is not counted. 0: 64.
	MaxInFlight int
	// Polls a second that may need a handshake, at most, while polls begin in time; fewer by
	// as much as the time between polls is longer. 0: HandshakesPerS.
	HandshakesPerS int64
}

func (c CoreConfig) withDefaults() CoreConfig {
	c.PeriodNs = cmp.Or(c.PeriodNs, 2e9)
	c.FastNs = cmp.Or(c.FastNs, 50e6)
	c.GapNs = cmp.Or(c.GapNs, 10e6)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 64)
	c.HandshakesPerS = cmp.Or(c.HandshakesPerS, HandshakesPerS)
	return c
}

const (
	// Polls of machines at rest begin at multiples of it, so that this replica and the
	// borglets wake up for some at once.
	gridNs = 10e6
	// The first polls of the first share take this part of the period: each needs a
	// handshake, and all must be made soon.
	spreadPart = 4
	// Machines of a share that has moved are due so long ago: before all that wait.
	movedFirstNs = 3600e9
	// The lag is an average over about so many polls.
	lagPolls = 64
	// A machine where something is under way, or changes again and again, is polled
	// no sooner than after so many times the lag: those at rest come first.
	lagFactor = 4
	// A machine that missed a poll is asked again after so long, while it has been
	// silent for no longer than silentFastNs: later it is one of those that are down.
	afterMissNs  = 1e9
	silentFastNs = 15e9
	// A machine that has not answered for an interval and so long is not one that is heard,
	// whether it was asked since or not. Of many that vanish at once the first can be called down when it
	// has missed three polls and another replica's: by then all have been silent for
	// longer, however late polls are. Nobody is looked for while polls begin in time and
	// each is answered.
	unheardNs, unheardLagNs = 1500e6, 100e6
	// Who is back is one of those that returned for so long.
	returnedNs = 10e9
	// Of machines that do not answer at most so many a second are asked, and of those that
	// have not for silentFastNs: each takes a new connection then, a handshake and the time
	// of those that do answer. Once one of them is back, the others are asked at the first
	// of the two paces.
	silentPollsPerS, longSilentPollsPerS = 300, 50
	// A poll that takes so much longer than those that are answered, and at least so
	// long, holds no place among those in flight: a rack that vanished must not keep
	// the others waiting. So many may be out like that.
	slowFactor, slowLeastNs = 8, 100e6
	maxSlow                 = 4096
	// After an election, or a while without an elected master of at most so long, what
	// was missed before still counts. Without for longer, this replica may have been
	// cut off: then every machine is granted a whole window.
	contactLostNs = 3e9
	// MissesForDown is how many polls in a row a machine must have missed to be down.
	MissesForDown = 3
	// A shard that hears of no machine says so once so many polls in a row have not
	// been answered; that it stood still itself for so long is no silence of theirs.
	deafPolls = 8
	// As much longer than this as the interval is stretched no machine must have answered.
	deafPauseNs  = 400e6
	stoodStillNs = 300e6
)

// Event is something that the Core hears.
type Event interface{ event() }

type (
	// MachinesAre replaces the set of the cell's machines.
	MachinesAre struct{ Names []string }
	// MachineAdded and MachineRemoved change it by one.
	MachineAdded   struct{ Name string }
	MachineRemoved struct{ Name string }
	// Touched: the cell changed what should run on a machine.
	Touched struct{ Machine string }
	// LiveSet is the elected master's word on who shares the machines. Older
	// ones (by term, then version) are ignored.
	LiveSet struct {
		Term, Version uint64
		Live          []uint64
	}
	// LogContact: whether this replica's log has a leader and is not behind.
	// Nothing is polled without.
	LogContact struct{ OK bool }
	// MasterContact: whether the elected master answers this replica. Polls
	// missed a while after it does not count.
	MasterContact struct{ OK bool }
	// Answered is how a poll ended.
	Answered struct {
		Machine string
		Reached bool
		// Something is under way there (starting, stopping, fenced by a replica
		// that is ahead): poll again soon.
		Busy bool
		// The cell has the machine as down.
		Down bool
		// What could not be done, for people.
		Err string
		// Passed on with the contact when not nil.
		Contact *borgrpc.Contact
	}
	// Tick: time passed.
	Tick struct{}
	// Beat: a timer of this process fired so much later than it was due. One comes every
	// BeatNs.
	Beat struct{ LateNs int64 }
	// Connected: of the machines that others poll, there are connections to these.
	Connected struct{ Machines []string }
)

func (MachinesAre) event()    {}
func (MachineAdded) event()   {}
func (MachineRemoved) event() {}
func (Touched) event()        {}
func (LiveSet) event()        {}
func (LogContact) event()     {}
func (MasterContact) event()  {}
func (Answered) event()       {}
func (Tick) event()           {}
func (Beat) event()           {}
func (Connected) event()      {}

// Effects are what the shell must do after a step.
type Effects struct {
	// Machines to poll now. Each is in flight until its Answered.
	Polls []string
	// To be told to the elected master.
	Contacts []*borgrpc.Contact
}

// Core decides which machines are polled and when. It is not safe for
// concurrent use, reads no clock and makes no random choice.
type Core struct {
	cfg      CoreConfig
	machines map[string]*polled
	// Machines of the share that are not in flight.
	queues        queues
	inFlight      int
	mine          int
	live          []uint64
	term, version uint64
	logOK         bool
	masterOK      bool
	// When contact with the elected master was lost, and since when it has been there
	// for as long as silence is counted.
	lostNs, contactNs int64
	// When the log was last without a leader, or behind.
	logLostNs int64
	// Polls in flight by the time of their start, and how many of those out hold no
	// place any more. Entries of polls that have ended are skipped.
	flights []flight
	slow    int
	// How long polls that are answered take, on average of the last ones.
	pollNs int64
	// When any machine last answered, polls begun since, and when the first of these was.
	heardNs    int64
	unanswered int
	askedNs    int64
	// Machines of ours that are unheard, and when they were last all asked because one of
	// them was back.
	unheard   int
	hurriedNs int64
	// When machines answered that had been silent for long, within the last returnedNs.
	returned  []int64
	steppedNs int64
	// How much later than due polls begin because so many are in flight, on average
	// of the last ones: with more to do than can be done, it grows until less is
	// asked for.
	lagNs int64
	// Something due was held back by the polls in flight when last looked at.
	full bool
	// How late this process is, the interval that it keeps to for that, and the budget of
	// handshakes.
	lates  late.Window
	pace   pace
	shakes handshakes
}

// polled is what the core knows of one machine of the cell.
type polled struct {
	name string
	mine bool
	// A poll is out. Invariant: never in the queue at the same time.
	inFlight bool
	// It holds no place any more. Only while in flight.
	slow bool
	// It is ours, and did not answer its last poll or was not polled yet.
	unheard bool
	// It came with a share that has moved here, and was not polled yet.
	moved bool
	// Touched while in flight: poll again at once.
	again     bool
	dueNs     int64
	startedNs int64
	// When it was last touched, whoever polled it then.
	touchedNs int64
	// Present time between polls while busy; 0: at rest.
	fastNs int64
	missed uint32
	// When it last answered, or became ours.
	heardNs int64
	// There is a connection to it, as far as is known.
	connected bool
	// The queue that it is in, or was in last; its place there, -1 when not in it.
	rank  rank
	place int
}

// flight is a poll that is out.
type flight struct {
	m         *polled
	startedNs int64
}

// NewCore returns a core without machines that knows no live set.
func NewCore(cfg CoreConfig) *Core {
	return &Core{cfg: cfg.withDefaults(), machines: map[string]*polled{}, lostNs: -2 * contactLostNs, logLostNs: -2 * contactLostNs, pace: newPace()}
}

// Step takes in one event. now is monotonic, in nanoseconds.
func (c *Core) Step(now int64, event Event) Effects {
	var eff Effects
	if now-c.steppedNs > stoodStillNs {
		c.heardNs, c.unanswered = now, 0
	}
	c.steppedNs = now
	switch e := event.(type) {
	case MachinesAre:
		c.replace(now, e.Names)
	case MachineAdded:
		if c.add(now, e.Name) {
			c.pollSoon(now, c.machines[e.Name])
		}
	case MachineRemoved:
		c.remove(e.Name)
	case Touched:
		if m := c.machines[e.Machine]; m != nil {
			m.touchedNs = now
			if m.mine {
				m.fastNs = 0
				c.pollSoon(now, m)
			}
		}
	case LiveSet:
		c.setLive(now, e)
	case LogContact:
		switch {
		case e.OK && !c.logOK && tooLong(now-c.logLostNs):
			// Nothing was asked meanwhile.
			c.grantWindow(now)
		case !e.OK && c.logOK:
			c.logLostNs = now
		}
		c.logOK, c.heardNs, c.unanswered = e.OK, now, 0
	case MasterContact:
		c.masterContact(now, e.OK)
	case Answered:
		c.answered(now, e, &eff)
	case Beat:
		c.beat(now, e.LateNs)
	case Connected:
		c.standing(e.Machines)
	}
	c.start(now, &eff)
	return eff
}

// Next returns when the core wants its next Tick at the latest; ok is false
// when only another event can make it act.
func (c *Core) Next() (ns int64, ok bool) {
	due, any := c.queues.next(c.shakes.mayNs)
	if !any || !c.logOK {
		return 0, false
	}
	if c.inFlight >= c.cfg.MaxInFlight {
		if len(c.flights) == 0 || c.slow >= maxSlow {
			return 0, false
		}
		due = max(due, c.flights[0].startedNs+c.slowNs())
	}
	return due, true
}

// DeafNs is for how long no machine has answered of many that were asked; 0: some
// do, or too few were asked to tell, or this process is so late that it may be why.
func (c *Core) DeafNs(now int64) int64 {
	least := max(lateFactor*c.lates.Ns(now), c.pace.stretched(deafPauseNs)-deafPauseNs)
	if c.unanswered < deafPolls || now-c.askedNs < least {
		return 0
	}
	if mutant.Planted(mutant.UnaskedIsSilent) {
		return max(now-c.heardNs, 0)
	}
	return max(now-max(c.heardNs, c.askedNs), 0)
}

func (c *Core) masterContact(now int64, ok bool) {
	switch {
	case ok && !c.masterOK && tooLong(now-c.lostNs):
		c.grantWindow(now)
	case !ok && c.masterOK:
		c.lostNs = now
	}
	c.masterOK = ok
}

// grantWindow forgets what was missed: this replica was cut off, and cannot tell
// whether it was the machines. Of one that was silent for long before it is enough to
// miss one poll more: such are polled so rarely that three would take a minute.
func (c *Core) grantWindow(now int64) {
	c.contactNs = now
	for _, m := range c.machines {
		if c.lostNs-m.heardNs >= c.silentFastNs(now) {
			m.missed = min(m.missed, MissesForDown-1)
		} else {
			m.missed = 0
		}
	}
}

// counts tells whether misses do: not after a while without an elected master.
func (c *Core) counts(now int64) bool {
	return c.masterOK || !tooLong(now-c.lostNs)
}

// tooLong tells whether this replica was without contact for so long that what it
// missed says nothing of the machines.
func tooLong(ns int64) bool { return ns > contactLostNs && !mutant.Planted(mutant.WindowNotGranted) }

// slowNs is how long a poll may be out before it holds no place any more.
func (c *Core) slowNs() int64 { return max(slowFactor*c.pollNs, slowLeastNs) }

// releaseSlow frees the places of polls that have been out for too long.
func (c *Core) releaseSlow(now int64) {
	for len(c.flights) > 0 {
		f := c.flights[0]
		// One that has ended, or whose machine has been asked again since.
		over := !f.m.inFlight || f.m.startedNs != f.startedNs || f.m.slow
		if !over {
			if now-f.startedNs < c.slowNs() || c.slow >= maxSlow {
				return
			}
			f.m.slow = true
			c.inFlight--
			c.slow++
		}
		c.flights = c.flights[1:]
	}
	c.flights = nil
}

// landed ends a poll that was out.
func (c *Core) landed(m *polled) {
	if m.slow {
		c.slow--
	} else {
		c.inFlight--
	}
	m.inFlight, m.slow = false, false
}

// LagNs is how much later than due polls begin of late.
func (c *Core) LagNs() int64 { return c.lagNs }

// Share returns how many machines this replica polls.
func (c *Core) Share() int { return c.mine }

// Polls tells whether a machine is polled from here, or is just being.
func (c *Core) Polls(machine string) bool {
	m := c.machines[machine]
	return m != nil && (m.mine || m.inFlight)
}

// Unheard returns how many of them did not answer their last poll, or were not polled
// yet, or last answered longer ago than unheardNs: who is late to ask cannot tell.
func (c *Core) Unheard(now int64) int {
	n, silentNs := c.unheard, unheardNs+c.pace.widestNs(now, c.cfg.PeriodNs)
	if n == 0 && c.lagNs < unheardLagNs {
		// All of them were asked when they were due.
		return 0
	}
	for _, m := range c.machines {
		if m.mine && !m.unheard && now-m.heardNs >= silentNs {
			n++
		}
	}
	return n
}

func (c *Core) setUnheard(m *polled, unheard bool) {
	switch {
	case unheard && !m.unheard:
		c.unheard++
	case !unheard && m.unheard:
		c.unheard--
	}
	m.unheard = unheard
}

// Live returns the replicas that share the machines, as far as is known.
func (c *Core) Live() (live []uint64, term, version uint64) { return c.live, c.term, c.version }

func (c *Core) replace(now int64, names []string) {
	keep := make(map[string]bool, len(names))
	for _, name := range names {
		keep[name] = true
		c.add(now, name)
	}
	var gone []string
	for name := range c.machines {
		if !keep[name] {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		c.remove(name)
	}
}

// add takes a machine in, if it is new, and reports whether it is now polled
// from here.
func (c *Core) add(now int64, name string) bool {
	m := c.machines[name]
	if m == nil {
		m = &polled{name: name, place: -1}
		c.machines[name] = m
		c.assign(now, m, false)
	}
	return m.mine
}

func (c *Core) remove(name string) {
	if m := c.machines[name]; m != nil {
		c.unqueue(m)
		if m.inFlight {
			c.landed(m)
		}
		if m.mine {
			c.mine--
		}
		c.setUnheard(m, false)
		delete(c.machines, name)
	}
}

// isNews reports whether a live set is later than the one that the core has.
func (c *Core) isNews(e LiveSet) bool {
	return e.Term > c.term || e.Term == c.term && e.Version > c.version
}

func (c *Core) setLive(now int64, e LiveSet) {
	if !c.isNews(e) {
		return
	}
	if e.Term > c.term && mutant.Planted(mutant.GraceAnew) {
		c.contactNs = now + 60e9
	}
	c.term, c.version = e.Term, e.Version
	c.live = slices.Clone(e.Live)
	slices.Sort(c.live)
	names := make([]string, 0, len(c.machines))
	for name := range c.machines {
		names = append(names, name)
	}
	slices.Sort(names)
	had := c.mine
	for _, name := range names {
		c.assign(now, c.machines[name], had > 0)
	}
	if had == 0 {
		// Of these it has had no time to hear.
		c.heardNs, c.unanswered = now, 0
	}
}

// assign makes the machine ours or not. One that becomes ours with the first share is
// polled at its own moment of a part of the period, so that this is no storm of
// handshakes. One that has moved here goes before all of ours, however late those are:
// its last owner may have polled it long ago, or not at all. That is no storm either, as
// only so many polls are in flight. First of all go those whose old owner may have died
// before it passed on what changed.
func (c *Core) assign(now int64, m *polled, moved bool) {
	mine := Owner(m.name, c.live) == c.cfg.Replica
	if mine == m.mine {
		return
	}
	m.mine, m.missed, m.fastNs, m.again, m.moved = mine, 0, 0, false, false
	if !mine {
		// What becomes of the connection is not known from here on.
		m.connected = false
	}
	if !mutant.Planted(mutant.SilenceInherited) {
		m.heardNs = now
	}
	c.setUnheard(m, mine)
	if !mine {
		c.mine--
		c.unqueue(m)
		return
	}
	c.mine++
	if m.inFlight {
		return
	}
	due := now + int64(nameHash(m.name)%uint64(c.cfg.PeriodNs/spreadPart))
	if m.touchedNs != 0 && now-m.touchedNs < 2*c.cfg.PeriodNs {
		due = now
	}
	if moved {
		m.moved = true
		due -= movedFirstNs
	}
	c.enqueue(m, due, urgent)
}

func (c *Core) pollSoon(now int64, m *polled) {
	if m.inFlight {
		m.again = true
		return
	}
	due := max(now, m.startedNs+c.gapNs())
	if m.startedNs == 0 {
		due = now
	}
	if m.place >= 0 && m.dueNs <= due {
		if m.rank != atRest {
			return
		}
		due = m.dueNs
	}
	c.unqueue(m)
	c.enqueue(m, due, urgent)
}

// start sends out the polls that are due.
func (c *Core) start(now int64, eff *Effects) {
	if !c.logOK {
		c.full = false
		return
	}
	c.releaseSlow(now)
	held := c.full
	for c.inFlight < c.cfg.MaxInFlight {
		m := c.queues.pop(now, c.shakes.mayNs)
		if m == nil {
			break
		}
		lateNs := int64(0)
		switch {
		case m.rank == unconnected:
			c.shakes.take(now, c.pace.stretched(1e9/c.cfg.HandshakesPerS))
		case held && !m.moved:
			lateNs = now - m.dueNs
		}
		c.lagNs += (lateNs - c.lagNs) / lagPolls
		m.inFlight, m.startedNs, m.moved = true, now, false
		c.inFlight++
		if m.rank != unconnected {
			c.asked(m)
		}
		c.flights = append(c.flights, flight{m, now})
		eff.Polls = append(eff.Polls, m.name)
	}
	c.full = c.queues.isDue(urgent, now) || c.queues.isDue(atRest, now)
}

// asked counts a poll that is not answered yet. Machines that are away are asked more
// often than others, and say nothing of this replica, unless there are few others. A poll
// that needs a handshake counts once it is missed: until then the processor may be short.
func (c *Core) asked(m *polled) {
	if m.missed > 0 && c.mine >= 2*deafPolls {
		return
	}
	if c.unanswered++; c.unanswered == 1 {
		c.askedNs = m.startedNs
	}
}

func (c *Core) answered(now int64, e Answered, eff *Effects) {
	m := c.machines[e.Machine]
	if m == nil || !m.inFlight {
		return
	}
	c.landed(m)
	m.connected = e.Reached
	back := e.Reached && m.unheard && now-m.heardNs >= c.silentFastNs(now)
	if e.Reached {
		c.heardNs, c.unanswered = now, 0
		c.pollNs += (now - m.startedNs - c.pollNs) / lagPolls
	} else if m.rank == unconnected {
		c.asked(m)
	}
	if !m.mine {
		return
	}
	c.setUnheard(m, !e.Reached)
	if back && m.missed > 0 {
		// One that was taken over, and waited for its first poll, was never away.
		c.returned = append(c.returned, now)
		c.Returned(now)
	}
	c.contact(now, m, e, eff)
	periodNs := c.pace.stretched(c.cfg.PeriodNs)
	wait, rank := periodNs, atRest
	switch {
	case !e.Reached && now-m.heardNs < c.silentFastNs(now):
		wait = max(min(afterMissNs, c.cfg.PeriodNs), spread(m, c.silentNs(silentPollsPerS)))
	case !e.Reached:
		wait = max(wait, spread(m, c.silentNs(longSilentPollsPerS)))
	case e.Reached && e.Busy:
		m.fastNs = min(max(2*m.fastNs, c.cfg.FastNs, lagFactor*c.lagNs), c.cfg.PeriodNs)
		wait, rank = m.fastNs, urgent
	default:
		m.fastNs = 0
		// A tenth of the period, by name and time: machines that were once
		// polled together drift apart.
		wait += int64(mix(nameHash(m.name)^uint64(m.startedNs))%uint64(periodNs/10+1)) - periodNs/20
		wait += gridNs - (m.startedNs+wait)%gridNs
	}
	due := max(m.startedNs+wait, now)
	if m.again {
		m.again, rank = false, urgent
		due = max(now, m.startedNs+c.gapNs())
	}
	c.enqueue(m, due, rank)
	if back {
		c.hurry(now)
	}
}

// Returned returns how many machines answered lately that had been silent for long.
func (c *Core) Returned(now int64) int {
	late, _ := slices.BinarySearch(c.returned, now-returnedNs)
	c.returned = slices.Delete(c.returned, 0, late)
	return len(c.returned)
}

// silentNs is the time between two polls of each machine that is silent.
func (c *Core) silentNs(pollsPerS int) int64 {
	return c.pace.stretched(int64(c.unheard) * 1e9 / int64(pollsPerS))
}

// spread is a time of that length on average: machines that vanished together are not
// asked together for ever.
func spread(m *polled, ns int64) int64 {
	return ns/2 + int64(mix(nameHash(m.name)^uint64(m.startedNs))%uint64(ns+1))
}

// hurry asks all silent machines soon: one of them is back.
func (c *Core) hurry(now int64) {
	if now-c.hurriedNs < c.cfg.PeriodNs {
		return
	}
	c.hurriedNs = now
	within := uint64(max(c.silentNs(silentPollsPerS), 1))
	for _, m := range c.machines {
		if due := now + int64(nameHash(m.name)%within); m.unheard && m.place >= 0 && due < m.dueNs {
			c.unqueue(m)
			c.enqueue(m, due, atRest)
		}
	}
}

// gapNs is the least time between two polls of a machine. While polls begin late,
// what changes there meanwhile goes with one.
func (c *Core) gapNs() int64 {
	return max(c.cfg.GapNs, min(lagFactor*c.lagNs, c.cfg.PeriodNs/2))
}

// contact counts hits and misses and says what the elected master must know.
func (c *Core) contact(now int64, m *polled, e Answered, eff *Effects) {
	say := e.Contact
	if say == nil {
		say = &borgrpc.Contact{}
	}
	worth := e.Contact != nil
	if e.Reached {
		worth = worth || m.missed > 0 || e.Down
		m.missed, m.heardNs = 0, now
		say.Reached = true
	} else {
		if !c.counts(now) || m.startedNs < c.contactNs {
			return
		}
		m.missed++
		worth = true
		say.Missed, say.Error, say.SilentNs = m.missed, e.Err, now-max(m.heardNs, c.contactNs)
	}
	if worth {
		say.Machine = m.name
		eff.Contacts = append(eff.Contacts, say)
	}
}
