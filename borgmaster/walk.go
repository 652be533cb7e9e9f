package borgmaster

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

const (
	// A walk has the turn for so long at a time.
	walkSliceNs = 1e6
	// While the log goes on, walks together rest giveWayPart times as long as they work: what others
	// change needs a processor of each replica several times. It goes on if an entry was applied within the last logBusyNs.
	giveWayPart = 4
	logBusyNs   = 200e6
	// A piece of a walk counts for no more than this: what takes longer has waited for a processor
	// or a disk.
	mostWalkNs = 10 * walkSliceNs
	// Reads of one kind that a replica has begun, each of which holds a message or more, and
	// files that it reads; and those of one user and the user's tasks. Others wait.
	maxLongReads       = 4
	maxLongReadsOfUser = 2
	// Time for which the client of such a read may keep it waiting while others wait for a place.
	maxUnreadNs = 30e9
)

// longKind is a kind of reads of which a replica has few at a time. What a replica asks for in
// a user's name is of another kind than what the user asks for: the first does not wait for
// other replicas, so that two of them do not wait for each other.
type longKind int

const (
	ofHistories longKind = iota
	ofLocalHistories
	ofAudits
	ofLocalAudits
	longKinds
)

// line is a queue of calls. Closing the channel of a waiting call gives it its turn.
type line = admission.Turns[chan struct{}]

func newLine(replica uint64, places, share int) *line {
	return admission.NewTurns[chan struct{}](replica, places, share)
}

// turn waits until a read that looks at much may do so. One that is patient waits as long as
// its caller does.
func (a *admitter) turn(ctx context.Context, user string, patient bool) (leave func(), err error) {
	if err := a.restReads(ctx, user, patient); err != nil {
		return nil, err
	}
	out, err := a.enter(ctx, a.turns, user, patient)
	if err != nil {
		return nil, err
	}
	since := a.nowNs()
	return func() {
		a.mu.Lock()
		now := a.nowNs()
		a.core.HasRead(now, user, now-since)
		a.mu.Unlock()
		out()
	}, nil
}

// way is what walks owe to the log for the time that they have worked.
type way struct {
	// Index that was applied when it was last looked at, and when it was seen to move.
	applied uint64
	movedNs int64
	// No walk works before.
	againNs int64
}

// walkPlace waits until a walk may work on: until its user's budget has something left, then until
// walks have rested enough for the log, and last for the turn of a read, which others have meanwhile.
func (a *admitter) walkPlace(ctx context.Context, user string) (leave func(), err error) {
	if err := a.restReads(ctx, user, true); err != nil {
		return nil, err
	}
	out, err := a.enter(ctx, a.walking, user, true)
	if err != nil {
		return nil, err
	}
	if err := a.giveWay(ctx); err != nil {
		out()
		return nil, err
	}
	done, err := a.enter(ctx, a.turns, user, true)
	if err != nil {
		out()
		return nil, err
	}
	return func() { done(); out() }, nil
}

// walked counts the work of a walk, after which so much of the log was applied.
func (a *admitter) walked(user string, sinceNs int64, applied uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.nowNs()
	a.core.HasRead(now, user, now-sinceNs)
	if applied != a.way.applied {
		a.way.applied, a.way.movedNs = applied, now
	}
	if now-a.way.movedNs < logBusyNs {
		a.way.againNs = max(a.way.againNs, now) + giveWayPart*min(now-sinceNs, mostWalkNs)/int64(a.places)
	}
}

// giveWay waits until walks have rested enough. Those who wait for that are in the line of walks, and
// each goes on when the one before it has.
func (a *admitter) giveWay(ctx context.Context) error {
	a.mu.Lock()
	wait := a.way.againNs - a.nowNs()
	a.mu.Unlock()
	return sleep(ctx, wait)
}

// sleep waits for so long, or until ctx ends.
func sleep(ctx context.Context, ns int64) error {
	if ns <= 0 {
		return nil
	}
	over := time.NewTimer(time.Duration(ns))
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// restReads waits until a user's budget of reading has something left.
func (a *admitter) restReads(ctx context.Context, user string, patient bool) error {
	a.mu.Lock()
	wait := a.core.ReadsIn(a.nowNs(), user)
	var r *admission.Refusal
	if wait > admission.ReadWaitNs && !patient {
		r = a.core.ReadsTooMuch(user, wait)
	}
	a.mu.Unlock()
	if r != nil {
		return tooMuch(r)
	}
	return sleep(ctx, wait)
}

// enter waits for a place in a line.
func (a *admitter) enter(ctx context.Context, l *line, user string, patient bool) (leave func(), err error) {
	has := make(chan struct{})
	a.mu.Lock()
	t, r := l.Enter(user, has)
	atOnce := r == nil && t.Placed()
	a.mu.Unlock()
	if r != nil {
		return nil, tooMuch(r)
	}
	leave = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if next := l.Leave(t); next != nil {
			close(next.Who)
		}
	}
	if atOnce {
		return leave, nil
	}
	var late <-chan time.Time
	if !patient {
		timer := time.NewTimer(admission.ReadWaitNs)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-has:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-late:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.Placed() {
		return leave, nil
	}
	return nil, tooMuch(l.Late(t))
}

// viewMuch is View for a read that looks at much, in its turn.
func (m *Master) viewMuch(ctx context.Context, f func(c *cell.Cell) error) error {
	leave, err := m.readTurn(ctx)
	if err != nil {
		return err
	}
	defer leave()
	m.cfg.Log.View(func(c *cell.Cell) { err = f(c) })
	return err
}

// viewPage is View for a page of a list, as often as it takes. To encode a page takes longer
// than to look at what is on it, so the last turn lasts until that is done.
func (m *Master) viewPage(ctx context.Context, p *page, f func(c *cell.Cell) error) error {
	for p.more {
		leave, err := m.readTurn(ctx)
		if err != nil {
			return err
		}
		m.cfg.Log.View(func(c *cell.Cell) { err = f(c) })
		if p.more || err != nil || !door.AtEnd(ctx, leave) {
			leave()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readTurn waits for the turn of a read. Programs of the cell have theirs at once.
func (m *Master) readTurn(ctx context.Context) (leave func(), err error) {
	if !admitted(ctx) {
		return func() {}, nil
	}
	return m.admit.turn(ctx, door.Caller(ctx).User(), false)
}

// decodeTurn waits for the turn of a read, for a large message of a caller that is to be decoded.
func (m *Master) decodeTurn(ctx context.Context, caller identity.Name) (leave func(), err error) {
	if caller.Role != identity.User && caller.Role != identity.Task {
		return func() {}, nil
	}
	return m.admit.turn(ctx, caller.User(), false)
}

// largeOp is how large an op may be that is read without a turn before it is charged.
const largeOp = 4 << 10

// opTurn waits for the turn of a read if it takes long to read an op.
func (m *Master) opTurn(ctx context.Context, op *borgpb.Op) (leave func(), err error) {
	if proto.Size(op) <= largeOp {
		return func() {}, nil
	}
	return m.readTurn(ctx)
}

// encodeTurn waits for the turn of a read, which lasts until the answer is encoded.
func (m *Master) encodeTurn(ctx context.Context) error {
	leave, err := m.readTurn(ctx)
	if err == nil && !door.AtEnd(ctx, leave) {
		leave()
	}
	return err
}

// longRead is a read that has one of the places of its kind.
type longRead struct {
	a     *admitter
	kind  longKind
	user  string
	leave func()
	// Time for which its client has kept it waiting.
	unreadNs int64
}

// longRead waits for one of the places of a kind of reads.
func (m *Master) longRead(ctx context.Context, kind longKind) (*longRead, error) {
	return m.admit.longRead(ctx, kind, door.Caller(ctx).User())
}

func (a *admitter) longRead(ctx context.Context, kind longKind, user string) (*longRead, error) {
	leave, err := a.enter(ctx, a.long[kind], user, true)
	if err != nil {
		return nil, err
	}
	return &longRead{a: a, kind: kind, user: user, leave: leave}, nil
}

// sent calls send, which waits until the client takes a message. A client that has kept the read
// waiting for too long loses its place when others want one: the read is over. One that another
// replica asks for ends with the read there.
func (r *longRead) sent(send func() error) error {
	began := r.a.nowNs()
	err := send()
	r.unreadNs += r.a.nowNs() - began
	if err != nil || r.kind == ofLocalHistories || r.kind == ofLocalAudits || r.unreadNs <= maxUnreadNs || r.a.longReads(r.kind).Waiting == 0 {
		return err
	}
	return door.TooMuch(fmt.Sprintf("user %q took the answer so slowly that the read waited for %d s, and others wait for its place; ask for a shorter time",
		r.user, r.unreadNs/1e9), time.Second)
}

// walk is a read that looks at much, piece by piece. It has a turn for a few milliseconds at a
// time, and none while it waits for anything else, such as a client that is to take an answer.
// It ends when its caller does. One goroutine uses it at a time.
type walk struct {
	m     *Master
	ctx   context.Context
	user  string
	leave func()
	// When the turn began.
	sinceNs int64
}

// walks begins a walk, which must end with rest.
func (m *Master) walks(ctx context.Context) *walk {
	w := &walk{m: m, ctx: ctx}
	if admitted(ctx) {
		w.user = door.Caller(ctx).User()
	}
	return w
}

// step is to be called before each piece of the work. It waits for a turn unless the walk has
// one; with an error the walk is over.
func (w *walk) step() error {
	if err := w.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if w.user == "" || w.leave != nil && w.m.admit.nowNs()-w.sinceNs < walkSliceNs {
		return nil
	}
	w.rest()
	leave, err := w.m.admit.walkPlace(w.ctx, w.user)
	if err != nil {
		return err
	}
	w.leave, w.sinceNs = leave, w.m.admit.nowNs()
	return nil
}

// rest gives the turn back, until the next step.
func (w *walk) rest() {
	if w.leave != nil {
		w.m.admit.walked(w.user, w.sinceNs, w.m.cfg.Log.State().Applied)
		w.leave()
		w.leave = nil
	}
}

// longReads returns how it stands with reads of a kind.
func (a *admitter) longReads(kind longKind) admission.TurnStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.long[kind].Stats()
}
