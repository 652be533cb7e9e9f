package borgmaster

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/borgmaster/watch"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Watches at one replica, of one user and his tasks, and of all: each holds what
	// watch.Config lets wait for it, and a message that its reader does not take.
	maxWatchesOfUser = 256
	maxWatches       = 1_000
	// How often a watch is told that nothing has changed, if the log went on.
	bookmarkEvery = time.Second
)

// watches is the Hub with its lock. It is held shortly: the log waits for it.
type watches struct {
	mu sync.Mutex
	// Guarded by mu.
	hub *watch.Hub
}

func newWatches(cfg watch.Config) watches { return watches{hub: watch.New(cfg)} }

func (w *watches) restart(c *cell.Cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hub.Reset(c)
}

func (w *watches) applied(c *cell.Cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hub.Applied(c)
}

func (w *watches) begin(log Log, q watch.Query, from *watch.From, wake func()) (one *watch.Watch, err error) {
	log.View(func(c *cell.Cell) {
		q.Look(c)
		w.mu.Lock()
		defer w.mu.Unlock()
		one, err = w.hub.Watch(q, from, wake)
	})
	return one, err
}

func (w *watches) end(one *watch.Watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hub.Leave(one)
}

func (w *watches) next(one *watch.Watch) (*watch.Message, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return one.Next()
}

// lists reports whether a watch must look among much for what is next.
func (w *watches) lists(one *watch.Watch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return one.Lists()
}

func (w *watches) bookmark(one *watch.Watch) *watch.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return one.Bookmark()
}

// watchAPI serves WatchService on every replica, from what it has applied.
type watchAPI struct {
	borgrpc.UnimplementedWatchServiceServer
	m *Master
}

// maxWatchedName bounds the user and the name that a watch asks for; it keeps both.
const maxWatchedName = 256

// watchQuery reads what is asked for. It refuses a task what is not its user's. A user may
// ask for everything; in a private cell Query.Sight leaves out what the user may not see.
func watchQuery(caller identity.Name, req *borgrpc.WatchRequest) (watch.Query, error) {
	q := watch.Query{Kind: req.GetKind(), User: req.GetUser(), Name: req.GetName()}
	switch q.Kind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		if q.Name != "" && q.User == "" {
			return q, status.Errorf(codes.InvalidArgument, "watch %q: the user is missing", q.Name)
		}
	case borgpb.ObjectKind_OBJECT_KIND_MACHINE:
		if q.User != "" {
			return q, status.Errorf(codes.InvalidArgument, "watch machines of user %q: machines belong to nobody; leave the user out", q.User)
		}
	default:
		return q, status.Errorf(codes.InvalidArgument, "watch objects of the kind %v: jobs, tasks, alloc sets, allocs and machines can be watched", q.Kind)
	}
	if caller.Role == identity.Task {
		q.User = cmp.Or(q.User, caller.User())
		if q.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE || q.User != caller.User() {
			return q, status.Errorf(codes.PermissionDenied, "you are %s: a task may watch jobs, tasks, alloc sets and allocs of its own user and nothing else", caller.Words())
		}
	}
	if n := max(len(q.User), len(q.Name)); n > maxWatchedName {
		return q, status.Errorf(codes.InvalidArgument, "the user or the name has %d bytes; at most %d are allowed", n, maxWatchedName)
	}
	var err error
	if q.Selector, err = selector.Parse(req.GetSelector()); err != nil {
		return q, status.Error(codes.InvalidArgument, err.Error())
	}
	return q, nil
}

func (a *watchAPI) Watch(req *borgrpc.WatchRequest, stream borgrpc.WatchService_WatchServer) error {
	m, ctx := a.m, stream.Context()
	query, err := watchQuery(door.Caller(ctx), req)
	if err != nil {
		return err
	}
	query.Sight = func(c *cell.Cell) cell.Sight { return m.gate.Sight(c, door.Caller(ctx)) }
	leave, ok := m.watchers.enter(door.Caller(ctx).User(), maxWatchesOfUser, maxWatches)
	if !ok {
		return door.FullHere("user %q has %d watches at replica %d, or all users together %d; end one, or ask another replica",
			door.Caller(ctx).User(), maxWatchesOfUser, m.cfg.Replica, maxWatches)
	}
	defer leave()
	// What was told elsewhere, and what was acknowledged, is known here then.
	if err := m.readIndex(ctx); err != nil {
		return err
	}
	var from *watch.From
	if req.GetFromIndex() != 0 {
		from = &watch.From{Index: req.GetFromIndex(), Epoch: req.GetEpoch()}
	}
	woken := make(chan struct{}, 1)
	w, err := m.watches.begin(m.cfg.Log, query, from, func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return watchError(err)
	}
	defer m.watches.end(w)
	return m.serveWatch(w, woken, stream)
}

// serveWatch sends what the watch yields until it ends.
func (m *Master) serveWatch(w *watch.Watch, woken <-chan struct{}, stream borgrpc.WatchService_WatchServer) error {
	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	walk := m.walks(stream.Context())
	defer walk.rest()
	for {
		if m.watches.lists(w) {
			if err := walk.step(); err != nil {
				return err
			}
		}
		next, again, err := m.watches.next(w)
		if next != nil || !again {
			walk.rest()
		}
		if err != nil {
			return watchError(err)
		}
		if next == nil && !again {
			select {
			case <-woken:
				continue
			case <-quiet.C:
				next = m.watches.bookmark(w)
			case <-m.stopping:
				return errStopping
			case <-stream.Context().Done():
				return status.FromContextError(stream.Context().Err()).Err()
			}
		}
		if next == nil {
			continue
		}
		// Meanwhile he may have been revoked.
		if err := m.believes(stream.Context()); err != nil {
			return err
		}
		for part := range next.Parts() {
			if err := stream.Send(part); err != nil {
				return err
			}
			// A client that does not read holds what was sent, and nothing is built for it.
			if err := m.written(stream.Context()); err != nil {
				return err
			}
		}
	}
}

// written waits until the client has taken what its stream was sent.
func (m *Master) written(ctx context.Context) error {
	select {
	case <-door.Written(ctx):
		return nil
	case <-m.stopping:
		return errStopping
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// watchError puts the end of a watch into codes: Aborted may be gone on from, with
// OutOfRange the state is to be asked for again.
func watchError(err error) error {
	var relist *watch.RelistError
	var ahead *watch.AheadError
	var cut *watch.CutOffError
	switch {
	case errors.As(err, &relist):
		return status.Error(codes.OutOfRange, relist.Error())
	case errors.As(err, &ahead):
		return status.Error(codes.OutOfRange, ahead.Error()+"; no replica has told it. Watch from index 0, which sends the state first")
	case errors.As(err, &cut):
		return status.Error(codes.Aborted, cut.Error())
	}
	return err
}
