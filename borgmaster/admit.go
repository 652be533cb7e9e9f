package borgmaster

import (
	"context"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// Streams of answers that last as long as their caller likes, at one replica: of one
// user and his tasks, and of all users.
const (
	maxStreamsOfUser = 64
	maxStreams       = 1_000
	// Users for whom a replica sets a secret at a time.
	maxSealing = 1_000
)

// admitter is the shell of the admission core: it gives it the time, and wakes those
// who waited for a place in the log.
type admitter struct {
	nowNs func() int64

	mu sync.Mutex
	// Guarded by mu. Who waits hears once: nil, or why he is turned away.
	core *admission.Core[chan error]
	// Of reads that look at much. Guarded by mu; who waits hears when it is his turn.
	turns *line
	// Of walks, which wait here for the time when walks may work again; guarded by mu.
	walking *line
	// How many of these have a turn at a time, and what walks owe to the log; guarded by mu.
	places int
	way    way
	// Of reads that hold much meanwhile, by kind. Guarded by mu.
	long [longKinds]*line
	// Secrets that are being set, one of a user at a time. Guarded by mu.
	sealing *line
	// Fires at firesNs, when somebody will have waited too long or may have a turn; guarded
	// by mu.
	timer   *time.Timer
	firesNs int64
}

func newAdmitter(cfg admission.Config, nowNs func() int64) *admitter {
	// Half of the processors are left to what others wait for.
	atOnce := max(runtime.GOMAXPROCS(0)/2, 1)
	cfg.ReadPlaces = int64(atOnce)
	a := &admitter{nowNs: nowNs, places: atOnce, core: admission.New[chan error](cfg), turns: newLine(cfg.Replica, atOnce, atOnce), walking: newLine(cfg.Replica, atOnce, atOnce), sealing: newLine(cfg.Replica, maxSealing, 1)}
	for i := range a.long {
		a.long[i] = newLine(cfg.Replica, maxLongReads, maxLongReadsOfUser)
	}
	return a
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

// validateMethod takes as much work as changes do that are refused.
const validateMethod = "/borgrpc.MasterService/Validate"

// mutationsMethod is a stream: it is opened as one, and each of its changes is charged as a change.
const mutationsMethod = "/borgrpc.MasterService/Mutations"

// admitCall is asked for each call by its head alone: whoever asks too often costs no
// more than that.
func (m *Master) admitCall(method string, caller identity.Name) error {
	if caller.Role != identity.User && caller.Role != identity.Task || calls[method] == hasBounds {
		return nil
	}
	a := m.admit
	a.mu.Lock()
	var r *admission.Refusal
	if calls[method] == isChange {
		r = a.core.Closed(a.nowNs(), caller.User())
	} else {
		r = a.core.Read(a.nowNs(), caller.User(), calls[method].cost())
		if r == nil && method == validateMethod {
			r = a.core.Away(a.nowNs(), caller.User())
		}
	}
	if r == nil && (calls[method].opens() || method == mutationsMethod) {
		r = a.core.Open(a.nowNs(), caller.User())
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
		return nil, door.FullHere("user %q follows %d logs or events at replica %d, or all users together %d; end one, or ask another replica",
			caller.User(), maxStreamsOfUser, m.cfg.Replica, maxStreams)
	}
	return leave, nil
}
