package sim

import (
	"slices"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Batches that may wait for the log's answer, as in the scheduler process.
const batchesInFlight = 4

// Nobody waits for an assignment after so long.
const assignTimeoutNs = 10 * second

// schedulerProcess is the process beside the elected replica: its own copy of
// the cell, fed with the same entries, and the search over it.
type schedulerProcess struct {
	m        *masterSide
	alive    bool
	copy     *cell.Cell
	search   *scheduler.Scheduler
	entries  []borgmaster.CommittedEntry
	waking   bool
	inFlight int
	resting  bool
	// planning: moves wait for their answer. The copy shows what became of the last
	// ones when it is at planned.
	planning bool
	planned  uint64
}

func newSchedulerProcess(m *masterSide) *schedulerProcess {
	p := &schedulerProcess{m: m, alive: true}
	p.after(30*millisecond, p.load)
	return p
}

func (p *schedulerProcess) stop() { p.alive = false }

func (p *schedulerProcess) after(ns int64, do func()) {
	p.m.r.after(ns, func() {
		if p.alive {
			do()
		}
	})
}

// load takes the cell as the elected replica has it.
func (p *schedulerProcess) load() {
	c, err := copyCell(p.m.r.cell)
	if err != nil {
		p.m.r.w.fail("the scheduler cannot load the cell: %v", err)
		return
	}
	reschedule := scheduler.ReschedulePending
	if p.m.r.w.cfg.Seed%3 > 0 {
		reschedule |= scheduler.RescheduleSpread | scheduler.RescheduleDefragment
	}
	cfg := scheduler.Config{Seed: p.m.r.w.cfg.Seed, Enough: 8, Reschedule: reschedule, Moves: 1000}
	if p.m.r.w.swarm.bands {
		cfg.Churn, cfg.ChurnWindowNs = churnMost, churnWindowNs
		p.m.r.w.truth.schedulerBegins()
	}
	search, err := scheduler.New(cfg)
	if err != nil {
		panic(err)
	}
	p.copy, p.search, p.entries = c, search, nil
	p.wake()
	p.askDrains()
}

// copyCell makes another cell of one's records.
func copyCell(c *cell.Cell) (*cell.Cell, error) {
	if c.Index() == 0 {
		return cell.New(c.ID(), c.Epoch()), nil
	}
	return cell.Load(func(yield func(key, value []byte) bool) {
		for k, v := range c.Records() {
			if !yield(slices.Clone(k), slices.Clone(v)) {
				return
			}
		}
	})
}

func (p *schedulerProcess) deliver(e borgmaster.CommittedEntry) {
	if p.copy == nil {
		return
	}
	p.entries = append(p.entries, e)
	p.wake()
}

func (p *schedulerProcess) wake() {
	if p.waking {
		return
	}
	p.waking = true
	p.after(between(p.m.r.rand, 100*microsecond, 5*millisecond), func() {
		p.waking = false
		p.takeIn()
		p.pass()
	})
}

func (p *schedulerProcess) takeIn() {
	for _, e := range p.entries {
		_, events := p.copy.Apply(e.Index, e.Term, e.Data)
		p.search.Observe(p.copy, events)
		p.copy.Flush(nil)
	}
	p.entries = nil
}

func (p *schedulerProcess) pass() {
	if p.resting || p.inFlight >= batchesInFlight || p.planning || p.copy.Index() < p.planned {
		return
	}
	b := p.search.Pass(p.copy)
	if b.More {
		p.wake()
	}
	if len(b.Assign.GetAssignments()) == 0 {
		if !b.More && p.inFlight == 0 {
			p.plan()
		}
		return
	}
	p.inFlight++
	w := p.m.r.w
	w.say("scheduler of replica %d at index %d assigns %d", p.m.r.id, p.copy.Index(), len(b.Assign.Assignments))
	op := &borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_Assign{Assign: b.Assign}}
	p.after(between(p.m.r.rand, 50*microsecond, millisecond), func() {
		p.m.r.propose(op, w.now+assignTimeoutNs, func(res *borgpb.Result, err error) {
			p.after(between(p.m.r.rand, 50*microsecond, millisecond), func() { p.settle(b.ID, res, err) })
		})
	})
}

// plan proposes moves, when passes decide nothing more.
func (p *schedulerProcess) plan() {
	o := p.search.Plan(p.copy)
	if o == nil {
		return
	}
	p.planning = true
	w := p.m.r.w
	w.say("scheduler of replica %d at index %d moves %d", p.m.r.id, p.copy.Index(), len(o.Moves))
	op := &borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_MoveTasks{MoveTasks: o}}
	p.after(between(p.m.r.rand, 50*microsecond, millisecond), func() {
		p.m.r.propose(op, w.now+assignTimeoutNs, func(res *borgpb.Result, err error) {
			p.after(between(p.m.r.rand, 50*microsecond, millisecond), func() { p.settlePlan(res, err) })
		})
	})
}

func (p *schedulerProcess) settlePlan(res *borgpb.Result, err error) {
	p.planning = false
	if err != nil {
		res = nil
		p.rest()
	}
	p.planned = res.GetIndex()
	if res.GetRefusal() != nil {
		p.m.r.w.mark("moves refused")
	}
	p.search.SettlePlan(p.copy, res)
	p.wake()
}

// rest holds passes back for a while after an answer that did not come.
func (p *schedulerProcess) rest() {
	p.resting = true
	p.after(50*millisecond, func() { p.resting = false; p.wake() })
}

func (p *schedulerProcess) settle(batch uint64, res *borgpb.Result, err error) {
	p.inFlight--
	if err != nil {
		res = nil
		p.rest()
	}
	refused := p.search.Settle(p.copy, batch, res)
	if refused.Count > 0 {
		p.m.r.w.mark("assignment refused")
		if refused.First.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_STALE {
			p.m.r.w.mark("stale assignment refused")
		}
	}
	p.wake()
}
