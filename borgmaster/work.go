package borgmaster

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// checkedWork is the work above which the elected master checks an op before it puts it into the
// log. An op that is refused in the log costs every replica its work, and again at each replay.
const checkedWork = 1_000

// propose puts an op into the log of the elected master, if its caller may ask for it.
func (m *Master) propose(ctx context.Context, asked *borgpb.Op) (*borgpb.Result, error) {
	var op *borgpb.Op
	var r *borgpb.Refusal
	var work int
	leave, err := m.opTurn(ctx, asked)
	if err != nil {
		return nil, err
	}
	m.cfg.Log.View(func(c *cell.Cell) {
		if err = m.stillBelieves(ctx, c); err != nil {
			return
		}
		if err = m.tooEarly(ctx, c, asked); err != nil {
			return
		}
		if op, r = m.gate.Admit(c, door.Caller(ctx), asked, time.Now().UnixNano()); r == nil {
			work = c.Work(op)
		}
	})
	leave()
	if err != nil {
		return nil, err
	}
	if r != nil {
		return m.refused(ctx, asked, r), nil
	}
	return m.charged(ctx, op, work, func() (*borgpb.Result, bool, error) { return m.checkAndPlace(ctx, asked, op, work) })
}

// tooEarly is the error for an op that this cell refuses and may accept in a moment, when it is
// raised to a later format: callers try again. It is asked of the elected master.
func (m *Master) tooEarly(ctx context.Context, c *cell.Cell, asked *borgpb.Op) error {
	if !m.rises(c) || m.gate.try(c, new(cell.Trial), door.Caller(ctx), asked) == nil {
		return nil
	}
	return aboutToRaise(c.Format())
}

// rises reports whether the elected master is about to raise the cell to a later format.
func (m *Master) rises(c *cell.Cell) bool {
	return c.Format() < c.BuildFormat() && m.duty.raises(c.Format())
}

func aboutToRaise(format uint32) error {
	return status.Errorf(codes.Unavailable, "the cell is of format %d and is about to be raised to a later one; try again", format)
}

// charged has do put an op into the log. It takes the work and the bytes of the op from the budgets
// of the caller's user first, and gives back what was not used. do reports whether the op may be
// in the log.
func (m *Master) charged(ctx context.Context, op *borgpb.Op, work int, do func() (result *borgpb.Result, logged bool, err error)) (*borgpb.Result, error) {
	bytes := proto.Size(op)
	if err := m.charge(ctx, bytes, work); err != nil {
		return nil, err
	}
	result, logged, err := do()
	switch {
	case !logged && err != nil:
		m.giveBack(ctx, bytes, work)
	case !logged:
		// This replica alone did the work, and refused the op.
		m.giveBack(ctx, bytes, 0)
	case result.GetRepeated():
		// The log has the bytes twice, but the cell did the work for the first try only. When that was
		// done, this one cost no more than what a repeated op costs.
		var reading int
		m.cfg.Log.View(func(c *cell.Cell) { reading = c.Work(op) })
		m.giveBack(ctx, 0, work-reading)
	}
	return result, err
}

// write puts an op of the master's own making, for what a caller asked, into the log, within the
// budgets of the caller's user as if the caller had sent it.
func (m *Master) write(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	var work int
	m.cfg.Log.View(func(c *cell.Cell) { work = c.Work(op) })
	return m.charged(ctx, op, work, func() (*borgpb.Result, bool, error) { return m.place(ctx, op) })
}

// checkAndPlace proposes an op, unless it takes much work and would be refused. It reports whether
// the op may be in the log.
func (m *Master) checkAndPlace(ctx context.Context, asked, op *borgpb.Op, work int) (result *borgpb.Result, logged bool, err error) {
	if work <= checkedWork {
		return m.place(ctx, op)
	}
	// A refusal must be the latest word, as one in the log is.
	if err := m.readIndex(ctx); err != nil {
		return nil, false, err
	}
	var r *borgpb.Refusal
	err = m.viewMuch(ctx, func(c *cell.Cell) error {
		r = new(cell.Trial).Check(c, op)
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	// The cell's clock stands between entries; where the next one is applied it goes.
	if r != nil && r.Field != "request_wall_ns" {
		return m.refused(ctx, asked, r), false, nil
	}
	return m.place(ctx, op)
}

func (m *Master) refused(ctx context.Context, asked *borgpb.Op, r *borgpb.Refusal) *borgpb.Result {
	m.noteRefusal(ctx, asked, r)
	return &borgpb.Result{Refusal: r}
}

// chargeWork takes work from the budget of the caller's user at this replica. Programs of the
// cell have no budget.
func (m *Master) chargeWork(ctx context.Context, work int) error { return m.charge(ctx, 0, work) }

// charge takes the work and the bytes of an op that is to go into the log from the budgets of the
// caller's user.
func (m *Master) charge(ctx context.Context, bytes, work int) error {
	if !admitted(ctx) {
		return nil
	}
	a, user := m.admit, door.Caller(ctx).User()
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.core.Work(a.nowNs(), user, work)
	if r == nil {
		if r = a.core.LogBytes(a.nowNs(), user, bytes); r != nil {
			a.core.NotWorked(user, work)
		}
	}
	if r != nil {
		return tooMuch(r)
	}
	return nil
}

// giveBack returns to the budgets what charge took of them.
func (m *Master) giveBack(ctx context.Context, bytes, work int) {
	if !admitted(ctx) {
		return
	}
	a, user := m.admit, door.Caller(ctx).User()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.NotWorked(user, work)
	a.core.NotLogged(user, bytes)
}

// hasWork reports whether an op counts in the budgets of work and of bytes.
func (m *Master) hasWork(asked *borgpb.Op) bool {
	work := 0
	m.cfg.Log.View(func(c *cell.Cell) { work = c.Work(asked) })
	return work > admission.FreeWork || proto.Size(asked) > admission.FreeLogBytes
}
