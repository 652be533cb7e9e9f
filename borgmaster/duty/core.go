// Package duty is the pure core of what the elected master does on its own.
// Its shell is borgmaster's duty loop; the simulator drives it as it is.
package duty

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"borg/borgmaster/cell"
	"borg/borgmaster/late"
	"borg/borgmaster/linkshard"
	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Bounds of the elected master's duties. Times are monotonic nanoseconds.
const (
	// A machine is down when it has been silent for so long and missed so many polls
	// in a row. A second replica is asked a little before, as its answer may take a
	// second.
	silentForDownNs = 6e9
	missesForDown   = linkshard.MissesForDown
	askBeforeNs     = 1e9
	// A replica that has not applied what its master had so long before, and applies
	// nothing more, has no share: it knows nothing of what is to run now.
	behindNs = 3e9
	// So often, at most, a master notes what it has applied.
	markEveryNs = 100e6
	// So long after its election a master waits for the replicas to report before it
	// decides who shares the machines, unless nobody answers at their addresses.
	settleNs = 1500e6
	// For the one that was elected before it waits only so long: that it is gone is
	// the likeliest reason for the election.
	settleBeforeNs = 500e6
	// A replica that misses machines that another one reaches has no share for
	// so long; doubled each time up to the maximum.
	cutOffNs    = 60e9
	cutOffMaxNs = 600e9
	// A replica that was silent or behind and lost its share has one again after so long; doubled when
	// it loses that within the last of these times, up to the second. To and fro, all that
	// was missed on its machines counts anew each time, and so it does for as long as it
	// is busy.
	returnNs        = 4e9
	returnMaxNs     = 32e9
	returnForgetsNs = 60e9
	// Machines that come back in numbers: more than so many, and than so many of a hundred.
	fewReturned     = 5
	returnedPercent = 2
	// What a shard says of how many it does not hear is of this moment for so long.
	unheardFreshNs = 500e6
	// A replica that has heard of none of its machines for so long is doubted: others
	// try a few of them. Not again before a pause.
	deafNs       = 400e6
	doubtPauseNs = 2e9
	doubtProbes  = 3
	// Pause before a machine that could not be called down is looked at again.
	retryNs = 2e9
	// Pause between two changes of what is said of a machine.
	setPauseNs = 10e9
	// Pause between two tries to raise the cell's format, or to grant its first
	// admin.
	raisePauseNs = 10e9
	// From so many machines on it can be told that most cannot be reached.
	fewMachines = 5
	// Format in which a cell knows users.
	usersFormat = 2
	// The cell's clocks are moved on when no entry did for so long.
	timeIdleNs = 10e9
	// And when something waits for them, but not oftener than so.
	timeDueNs = 1e9
	// While jobs are yet to be ended because others have ended.
	timeEndingNs = 100e6
	// The budget of downs is that of any minute; of it so much may be taken at once, or
	// so many machines where that is more: a rack. It is less than silentForDownNs, so that
	// the time until the first are down is not made up for.
	downMinuteNs  = 60e9
	downBurstNs   = 2e9
	downBurstRack = 20
	// The pace, of what may be called down in a minute.
	downPacePercent = 95
	// So many machines more than may be called down are tried at once, and at most so many:
	// when most are away, to try them all again and again is what keeps the others from
	// being heard.
	probesInVain, probesAtOnce = 3, 32
)

// Bounds of what the duties believe: when many machines vanish at once it is more
// likely that we are the ones cut off (paper §4). Per cent of all machines; zero
// values are those of DefaultBounds.
type Bounds struct {
	// At most so many, and at least one, are called down in a minute.
	DownsPerMinutePercent uint32
	// No more are called down while more than that cannot be reached, unless an
	// operator has said that they are lost. In a cell of fewer than fewMachines it
	// says nothing, as one or two that break are most of it.
	StopPercent uint32
}

// DefaultBounds are those of a cell of which nobody said otherwise.
var DefaultBounds = Bounds{DownsPerMinutePercent: 10, StopPercent: 60}

// Event is something that the duties hear.
type Event interface{ event() }

type (
	// Elected: this replica became the elected master.
	Elected struct {
		Term uint64
		Self uint64
		// Who was elected before; 0: it is not known.
		Before   uint64
		Members  []uint64
		Machines []MachineSeen
	}
	// MachineSeen: the cell has the machine so.
	MachineSeen struct {
		Name, Addr string
		Up         bool
		// Not up: for how long, by the cell's wall clock.
		DownForNs int64
	}
	// MachineGone: the cell has it no more.
	MachineGone struct{ Name string }
	// Reported: a replica's link shard spoke.
	Reported struct {
		Replica  uint64
		Contacts []*borgrpc.Contact
		Unknown  []*borgpb.MachineReport
		// For how long no machine has answered it, of many that it asked.
		SilentNs int64
		// Machines of its share that did not answer their last poll, or were not polled
		// yet; nil: its build does not count them.
		Unheard *uint32
		// And those that answered lately after a long silence.
		Returned uint32
		// Version of the live set that this was its share by; 0: of none of this term.
		LiveVersion uint64
		// Latest format of the cell that it can apply.
		Format uint32
		// What its cell has applied; nil: it did not say.
		Applied *uint64
		// How late the replica itself is, and the longest time between its polls of a
		// machine at rest. Zero: it did not say.
		LateNs, PeriodNs int64
		// The report is still being logged, and is counted again: it says nothing new.
		Again bool
	}
	// RaftHeard: the log's own word for when it last heard another replica.
	RaftHeard struct {
		ID uint64
		// Time since then.
		AgoNs int64
	}
	// Paused: this replica itself has done nothing for so long, so that others may
	// have spoken unheard.
	Paused struct{ Ns int64 }
	// DoorClosed: nobody answers at the address of a replica.
	DoorClosed struct{ Replica uint64 }
	// Probed: a second replica tried a machine.
	Probed struct {
		Machine string
		Replica uint64
		// The replica itself did not answer: nothing was learnt.
		NoAnswer bool
		Reached  bool
		Err      string
	}
	// Proposed: how the proposal of an op about a machine ended.
	Proposed struct {
		Machine string
		OK      bool
	}
	// Ticked: time passed. Applied is the log's applied index, Format the cell's.
	Ticked struct {
		Applied uint64
		Format  uint32
		// Whom to grant the capability admin; empty: somebody has it, or nobody is
		// named.
		FirstAdmin string
		Members    []uint64
		// An operator has said that machines which cannot be reached are lost.
		LostDeclared bool
		// How long after the last entry something in the cell waits for the time; zero:
		// nothing does.
		DueInNs int64
		// The cell has yet to end jobs because others have ended.
		Ending bool
		// How much later than due this tick comes.
		LateNs int64
		// The other replicas as the log hears them; those that it never heard are left out.
		Raft []RaftHeard
	}
)

func (Elected) event()     {}
func (MachineSeen) event() {}
func (MachineGone) event() {}
func (Reported) event()    {}
func (Paused) event()      {}
func (DoorClosed) event()  {}
func (Probed) event()      {}
func (Proposed) event()    {}
func (Ticked) event()      {}

// Seen is a machine as the duties hear of it.
func Seen(c *cell.Cell, m *cell.Machine) MachineSeen {
	return MachineSeen{Name: m.Name(), Addr: m.Addr(), Up: m.Up(), DownForNs: c.WallNs() - m.ChangedWallNs()}
}

// Effect is something that the shell must do.
type Effect interface{ effect() }

type (
	// Probe: let a replica try the machine once; answer with Probed.
	Probe struct {
		Machine, Addr string
		Replica       uint64
	}
	// Propose an op; when Machine is set, answer with Proposed.
	Propose struct {
		Machine string
		Op      *borgpb.Op
	}
)

func (Probe) effect()   {}
func (Propose) effect() {}

// Core is the pure middle of what the elected master does on its own: it
// decides which replicas share the machines, which machines are down and up
// again, follows what borglets say of their machines, raises the cell's format,
// names its first admin, and moves the clocks.
//
// A machine is down only when a live replica that was in contact with an elected
// master has heard nothing of it for six seconds, and a second replica failed to
// reach it too. What the cell does with that is the cell's.
type Core struct {
	term, self uint64
	// Who was elected before; 0: not known.
	before    uint64
	electedNs int64
	members   []uint64
	replicas  map[uint64]*heardReplica
	live      []uint64
	// Counts changes of live in this term; 0: not decided yet.
	liveVersion uint64
	machines    map[string]*watched
	// Machines with missed polls, of those above.
	missing map[string]*watched
	unknown map[string][]*borgpb.TaskReport
	// How many of those above are being tried.
	probes int
	bounds Bounds
	downs  downBudget
	// How many machines of those above are not up; how many cannot be reached, with
	// those that are called down next; whether they are lost, by an operator's word.
	down, unreachable int
	lostDeclared      bool
	// Last applied index seen, and when it was new.
	applied     uint64
	appliedAtNs int64
	// What was applied here and when, since behindNs ago, oldest first.
	marks []mark
	// The format is not raised again before, nor the first admin named.
	raiseAgainNs, grantAgainNs int64
	// How late this replica's own ticks are.
	lates late.Window
}

// mark is what this master had applied at a time.
type mark struct {
	atNs    int64
	applied uint64
}

type heardReplica struct {
	// Last report, or a time long ago; it has reported in this term; its door was closed
	// since.
	heardNs  int64
	reported bool
	closed   bool
	// When the log last heard it in this term; zero: not yet.
	raftNs int64
	// How late it says that it is, and the longest time between its polls of a machine at
	// rest.
	lateNs, periodNs int64
	format           uint32
	unheard          *uint32
	returned         uint32
	// Version of the live set of that count.
	unheardOf uint64
	// What it has applied by its last word on that, when that was, and when it last grew;
	// it was older than a replica's cell may be.
	applied            uint64
	appliedNs, movedNs int64
	old                bool
	// Without a share until then, because others reach what it misses.
	cutOffUntilNs int64
	penaltyNs     int64
	// Without a share until then, because it was silent or behind at lapsedNs; how long
	// that is.
	returnsAtNs, lapsedNs, pauseNs int64
	// It hears of no machine: those that others try now; how many were tried, and how
	// many of them reached.
	doubt          map[string]bool
	tried, reached int
	doubtAgainNs   int64
}

// watched is a machine as the duties see it.
type watched struct {
	name, addr string
	up         bool
	missed     uint32
	missedBy   uint64
	// Since when the replica that misses it has heard nothing of it.
	silentSinceNs int64
	err           string
	// Times in a row that a second replica reached what the first missed.
	contradicted int
	// A probe or a proposal is under way. Probes are counted by Core.probes.
	probing, proposing bool
	tryAgainNs         int64
	setAgainNs         int64
	// Of many that are silent the lower one is tried first: see linkshard.Turn.
	turn uint64
}

// New returns a core that waits to hear that it is elected.
func New(b Bounds) *Core {
	b.DownsPerMinutePercent = cmp.Or(b.DownsPerMinutePercent, DefaultBounds.DownsPerMinutePercent)
	b.StopPercent = cmp.Or(b.StopPercent, DefaultBounds.StopPercent)
	return &Core{bounds: b}
}

// Reach is how much of the cell answers, and whether so little does that no more
// machines are called down.
func (d *Core) Reach() *borgrpc.Reach {
	return &borgrpc.Reach{
		Unreachable: uint32(d.unreachable), Machines: uint32(len(d.machines)), Stopped: d.stopped(), StopPercent: d.bounds.StopPercent,
	}
}

// Live returns the replicas that share the machines, in order, and how often
// that was decided in this term; 0: not yet.
func (d *Core) Live() (live []uint64, version uint64) { return d.live, d.liveVersion }

// Answer is what a replica that reported is told: who shares the machines.
func (d *Core) Answer() *borgrpc.ReportResponse {
	return &borgrpc.ReportResponse{Term: d.term, Live: slices.Clone(d.live), LiveVersion: d.liveVersion, Reach: d.Reach()}
}

// Unknown returns the copies on a machine that the cell knows nothing of.
func (d *Core) Unknown(machine string) []*borgpb.TaskReport { return d.unknown[machine] }

// Step takes in one event. Effects come in an order that depends on the
// events alone.
func (d *Core) Step(now int64, event Event) []Effect {
	switch e := event.(type) {
	case Elected:
		d.begin(now, e)
	case MachineSeen:
		d.see(e)
	case MachineGone:
		if m := d.machines[e.Name]; m != nil && !m.up {
			d.down--
		}
		if m := d.machines[e.Name]; m != nil && m.probing {
			d.probes--
		}
		delete(d.machines, e.Name)
		delete(d.missing, e.Name)
		delete(d.unknown, e.Name)
	case Reported:
		return d.hear(now, e)
	case Paused:
		for _, r := range d.replicas {
			r.heardNs += e.Ns
			if r.raftNs != 0 {
				r.raftNs += e.Ns
			}
		}
		for i := range d.marks {
			d.marks[i].atNs += e.Ns
		}
	case DoorClosed:
		d.closed(now, e.Replica)
	case Probed:
		return d.judge(now, e)
	case Proposed:
		if m := d.machines[e.Machine]; m != nil {
			m.proposing = false
			// Done or not: what the cell made of it is seen by then.
			m.tryAgainNs = now + retryNs
		}
	case Ticked:
		return d.tick(now, e)
	}
	return nil
}

func (d *Core) begin(now int64, e Elected) {
	if mutant.Planted(mutant.DutiesOutliveTerm) && d.term != 0 {
		d.term = e.Term
		return
	}
	*d = Core{
		bounds: d.bounds,
		term:   e.Term, self: e.Self, before: e.Before, electedNs: now, members: slices.Clone(e.Members),
		replicas: map[uint64]*heardReplica{}, machines: map[string]*watched{},
		missing: map[string]*watched{}, unknown: map[string][]*borgpb.TaskReport{},
		appliedAtNs: now,
	}
	for _, m := range e.Machines {
		if d.see(m); !m.Up && m.DownForNs < downMinuteNs && !mutant.Planted(mutant.DownsBeginAnew) {
			d.downs.takenNs = append(d.downs.takenNs, now-max(m.DownForNs, 0))
		}
	}
	slices.Sort(d.downs.takenNs)
}

func (d *Core) see(e MachineSeen) {
	m := d.machines[e.Name]
	if m == nil {
		m = &watched{name: e.Name, up: true, turn: linkshard.Turn(e.Name)}
		d.machines[e.Name] = m
	}
	switch {
	case m.up && !e.Up:
		d.down++
	case !m.up && e.Up:
		d.down--
	}
	m.addr, m.up = e.Addr, e.Up
}

// ReportOf is what a replica's link shard said.
func ReportOf(req *borgrpc.ReportRequest) Reported {
	return Reported{
		Replica: req.GetReplica(), Contacts: req.GetContacts(), Unknown: req.GetUnknown(), SilentNs: req.GetSilentNs(),
		Unheard: req.Unheard, Returned: req.GetReturned(), LiveVersion: req.GetLiveVersion(), Format: req.GetFormat(),
		Applied: req.AppliedIndex, LateNs: req.GetLateNs(), PeriodNs: req.GetPeriodNs(),
	}
}

func (d *Core) hear(now int64, e Reported) []Effect {
	if !slices.Contains(d.members, e.Replica) {
		return nil
	}
	r := d.replica(e.Replica)
	r.spoke(now, e, d.marks)
	r.format, r.unheard, r.unheardOf, r.returned = e.Format, e.Unheard, e.LiveVersion, e.Returned
	d.decideLive(now)
	effects := d.doubt(now, e.Replica, e.SilentNs)
	for _, u := range e.Unknown {
		if len(u.Tasks) == 0 {
			delete(d.unknown, u.Machine)
		} else if d.machines[u.Machine] != nil {
			d.unknown[u.Machine] = u.Tasks
		}
	}
	for _, c := range e.Contacts {
		m := d.machines[c.Machine]
		// A share that has moved: only the present owner's word counts.
		if m == nil || (d.liveVersion > 0 && linkshard.Owner(c.Machine, d.live) != e.Replica) {
			continue
		}
		effects = append(effects, d.contact(now, m, e.Replica, c)...)
	}
	return effects
}

// doubt has others try machines of a replica that hears of none: cut off from
// them, it must not keep its share for as long as it takes to call machines down.
func (d *Core) doubt(now int64, replica uint64, silentNs int64) (probes []Effect) {
	r := d.replicas[replica]
	if silentNs < d.deafNs(now, r) || now < r.doubtAgainNs || !slices.Contains(d.live, replica) {
		return nil
	}
	others := slices.DeleteFunc(d.heardLately(now), func(id uint64) bool { return id == replica })
	if len(others) == 0 {
		return nil
	}
	r.doubtAgainNs = now + doubtPauseNs
	r.doubt, r.tried, r.reached = map[string]bool{}, 0, 0
	for _, name := range d.doubtable(replica) {
		m := d.machines[name]
		if !m.up || m.probing || m.proposing || linkshard.Owner(name, d.live) != replica {
			continue
		}
		m.probing, r.doubt[name] = true, true
		d.probes++
		r.tried++
		probes = append(probes, Probe{Machine: name, Addr: m.addr, Replica: linkshard.Ranked(name, others)[0]})
		if len(probes) == doubtProbes {
			break
		}
	}
	return probes
}

// doubtable returns machines in the order in which they are tried out of doubt. Those that
// the replica is known to miss come first: that others reach one that it heard a moment
// ago says nothing against it.
func (d *Core) doubtable(replica uint64) []string {
	var missed, rest []string
	for name := range d.machines {
		if m := d.missing[name]; m != nil && m.missedBy == replica {
			missed = append(missed, name)
		} else {
			rest = append(rest, name)
		}
	}
	slices.Sort(missed)
	slices.Sort(rest)
	return append(missed, rest...)
}

// settleDoubt takes in a probe of a machine that was tried out of doubt, and reports
// whether it was one.
func (d *Core) settleDoubt(now int64, e Probed) bool {
	for _, id := range d.members {
		r := d.replicas[id]
		if r == nil || !r.doubt[e.Machine] {
			continue
		}
		delete(r.doubt, e.Machine)
		if e.Reached {
			r.reached++
		}
		if 2*r.reached > r.tried {
			r.doubt = nil
			d.cutOff(now, id)
		}
		return true
	}
	return false
}

func (d *Core) contact(now int64, m *watched, replica uint64, c *borgrpc.Contact) []Effect {
	var effects []Effect
	if !c.Reached {
		m.missed, m.missedBy, m.err, m.silentSinceNs = c.Missed, replica, c.Error, now-c.SilentNs
		d.missing[m.name] = m
		if len(d.missing) > d.mostProbes(now) {
			// Each has its turn with the next tick.
			return nil
		}
		return d.consider(now, m)
	}
	d.forgive(m)
	if !m.up && !m.proposing && now >= m.tryAgainNs {
		m.proposing = true
		effects = append(effects, Propose{Machine: m.name, Op: &borgpb.Op{
			Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: m.name}},
		}})
	}
	if c.Set != nil && c.Set.Name == m.name && now >= m.setAgainNs {
		m.setAgainNs = now + setPauseNs
		effects = append(effects, Propose{Op: &borgpb.Op{
			Reason: "its borglet says so", Op: &borgpb.Op_SetMachine{SetMachine: c.Set},
		}})
	}
	return effects
}

func (d *Core) forgive(m *watched) {
	m.missed, m.missedBy, m.err, m.contradicted, m.silentSinceNs = 0, 0, "", 0, 0
	delete(d.missing, m.name)
}

// consider asks a second replica when the first one's misses are enough.
func (d *Core) consider(now int64, m *watched) []Effect {
	if !d.doubtful(now, m) || d.probes >= d.mostProbes(now) {
		return nil
	}
	second := uint64(0)
	for _, replica := range linkshard.Ranked(m.name, d.heardLately(now)) {
		if replica != m.missedBy {
			second = replica
			break
		}
	}
	if second == 0 {
		if len(d.members) > 1 {
			return nil
		}
		// A cell of one replica has no second one to ask.
		second = d.self
	}
	m.probing = true
	d.probes++
	if mutant.Planted(mutant.OneWitness) {
		return d.judge(now, Probed{Machine: m.name, Replica: m.missedBy, Err: m.err})
	}
	return []Effect{Probe{Machine: m.name, Addr: m.addr, Replica: second}}
}

// doubtful tells whether a second replica should try a machine.
func (d *Core) doubtful(now int64, m *watched) bool {
	return m.up && m.silent(now+askBeforeNs, d.downAfterNs(now)) && !m.probing && !m.proposing && now >= m.tryAgainNs
}

// mostProbes bounds the machines that are being tried.
func (d *Core) mostProbes(now int64) int {
	if d.stopped() {
		return probesInVain
	}
	return min(probesInVain+d.downs.left(now+askBeforeNs, len(d.machines), d.bounds.DownsPerMinutePercent), probesAtOnce)
}

// silent reports whether a machine has missed enough to be down, at a time, when it is down
// after so long.
func (m *watched) silent(now, afterNs int64) bool {
	return m.missed >= missesForDown && now-m.silentSinceNs >= afterNs
}

// judge acts on a second replica's try.
func (d *Core) judge(now int64, e Probed) []Effect {
	m := d.machines[e.Machine]
	if m == nil || !m.probing {
		return nil
	}
	m.probing = false
	d.probes--
	if d.settleDoubt(now, e) || !m.up || m.missed < missesForDown {
		return nil
	}
	if e.NoAnswer {
		m.tryAgainNs = now + retryNs
		return nil
	}
	if e.Reached {
		m.tryAgainNs = now + retryNs
		if m.contradicted++; m.contradicted >= d.contradictions(now, m.missedBy) {
			d.cutOff(now, m.missedBy)
		}
		return nil
	}
	m.contradicted = 0
	if after := d.downAfterNs(now); !m.silent(now, after) {
		m.tryAgainNs = m.silentSinceNs + after
		return nil
	}
	if !d.countUnreachable(now) || d.stopped() || d.healing(now) || !d.downs.take(now, len(d.machines), d.bounds.DownsPerMinutePercent) {
		m.tryAgainNs = now + retryNs
		return nil
	}
	m.proposing = true
	reason := fmt.Sprintf("replica %d has heard nothing of it for %.1f s and missed %d polls (%s); replica %d could not reach it either (%s)",
		m.missedBy, float64(now-m.silentSinceNs)/1e9, m.missed, m.err, e.Replica, e.Err)
	return []Effect{Propose{Machine: m.name, Op: &borgpb.Op{
		Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: m.name, Term: d.term, Reason: reason}},
	}}}
}

// cutOff takes its share from a replica that others see more than, while most keep
// theirs: who misses machines because he has too much to do leaves more to do to the
// others, and they would miss them next.
func (d *Core) cutOff(now int64, replica uint64) {
	r := d.replicas[replica]
	if r == nil || now < r.cutOffUntilNs {
		return
	}
	without := 1
	for _, id := range d.members {
		if other := d.replicas[id]; other == nil || now < other.cutOffUntilNs {
			without++
		}
	}
	if without > 1 && 2*without >= len(d.members) {
		return
	}
	r.penaltyNs = min(max(2*r.penaltyNs, cutOffNs), cutOffMaxNs)
	r.cutOffUntilNs = now + r.penaltyNs
	d.decideLive(now)
}

func (d *Core) tick(now int64, e Ticked) []Effect {
	d.members = slices.Clone(e.Members)
	d.lates.Add(now, e.LateNs)
	d.hearRaft(now, e.Raft)
	d.mark(now, e.Applied)
	d.decideLive(now)
	d.countUnreachable(now)
	d.lostDeclared = e.LostDeclared
	var effects []Effect
	var doubtful []*watched
	for _, m := range d.missing {
		if d.doubtful(now, m) {
			doubtful = append(doubtful, m)
		}
	}
	// One that another replica has reached should be tried by it again; of the others
	// each has its turn. It is no order of names: what is given up in each minute is to have as
	// many tasks as the rest, and not to be one rack after the other.
	slices.SortFunc(doubtful, func(a, b *watched) int {
		return cmp.Or(cmp.Compare(b.contradicted, a.contradicted), cmp.Compare(a.tryAgainNs, b.tryAgainNs), cmp.Compare(a.turn, b.turn), cmp.Compare(a.name, b.name))
	})
	for _, m := range doubtful {
		effects = append(effects, d.consider(now, m)...)
	}
	if next := d.commonFormat(now); next > e.Format && now >= d.raiseAgainNs {
		d.raiseAgainNs = now + raisePauseNs
		effects = append(effects, Propose{Op: &borgpb.Op{
			Reason: "every replica can apply it", Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: next}},
		}})
	}
	if e.FirstAdmin != "" && e.Format >= usersFormat && now >= d.grantAgainNs {
		d.grantAgainNs = now + raisePauseNs
		effects = append(effects, Propose{Op: &borgpb.Op{
			Reason: "the first admin, named when the cell was made", Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: e.FirstAdmin, Capability: "admin"}},
		}})
	}
	if e.Applied != d.applied {
		d.applied, d.appliedAtNs = e.Applied, now
	}
	idleNs := int64(timeIdleNs)
	if e.DueInNs > 0 {
		idleNs = min(idleNs, max(e.DueInNs, timeDueNs))
	}
	if e.Ending {
		idleNs = timeEndingNs
	}
	if now-d.appliedAtNs >= idleNs {
		d.appliedAtNs = now
		effects = append(effects, Propose{Op: &borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}}})
	}
	return effects
}

// commonFormat is the latest format that every member can apply; 0 while one of
// them is silent: a replica that comes back with an older build must still be
// able to go on.
func (d *Core) commonFormat(now int64) uint32 {
	heard := d.heardLately(now)
	if len(heard) < len(d.members) || len(heard) == 0 {
		return 0
	}
	least := d.replicas[heard[0]].format
	for _, id := range heard[1:] {
		least = min(least, d.replicas[id].format)
	}
	return least
}

// Raises reports whether the cell of that format is about to be raised to a later one: every
// member can apply one, or members may still report which one they can apply.
func (d *Core) Raises(nowNs int64, format uint32) bool {
	if next := d.commonFormat(nowNs); next > 0 {
		return next > format
	}
	return !d.settled(nowNs, d.heardLately(nowNs))
}

// gone counts the members that need not be waited for: they have not reported and
// their doors are closed.
func (d *Core) gone(heard []uint64) (n int) {
	for _, id := range d.members {
		if r := d.replicas[id]; r != nil && r.closed && !slices.Contains(heard, id) {
			n++
		}
	}
	return n
}

// decideLive works out who shares the machines. A machine whose owner changes
// begins anew: what the old owner missed says nothing of the new one.
func (d *Core) decideLive(now int64) {
	heard := d.heardLately(now)
	reported := slices.DeleteFunc(slices.Clone(heard), func(id uint64) bool { return !d.replicas[id].reported })
	if d.liveVersion == 0 && !d.settled(now, reported) || d.liveVersion > 0 && mutant.Planted(mutant.SharesStay) {
		return
	}
	// One that has not said a word in this term keeps the share that it has, and gets none.
	heard = slices.DeleteFunc(heard, func(id uint64) bool {
		return d.liveVersion > 0 && !d.replicas[id].reported && !slices.Contains(d.live, id)
	})
	// What is silent to its machines, though not to us.
	if current := slices.DeleteFunc(slices.Clone(heard), func(id uint64) bool { return d.behind(now, id) }); 2*len(current) > len(d.members) {
		heard = current
	}
	for _, id := range d.live {
		if r := d.replicas[id]; !slices.Contains(heard, id) && now >= max(r.cutOffUntilNs, r.returnsAtNs) {
			r.lapse(now)
		}
	}
	live := slices.DeleteFunc(slices.Clone(heard), func(id uint64) bool { return now < d.replicas[id].cutOffUntilNs })
	if len(live) == 0 {
		live = heard
	}
	// Those that return are waited for while most of the replicas share the machines.
	returning := func(id uint64) bool { return now < d.replicas[id].returnsAtNs && !slices.Contains(d.live, id) }
	if others := slices.DeleteFunc(slices.Clone(live), returning); 2*len(others) > len(d.members) {
		live = others
	}
	if slices.Equal(live, d.live) || len(live) == 0 {
		return
	}
	d.live = live
	d.liveVersion++
	for _, name := range slices.Sorted(maps.Keys(d.missing)) {
		if m := d.missing[name]; linkshard.Owner(name, live) != m.missedBy {
			d.forgive(m)
		}
	}
}

// settled tells whether a new master has waited long enough for the replicas that
// have not reported to it.
func (d *Core) settled(now int64, heard []uint64) bool {
	missing := len(d.members) - len(heard) - d.gone(heard)
	if missing == 1 && slices.Contains(d.members, d.before) && !slices.Contains(heard, d.before) && now >= d.electedNs+settleBeforeNs {
		return true
	}
	return missing <= 0 || now >= d.electedNs+max(settleNs, d.stretched(d.lates.Ns(now)))
}

// countUnreachable counts the machines of which nothing is heard, and reports whether
// that is known. It is what the shards say at this moment, and not what this master was
// told since it was elected, or since a share moved: a machine that it knows nothing of
// is no machine that answers.
func (d *Core) countUnreachable(now int64) (known bool) {
	known, unheard := d.liveVersion > 0, 0
	for _, id := range d.live {
		r := d.replicas[id]
		if !r.reported {
			known = false
			continue
		}
		if r.unheard == nil || mutant.Planted(mutant.OutageForgotten) {
			d.countMissing()
			return true
		}
		unheard += int(*r.unheard)
		known = known && r.unheardOf == d.liveVersion && now-r.heardNs < d.freshNs(now, r)
	}
	if known {
		d.unreachable = min(unheard, len(d.machines))
	}
	return known
}

// countMissing counts the machines that are down and those whose last poll was missed, as
// far as this master was told. When all vanish at once some were polled up to a period
// before others: by the time that the first have been silent for long enough the last
// have missed one poll.
func (d *Core) countMissing() {
	d.unreachable = d.down
	for _, m := range d.missing {
		if m.up && m.missed > 0 {
			d.unreachable++
		}
	}
}

// stopped tells whether so many machines cannot be reached that none is called down.
// What an operator said holds against it.
func (d *Core) stopped() bool {
	return !d.lostDeclared && len(d.machines) >= fewMachines && d.unreachable*100 > len(d.machines)*int(d.bounds.StopPercent) && !mutant.Planted(mutant.OutageBelieved)
}

// healing tells whether machines come back in numbers after a long silence. Then none is
// called down: each takes a new connection, and who tries one more beside so many may try
// in vain, although it is back too. What a replica says of it counts whether it has a share or
// not: who hears late that all are back loses his for that very reason, and what came back to
// him is not counted by those who have it now. What an operator said holds against it, as
// against a stop.
func (d *Core) healing(now int64) bool {
	returned := 0
	for _, r := range d.replicas {
		if now-r.heardNs < d.freshNs(now, r) {
			returned += int(r.returned)
		}
	}
	return !d.lostDeclared && returned > max(fewReturned, len(d.machines)*returnedPercent/100) && !mutant.Planted(mutant.ReturnsIgnored)
}

// downBudget bounds how many machines are called down when many vanish at
// once: it is then more likely that we are the ones cut off (paper §4).
type downBudget struct {
	// When the budget would be whole again. Monotonic nanoseconds.
	wholeNs int64
	// Of those that were called down within the last minute, oldest first; by masters
	// before this one, too, as far as they are down still.
	takenNs []int64
}

// left is how many more may be called down at a time.
func (b *downBudget) left(now int64, machines int, percent uint32) int {
	if mutant.Planted(mutant.DownsUnbounded) {
		return machines
	}
	perMinute, each, burst := downRate(machines, percent)
	return int(max(min((now+burst-max(b.wholeNs, now))/each, perMinute-int64(len(b.lately(now)))), 0))
}

// lately are those of the minute before.
func (b *downBudget) lately(now int64) []int64 {
	old, _ := slices.BinarySearch(b.takenNs, now-downMinuteNs+1)
	return b.takenNs[old:]
}

func (b *downBudget) take(now int64, machines int, percent uint32) bool {
	if b.left(now, machines, percent) == 0 {
		return false
	}
	_, each, _ := downRate(machines, percent)
	b.wholeNs = max(b.wholeNs, now) + each
	b.takenNs = append(b.lately(now), now)
	return true
}

// downRate is how many may be called down in a minute, and a pace that is a little slower: that
// machines come back is known some seconds late, and until then others are called down.
// With what that takes it is no more than the limit says of the time that they were away.
// Of so few that they may be called down at once there is no pace.
func downRate(machines int, percent uint32) (perMinute, each, burst int64) {
	perMinute = max(int64(machines)*int64(percent)/100, 1)
	if each = downMinuteNs / perMinute; perMinute > downBurstRack {
		each = each * 100 / downPacePercent
	}
	return perMinute, each, max(downBurstNs, min(perMinute, downBurstRack)*each)
}
