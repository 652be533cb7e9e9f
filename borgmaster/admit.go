package borgmaster

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// Streams of answers that last as long as their caller likes, at one replica: of one
// user and his tasks, and of all users.
const (
	maxStreamsOfUser = 64
	maxStreams       = 1_000
)

// admitter is the shell of the admission core: it gives it the time, and wakes those
// who waited for a place in the log.
type admitter struct {
	nowNs func() int64

	mu sync.Mutex
	// Guarded by mu. Who waits hears once: nil, or why he is turned away.
	core *admission.Core[chan error]
	// Of reads that look at much. Guarded by mu; who waits hears when it is his turn.
	turns *admission.Turns[chan struct{}]
	// Fires at firesNs, when somebody will have waited too long or may have a turn; guarded
	// by mu.
	timer   *time.Timer
	firesNs int64
}

func newAdmitter(cfg admission.Config, nowNs func() int64) *admitter {
	// Half of the processors are left to what others wait for.
	atOnce := max(runtime.GOMAXPROCS(0)/2, 1)
	return &admitter{nowNs: nowNs, core: admission.New[chan error](cfg), turns: admission.NewTurns[chan struct{}](cfg.Replica, atOnce)}
}

// write does a change if it is admitted at this replica, and tells the core whether the elected
// master took it.
func (a *admitter) write(user string, bytes int, do func() (*borgpb.Result, error)) (*borgpb.Result, error) {
	a.mu.Lock()
	refused := a.core.Begin(a.nowNs(), user, bytes)
	a.mu.Unlock()
	if refused != nil {
		return nil, tooMuch(refused)
	}
	result, err := do()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.End(user, status.Code(err) != codes.ResourceExhausted)
	return result, err
}

// place waits for a place in the log of this replica, which is the elected one.
func (a *admitter) place(ctx context.Context, user string, bytes int) (leave func(done bool), err error) {
	turn := make(chan error, 1)
	a.mu.Lock()
	p, r := a.core.Enter(a.nowNs(), user, bytes, turn)
	placed := p != nil && p.Placed()
	a.step()
	a.mu.Unlock()
	if r != nil {
		return nil, tooMuch(r)
	}
	leave = func(done bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.core.Leave(a.nowNs(), p, done)
		a.step()
	}
	if placed {
		return leave, nil
	}
	select {
	case err := <-turn:
		return leave, err
	case <-ctx.Done():
		leave(false)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// step does what the core has decided. The caller holds mu.
func (a *admitter) step() {
	granted, late := a.core.Step(a.nowNs())
	for _, p := range granted {
		p.Who <- nil
	}
	for _, l := range late {
		l.Place.Who <- tooMuch(l.Refusal)
	}
	ns, ok := a.core.NextNs(a.nowNs())
	if !ok || a.timer != nil && a.firesNs <= ns {
		return
	}
	if a.timer != nil && !a.timer.Stop() {
		// It fires, and waits for mu.
		return
	}
	a.firesNs = ns
	a.timer = time.AfterFunc(time.Duration(ns-a.nowNs()), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.timer = nil
		a.step()
	})
}

// turn waits until a read that looks at much may do so.
func (a *admitter) turn(ctx context.Context, user string) (leave func(), err error) {
	has := make(chan struct{})
	a.mu.Lock()
	t, r := a.turns.Enter(user, has)
	atOnce := r == nil && t.Placed()
	a.mu.Unlock()
	if r != nil {
		return nil, tooMuch(r)
	}
	leave = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if next := a.turns.Leave(t); next != nil {
			close(next.Who)
		}
	}
	if atOnce {
		return leave, nil
	}
	late := time.NewTimer(admission.ReadWaitNs)
	defer late.Stop()
	select {
	case <-has:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-late.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.Placed() {
		return leave, nil
	}
	return nil, tooMuch(a.turns.Late(t))
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
	caller := door.Caller(ctx)
	if caller.Role != identity.User && caller.Role != identity.Task {
		return func() {}, nil
	}
	return m.admit.turn(ctx, caller.User())
}

// refusedElsewhere notes that the elected master has no room for a user, or none for much
// work: that is no reason to turn away his small changes.
func (a *admitter) refusedElsewhere(user string, err error, hasWork bool) {
	retry := door.RetryAfter(err)
	if retry <= 0 {
		return
	}
	r := admission.Elsewhere(user, status.Convert(err).Message(), int64(retry))
	a.mu.Lock()
	defer a.mu.Unlock()
	if hasWork {
		a.core.RefusedWork(a.nowNs(), user, r)
	} else {
		a.core.Close(a.nowNs(), user, r)
	}
}

func (a *admitter) stats() (admission.Stats, admission.TurnStats) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Stats(), a.turns.Stats()
}

// close stops the timer.
func (a *admitter) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}

func tooMuch(r *admission.Refusal) error { return door.TooMuch(r.Error(), time.Duration(r.RetryNs)) }

// changes are the calls that make an op of the log.
var changes = map[string]bool{
	"/borgrpc.MasterService/Mutate": true, "/borgrpc.MasterService/Mutations": true, "/borgrpc.MasterService/AddMachine": true,
	"/borgrpc.IdentityService/Invite": true, "/borgrpc.SecretService/SetSecret": true,
}

// validateMethod takes as much work as changes do that are refused.
const validateMethod = "/borgrpc.MasterService/Validate"

// notReads are calls of users that have bounds of their own, or that nobody makes often.
var notReads = map[string]bool{
	"/borgrpc.IdentityService/Renew": true, "/borgrpc.IdentityService/CertifyMaster": true,
}

// many are reads that look at more than one object, or go on to other programs.
var many = []string{"List", "Why", "SafeToDrain", "Events", "Logs", "Audit", "WatchFiles", "Resolve", "SaveCheckpoint", "Validate", "Examine"}

func readCost(method string) int64 {
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, prefix := range many {
		if strings.HasPrefix(name, prefix) {
			return admission.ListCost
		}
	}
	return 1
}

// admitCall is asked for each call by its head alone: whoever asks too often costs no
// more than that.
func (m *Master) admitCall(method string, caller identity.Name) error {
	if caller.Role != identity.User && caller.Role != identity.Task || notReads[method] {
		return nil
	}
	a := m.admit
	a.mu.Lock()
	var r *admission.Refusal
	if changes[method] {
		r = a.core.Closed(a.nowNs(), caller.User())
	} else {
		r = a.core.Read(a.nowNs(), caller.User(), readCost(method))
		if r == nil && method == validateMethod {
			r = a.core.Away(a.nowNs(), caller.User())
		}
	}
	a.mu.Unlock()
	if r != nil {
		return tooMuch(r)
	}
	return nil
}

// enterStream takes one of the places for long streams.
func (m *Master) enterStream(caller identity.Name) (leave func(), err error) {
	leave, ok := m.streams.enter(caller.User(), maxStreamsOfUser, maxStreams)
	if !ok {
		return nil, status.Errorf(codes.ResourceExhausted, "user %q follows %d logs or events at replica %d, or all users together %d; end one, or ask another replica",
			caller.User(), maxStreamsOfUser, m.cfg.Replica, maxStreams)
	}
	return leave, nil
}
