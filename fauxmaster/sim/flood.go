package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
)

// errTooMuch is a refusal with the time to come back.
type errTooMuch struct{ *admission.Refusal }

// toldToWait is for how long an answer says to stay away; 0: it does not.
func toldToWait(err error) int64 {
	if too := (errTooMuch{}); errors.As(err, &too) {
		return too.RetryNs
	}
	return 0
}

// place is a write of a user on its way to a place in the log; it is told once whether
// it has one.
type place = admission.Place[func(error)]

// admitted lets a user's op into the log when it has its place there, as borgmaster does.
func (m *masterSide) admitted(from caller, op *borgpb.Op, deadlineNs int64, done func(*borgpb.Result, error)) {
	propose := func(done func(*borgpb.Result, error)) { m.admit(from, op, deadlineNs, done) }
	if role := from.name.Role; role != identity.User && role != identity.Task {
		propose(done)
		return
	}
	done, ok := m.worked(from.name.User(), op, done)
	if !ok {
		return
	}
	var p *place
	left := false
	leave := func(ok bool) {
		if !left {
			left = true
			m.admission.Leave(m.r.monoNs(), p, ok)
			m.stepAdmission()
		}
	}
	turn := func(err error) {
		if err != nil {
			done(nil, err)
			return
		}
		propose(func(res *borgpb.Result, err error) {
			leave(err == nil)
			done(res, err)
		})
	}
	p, refused := m.admission.Enter(m.r.monoNs(), from.name.User(), cell.Cost(op), turn)
	if refused != nil {
		done(nil, errTooMuch{refused})
		return
	}
	// Nobody waits any more, neither for a place nor in the log.
	m.r.after(max(deadlineNs-m.r.w.now, 0), func() { leave(false) })
	if p.Placed() {
		turn(nil)
	}
	m.stepAdmission()
}

// worked takes the work of a user's op from the budget; done gives it back if the op has no turn.
func (m *masterSide) worked(user string, op *borgpb.Op, done func(*borgpb.Result, error)) (func(*borgpb.Result, error), bool) {
	work := m.r.cell.Work(op)
	if r := m.admission.Work(m.r.monoNs(), user, work); r != nil {
		m.r.w.mark("op refused for work budget")
		done(nil, errTooMuch{r})
		return nil, false
	}
	return func(res *borgpb.Result, err error) {
		if errors.As(err, new(errTooMuch)) {
			m.admission.NotWorked(user, work)
		}
		done(res, err)
	}, true
}

// refusedElsewhere notes that the elected replica turned an op away.
func (m *masterSide) refusedElsewhere(user string, op *borgpb.Op, why *admission.Refusal) {
	if m.r.cell.Work(op) > admission.FreeWork {
		m.admission.RefusedWork(m.r.monoNs(), user, why)
	} else {
		m.admission.Close(m.r.monoNs(), user, why)
	}
}

// begin admits a mutation at the replica that is asked; done gives back what it holds.
func (m *masterSide) begin(from caller, op *borgpb.Op, forwarded bool, done func(*borgpb.Result, error)) (func(*borgpb.Result, error), bool) {
	if role := from.name.Role; forwarded || role != identity.User && role != identity.Task {
		return done, true
	}
	user := from.name.User()
	if r := m.admission.Begin(m.r.monoNs(), user, cell.Cost(op)); r != nil {
		done(nil, errTooMuch{r})
		return nil, false
	}
	return func(res *borgpb.Result, err error) {
		m.admission.End(user, !errors.As(err, new(errTooMuch)))
		done(res, err)
	}, true
}

func (m *masterSide) stepAdmission() {
	granted, late := m.admission.Step(m.r.monoNs())
	for _, p := range granted {
		p.Who(nil)
	}
	for _, l := range late {
		m.r.w.mark("waited for a place in vain")
		l.Place.Who(errTooMuch{l.Refusal})
	}
	if ns, ok := m.admission.NextNs(m.r.monoNs()); ok && (m.stepNs == 0 || ns < m.stepNs) {
		m.stepNs = ns
		m.r.after(max(ns-m.r.monoNs(), millisecond), func() {
			if m.stepNs == ns {
				m.stepNs = 0
			}
			m.stepAdmission()
		})
	}
}

// floodUser asks for far more than the log can do, and heeds nothing.
const (
	floodUser = "flood"
	// When it begins, and how long it takes until the window has found its size: what it
	// begins with is more than a second of a log that does 200 changes a second.
	floodFromNs = 3 * second
	settlesNs   = 2 * second
	// So long a flooding call is waited for.
	floodWaitNs = second
	// One in so many of its changes is of so many tasks.
	floodLargeEvery, floodLargeTasks = 50, 100_000
	// Beside a flood others are answered within this, where nothing else is wrong.
	besideFloodNs = 500 * millisecond
	// What of the crashes of one job is logged within stormNs: what all replicas may pass
	// on, and a quarter for reports that are sent again. Who polls other machines than
	// before, or was started anew, has its budget anew.
	stormNs      = 2 * second
	mostOfAStorm = replicas * (100 + 2*20) * 5 / 4
)

// drawFlood lets a user flood in some seeds. It has a stream of its own.
func (s *swarm) drawFlood(r *rand.Rand) {
	if r.IntN(8) == 0 {
		s.floodPerS, s.applyNs = 400, 500*microsecond
	}
}

// flood asks, at its pace, whichever replica.
func (w *World) flood() {
	if w.swarm.floodPerS == 0 {
		return
	}
	r, made := stream(w.cfg.Seed, "flood"), 0
	from := asUser(floodUser, clock{}.wallNs(0))
	var next func()
	next = func() {
		if w.healed || w.restore.lost != nil {
			return
		}
		made++
		op := &borgpb.Op{
			RequestId: fmt.Sprintf("flood-%06d", made), RequestWallNs: w.wallNs(),
			Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: floodUser, Name: "none"}},
		}
		if made%floodLargeEvery == 0 {
			op.Op = &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: floodUser, Name: "none", Tasks: floodLargeTasks}}
		}
		w.truth.asked[op.RequestId] = asking{caller: from, atNs: w.now}
		to, deadline := w.replicas[r.IntN(len(w.replicas))], w.now+floodWaitNs
		var asked *call
		asked = w.ask(clientEnd(floodClient), to, func() {
			to.master.mutate(from, op, false, deadline, func(_ *borgpb.Result, err error) {
				asked.ended = true
				if too := (errTooMuch{}); errors.As(err, &too) {
					w.mark("flood turned away")
				}
			})
		}, func() {})
		w.after(second/w.swarm.floodPerS, next)
	}
	w.at(floodFromNs, next)
}

// floodClient is the number of the one who floods.
const floodClient = 9_000

// beside: L8, beside a flood others are answered soon, and never asked to come back.
func (w *World) beside(what string, sinceNs int64, err error) {
	if !w.swarm.floodAlone || sinceNs < floodFromNs+settlesNs {
		return
	}
	if too := (errTooMuch{}); errors.As(err, &too) {
		w.fail("L8: %s is asked to come back beside a flood: %v", what, too.Refusal)
	}
	if took := w.now - sinceNs; took > besideFloodNs {
		w.fail("L8: %s takes %d ms beside a flood", what, took/millisecond)
	}
	w.mark("answered beside a flood")
}

// lanes: S27, in an entry what the masters do by themselves, borglets' reports among
// it, stands before what others ask for; and of the crashes of one job there is no more
// than its budget.
func (t *truth) lanes(e borgmaster.CommittedEntry, ops []*borgpb.Op) {
	behind := false
	for _, op := range ops {
		role := op.GetPrincipal().GetRole()
		own := role == borgpb.Role_ROLE_MASTER
		if own && behind {
			t.w.fail("S27: in entry %d an op of the masters stands behind one of others", e.Index)
		}
		behind = behind || role == borgpb.Role_ROLE_USER || role == borgpb.Role_ROLE_TASK || role == borgpb.Role_ROLE_SCHEDULER
		for _, m := range op.GetReports().GetMachines() {
			for _, task := range m.Tasks {
				t.crashed(task)
			}
		}
	}
}

// crashed counts a report of a crash.
func (t *truth) crashed(r *borgpb.TaskReport) {
	state := borgpb.AttemptState(r.State)
	if state != borgpb.AttemptState_ATTEMPT_STATE_BACKOFF && state != borgpb.AttemptState_ATTEMPT_STATE_FAILED {
		return
	}
	lately := append(t.crashes[r.JobUid], t.w.now)
	for t.w.now-lately[0] > stormNs {
		lately = lately[1:]
	}
	if t.crashes[r.JobUid] = lately; len(lately) > mostOfAStorm && (t.w.swarm.floodAlone || len(lately) > 4*mostOfAStorm) {
		t.w.fail("S27: %d crashes of tasks of job %s are logged within %d s", len(lately), r.JobUid, stormNs/second)
	}
	if len(lately) > 50 {
		t.w.mark("crash storm")
	}
}

// storm is a job of which every task crashes again and again, until it may no more.
func (c *client) storm() *borgpb.Op {
	return c.submit("storm", &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: uint32(c.w.swarm.stormTasks), Priority: 110, MaxFailures: 8,
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 5, MemBytes: 1 << 20, DiskBytes: 1 << 10}, Args: []string{"/bin/task", "20", "1"}, GraceNs: 200 * millisecond},
	})
}
