package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// The rescheduler moves what runs. It proposes moves only with proof that all who
// are displaced have a place: each placement of a plan is tried by the cell's own
// test over those before it, and the cell makes the same test of the whole plan
// when it comes out of the log. All of a plan is done or nothing.

// Reschedule is a set of reasons for which tasks are moved. The zero value is the
// default.
type Reschedule uint8

const (
	// RescheduleOff: none.
	RescheduleOff Reschedule = 1 << iota
	// ReschedulePending: a task of production waits, fits nowhere although others
	// give way, and would fit if some were elsewhere.
	ReschedulePending
	// RescheduleSpread: too many of one job share a failure domain.
	RescheduleSpread
	// RescheduleDefragment: what is free on a machine is of little use, since CPU
	// or memory has nearly run out.
	RescheduleDefragment
)

var rescheduleNames = []string{"off", "pending", "spread", "defragment"}

// RescheduleWords lists the reasons for people.
func RescheduleWords() string { return strings.Join(rescheduleNames, ", ") }

// ParseReschedule reads names of reasons with commas between them; empty is the
// default.
func ParseReschedule(text string) (Reschedule, bool) {
	var r Reschedule
	for name := range strings.SplitSeq(text, ",") {
		at := slices.Index(rescheduleNames, name)
		if at < 0 {
			return 0, text == ""
		}
		r |= 1 << at
	}
	return r, r.valid()
}

// valid: off goes with nothing else.
func (r Reschedule) valid() bool {
	return r == RescheduleOff || r&RescheduleOff == 0 && r < 1<<len(rescheduleNames)
}

// formatMoves is the format from which on a cell moves tasks.
const formatMoves = 3

const (
	// maxPlanMoves is how many tasks one plan moves at most.
	maxPlanMoves = 4
	// maxPlanWork bounds the search for one plan: places looked at, and sets of
	// tasks that might leave; a test of the cell's counts as testWork of them.
	maxPlanWork = 1_000_000
	testWork    = 16
	// A search in vain is made again after so long at the soonest, and only if
	// something changed.
	planPauseNs = 1e9
	// moveWindowNs is the time in which Config.Moves tasks are moved at most.
	moveWindowNs = 60e9
)

// mover is what the rescheduler remembers. It bounds what is done, and does not
// change how.
type mover struct {
	// events counts what happened in the copy, stirs what may have changed where
	// something fits.
	events int
	stirs  uint64
	// vain are classes for which there was no plan, with the stirs of then; none
	// is left to try when stirs is vainStirs.
	vain      map[*class]uint64
	vainStirs uint64
	// notBeforeNs is cell time.
	notBeforeNs int64
	// windowNs is the cell time at which the window began in which moved tasks
	// were moved.
	windowNs int64
	moved    int
	// cutStirs is the number of stirs, and one, as of when a search that was cut short found
	// no plan and no new class in vain: it would be cut short there again.
	cutStirs uint64
	// gainless is the number of events, and one, as of when no move was found that
	// would gain anything.
	gainless int
	// releaseNs is the first cell time at which the window of a budget lets somebody be
	// moved who was wanted; zero: nobody. No event tells of it.
	releaseNs int64
}

// Plan returns moves to propose, or nil. It is asked when passes decide nothing
// more and nothing is on its way to the log; what it returns is not promised, so
// that no pass may be made before SettlePlan and before the copy has come to the
// index of the answer.
func (s *Scheduler) Plan(c *cell.Cell) *borgpb.MoveTasks {
	if s.cfg.Reschedule == RescheduleOff || c.Format() < formatMoves || s.overlay.promises > 0 {
		return nil
	}
	s.attend(c)
	m := &s.mover
	now := c.TimeNs()
	if now < m.notBeforeNs {
		return nil
	}
	if now-m.windowNs >= moveWindowNs {
		m.windowNs, m.moved = now, 0
	}
	if m.releaseNs != 0 && now >= m.releaseNs {
		m.releaseNs, m.gainless, m.vain = 0, 0, nil
	}
	budget := min(s.cfg.Moves-m.moved, maxPlanMoves)
	if budget <= 0 {
		return nil
	}
	p := newPlanner(s, c)
	inVain := m.countVain()
	var o *borgpb.MoveTasks
	if s.cfg.Reschedule&ReschedulePending != 0 {
		o = p.forPending(budget)
	}
	if o == nil && s.cfg.Reschedule&(RescheduleSpread|RescheduleDefragment) != 0 && m.gainless != m.events+1 {
		if o = p.forGain(budget); o == nil && p.work < maxPlanWork {
			m.gainless = m.events + 1
		}
	}
	if o == nil {
		if p.work > 0 {
			m.notBeforeNs = now + planPauseNs
		}
		if p.work >= maxPlanWork && m.countVain() == inVain {
			m.cutStirs = m.stirs + 1
		}
		return nil
	}
	m.moved += len(o.Moves)
	o.CopyIndex, o.ConfigHash = c.Index(), s.configHash
	s.stats.Moved += len(o.Moves)
	return o
}

// PlanAt returns the cell time at which Plan may find moves although nothing happens
// in the copy until then: it pauses after a search in vain, and moves a limited number
// of tasks in a minute. ok is false if time alone changes nothing. The windows of
// disruption budgets do not count.
func (s *Scheduler) PlanAt(c *cell.Cell) (ns int64, ok bool) {
	m := &s.mover
	if s.cfg.Reschedule == RescheduleOff || c.Format() < formatMoves || s.settledMoves() {
		return 0, false
	}
	if m.notBeforeNs > c.TimeNs() {
		return m.notBeforeNs, true
	}
	if end := m.windowNs + moveWindowNs; m.moved >= s.cfg.Moves && end > c.TimeNs() {
		return end, true
	}
	return 0, false
}

// settledMoves reports whether every reason to move was searched in vain since the
// copy last changed.
func (s *Scheduler) settledMoves() bool {
	m := &s.mover
	if m.cutStirs == m.stirs+1 {
		return true
	}
	pending := s.cfg.Reschedule&ReschedulePending == 0 || m.vain != nil && m.vainStirs == m.stirs
	gain := s.cfg.Reschedule&(RescheduleSpread|RescheduleDefragment) == 0 || m.gainless == m.events+1
	return pending && gain
}

// SettlePlan takes in what the log answered to a plan; nil when nobody knows. A
// plan that was refused had become stale; another one is made from what the copy
// shows by then.
func (s *Scheduler) SettlePlan(c *cell.Cell, result *borgpb.Result) {
	if result.GetRefusal() != nil || result == nil {
		s.mover.notBeforeNs = c.TimeNs() + planPauseNs
	}
}

// forPending looks for a plan for the first task in the queue's order that one can
// be found for.
func (p *planner) forPending(budget int) *borgpb.MoveTasks {
	s := p.s
	m := &s.mover
	if m.vain != nil && m.vainStirs == m.stirs {
		return nil
	}
	if m.vain == nil || len(m.vain) >= maxRemembered {
		m.vain = make(map[*class]uint64)
	}
	s.queue.order()
	for _, l := range s.queue.list {
		if l.priority < prodPriority {
			break
		}
		if l.dirty || l.gang {
			continue
		}
		for i := 0; i < len(l.indices) && p.work < maxPlanWork; {
			index := l.indices[i]
			w := l.known(index)
			if w == nil || !m.inVain(w.class) {
				// Whoever is kept away from a machine has even less to choose from.
				w = s.want(p.c, l, index)
			}
			if !m.inVain(w.class) {
				if o := p.make(w, index, budget); o != nil {
					return o
				}
				if p.work < maxPlanWork {
					m.vain[w.class] = m.stirs
				}
			}
			// The others of this class need the same.
			for i < len(l.indices) && l.indices[i] <= w.last {
				i++
			}
		}
	}
	if p.work < maxPlanWork {
		m.vainStirs = m.stirs
	}
	return nil
}

// inVain tells that there was no plan for a class, as things are.
func (m *mover) inVain(of *class) bool {
	stirs, tried := m.vain[of]
	return tried && stirs == m.stirs
}

// countVain counts the classes for which there was no plan, as things are.
func (m *mover) countVain() (n int) {
	for of := range m.vain {
		if m.inVain(of) {
			n++
		}
	}
	return n
}

// movesWords says what would make room if nothing is moved by itself: tried, as
// every plan. Empty: nothing would, or it is not known while something is on its way.
func (e *explanation) movesWords() string {
	s, l := e.s, e.want.line
	if l.priority < prodPriority || e.counts[cell.FitOK] > 0 || e.c.Format() < formatMoves || s.overlay.promises > 0 || e.notEligible() != "" {
		return ""
	}
	o := newPlanner(s, e.c).make(e.want, e.index, maxPlanMoves)
	if o == nil {
		return ""
	}
	var parts []string
	for _, a := range o.Moves {
		uid, _ := cell.ParseUID(a.Uid)
		j := e.c.JobByUID(uid)
		id := cell.TaskID{Job: j.Key(), Index: a.Index}
		parts = append(parts, fmt.Sprintf("%s from %s to %s", id, j.Task(a.Index).Current().Machine().Name(), a.Machine))
	}
	return "; it would fit after moving " + listText(parts, 4)
}
