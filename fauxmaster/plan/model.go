package plan

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Model is a cell of one's own to try things on, with the scheduler and borglets
// that obey at once.
type Model struct {
	cell *cell.Cell
	s    *scheduler.Scheduler
	cfg  scheduler.Config
	// hears is told every event, in order; nil: nobody is.
	hears func([]cell.Event)
	// moved counts the tasks that the rescheduler moved.
	moved int
	// waitedNs is the cell time that Rest let pass for the rescheduler.
	waitedNs int64
}

const (
	// tickNs is the cell time that an entry takes.
	tickNs = 1e6
	// A task that the cell refused twice running waits at most so long.
	refusedWaitNs = 64e9
	// Rest gives up after so many rounds without rest. A round in which others
	// give way is followed by one in which they look for places.
	maxRounds = 10_000
	// Bounds of the entries that a Model makes, below those of a cell.
	maxReports    = 5_000
	maxEntryBytes = 512 << 10
)

// New makes a model of a cell, which is the model's from then on.
func New(c *cell.Cell, cfg scheduler.Config) (*Model, error) {
	s, err := scheduler.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Model{cell: c, s: s, cfg: cfg}, nil
}

// ModelOf makes a model of a copy of a cell.
func ModelOf(c *cell.Cell, cfg scheduler.Config) (*Model, error) {
	own, err := cell.Load(c.Records())
	if err != nil {
		return nil, fmt.Errorf("copy a cell: %w", err)
	}
	return New(own, cfg)
}

// Copy makes another model of the same.
func (m *Model) Copy() (*Model, error) { return ModelOf(m.cell, m.cfg) }

// Cell is the model's; only Do and Rest change it.
func (m *Model) Cell() *cell.Cell { return m.cell }

// Do does ops in one entry and tells what came of each.
func (m *Model) Do(ops ...*borgpb.Op) []*borgpb.Result {
	return m.entry(tickNs, ops)
}

// Must does ops that are not to be refused, in as many entries as they need.
func (m *Model) Must(ops ...*borgpb.Op) error {
	for len(ops) > 0 {
		n, bytes := 0, 0
		for n < len(ops) && n < maxReports {
			size := proto.Size(ops[n])
			if n > 0 && bytes+size > maxEntryBytes {
				break
			}
			n, bytes = n+1, bytes+size
		}
		for i, r := range m.Do(ops[:n]...) {
			if why := r.GetRefusal(); why != nil {
				return &Refused{Op: ops[i], Why: why}
			}
		}
		ops = ops[n:]
	}
	return nil
}

// Refused is what the cell said to an op.
type Refused struct {
	Op  *borgpb.Op
	Why *borgpb.Refusal
}

func (r *Refused) Error() string {
	text := r.Why.GetMessage()
	if f := r.Why.GetField(); f != "" {
		text = f + ": " + text
	}
	if o := r.Why.GetObject(); o != "" {
		text = o + ": " + text
	}
	return "the cell refuses it: " + text
}

func (m *Model) entry(ns int64, ops []*borgpb.Op) []*borgpb.Result {
	c := m.cell
	e := &borgpb.Entry{CellTimeNs: c.TimeNs() + ns, WallTimeNs: c.WallNs() + ns}
	for _, op := range ops {
		e.Ops = append(e.Ops, marshal(op))
	}
	results, events := c.Apply(c.Index()+1, max(c.Term(), 1), marshal(e))
	m.s.Observe(c, events)
	if m.hears != nil {
		m.hears(events)
	}
	return results
}

func marshal(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		// Only text that is not UTF-8 fails, and it has been through a message.
		panic(fmt.Sprintf("plan: encode %T: %v", m, err))
	}
	return data
}

// Rest lets the scheduler, its rescheduler and the borglets work until nothing
// happens any more. Time passes only as far as the scheduler itself waits for it: for
// what the cell refused twice, and between two plans of moves.
func (m *Model) Rest() error {
	waited, looked := false, false
	for range maxRounds {
		moved, refused := m.pass()
		moved = m.plan() || moved
		if m.obey() {
			moved = true
		}
		at, more := m.s.PlanAt(m.cell)
		switch {
		case moved:
			waited, looked = false, false
		case refused && !waited:
			// What the cell refused twice is held back for a while.
			waited = true
			m.entry(refusedWaitNs, nil)
		case more:
			ns := at - m.cell.TimeNs()
			m.waitedNs += ns
			m.entry(ns, nil)
		case m.cell.Ending():
			m.entry(m.cell.DueInNs(), nil)
		case m.cell.DueInNs() == 1 && !looked:
			// Something is due already, as daemons are that leave a drained machine last: an
			// elected master proposes an entry for it.
			looked = true
			m.entry(1, nil)
		default:
			return nil
		}
	}
	return fmt.Errorf("the scheduler does not come to rest within %d rounds", maxRounds)
}

// plan makes the moves that the rescheduler proposes once passes decide nothing more,
// each followed by the passes that its room allows. It reports whether the cell made any.
func (m *Model) plan() (moved bool) {
	for {
		o := m.s.Plan(m.cell)
		if o == nil {
			return moved
		}
		n := len(o.Moves)
		r := m.Do(&borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_MoveTasks{MoveTasks: o}})[0]
		m.s.SettlePlan(m.cell, r)
		if r.GetRefusal() != nil {
			return moved
		}
		moved = true
		m.moved += n
		m.pass()
	}
}

// pass makes passes until one has nothing more to propose.
func (m *Model) pass() (moved, refused bool) {
	for {
		b := m.s.Pass(m.cell)
		if b.ID == 0 {
			if b.More {
				continue
			}
			return moved, refused
		}
		op := &borgpb.Op{
			Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER},
			Op:        &borgpb.Op_Assign{Assign: b.Assign},
		}
		r := m.Do(op)[0]
		of := m.s.Settle(m.cell, b.ID, r)
		if of.Count > 0 {
			refused = true
		}
		if of.Count == of.Of {
			return moved, refused
		}
		moved = true
	}
}

// obey reports what borglets have done: who was told to stop has stopped, and who
// was placed runs. It tells whether there was anything to report.
func (m *Model) obey() (moved bool) {
	var ops []*borgpb.Op
	reports := &borgpb.Reports{}
	n := 0
	for at := range m.cell.Machines() {
		if !at.Up() {
			continue
		}
		var said *borgpb.MachineReport
		for p := range at.Copies() {
			state := borgpb.AttemptState_ATTEMPT_STATE_RUNNING
			switch {
			case p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
				state = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
			case p.State() == borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED && !p.Waits():
			default:
				continue
			}
			if said == nil {
				said = &borgpb.MachineReport{Machine: at.Name()}
				reports.Machines = append(reports.Machines, said)
			}
			said.Tasks = append(said.Tasks, m.report(p, state))
			n++
		}
		if n >= maxReports {
			ops = append(ops, reportsOp(reports))
			reports, n = &borgpb.Reports{}, 0
		}
	}
	if n > 0 {
		ops = append(ops, reportsOp(reports))
	}
	for _, op := range ops {
		m.Do(op)
	}
	return len(ops) > 0
}

func (m *Model) report(p *cell.Copy, state borgpb.AttemptState) *borgpb.TaskReport {
	r := &borgpb.TaskReport{
		JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), State: int32(state), Restarts: p.Restarts(),
	}
	if state == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
		r.Pid, r.StartedWallNs = 1, m.cell.WallNs()
	} else {
		r.Exit = &borgpb.Exit{Signal: 15, EndedWallNs: m.cell.WallNs()}
	}
	return r
}

func reportsOp(r *borgpb.Reports) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: r}}
}
