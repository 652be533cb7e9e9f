package sim

import (
	"errors"
	"log/slog"
	"time"

	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/borgmaster/duty"
	"borg/borgmaster/linkshard"
	"borg/borgmaster/reclaim"
	"borg/borgmaster/watch"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	dutyTickNs    = 200 * millisecond
	dutyTimeoutNs = 10 * second
)

var (
	errTimeout = errors.New("no answer in time")
	errBroken  = errors.New("the connection is broken")
)

// A call waits so long for somebody to be elected, and looks again after a
// while; as in borgmaster.
const (
	electionWaitNs  = 5 * second
	electionRetryNs = 50 * millisecond
)

// masterSide is what a replica does besides the log: its link shard always, the
// duties and the scheduler while it is elected, and the door for clients.
type masterSide struct {
	r       *replicaNode
	station *linkshard.Station
	// Due time of the next look at the station that is already under way.
	lookAtNs int64
	// Polls so far.
	asked  uint64
	duties *duty.Core
	// Who was elected before this replica was; 0: not known.
	before   uint64
	reclaims *reclaim.Core
	// Term that the duties are at work for; 0: not elected.
	dutyTerm uint64
	// Which slots of cron jobs are due, and how many are proposed and not answered.
	slots     borgmaster.CronSlots
	deciding  int
	scheduler *schedulerProcess
	// Run when another replica is elected, or this one.
	onChange []func()
	gate     *borgmaster.Gate
	// Who is served when too many ask, and whether a look at it is due.
	admission *admission.Core[func(error)]
	// When it is stepped next; 0: nobody waits.
	stepNs int64
	// Whose turn it is to read much, and how many do.
	turns   *admission.Turns[func(error)]
	reading int
	// Machines to which it has connected, where that takes time.
	connected map[string]bool
	// Nil: nobody watches in this run.
	hub *watch.Hub
}

func newMasterSide(r *replicaNode) *masterSide {
	m := &masterSide{r: r, duties: duty.New(duty.Bounds{}), reclaims: reclaim.New(reclaim.Config{Instead: curve()}), gate: &borgmaster.Gate{FirstAdmin: operatorUser}}
	m.admission = admission.New[func(error)](admission.Config{Replica: r.id})
	m.turns, m.connected = admission.NewTurns[func(error)](r.id, readPlaces, readPlaces), map[string]bool{}
	m.station = linkshard.NewStation(linkshard.Config{
		Core:   linkshard.CoreConfig{Replica: r.id},
		Format: r.cell.BuildFormat(), UsageEveryNs: usageEveryNs,
		CellName: cellName, CellID: cellID, Log: logView{r}, NowNs: r.monoNs, Logger: slog.New(slog.DiscardHandler),
	})
	if r.w.swarm.watchers > 0 {
		m.hub = watch.New(r.w.hubConfig(r))
		m.hub.Reset(r.cell)
	}
	m.station.TakeNotes(linkshard.Notes{Reload: true, NewState: true})
	r.after(0, m.carryOut)
	m.dutyTick()
	return m
}

// logView is the replica's log as its link shard sees it.
type logView struct{ r *replicaNode }

func (v logView) View(f func(c *cell.Cell)) { f(v.r.cell) }

func (v logView) State() linkshard.State {
	s := v.r.core.State()
	return linkshard.State{Replica: v.r.id, Elected: s.Elected, Term: s.Term, Applied: v.r.cell.Index(), Commit: s.Commit}
}

func (m *masterSide) ready() bool { return m.r.core.State().Settled }

func (m *masterSide) stop() {
	if m.scheduler != nil {
		m.scheduler.stop()
		m.scheduler = nil
	}
}

func (m *masterSide) stateChanged() {
	m.station.TakeNotes(linkshard.Notes{NewState: true})
	m.follow()
	m.carryOut()
	waiting := m.onChange
	m.onChange = nil
	for _, do := range waiting {
		do()
	}
}

// follow begins or ends what only the elected replica does.
func (m *masterSide) follow() {
	s := m.r.core.State()
	if s.Elected != 0 && s.Elected != m.r.id {
		m.before = s.Elected
	}
	if m.dutyTerm != 0 && (!s.Settled || s.Term != m.dutyTerm) {
		m.dutyTerm = 0
		m.reclaims.Deposed()
		m.stop()
	}
	if s.Settled && m.dutyTerm == 0 {
		m.dutyTerm, m.slots, m.deciding = s.Term, borgmaster.CronSlots{}, 0
		begin := duty.Elected{Term: s.Term, Self: m.r.id, Before: m.before, Members: m.memberIDs()}
		for x := range m.r.cell.Machines() {
			begin.Machines = append(begin.Machines, duty.Seen(m.r.cell, x))
		}
		m.step(begin)
		m.reclaims.Elected(s.Term)
		m.scheduler = newSchedulerProcess(m)
	}
}

func (m *masterSide) memberIDs() (ids []uint64) {
	for _, x := range m.r.core.Members().Members {
		ids = append(ids, x.GetId())
	}
	return ids
}

func (m *masterSide) restored() {
	if m.hub != nil {
		if m.hub.Watches() > 0 {
			m.r.w.mark("watch told at a checkpoint")
		}
		m.hub.Reset(m.r.cell)
	}
	m.station.TakeNotes(linkshard.Notes{Reload: true, NewState: true})
	m.r.after(0, m.carryOut)
}

// applied hears of each entry.
func (m *masterSide) applied(e borgmaster.CommittedEntry, events []cell.Event) {
	m.watched()
	for i := range events {
		ev := &events[i]
		if m.dutyTerm == 0 || ev.Machine == "" || ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_MACHINE {
			continue
		}
		if x := m.r.cell.Machine(ev.Machine); x != nil {
			m.step(duty.Seen(m.r.cell, x))
		} else {
			m.step(duty.MachineGone{Name: ev.Machine})
		}
	}
	if concerned := append(linkshard.Concerned(events), m.r.cell.Asked()...); len(concerned) > 0 {
		m.station.TakeNotes(linkshard.Notes{Changed: concerned})
	}
	m.r.after(0, m.carryOut)
	if m.scheduler != nil {
		m.scheduler.deliver(e)
	}
}

func (m *masterSide) dutyTick() {
	m.r.after(dutyTickNs, func() {
		m.follow()
		if m.dutyTerm != 0 {
			ticked := duty.Ticked{Applied: m.r.cell.Index(), Format: m.r.cell.Format(), Members: m.memberIDs(), LostDeclared: m.r.cell.LostDeclared() > 0, DueInNs: m.r.cell.DueInNs(), Ending: m.r.cell.Ending()}
			for _, p := range m.r.core.Peers(time.Duration(tickNs)) {
				ticked.Raft = append(ticked.Raft, duty.RaftHeard{ID: p.ID, AgoNs: int64(p.Heard)})
			}
			if m.r.cell.NumAdmins() == 0 {
				ticked.FirstAdmin = m.gate.FirstAdmin
			}
			m.step(ticked)
			m.reserve()
			m.decideSlots()
			m.judgeGates()
		}
		m.dutyTick()
	})
}

// reserve has proposed what moved far enough of what tasks reserve.
func (m *masterSide) reserve() {
	term := m.dutyTerm
	if op := m.reclaims.Look(m.r.cell); op != nil {
		op.Principal = ownOp()
		m.proposeOwn(op, func(_ *borgpb.Result, err error) {
			if err != nil {
				m.r.w.truth.unanswered(term)
			}
			if m.reclaims.Term() == term {
				m.reclaims.Proposed()
			}
		})
	}
}

// decideSlots has the slots of cron jobs decided whose time has come, when those before
// are.
func (m *masterSide) decideSlots() {
	if m.deciding > 0 {
		return
	}
	term := m.dutyTerm
	for _, op := range m.slots.Due(m.r.cell, m.r.clock.wallNs(m.r.w.now)) {
		m.deciding++
		m.proposeOwn(op, func(*borgpb.Result, error) {
			if m.dutyTerm == term {
				m.deciding--
			}
		})
	}
}

// step drives the duties and does what they say.
func (m *masterSide) step(ev duty.Event) {
	if m.dutyTerm == 0 {
		return
	}
	term := m.dutyTerm
	for _, e := range m.duties.Step(m.r.monoNs(), ev) {
		switch e := e.(type) {
		case duty.Probe:
			m.probe(e, func(answer duty.Probed) {
				if m.dutyTerm == term {
					m.step(answer)
				}
			})
		case duty.Propose:
			e.Op.Principal = ownOp()
			m.proposeOwn(e.Op, func(res *borgpb.Result, err error) {
				if e.Machine != "" && m.dutyTerm == term {
					m.step(duty.Proposed{Machine: e.Machine, OK: err == nil && res.GetRefusal() == nil})
				}
			})
		}
	}
}

// proposeOwn proposes what the duties decided, perhaps late: in production each
// waits its turn on a goroutine of its own.
func (m *masterSide) proposeOwn(op *borgpb.Op, done func(*borgpb.Result, error)) {
	if m.r.w.swarm.dutyLateNs == 0 {
		m.r.propose(op, m.r.w.now+dutyTimeoutNs, done)
		return
	}
	m.r.after(between(m.r.rand, 0, m.r.w.swarm.dutyLateNs), func() { m.r.propose(op, m.r.w.now+dutyTimeoutNs, done) })
}

func ownOp() *borgpb.Principal { return &borgpb.Principal{Role: borgpb.Role_ROLE_MASTER} }

// probe lets a replica try a machine once.
func (m *masterSide) probe(e duty.Probe, done func(duty.Probed)) {
	r, by := m.r, m.r.w.nodes[e.Replica]
	life, ended := r.life, false
	end := func(answer duty.Probed) {
		if !ended {
			ended = true
			answer.Machine, answer.Replica = e.Machine, e.Replica
			r.w.say("replica %d tried %s: %+v", e.Replica, e.Machine, answer)
			done(answer)
		}
	}
	r.after(2*second, func() { end(duty.Probed{NoAnswer: true, Err: errTimeout.Error()}) })
	r.w.ask(replicaEnd(r.id), by, func() {
		by.master.probeHere(e.Machine, func(a duty.Probed) {
			r.w.carry(replicaEnd(by.id), replicaEnd(r.id), func() { r.enter(life, func() { end(a) }) })
		})
	}, func() { r.enter(life, func() { end(duty.Probed{NoAnswer: true, Err: errBroken.Error()}) }) })
}

// probeHere tries a machine from here.
func (m *masterSide) probeHere(machine string, done func(duty.Probed)) {
	r, tried := m.r, false
	answer := func(a duty.Probed) {
		if !tried {
			tried = true
			done(a)
		}
	}
	r.after(second, func() {
		if !tried {
			r.w.truth.unreached(r.id, machine)
		}
		answer(duty.Probed{Err: errTimeout.Error()})
	})
	x, life := r.w.machineNamed(machine), r.life
	r.w.send(replicaEnd(r.id), machineEnd(x.i), func() {
		if !x.Up() || !x.Agent() {
			return
		}
		r.w.send(machineEnd(x.i), replicaEnd(r.id), func() {
			r.enter(life, func() {
				r.w.truth.reached(r.id, machine)
				answer(duty.Probed{Reached: true})
			})
		})
	})
}

// carryOut does what the station wants, and looks at it again in time.
func (m *masterSide) carryOut() {
	o := m.station.Orders()
	for _, p := range o.Polls {
		m.poll(p)
	}
	if o.Report != nil {
		m.report(o.Report)
	}
	next := m.station.NextNs()
	if m.lookAtNs > m.r.monoNs() && m.lookAtNs <= next {
		return
	}
	m.lookAtNs = next
	m.r.after(max(next-m.r.monoNs(), 10*microsecond), func() {
		if m.lookAtNs == next {
			m.lookAtNs = 0
			m.station.Tick()
			m.carryOut()
		}
	})
}

func (m *masterSide) poll(p linkshard.Poll) {
	r := m.r
	_, req := m.station.Ask(p)
	if m.asked++; req != nil && m.asked%askedAnew == 0 {
		r.w.truth.asks(r.id, req, m.station.Afresh(p))
	}
	life, ended := r.life, false
	end := func(o linkshard.Outcome) {
		if ended {
			return
		}
		ended = true
		if o.Response.GetFenced() {
			r.w.mark("stale fence refused")
		}
		if o.Missed {
			r.w.truth.unreached(r.id, p.Machine)
		} else if o.Response != nil {
			r.w.truth.reached(r.id, p.Machine)
			r.w.polled(p.Machine)
		}
		m.station.TakeAnswer(m.station.Weigh(p, req, o))
		m.carryOut()
	}
	if req == nil {
		r.after(0, func() { end(linkshard.Outcome{}) })
		return
	}
	x := r.w.machineNamed(p.Machine)
	r.after(int64(linkshard.PollTimeout), func() { end(linkshard.Outcome{Missed: true, Err: errTimeout.Error()}) })
	r.w.asks(r, p.Machine)
	m.connect(x, func() {
		x.poll(req, func(resp *borgrpc.PollResponse, err error) {
			o := linkshard.Outcome{Response: resp}
			if err != nil {
				o = linkshard.Outcome{Err: err.Error()}
			}
			r.w.send(machineEnd(x.i), replicaEnd(r.id), func() { r.enter(life, func() { end(o) }) })
		})
	})
}

// connect carries a poll to a machine, in a new cell after a handshake the first time.
func (m *masterSide) connect(to *machine, deliver func()) {
	send := func() { m.r.w.send(replicaEnd(m.r.id), machineEnd(to.i), deliver) }
	if !m.r.w.swarm.newCell || m.connected[to.name] {
		send()
		return
	}
	m.connected[to.name] = true
	m.r.after(handshakeNs, send)
}

// report brings a report to the elected master, which may be this replica.
func (m *masterSide) report(req *borgrpc.ReportRequest) {
	if req.SilentNs > 0 {
		m.r.w.mark("no machine answers a replica")
	}
	r := m.r
	life, ended := r.life, false
	end := func(resp *borgrpc.ReportResponse, err error) {
		if ended {
			return
		}
		ended = true
		if err != nil {
			m.station.ReportFailed(req)
		} else {
			r.w.truth.reported(r.id)
			m.station.ReportTaken(resp)
		}
		m.carryOut()
	}
	elected := r.core.State().Elected
	if elected == 0 {
		r.after(0, func() { end(nil, borgmaster.ErrNotElected) })
		return
	}
	to := r.w.nodes[elected]
	r.after(int64(linkshard.ReportTimeout), func() { end(nil, errTimeout) })
	r.w.ask(replicaEnd(r.id), to, func() {
		to.master.hear(req, func(resp *borgrpc.ReportResponse, err error) {
			r.w.carry(replicaEnd(to.id), replicaEnd(r.id), func() { r.enter(life, func() { end(resp, err) }) })
		})
	}, func() { r.enter(life, func() { end(nil, errBroken) }) })
}

// hear is the elected master's side of a report.
func (m *masterSide) hear(req *borgrpc.ReportRequest, done func(*borgrpc.ReportResponse, error)) {
	if !m.ready() || m.dutyTerm == 0 {
		done(nil, borgmaster.ErrNotElected)
		return
	}
	m.step(duty.ReportOf(req))
	m.reclaims.Hear(req.GetUsage())
	resp := m.duties.Answer()
	if len(req.GetHeard().GetMachines()) > 0 {
		m.r.propose(&borgpb.Op{Principal: ownOp(), Op: &borgpb.Op_HearMachines{HearMachines: req.Heard}}, m.r.w.now+int64(linkshard.ReportTimeout), func(*borgpb.Result, error) {})
	}
	if len(req.GetReports().GetMachines()) == 0 {
		done(resp, nil)
		return
	}
	since := m.r.w.now
	m.r.propose(&borgpb.Op{Principal: ownOp(), Op: &borgpb.Op_Reports{Reports: req.Reports}}, m.r.w.now+int64(linkshard.ReportTimeout), func(res *borgpb.Result, err error) {
		m.r.w.beside("a report of borglets", since, err)
		resp.Result = res
		done(resp, err)
	})
}

// mutate is the door for clients, and does what borgmaster's does: the elected
// replica proposes, another one forwards, and while nobody is elected it waits a
// little. Nobody waits for the answer any more at the deadline. A replica that
// passes a mutation on says whose it is, and since when that one has his
// certificate.
func (m *masterSide) mutate(from caller, op *borgpb.Op, forwarded bool, deadlineNs int64, done func(*borgpb.Result, error)) {
	if err := m.enter("/borgrpc.MasterService/Mutate", from); err != nil {
		done(nil, err)
		return
	}
	done, ok := m.begin(from, op, forwarded, done)
	if !ok {
		return
	}
	beganNs := m.r.monoNs()
	var try func()
	end := func(res *borgpb.Result, err error) {
		if err == nil || errors.Is(err, borgmaster.ErrOverloaded) || errors.Is(err, errRevoked) || errors.As(err, new(errTooMuch)) || m.r.monoNs()-beganNs >= electionWaitNs {
			done(res, err)
			return
		}
		if errors.Is(err, borgmaster.ErrUnknownOutcome) {
			m.r.w.mark("unknown outcome tried again")
		}
		ran := false
		again := func() {
			if !ran {
				ran = true
				try()
			}
		}
		m.onChange = append(m.onChange, again)
		m.r.after(electionRetryNs, again)
	}
	try = func() {
		s := m.r.core.State()
		switch {
		case s.Settled:
			m.admitted(from, op, deadlineNs, end)
		case forwarded:
			done(nil, borgmaster.ErrNotElected)
		case s.Elected == 0 || s.Elected == m.r.id:
			end(nil, borgmaster.ErrNotElected)
		default:
			m.forward(s.Elected, from, op, deadlineNs, func(res *borgpb.Result, err error) {
				if too := (errTooMuch{}); errors.As(err, &too) {
					m.refusedElsewhere(from.name.User(), op, too.Refusal)
				}
				end(res, err)
			})
		}
	}
	try()
}

// forward passes a mutation on, and gives it up when somebody else is elected:
// that replica may be one that hangs.
func (m *masterSide) forward(elected uint64, from caller, op *borgpb.Op, deadlineNs int64, done func(*borgpb.Result, error)) {
	r, to, life := m.r, m.r.w.nodes[elected], m.r.life
	var asked *call
	end := func(res *borgpb.Result, err error) {
		if !asked.ended {
			asked.ended = true
			done(res, err)
		}
	}
	var watch func()
	watch = func() {
		switch {
		case asked.ended:
		case r.core.State().Elected != elected:
			end(nil, borgmaster.ErrUnknownOutcome)
		default:
			m.onChange = append(m.onChange, watch)
		}
	}
	m.onChange = append(m.onChange, watch)
	asked = r.w.ask(replicaEnd(r.id), to, func() {
		to.master.mutate(from, op, true, deadlineNs, func(res *borgpb.Result, err error) {
			r.w.carry(replicaEnd(to.id), replicaEnd(r.id), func() { r.enter(life, func() { end(res, err) }) })
		})
	}, func() { r.enter(life, func() { end(nil, errBroken) }) })
}
