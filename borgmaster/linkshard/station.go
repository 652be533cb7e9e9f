package linkshard

import (
	"cmp"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
)

// Station is all of a Shard but its goroutines: the Core, what the borglets
// said last, and what the elected master is to be told. Each method is followed
// by Orders, which says what is to be done. It belongs to one goroutine, but for
// Ask and Weigh.
type Station struct {
	cfg    Config
	core   *Core
	outbox *outbox
	usage  *usageBox
	// Each is used by the one poll of its machine that is in flight, and by the
	// station in between.
	known map[string]*Known
	// What jobs may say of crashes.
	crashes crashBudget
	// A report is under way.
	sending bool
	// No report before mayNs; one even if there is nothing to say at mustNs.
	mayNs, mustNs int64
	// Last report that was taken; 0: none by the present master.
	takenNs int64
	state   State
	logOK   bool
	polls   []Poll
}

// Orders are what a Station wants done.
type Orders struct {
	// Polls to be made; each ends with TakeAnswer.
	Polls []Poll
	// To be sent to the elected master, and ended with ReportTaken or
	// ReportFailed; nil: nothing. After ReportNs it has failed.
	Report   *borgrpc.ReportRequest
	ReportNs int64
}

// Poll is one poll of a machine that is due.
type Poll struct {
	Machine string
	known   *Known
	// How long it may take, and after how long the machine is next asked what copies use.
	timeoutNs, usageNs int64
}

// Outcome is how a poll went on the wire.
type Outcome struct {
	// Nil when there is none.
	Response *borgrpc.PollResponse
	// The borglet was not reached. Else, without a response, it said no.
	Missed bool
	// Why, for people.
	Err string
}

// Answer is what a poll came to.
type Answer struct {
	event    Answered
	compared *Comparison
	usage    []*borgrpc.Usage
	allocs   []*borgrpc.AllocUsage
	volumes  []*borgrpc.VolumeUse
}

// Notes say what may have changed since the last ones.
type Notes struct {
	// The whole cell was replaced.
	Reload bool
	// The log's state changed.
	NewState bool
	// Machines of which the cell changed something, in order.
	Changed []string
}

// NewStation returns a station that has heard nothing yet.
func NewStation(cfg Config) *Station {
	return &Station{cfg: cfg, core: NewCore(cfg.Core), outbox: newOutbox(), usage: newUsageBox(cmp.Or(cfg.UsageEveryNs, 5e9)), known: map[string]*Known{}}
}

// Orders returns what is to be done now. It ends each step.
func (s *Station) Orders() Orders {
	s.checkLog()
	o := Orders{Polls: s.polls, Report: s.report()}
	o.ReportNs = min(int64(ReportTimeout)+lateFactor*s.core.LateNs(s.cfg.NowNs()), longestReportNs)
	s.polls = nil
	return o
}

// NextNs is when the next Tick is due at the latest.
func (s *Station) NextNs() int64 {
	next := s.cfg.NowNs() + heartbeatNs
	if due, ok := s.core.Next(); ok {
		next = min(next, due)
	}
	if !s.sending && s.state.Elected != 0 {
		due := max(s.mustNs, s.mayNs)
		if !s.outbox.empty() {
			due = s.mayNs
		}
		next = min(next, due)
	}
	return next
}

// Tick lets time pass.
func (s *Station) Tick() { s.step(Tick{}) }

// Beat says how late a timer of this process was; one is due every BeatNs.
func (s *Station) Beat(lateNs int64) { s.step(Beat{LateNs: lateNs}) }

// step drives the core and keeps what it says.
func (s *Station) step(event Event) {
	now := s.cfg.NowNs()
	eff := s.core.Step(now, event)
	for _, c := range eff.Contacts {
		s.outbox.contacts[c.Machine] = c
	}
	for _, name := range eff.Polls {
		known := s.known[name]
		if known == nil {
			known = &Known{}
			s.known[name] = known
		}
		s.polls = append(s.polls, Poll{
			Machine: name, known: known, timeoutNs: s.core.TimeoutNs(now),
			usageNs: s.core.pace.stretched(s.usage.everyNs - s.core.cfg.PeriodNs/2),
		})
	}
}

// TakeNotes looks at what may have changed.
func (s *Station) TakeNotes(n Notes) {
	if n.NewState {
		s.checkState()
	}
	var events []Event
	s.cfg.Log.View(func(c *cell.Cell) {
		if n.Reload {
			all := MachinesAre{}
			for m := range c.Machines() {
				all.Names = append(all.Names, m.Name())
			}
			events = append(events, all)
		}
		for _, name := range n.Changed {
			if c.Machine(name) == nil {
				events = append(events, MachineRemoved{name})
			} else {
				events = append(events, MachineAdded{name}, Touched{name})
			}
		}
	})
	for _, e := range events {
		if gone, ok := e.(MachineRemoved); ok {
			delete(s.known, gone.Name)
			s.outbox.drop(gone.Name)
			s.usage.drop(gone.Name)
		}
		s.step(e)
	}
}

// checkState begins anew with another elected master.
func (s *Station) checkState() {
	state := s.cfg.Log.State()
	if state.Elected != s.state.Elected || state.Term != s.state.Term {
		s.takenNs, s.mayNs, s.mustNs = 0, 0, 0
		s.step(MasterContact{OK: false})
		s.outbox.retell()
		s.usage.begin()
	}
	s.state = state
}

// checkLog polls only while the cell here is of the present term and not far
// behind: orders from an older one would be fenced anyway.
func (s *Station) checkLog() {
	state := s.cfg.Log.State()
	ok := state.Elected != 0 && state.Commit < state.Applied+maxBehind
	if ok && !s.logOK {
		s.cfg.Log.View(func(c *cell.Cell) { ok = c.Term() == state.Term })
	}
	if ok != s.logOK {
		s.logOK = ok
		s.step(LogContact{OK: ok})
	}
	now := s.cfg.NowNs()
	if s.takenNs != 0 && now-s.takenNs > masterContactNs {
		s.takenNs = 0
		s.step(MasterContact{OK: false})
	}
}

// TakeAnswer ends a poll.
func (s *Station) TakeAnswer(a Answer) {
	if cmp := a.compared; cmp != nil {
		s.outbox.addReports(a.event.Machine, s.withinBudgets(a.event.Machine, cmp.Reports))
		s.outbox.setUnknown(a.event.Machine, cmp.Unknown)
		if cmp.Volumes != nil {
			s.outbox.volumes[a.event.Machine] = cmp.Volumes
		}
		if cmp.Heard != nil {
			s.outbox.heard[a.event.Machine] = cmp.Heard
		}
	}
	s.usage.add(a.event.Machine, a.usage, a.allocs)
	s.usage.addVolumes(a.event.Machine, a.volumes)
	if s.cfg.Heard != nil && len(a.usage) > 0 {
		s.cfg.Heard(a.event.Machine, a.usage, a.allocs)
	}
	s.step(a.event)
}

// report is what waits for the elected master, one message at a time: what
// gathers meanwhile goes with the next. What copies use goes along, and is no
// reason for a message.
func (s *Station) report() *borgrpc.ReportRequest {
	now := s.cfg.NowNs()
	if s.sending || s.state.Elected == 0 || now < s.mayNs || (s.outbox.empty() && now < s.mustNs) {
		return nil
	}
	if !s.core.counts(now) {
		// Somebody else may have polled them since.
		s.outbox.dropMisses()
	}
	req := &borgrpc.ReportRequest{Replica: s.state.Replica, Term: s.state.Term, CellId: s.cfg.CellID, Format: s.cfg.Format, SilentNs: s.core.DeafNs(now), Unheard: new(uint32(s.core.Unheard(now))), Returned: uint32(s.core.Returned(now)), AppliedIndex: new(s.cfg.Log.State().Applied), LateNs: s.core.LateNs(now), PeriodNs: s.core.PeriodNs(now)}
	if _, term, version := s.core.Live(); term == s.state.Term {
		req.LiveVersion = version
	}
	s.outbox.take(req)
	s.usage.take(now, req)
	s.sending, s.mustNs = true, now+heartbeatNs
	return req
}

// ReportFailed ends a report that was not taken, as far as is known.
func (s *Station) ReportFailed(req *borgrpc.ReportRequest) {
	s.sending = false
	now := s.cfg.NowNs()
	s.mayNs, s.mustNs = now+reportPauseNs, now+reportPauseNs
	s.outbox.putBack(req)
	s.usage.lost(req.Usage)
}

// ReportTaken ends a report with the elected master's answer.
func (s *Station) ReportTaken(resp *borgrpc.ReportResponse) {
	s.sending = false
	now := s.cfg.NowNs()
	if resp.GetTerm() != s.cfg.Log.State().Term {
		return
	}
	if s.takenNs == 0 {
		s.step(MasterContact{OK: true})
	}
	s.takenNs = now
	if resp.LiveVersion == 0 {
		s.mustNs = now + reportPauseNs
		return
	}
	live := LiveSet{Term: resp.Term, Version: resp.LiveVersion, Live: resp.Live}
	if s.core.isNews(live) {
		s.step(s.connected())
	}
	s.step(live)
}

// connected returns the machines to which connections stand by.
func (s *Station) connected() (c Connected) {
	if s.cfg.Borglets == nil {
		return c
	}
	type end struct{ machine, addr string }
	var ends []end
	s.cfg.Log.View(func(c *cell.Cell) {
		for m := range c.Machines() {
			if m.Up() {
				ends = append(ends, end{m.Name(), m.Addr()})
			}
		}
	})
	for _, e := range ends {
		if s.cfg.Borglets.Connected(e.machine, e.addr) {
			c.Machines = append(c.Machines, e.machine)
		}
	}
	return c
}
